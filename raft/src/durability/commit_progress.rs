//! A leader whose entries reach nobody, though a quorum answers its heartbeats.
//!
//! The story: a switch dropped each packet of more than 1,500 bytes. Heartbeats and their answers are
//! smaller, so the leader stayed leader. It served reads, every put ended as unknown, and every member
//! said that it was ready. Others met it, too: hashicorp/raft, issues 612 and 666.
//!
//! What holds here:
//! - A leader is *stuck* if it has an entry that is not committed, and neither the commit index nor the
//!   log of another voter has advanced for [`LIMIT`], or for longer where elections are slow. A
//!   follower that catches up, however slowly, makes nobody stuck.
//! - A stuck leader gives leadership up if the others can elect one without it, and leaves elections to
//!   them for a while. Else it leads on, since nobody else could: it still serves reads.
//! - Checks are counted, not time, as in [`check_quorum`](super::check_quorum).
//! - Safety does not rest on this: what was not committed may be lost in any election.

use crate::core::config::ReplicaConfig;
use crate::core::ids::NodeId;
use crate::core::quorum::is_quorum;
use crate::core::types::{TypeConfig, engine_log_id};
use crate::transport::Answer;
use cairn_engine::LogId;
use openraft::{RaftMetrics, ServerState};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A leader is stuck after so long without progress, or after [`ELECTIONS`] of the longest election
/// timeouts. A follower has that long to take what one request holds.
const LIMIT: Duration = Duration::from_secs(10);
const ELECTIONS: u32 = 6;

/// For how long a leader that was stuck leaves elections to others.
pub(crate) const STAYS_AWAY: Duration = Duration::from_secs(30);

/// How far a leader's entries have come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    term: u64,
    committed: Option<u64>,
    /// The other voters, and where their logs agree with the leader's.
    matched: BTreeMap<NodeId, Option<u64>>,
}

impl Position {
    /// `None`: this member does not lead, or waits for nobody.
    pub(crate) fn of(metrics: &RaftMetrics<TypeConfig>) -> Option<Position> {
        let replication = metrics.replication.as_ref()?;
        let committed = metrics.cluster_committed.as_ref().map(|id| id.index());
        if metrics.state != ServerState::Leader || metrics.last_log_index <= committed {
            return None;
        }
        let others = metrics.membership_config.voter_ids().filter(|id| *id != metrics.id);
        let matched = |id| (id, replication.get(&id).cloned().flatten().map(|log| log.index()));
        let matched: BTreeMap<_, _> = others.map(matched).collect();
        let term = metrics.current_term;
        (!matched.is_empty()).then_some(Position { term, committed, matched })
    }
}

/// For how many checks in a row a leader has been where it is.
#[derive(Default)]
pub(crate) struct CommitProgress {
    seen: Option<Position>,
    checks: u32,
}

impl CommitProgress {
    /// One more check. Returns for how many in a row nothing has advanced.
    pub(crate) fn check(&mut self, position: Option<Position>) -> u32 {
        self.checks = match position.is_some() && self.seen == position {
            true => self.checks.saturating_add(1),
            false => 0,
        };
        self.seen = position;
        self.checks
    }
}

/// After how many checks without progress a leader is stuck.
pub(crate) fn stuck_checks(config: &ReplicaConfig) -> u32 {
    let elections = Duration::from_millis(config.election_max_ms).saturating_mul(ELECTIONS);
    let checks = LIMIT.max(elections).as_millis() / u128::from(config.maintenance_ms.max(1));
    u32::try_from(checks).unwrap_or(u32::MAX).max(1)
}

/// What decides an election, of one member that answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Voter {
    pub(crate) last: Option<LogId>,
    pub(crate) recovering: bool,
    pub(crate) may_lead: bool,
}

impl From<&Answer> for Voter {
    fn from(answer: &Answer) -> Voter {
        let Answer { recovering, may_lead, .. } = *answer;
        Voter { last: answer.last_log_id, recovering, may_lead }
    }
}

/// Whether the others can elect a leader that has everything through `committed`, without this one.
pub(crate) fn others_can_elect(
    configurations: &[BTreeSet<NodeId>],
    committed: Option<LogId>,
    others: &BTreeMap<NodeId, Voter>,
) -> bool {
    let candidates = others.values().filter(|one| one.may_lead && one.last >= committed);
    let elects = |candidate: &Voter| {
        let votes = others.iter().filter(|(_, one)| !one.recovering && one.last <= candidate.last);
        is_quorum(configurations, &votes.map(|(id, _)| *id).collect())
    };
    candidates.into_iter().any(elects)
}

/// Through which entry a leader has committed.
pub(crate) fn committed(metrics: &RaftMetrics<TypeConfig>) -> Option<LogId> {
    metrics.cluster_committed.as_ref().map(engine_log_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_engine::Mode;

    const TWO: NodeId = NodeId::new(2, 2);
    const THREE: NodeId = NodeId::new(3, 3);

    fn position(
        term: u64,
        committed: u64,
        two: Option<u64>,
        three: Option<u64>,
    ) -> Option<Position> {
        let matched = BTreeMap::from([(TWO, two), (THREE, three)]);
        Some(Position { term, committed: Some(committed), matched })
    }

    #[test]
    fn a_leader_is_where_it_was_if_nothing_advances_and_something_is_to_be_committed() {
        let mut progress = CommitProgress::default();
        // (where it is, for how many checks)
        let checks = [
            (position(4, 7, None, None), 0),
            (position(4, 7, None, None), 1),
            (position(4, 7, None, None), 2),
            // A follower catches up.
            (position(4, 7, None, Some(2)), 0),
            (position(4, 7, None, Some(3)), 0),
            (position(4, 7, None, Some(3)), 1),
            // Something is committed.
            (position(4, 8, None, Some(3)), 0),
            (position(4, 8, None, Some(3)), 1),
            // Everything is.
            (None, 0),
            (None, 0),
            // It was elected again.
            (position(6, 8, None, None), 0),
            (position(7, 8, None, None), 0),
            (position(7, 8, None, None), 1),
        ];
        for (number, (position, checks)) in checks.into_iter().enumerate() {
            assert_eq!(progress.check(position), checks, "check {number}");
        }
    }

    #[test]
    fn a_leader_is_stuck_after_ten_seconds_of_checks_or_six_elections() {
        let config = |election_max_ms, maintenance_ms| {
            let usual = ReplicaConfig::new(Mode::Replicated, BTreeMap::new());
            stuck_checks(&ReplicaConfig { election_max_ms, maintenance_ms, ..usual })
        };
        assert_eq!(config(1_000, 200), 50);
        assert_eq!(config(10_000, 200), 300);
        assert_eq!(config(1_000, 0), 10_000);
        assert_eq!(config(u64::MAX, 1), u32::MAX);
    }

    #[test]
    fn leadership_is_given_up_only_to_members_that_need_no_vote_of_this_one() {
        let id = |index| Some(LogId { term: 3, index });
        let fit = |last| Voter { last, recovering: false, may_lead: true };
        let unfit = |last| Voter { may_lead: false, ..fit(last) };
        let recovers = |last| Voter { recovering: true, ..unfit(last) };
        let three: BTreeSet<NodeId> = [NodeId::new(1, 1), TWO, THREE].into();
        let elect = |others: &[(NodeId, Voter)]| {
            let others = others.iter().copied().collect();
            others_can_elect(std::slice::from_ref(&three), id(10), &others)
        };
        assert!(elect(&[(TWO, fit(id(10))), (THREE, fit(id(10)))]));
        assert!(elect(&[(TWO, fit(id(12))), (THREE, unfit(id(9)))]), "it votes");
        assert!(!elect(&[(TWO, fit(id(10))), (THREE, unfit(id(11)))]), "it grants no vote");
        assert!(!elect(&[(TWO, fit(id(12)))]), "this leader's log is longer");
        assert!(!elect(&[(TWO, fit(id(9))), (THREE, fit(id(9)))]), "they lack what is committed");
        assert!(!elect(&[(TWO, fit(id(10))), (THREE, recovers(id(10)))]));
        assert!(!elect(&[(TWO, fit(None)), (THREE, fit(None))]));
        assert!(!elect(&[]));
        // The members change: it needs a quorum of both configurations.
        let joint = [three.clone(), [NodeId::new(4, 4), NodeId::new(5, 5), THREE].into()];
        let others = [(TWO, fit(id(10))), (THREE, fit(id(10)))].into();
        assert!(!others_can_elect(&joint, id(10), &others));
        let others = [TWO, THREE, NodeId::new(4, 4)].map(|one| (one, fit(id(10)))).into();
        assert!(others_can_elect(&joint, id(10), &others));
    }
}
