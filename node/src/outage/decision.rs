//! Carrying a decision out: grants for the chosen member, and the wait for what comes of them.

use super::members::MemberSurvey;
use super::verdict::Progress;
use super::{Answer, survey};
use cairn_client::{Client, MemberState};
use cairn_raft::UnsafeRecovery;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long the cluster may take to elect the chosen member and to bring the others back.
pub const ELECTION_LIMIT: Duration = Duration::from_secs(60);
/// How long the chosen member may be silent within that. A restart takes less.
pub const CANDIDATE_SILENT_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(200);

/// Why no member was allowed to lead.
#[derive(Debug, thiserror::Error)]
pub enum NotApplied {
    /// A member restarted, came, went, or leads.
    #[error(
        "a member changed its state since it was asked, and nothing was changed: run `cairn unsafe-recovery` again and decide again"
    )]
    Changed,
    /// A member refused its grant. Grants that were accepted expire.
    #[error("not every member accepted the unsafe-recovery grant: {0}")]
    Refused(cairn_client::Error),
}

impl NotApplied {
    /// Until when grants can be used that members accepted.
    pub fn grants_expire() -> String {
        format!("unsafe-recovery grants expire after {} s", UnsafeRecovery::LIFETIME.as_secs())
    }
}

/// Lets the chosen member lead if a second survey equals the first. The decision took time: since
/// the first survey a member may have come back, or restarted and lost more.
///
/// # Errors
/// Why the member does not lead.
pub async fn decide(
    client: &Client,
    found: &MemberSurvey,
    chosen: &Answer,
) -> Result<(), NotApplied> {
    if !survey(client).await.is_as(found) {
        return Err(NotApplied::Changed);
    }
    // Sends the grant to every recovering member, to the chosen one last.
    for answer in found.nodes.iter().rev() {
        if answer.state == MemberState::Recovering {
            let operator = client.operator();
            let granted =
                operator.unsafe_recovery(&answer.endpoint, chosen.id.as_u64(), chosen.boot_epoch);
            granted.await.map_err(NotApplied::Refused)?;
        }
    }
    Ok(())
}

/// Waits until the decision has come to an end: for [`ELECTION_LIMIT`] at most, and no longer than
/// the chosen member can still be elected. Returns what was found last.
pub async fn wait_for_end(client: &Client, chosen: &Answer) -> (Progress, MemberSurvey) {
    let began = Instant::now();
    let mut answered_at = began;
    loop {
        let found = survey(client).await;
        let progress = found.progress(chosen);
        let now = Instant::now();
        let ended = match progress {
            Progress::Counted | Progress::Uncounted | Progress::CandidateRestarted => true,
            Progress::CandidateSilent => now - answered_at >= CANDIDATE_SILENT_LIMIT,
            Progress::UnderWay => {
                answered_at = now;
                false
            }
        };
        if ended || now - began >= ELECTION_LIMIT {
            return (progress, found);
        }
        sleep(POLL).await;
    }
}
