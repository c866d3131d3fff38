//! What an operator is told: one row for each verdict, and one for each end of a decision.
//!
//! What holds here: an end is [`End::Served`] only if a member leads and a majority answers it.

use super::members::MemberSurvey;
use super::verdict::{Progress, Verdict};
use super::{Answer, NotApplied};
use cairn_client::proto::generation_text;

/// What a majority of lost disks leaves.
const ONE_SURVIVOR: &str = "if a majority of the disks is lost for good, `cairn recover --force-new-cluster` goes on with one survivor";

/// What follows for clients: log indexes now name other writes than before.
const VOID: &str =
    "every version that a client read before is void: read again before a conditional write";

/// How a question after an outage ends, which the exit code tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The cluster serves.
    Served,
    /// Nobody serves.
    Unavailable,
    /// Nobody serves until somebody decides.
    NeedsDecision,
    /// The cluster serves, and what was lost is not counted.
    Uncounted,
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What is the case.
    pub says: String,
    /// What to do; empty if nothing is to be done.
    pub advice: String,
    /// How it ends.
    pub end: End,
}

impl Row {
    fn new(end: End, says: String, advice: impl Into<String>) -> Row {
        Row { says, advice: advice.into(), end }
    }

    /// Both as one sentence.
    pub fn sentence(&self) -> String {
        match self.advice.as_str() {
            "" => self.says.clone(),
            advice => format!("{}; {advice}", self.says),
        }
    }
}

impl Verdict {
    /// A word for each verdict, in JSON.
    pub const fn name(&self) -> &'static str {
        match self {
            Verdict::Served { .. } => "served",
            Verdict::Silence => "silence",
            Verdict::NoMembers => "no-members",
            Verdict::SeveralClusters { .. } => "several-clusters",
            Verdict::MajorityLost { .. } => "majority-lost",
            Verdict::LeaderAlone { .. } => "leader-alone",
            Verdict::LeaderElsewhere { .. } => "leader-elsewhere",
            Verdict::Elects { .. } => "elects",
            Verdict::TooFew { .. } => "too-few",
            Verdict::Behind { .. } => "behind",
            Verdict::Decide { .. } => "decide",
        }
    }

    /// Its row.
    pub fn row(&self) -> Row {
        let unavailable = |says, advice: &str| Row::new(End::Unavailable, says, advice);
        match self {
            Verdict::Served { leader: Answer { id, endpoint, .. } } => Row::new(
                End::Served,
                format!("node {id} at {endpoint} leads: the cluster recovers automatically, and no decision is needed"),
                "",
            ),
            Verdict::Silence => unavailable(
                "no voter answered".into(),
                "start the members, or name others with --endpoints",
            ),
            Verdict::NoMembers => unavailable(
                "no node that answers knows the members of the cluster: it is not formed, or their logs are empty".into(),
                "start the other members, each with the data directory that it had, or name more with --endpoints",
            ),
            Verdict::SeveralClusters { generations } => {
                let of: Vec<String> = generations.iter().map(|of| generation_text(*of)).collect();
                unavailable(
                    format!("members of several clusters answer, each made anew of one member: generations {}", of.join(", ")),
                    "stop all but one of them, or name the members of one with --endpoints",
                )
            }
            Verdict::MajorityLost { left, voters } => unavailable(
                format!("{left} of {voters} voters are left: the others were removed, belong to another cluster, or another node is at their address"),
                &format!("waiting does not help, and nothing can be decided: start the others with the data directories that they had; {ONE_SURVIVOR}"),
            ),
            Verdict::LeaderAlone { leader } => unavailable(
                format!(
                    "node {} at {} leads, and serves nobody: {}",
                    leader.id,
                    leader.endpoint,
                    leader.not_ready.as_deref().unwrap_or("no majority answers it")
                ),
                "it brings recovering members back once it reaches them: start those that are missing, and check the network between them",
            ),
            Verdict::LeaderElsewhere { leader, by } => unavailable(
                format!(
                    "node {} at {} heard node {leader} as the leader within the last seconds, and {leader} does not answer here as one",
                    by.id, by.endpoint
                ),
                "ask again in some seconds, and check the network between this machine and that node",
            ),
            Verdict::Elects { active, voters } => unavailable(
                format!("{active} of {voters} voters are active and have everything they acknowledged: they elect a leader once they reach one another"),
                "check the network between them",
            ),
            Verdict::TooFew { answered, voters } => unavailable(
                format!("{answered} of {voters} voters answered; a majority must answer"),
                &format!("start the others, each with the data directory that it had; {ONE_SURVIVOR}"),
            ),
            Verdict::Behind { chosen, newest } => {
                let log_id = newest.membership.as_ref().map(|known| known.log_id).unwrap_or_default();
                unavailable(
                    format!(
                        "node {} at {} knows a later membership ({}-{}) than node {}, which has the most up-to-date log of the voters ({})",
                        newest.id,
                        newest.endpoint,
                        log_id.0,
                        log_id.1,
                        chosen.id,
                        chosen.last_log_text()
                    ),
                    "other members of that membership may elect a leader: start them, and check the network between them",
                )
            }
            Verdict::Decide { chosen } => Row::new(
                End::NeedsDecision,
                format!(
                    "No member leads, and too many members may have lost acknowledged writes: their machines lost power within \
                     one sync window. The newest acknowledged writes, of at most that window, may be lost.\nNode {} has the most \
                     up-to-date log ({})",
                    chosen.id,
                    chosen.last_log_text()
                ),
                "`cairn unsafe-recovery --accept-data-loss` lets it lead and brings the others back to it",
            ),
        }
    }
}

impl Progress {
    /// The row of a decision for `chosen` that ends like this, by what was found last.
    pub fn row(self, chosen: &Answer, found: &MemberSurvey) -> Row {
        let leader = found.leader.as_ref().unwrap_or(chosen).id;
        let again = "run `cairn unsafe-recovery` again, and decide again";
        let candidate = chosen.id;
        match self {
            Progress::Counted => Row::new(
                End::Served,
                format!(
                    "node {leader} leads; acknowledged writes that no member held are lost, and `cairn status -o json` counts the unsafe recovery"
                ),
                VOID,
            ),
            // If a member votes and restarts before it asks the leader for the record, it no longer
            // has its grant.
            Progress::Uncounted => Row::new(
                End::Uncounted,
                format!(
                    "node {leader} leads, but no unsafe recovery was counted, probably because a member restarted during it: \
                     acknowledged writes may be lost nevertheless, and `cairn status` does not show it; make a note of it"
                ),
                VOID,
            ),
            Progress::CandidateRestarted => Row::new(
                End::Unavailable,
                format!(
                    "node {candidate} restarted since it was chosen, and may have lost more: its grant is void, and nobody leads"
                ),
                again,
            ),
            Progress::CandidateSilent => Row::new(
                End::Unavailable,
                format!("node {candidate} does not answer since it was chosen, and nobody leads"),
                format!(
                    "start it, or check the network; then {again}; {}",
                    NotApplied::grants_expire()
                ),
            ),
            Progress::UnderWay => Row::new(
                End::Unavailable,
                format!(
                    "node {candidate} does not lead all members yet; {}",
                    NotApplied::grants_expire()
                ),
                format!("check `cairn status`; if no member leads by then, {again}"),
            ),
        }
    }
}
