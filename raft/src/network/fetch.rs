//! Asking a member for the bytes of a value.

use super::connection::connect;
use super::identity::PeerIdentity;
use super::proto;
use crate::ids::NodeId;
use crate::runtime;
use bytes::Bytes;
use cairn_engine::Extent;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_128;

/// Asks `peer`, expected at `address`, for the bytes of an extent; `key` is whose value it is, if a key's. `None` where it
/// has not got them.
pub(crate) async fn fetch_value(
    identity: &PeerIdentity,
    peer: NodeId,
    address: &str,
    extent: &Extent,
    key: &[u8],
    within: Duration,
) -> Result<Option<Bytes>, String> {
    let mut client = connect(address)?;
    let request = proto::FetchValueRequest {
        envelope: identity.to(peer),
        log_id: Some(proto::LogId { term: extent.log_id.term, index: extent.log_id.index }),
        hash: Bytes::copy_from_slice(&extent.at.hash.to_le_bytes()),
        length: extent.at.len,
        key: Bytes::copy_from_slice(key),
    };
    let answer = runtime::timeout(within, client.fetch_value(request)).await.ok_or("no answer")?;
    let answer = answer.map_err(|status| status.message().to_string())?.into_inner();
    identity.check_answer(answer.envelope.as_ref(), peer).map_err(|status| status.message().to_string())?;
    if !answer.found {
        return Ok(None);
    }
    match answer.value.len() == extent.at.len as usize && xxh3_128(&answer.value) == extent.at.hash {
        true => Ok(Some(answer.value)),
        false => Err("the answer is another value than was asked for".into()),
    }
}
