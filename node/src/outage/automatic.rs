//! Unsafe recovery without an operator, if the configuration allows it. It needs every voter, each
//! under its own identity.

use super::{MemberSurvey, decide};
use cairn_client::{Client, NodeStatus};
use cairn_raft::{NodeId, UnsafeRecovery};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

/// The survey must be stable for this long. A member that is about to restart or to be elected has
/// done so by then.
const STABLE_FOR: Duration = Duration::from_secs(5);

/// Starts an unsafe recovery after an outage. Every member with this setting runs it; only the one
/// with the most up-to-date log acts, whether it is recovering or active.
pub(super) struct Automatic {
    node: NodeId,
    before: Option<(MemberSurvey, Instant)>,
    said: String,
}

impl Automatic {
    pub(super) fn new(node: NodeId) -> Automatic {
        Automatic { node, before: None, said: String::new() }
    }

    /// Starts over, because a leader is known.
    pub(super) fn forget(&mut self) {
        self.before = None;
    }

    /// Considers a survey that was made while no leader is known, and acts if the surveys were
    /// stable for long enough.
    pub(super) async fn consider(&mut self, client: &Client, found: MemberSurvey) {
        let chosen = match may_be_decided(&found) {
            Ok(chosen) => chosen.clone(),
            Err(reason) => {
                if !reason.is_empty() && self.said != reason {
                    info!(reason, "automatic unsafe recovery does not start yet");
                    self.said = reason;
                }
                self.before = None;
                return;
            }
        };
        let known = self.before.take().filter(|(known, _)| found.is_as(known));
        let since = known.map_or_else(Instant::now, |(_, at)| at);
        if since.elapsed() < STABLE_FOR || chosen.node_id != self.node.as_u64() {
            self.before = Some((found, since));
            return;
        }
        if act(client, &found, &chosen).await {
            // If these grants do not lead to an election, new ones would not either.
            sleep(UnsafeRecovery::LIFETIME).await;
        }
    }
}

/// Returns whether every recovering member accepted its grant.
async fn act(client: &Client, found: &MemberSurvey, chosen: &NodeStatus) -> bool {
    warn!(
        node = %NodeId::from_u64(chosen.node_id),
        last_log = format!("{}-{}", chosen.last_log_term, chosen.last_log_index),
        "too many members may have lost acknowledged writes, all voters answer, and `unsafe_recovery.automatic` is set: this \
         member has the most up-to-date log and starts the unsafe recovery; acknowledged writes that no member holds are \
         discarded"
    );
    let decided = decide(client, found, chosen).await;
    decided
        .inspect_err(|error| warn!(%error, "the unsafe recovery did not start; retrying"))
        .is_ok()
}

/// The voter that should lead, if there is no leader and every voter answered under its own
/// identity. Else the reason why there is none, which is empty if a leader is known.
fn may_be_decided(found: &MemberSurvey) -> Result<&NodeStatus, String> {
    if found.leader.is_some() {
        return Err(String::new());
    }
    let chosen = found.chosen()?;
    let (voters, answered) = found.answered();
    if answered < voters {
        return Err(format!(
            "{answered} of {voters} voters answered: {}",
            found.missing.join("; ")
        ));
    }
    Ok(chosen)
}
