//! The decision without a person, where the configuration says so: only with every voter there, each as itself.

use super::{Found, decide};
use cairn_client::{Client, NodeStatus};
use cairn_raft::{Mandate, NodeId};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

/// The same members in the same runs for so long: whoever is about to start again, or to be elected, has done it by then.
const STEADY: Duration = Duration::from_secs(5);

/// Decides after outages. Of the members that do so the one that should lead acts, be it one that recovers or one that remembers.
pub(super) struct Automatic {
    node: NodeId,
    client: Client,
    before: Option<(Found, Instant)>,
    said: String,
}

impl Automatic {
    pub(super) fn new(node: NodeId, client: Client) -> Automatic {
        Automatic { node, client, before: None, said: String::new() }
    }

    /// Somebody leads.
    pub(super) fn forget(&mut self) {
        self.before = None;
    }

    /// What was found while no leader is heard; acts if it has stood for long enough.
    pub(super) async fn consider(&mut self, found: Found) {
        let chosen = match may_be_decided(&found) {
            Ok(chosen) => chosen.clone(),
            Err(reason) => {
                if !reason.is_empty() && self.said != reason {
                    info!(reason, "no loss is accepted by configuration yet");
                    self.said = reason;
                }
                self.before = None;
                return;
            }
        };
        let known = self.before.take().filter(|(known, _)| found.is_as(known));
        let since = known.map_or_else(Instant::now, |(_, at)| at);
        if since.elapsed() < STEADY || chosen.node_id != self.node.as_u64() {
            self.before = Some((found, since));
            return;
        }
        if self.act(&found, &chosen).await {
            // Whoever is not elected by these mandates is not elected by others of the same kind.
            sleep(Mandate::LIFETIME).await;
        }
    }

    /// Whether every member that recovers took its mandate.
    async fn act(&self, found: &Found, chosen: &NodeStatus) -> bool {
        warn!(
            node = %NodeId::from_u64(chosen.node_id),
            last_log = format!("{}-{}", chosen.last_log_term, chosen.last_log_index),
            "too many members lost power at once, all voters are here, and `recover.automatic` is set: this member, whose log \
             reaches furthest, leads, and acknowledged writes that no member holds any more are given up"
        );
        let decided = decide(&self.client, found, chosen).await;
        decided.inspect_err(|error| warn!(%error, "nothing is decided; it is tried again")).is_ok()
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
