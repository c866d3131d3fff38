//! Before a directory whose identity is lost gets another one: is there a cluster that does without the old one?

use crate::ids::{MemberAddress, NodeId};
use crate::network::{self, PeerIdentity};
use crate::runtime;
use std::collections::BTreeMap;
use std::time::Duration;

/// Between two rounds of asking.
const PAUSE: Duration = Duration::from_secs(1);

/// Waits until a leader that a quorum follows says that it has not heard of the voter of `node`'s slot, and that `node` may
/// take its place. Returns that voter. Nothing is changed, here or there; what is in the way is logged whenever it changes.
pub async fn await_vacancy(cluster: &str, node: NodeId, members: &BTreeMap<u16, MemberAddress>) -> NodeId {
    let identity = PeerIdentity::unborn(cluster, node);
    let mut said = BTreeMap::new();
    loop {
        for (slot, address) in members.iter().filter(|(slot, _)| **slot != node.slot()) {
            let answer = network::hello(&identity, *slot, &address.peer).await;
            let reason = match answer.map(|answer| answer.vacant) {
                Ok(Some(vacant)) if vacant.slot() == node.slot() => return vacant,
                Ok(_) => "it does not lead a quorum, or hears of this slot's member still".to_owned(),
                Err(status) => status.message().to_owned(),
            };
            if said.insert(*slot, reason.clone()).as_ref() != Some(&reason) {
                tracing::info!(%node, member = slot, reason, "no other identity can be taken yet");
            }
        }
        runtime::sleep(PAUSE).await;
    }
}
