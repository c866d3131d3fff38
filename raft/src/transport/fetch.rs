//! Asking the other members for the bytes of a value.

use super::connection::connect;
use super::identity::PeerIdentity;
use super::peer::addresses;
use crate::core::ids::{MemberAddress, NodeId};
use crate::core::metrics::LateMetrics;
use crate::core::types::TypeConfig;
use crate::core::{proto, runtime};
use crate::storage::repair::PeerValues;
use bytes::Bytes;
use cairn_engine::Extent;
use futures::future::BoxFuture;
use openraft::RaftMetrics;
use std::collections::BTreeMap;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_128;

/// The longest that one member may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The other members, of whom the bytes of a value can be asked.
pub(crate) struct Peers {
    pub(crate) identity: PeerIdentity,
    /// Where the configuration says that each slot's member is.
    pub(crate) configured: BTreeMap<u16, MemberAddress>,
    /// Who the others are; nobody until openraft runs.
    pub(crate) metrics: LateMetrics,
}

impl PeerValues for Peers {
    fn fetch<'a>(&'a self, extent: &'a Extent, key: &'a [u8]) -> BoxFuture<'a, Option<(Bytes, NodeId)>> {
        Box::pin(async move {
            let peers = self.metrics.look(|seen| others(seen, &self.configured)).unwrap_or_default();
            for (peer, address) in peers {
                match fetch_value(&self.identity, peer, &address, extent, key).await {
                    Ok(Some(bytes)) => return Some((bytes, peer)),
                    Ok(None) => {}
                    Err(reason) => {
                        tracing::debug!(node = %self.identity.id(), %peer, reason, "a member cannot be asked for a value");
                    }
                }
            }
            None
        })
    }
}

/// The other members of the membership that is in force, with where each can be.
fn others(
    metrics: &RaftMetrics<TypeConfig>,
    configured: &BTreeMap<u16, MemberAddress>,
) -> Vec<(NodeId, String)> {
    let nodes = metrics.membership_config.nodes().filter(|(id, _)| **id != metrics.id);
    let places = |(id, logged): (&NodeId, &MemberAddress)| {
        let id = *id;
        let addresses = addresses(configured, id, logged).into_iter().map(str::to_owned);
        addresses.map(move |address| (id, address)).collect::<Vec<_>>()
    };
    nodes.flat_map(places).collect()
}

/// Asks `peer`, expected at `address`, for the bytes of an extent; `key` is whose value it is, if a key's. `None` where it
/// has not got them.
async fn fetch_value(
    identity: &PeerIdentity,
    peer: NodeId,
    address: &str,
    extent: &Extent,
    key: &[u8],
) -> Result<Option<Bytes>, String> {
    let mut client = connect(address)?;
    let request = proto::FetchValueRequest {
        envelope: identity.to(peer),
        log_id: Some(proto::LogId { term: extent.log_id.term, index: extent.log_id.index }),
        hash: Bytes::copy_from_slice(&extent.at.hash.to_le_bytes()),
        length: extent.at.len,
        key: Bytes::copy_from_slice(key),
    };
    let answer = runtime::timeout(PATIENCE, client.fetch_value(request)).await.ok_or("no answer")?;
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
