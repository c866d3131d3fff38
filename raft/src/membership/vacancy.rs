//! Before a directory whose identity is lost becomes an empty one: is there a cluster that does without it?

use crate::core::ids::{MemberAddress, NodeId};
use crate::core::runtime;
use crate::transport::{self, PeerIdentity};
use std::collections::BTreeMap;
use std::time::Duration;

/// Between two rounds of asking.
const PAUSE: Duration = Duration::from_secs(1);

/// Waits until a leader says that it has not heard of the voter of `node`'s slot, that a majority holds all that the
/// leader has without it, and that `node` may take its place. Nothing is changed here; what is in the way is logged whenever it changes.
pub async fn await_vacancy(cluster: &str, node: NodeId, members: &BTreeMap<u16, MemberAddress>) {
    let identity = PeerIdentity::unborn(cluster, node);
    let mut said = BTreeMap::new();
    loop {
        // All at once: one that is away must not keep the others from hearing again within the time for which a question counts.
        let others = members.iter().filter(|(slot, _)| **slot != node.slot());
        let asked = others.map(|(slot, address)| async {
            (*slot, transport::hello(&identity, *slot, &address.peer).await)
        });
        for (slot, answer) in futures::future::join_all(asked).await {
            let reason = match answer.map(|answer| answer.vacant) {
                Ok(Some(vacant)) if vacant.slot() == node.slot() => return,
                Ok(_) => {
                    "it does not lead a majority that does without this slot's member, or hears of that still"
                        .to_owned()
                }
                Err(status) => status.message().to_owned(),
            };
            if said.insert(slot, reason.clone()).as_ref() != Some(&reason) {
                tracing::info!(%node, member = slot, reason, "this directory may not be overwritten yet");
            }
        }
        runtime::sleep(PAUSE).await;
    }
}
