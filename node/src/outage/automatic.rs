//! Unsafe recovery without an operator, if the configuration allows it. It needs every voter, each
//! under its own identity.

use super::{Answer, MemberSurvey, Verdict, decide};
use cairn_client::Client;
use cairn_raft::{NodeId, UnsafeRecovery};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

/// The survey must be stable for this long. A member that is about to restart or to be elected has
/// done so by then.
const STABLE_FOR: Duration = Duration::from_secs(5);

/// The same while a voter's directory is damaged and not overwritten yet: a server reads it again within
/// this time, and starts anew if nothing is damaged then.
const STABLE_FOR_DAMAGED: Duration = Duration::from_secs(10);

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
            Ok(chosen) => chosen,
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
        if since.elapsed() < stable_for(&found) || chosen.id != self.node {
            self.before = Some((found, since));
            return;
        }
        if act(client, &found, &chosen).await {
            // If these grants do not lead to an election, new ones would not either.
            sleep(UnsafeRecovery::LIFETIME).await;
        }
    }
}

/// For how long the survey must be stable.
pub(super) fn stable_for(found: &MemberSurvey) -> Duration {
    if found.damaged().next().is_some() { STABLE_FOR_DAMAGED } else { STABLE_FOR }
}

/// Returns whether every recovering member accepted its grant.
async fn act(client: &Client, found: &MemberSurvey, chosen: &Answer) -> bool {
    warn!(
        node = %chosen.id,
        last_log = chosen.last_log_text(),
        "too many members may have lost acknowledged writes, all voters answer, and `unsafe_recovery.automatic` is set: this \
         member has the most up-to-date log and starts the unsafe recovery; acknowledged writes that no member holds are \
         discarded"
    );
    let decided = decide(client, found, chosen).await;
    decided
        .inspect_err(|error| warn!(%error, "the unsafe recovery did not start; retrying"))
        .is_ok()
}

/// The voter that should lead, if a decision is needed and every voter answered under its own
/// identity. Else the reason why there is none, which is empty if a leader is known.
fn may_be_decided(found: &MemberSurvey) -> Result<Answer, String> {
    match found.verdict() {
        Verdict::Decide { chosen } if found.is_complete() => Ok(chosen),
        Verdict::Decide { .. } => {
            let (voters, answered) = found.answered();
            let missing = found.missing.join("; ");
            Err(format!("{answered} of {voters} voters answered: {missing}"))
        }
        Verdict::Served { .. } | Verdict::LeaderAlone { .. } | Verdict::LeaderElsewhere { .. } => {
            Err(String::new())
        }
        other => {
            let said = [other.row().sentence()].into_iter().chain(found.missing.iter().cloned());
            Err(said.collect::<Vec<_>>().join(": "))
        }
    }
}
