//! Before a directory with a lost identity is overwritten: does the cluster have everything without
//! it?

use crate::core::ids::{MemberAddress, NodeId};
use crate::core::runtime;
use crate::transport::{self, PeerIdentity};
use cairn_tls::Tls;
use std::collections::BTreeMap;
use std::time::Duration;

/// Between two rounds of asking.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Waits until a leader confirms that it has had no contact with the voter of `node`'s slot, that a
/// majority without that voter has synced everything that the leader had when asked, and that
/// `node` may replace it. Changes nothing itself, and logs the reason for waiting whenever that
/// changes.
pub async fn await_replaceable(
    cluster: &str,
    node: NodeId,
    members: &BTreeMap<u16, MemberAddress>,
    tls: Option<Tls>,
) {
    let identity = PeerIdentity::without_identity(cluster, node).with_tls(tls);
    let mut logged = BTreeMap::new();
    loop {
        // Ask all at once: a member that is down must not delay the next question to the others
        // beyond the time for which a question counts.
        let others = members.iter().filter(|(slot, _)| **slot != node.slot());
        let asked = others.map(|(slot, address)| async {
            (*slot, transport::hello(&identity, *slot, &address.peer).await)
        });
        for (slot, answer) in futures::future::join_all(asked).await {
            let reason = match answer.map(|answer| answer.replaceable_voter) {
                Ok(Some(replaceable_voter)) if replaceable_voter.slot() == node.slot() => return,
                Ok(_) => {
                    "it does not lead, or has contact with this slot's voter, or cannot confirm yet that a majority \
                     without it has synced everything"
                        .to_owned()
                }
                Err(status) => status.message().to_owned(),
            };
            if logged.insert(slot, reason.clone()).as_ref() != Some(&reason) {
                tracing::info!(%node, member = slot, reason, "this directory may not be overwritten yet");
            }
        }
        runtime::sleep(POLL_INTERVAL).await;
    }
}
