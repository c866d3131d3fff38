//! The decision without a person, where the configuration says so: only with every voter there, each as itself.

use super::{Found, give_mandates, look};
use cairn_client::{Client, NodeStatus, Options};
use cairn_raft::{Mandate, NodeId, Replica};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

const PAUSE: Duration = Duration::from_secs(1);
/// How long one node may take to answer.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);
/// The same members in the same runs for so long: whoever is about to start again, or to be elected, has done it by then.
const STEADY: Duration = Duration::from_secs(5);

/// Looks after outages while no leader is heard. Of the members that do so the one that should lead acts, be it one that recovers
/// or one that remembers.
pub(crate) struct Automatic {
    replica: Replica,
    client: Client,
}

impl Automatic {
    /// With these client addresses of all members.
    ///
    /// # Errors
    /// Those of [`Options::build`].
    pub(crate) fn new(replica: Replica, endpoints: Vec<String>) -> Result<Automatic, cairn_client::Error> {
        Ok(Automatic { replica, client: Options::new(endpoints).deadline(NODE_TIMEOUT).build()? })
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        let mut before: Option<(Found, Instant)> = None;
        let mut said = String::new();
        loop {
            sleep(PAUSE).await;
            if self.replica.status().leader.is_some() {
                before = None;
                continue;
            }
            let found = look(&self.client).await;
            let chosen = match may_be_decided(&found) {
                Ok(chosen) => chosen.clone(),
                Err(reason) => {
                    if !reason.is_empty() && said != reason {
                        info!(reason, "no loss is accepted by configuration yet");
                        said = reason;
                    }
                    before = None;
                    continue;
                }
            };
            let since =
                before.take().filter(|(known, _)| found.is_as(known)).map_or_else(Instant::now, |(_, at)| at);
            if since.elapsed() < STEADY || chosen.node_id != self.replica.node_id().as_u64() {
                before = Some((found, since));
                continue;
            }
            before = None;
            if self.decide(&found, &chosen).await {
                // Whoever is not elected by these mandates is not elected by others of the same kind.
                sleep(Mandate::LIFETIME).await;
            }
        }
    }

    /// Whether every member that recovers took its mandate.
    async fn decide(&self, found: &Found, chosen: &NodeStatus) -> bool {
        warn!(
            node = %NodeId::from_u64(chosen.node_id),
            last_log = format!("{}-{}", chosen.last_log_term, chosen.last_log_index),
            "too many members lost power at once, all voters are here, and `recover.automatic` is set: this member, whose log \
             reaches furthest, leads, and acknowledged writes that no member holds any more are given up"
        );
        let given = give_mandates(&self.client, found, chosen).await;
        given
            .inspect_err(|error| warn!(%error, "not every member took its mandate; it is tried again"))
            .is_ok()
    }
}

/// Who should lead, where nobody does and every voter answered as itself; else why not, empty where a leader is there.
fn may_be_decided(found: &Found) -> Result<&NodeStatus, String> {
    if found.leader.is_some() {
        return Err(String::new());
    }
    let chosen = found.chosen()?;
    let (voters, answered) = found.answered();
    if answered < voters {
        return Err(format!("{answered} of {voters} voters are here: {}", found.missing.join("; ")));
    }
    Ok(chosen)
}
