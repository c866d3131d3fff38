//! Asking the other members for the bytes of a value.

use super::connection::connect;
use super::identity::PeerIdentity;
use super::peer::addresses;
use crate::core::ids::{MemberAddress, NodeId};
use crate::core::raft_metrics::LateMetrics;
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

/// The time limit for one member's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The other members, from which the bytes of a value can be fetched.
pub(crate) struct Peers {
    pub(crate) identity: PeerIdentity,
    /// The configured address of each slot's member.
    pub(crate) configured: BTreeMap<u16, MemberAddress>,
    /// openraft's metrics, which name the others; none until openraft runs.
    pub(crate) metrics: LateMetrics,
}

impl PeerValues for Peers {
    fn fetch<'a>(
        &'a self,
        extent: &'a Extent,
        key: &'a [u8],
    ) -> BoxFuture<'a, Option<(Bytes, NodeId)>> {
        Box::pin(async move {
            let peers = self
                .metrics
                .read_metrics(|seen| others(seen, &self.configured))
                .unwrap_or_default();
            for (peer, address) in peers {
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

/// The other members of the present membership, with the addresses of each.
fn others(
    metrics: &RaftMetrics<TypeConfig>,
    configured: &BTreeMap<u16, MemberAddress>,
) -> Vec<(NodeId, String)> {
    let nodes = metrics.membership_config.nodes().filter(|(id, _)| **id != metrics.id);
    let with_addresses = |(id, logged): (&NodeId, &MemberAddress)| {
        let id = *id;
        let addresses = addresses(configured, id, logged).into_iter().map(str::to_owned);
        addresses.map(move |address| (id, address)).collect::<Vec<_>>()
    };
    nodes.flat_map(with_addresses).collect()
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
    let mut client = connect(address)?;
    let request = proto::FetchValueRequest {
        envelope: identity.to(peer),
        log_id: Some(proto::LogId { term: extent.log_id.term, index: extent.log_id.index }),
        hash: Bytes::copy_from_slice(&extent.at.hash.to_le_bytes()),
        length: extent.at.len,
        key: Bytes::copy_from_slice(key),
    };
    let answer =
        runtime::timeout(ANSWER_TIMEOUT, client.fetch_value(request)).await.ok_or("no answer")?;
    let answer = answer.map_err(|status| status.message().to_string())?.into_inner();
    identity
        .check_answer(answer.envelope.as_ref(), peer)
        .map_err(|status| status.message().to_string())?;
    if !answer.found {
        return Ok(None);
    }
    match answer.value.len() == extent.at.len as usize && xxh3_128(&answer.value) == extent.at.hash
    {
        true => Ok(Some(answer.value)),
        false => Err("the answer is another value than was asked for".into()),
    }
}
