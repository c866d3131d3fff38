//! Asking the other members for the bytes of a value.

use super::addresses::Addresses;
use super::connection::within;
use super::identity::PeerIdentity;
use super::wire::client::Client;
use super::wire::methods::FETCH_VALUE;
use crate::core::ids::NodeId;
use crate::core::proto;
use crate::storage::repair::PeerValues;
use bytes::Bytes;
use cairn_engine::Extent;
use futures::future::BoxFuture;
use xxhash_rust::xxh3::xxh3_128;

/// The other members, from which the bytes of a value can be fetched.
pub(crate) struct Peers {
    pub(crate) identity: PeerIdentity,
    /// Where they are reached; nowhere until openraft runs.
    pub(crate) addresses: Addresses,
}

impl PeerValues for Peers {
    fn fetch<'a>(
        &'a self,
        extent: &'a Extent,
        key: &'a [u8],
    ) -> BoxFuture<'a, Option<(Bytes, NodeId)>> {
        Box::pin(async move {
            for (peer, address) in self.addresses.others() {
                match fetch_value(&self.identity, peer, &address, extent, key).await {
                    Ok(Some(bytes)) => return Some((bytes, peer)),
                    Ok(None) => {}
                    Err(reason) => {
                        tracing::debug!(node = %self.identity.id(), %peer, reason, "cannot fetch a value from a member");
                    }
                }
            }
            None
        })
    }
}

/// Asks `peer`, expected at `address`, for the bytes of an extent; `key` is the key whose value it
/// is, or empty. `None` if the peer lacks them.
async fn fetch_value(
    identity: &PeerIdentity,
    peer: NodeId,
    address: &str,
    extent: &Extent,
    key: &[u8],
) -> Result<Option<Bytes>, String> {
    let request = proto::FetchValueRequest {
        envelope: identity.to(peer),
        log_id: Some(extent.log_id.into()),
        hash: Bytes::copy_from_slice(&extent.at.hash.to_le_bytes()),
        length: extent.at.len,
        key: Bytes::copy_from_slice(key),
    };
    let client = Client::new(identity.tls(), Some(peer.slot()), address)?;
    let answer = within(u64::from(extent.at.len), client.call(FETCH_VALUE, request)).await;
    let answer = answer.and_then(|answer| {
        identity.check_answer(&answer, peer)?;
        Ok(answer)
    });
    let answer = answer.map_err(|status| status.message().to_string())?;
    if !answer.found {
        return Ok(None);
    }
    match answer.value.len() == extent.at.len as usize && xxh3_128(&answer.value) == extent.at.hash
    {
        true => Ok(Some(answer.value)),
        false => Err("the answer is another value than was asked for".into()),
    }
}
