//! Before a directory with a lost identity is overwritten: does the cluster have everything without
//! it?

use crate::core::ids::NodeId;
use crate::core::runtime;
use crate::transport::{self, Contact, PeerIdentity};
use cairn_tls::Tls;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Between two rounds of asking.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The most addresses that are asked in one round.
const CONTACTS_MAX: usize = 64;

/// Waits until a leader confirms that it has had no contact with the voter of `node`'s slot, that a
/// majority without that voter has synced everything that the leader had when asked, and that
/// `node` may replace it. Asks at `seeds`, and where those who answer would look for members.
/// Changes nothing itself, and logs the reason for waiting whenever that changes.
pub async fn await_replaceable(cluster: &str, node: NodeId, seeds: &[String], tls: Option<Tls>) {
    let identity = PeerIdentity::without_identity(cluster, node).with_tls(tls);
    let mut logged = BTreeMap::new();
    let mut contacts: BTreeSet<String> = seeds.iter().cloned().collect();
    loop {
        // Ask all at once: a member that is down must not delay the next question to the others
        // beyond the time for which a question counts.
        let asked = contacts.iter().map(|address| async {
            let contact = Contact::at(address.clone());
            (address.clone(), transport::hello(&identity, None, &contact).await)
        });
        let mut told = BTreeSet::new();
        for (address, answer) in futures::future::join_all(asked).await {
            let reason = match answer {
                Ok(answer) => {
                    told.extend(answer.contacts);
                    match answer.replaceable_voter {
                        Some(replaceable_voter) if replaceable_voter.slot() == node.slot() => return,
                        _ => "it does not lead, or has contact with this slot's voter, or cannot confirm yet that a majority \
                              without it has synced everything"
                            .to_owned(),
                    }
                }
                Err(status) => status.message().to_owned(),
            };
            if logged.insert(address.clone(), reason.clone()).as_ref() != Some(&reason) {
                tracing::info!(%node, address, reason, "this directory may not be overwritten yet");
            }
        }
        contacts = seeds.iter().cloned().chain(told).take(CONTACTS_MAX).collect();
        logged.retain(|address, _| contacts.contains(address));
        runtime::sleep(POLL_INTERVAL).await;
    }
}
