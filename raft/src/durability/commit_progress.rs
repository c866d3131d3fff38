//! A leader whose entries reach nobody, though a quorum answers its heartbeats.
//!
//! The story: a switch dropped each packet of more than 1,500 bytes. Heartbeats and their answers are
//! smaller, so the leader stayed leader. It served reads, every put ended as unknown, and every member
//! said that it was ready. Others met it, too: hashicorp/raft, issues 612 and 666.
//!
//! What holds here:
//! - A leader is *stuck* if it has an entry that is not committed, and neither the commit index nor the
//!   log of another voter that lacks the next entry to commit has advanced for [`LIMIT`], or for longer
//!   where entries are large or elections slow. A follower that catches up, however slowly, or takes
//!   a snapshot, makes nobody stuck.
//! - A stuck leader gives leadership up if the others can elect one without it that needs no snapshot
//!   for the others to commit, and leaves elections to them for a while. Else it leads on, since
//!   nobody else could: it still serves reads.
//! - The time in which this process did not run does not count.
//! - Safety does not rest on this: what was not committed may be lost in any election.

use crate::core::config::ReplicaConfig;
use crate::core::ids::NodeId;
use crate::core::quorum::is_quorum;
use crate::core::types::TypeConfig;
use crate::transport::Answer;
use crate::transport::wire::transfer_time;
use cairn_engine::LogId;
use openraft::{RaftMetrics, ServerState};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A leader is stuck after so long without progress, beside the time that the largest entry is on its
/// way; or after [`ELECTIONS`] of the longest election timeouts, if that is longer.
const LIMIT: Duration = Duration::from_secs(10);
const ELECTIONS: u32 = 6;

/// For how long a leader that was stuck leaves elections to others.
pub(crate) const STAYS_AWAY: Duration = Duration::from_secs(30);

/// How far a leader's entries have come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    term: u64,
    committed: Option<u64>,
    /// The other voters, and where their logs agree with the leader's; at most the next entry to
    /// commit. The story: of five voters one took each entry and three took none, and that one's
    /// progress hid that nothing was committed.
    matched: BTreeMap<NodeId, Option<u64>>,
}

impl Position {
    /// `None`: this member does not lead, or waits for nobody. Of earlier terms nothing is committed before
    /// an entry of its own (Raft, section 5.4.2): one that it had at `own`.
    fn of(metrics: &RaftMetrics<TypeConfig>, own: u64) -> Option<Position> {
        let replication = metrics.replication.as_ref()?;
        let committed = metrics.cluster_committed.as_ref().map(|id| id.index());
        if metrics.state != ServerState::Leader || metrics.last_log_index <= committed {
            return None;
        }
        let next = committed.map_or(0, |index| index + 1).max(own);
        let others = metrics.membership_config.voter_ids().filter(|id| *id != metrics.id);
        let matched = |id| {
            let log = replication.get(&id).cloned().flatten();
            (id, log.map(|log| log.index().min(next)))
        };
        let matched: BTreeMap<_, _> = others.map(matched).collect();
        let term = metrics.current_term;
        (!matched.is_empty()).then_some(Position { term, committed, matched })
    }
}

/// For how long a leader has been where it is.
#[derive(Default)]
pub(crate) struct CommitProgress {
    /// The term in which this member was last seen to lead, and the last entry that it had then.
    led: Option<(u64, u64)>,
    seen: Option<Position>,
    still: Duration,
    /// How long that was when it last tried to leave.
    tried: Duration,
}

impl CommitProgress {
    /// Where this leader's entries are now.
    pub(crate) fn position(&mut self, metrics: &RaftMetrics<TypeConfig>) -> Option<Position> {
        let (term, last) = (metrics.current_term, metrics.last_log_index.unwrap_or(0));
        if metrics.state != ServerState::Leader {
            return None;
        }
        let own = match self.led {
            Some((seen, own)) if seen == term => own,
            _ => self.led.insert((term, last)).1,
        };
        Position::of(metrics, own)
    }

    /// One more check, so long after the last one. Returns for how long nothing has advanced.
    pub(crate) fn check(&mut self, position: Option<Position>, passed: Duration) -> Duration {
        match position.is_some() && self.seen == position {
            true => self.still += passed,
            false => (self.still, self.tried) = (Duration::ZERO, Duration::ZERO),
        }
        self.seen = position;
        self.still
    }

    /// Whether it is time to leave, once in each `limit`.
    pub(crate) fn is_due(&mut self, limit: Duration) -> bool {
        let is_due = self.still >= self.tried.saturating_add(limit);
        if is_due {
            self.tried = self.still;
        }
        is_due
    }
}

/// After how long without progress a leader is stuck.
pub(crate) fn stuck_after(config: &ReplicaConfig) -> Duration {
    let elections = Duration::from_millis(config.election_max_ms).saturating_mul(ELECTIONS);
    elections.max(LIMIT + transfer_time(config.largest_entry_bytes))
}

/// The most that counts between two checks. A turn may wait for a hand-over.
pub(crate) fn longest_turn(config: &ReplicaConfig) -> Duration {
    let (turn, hand_over) = (config.maintenance_ms, config.election_min_ms);
    Duration::from_millis(turn.saturating_mul(5).saturating_add(hand_over.saturating_mul(3)))
}

/// What decides an election, of one member that answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Voter {
    last: Option<LogId>,
    recovering: bool,
    may_lead: bool,
}

impl From<&Answer> for Voter {
    fn from(answer: &Answer) -> Voter {
        let Answer { recovering, may_lead, .. } = *answer;
        Voter { last: answer.last_log_id, recovering, may_lead }
    }
}

/// Whether the others can elect a leader that has everything through `committed`, without this one, and
/// commit then: whoever ends before what this member `purged` needs a snapshot first.
pub(crate) fn others_can_elect(
    configurations: &[BTreeSet<NodeId>],
    committed: Option<LogId>,
    purged: Option<LogId>,
    others: &BTreeMap<NodeId, Voter>,
) -> bool {
    let candidates = others.values().filter(|one| one.may_lead && one.last >= committed);
    let elects = |candidate: &Voter| {
        let may = |one: &Voter| !one.recovering && one.last <= candidate.last && one.last >= purged;
        let votes = others.iter().filter(|(_, one)| may(one));
        is_quorum(configurations, &votes.map(|(id, _)| *id).collect())
    };
    candidates.into_iter().any(elects)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_engine::Mode;

    const TWO: NodeId = NodeId::new(2, 2);
    const THREE: NodeId = NodeId::new(3, 3);
    const SECOND: Duration = Duration::from_secs(1);

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
        // (where it is, for how many seconds)
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
        for (number, (position, seconds)) in checks.into_iter().enumerate() {
            assert_eq!(progress.check(position, SECOND), SECOND * seconds, "check {number}");
        }
    }

    #[test]
    fn it_is_time_to_leave_once_in_each_limit() {
        let (mut progress, limit) = (CommitProgress::default(), SECOND * 3);
        let mut due = |position: &Option<Position>| {
            progress.check(position.clone(), SECOND);
            progress.is_due(limit)
        };
        let here = position(4, 7, None, None);
        let seen: Vec<bool> = (0..8).map(|_| due(&here)).collect();
        assert_eq!(seen, [false, false, false, true, false, false, true, false]);
        assert!(!due(&position(4, 8, None, None)));
        assert_eq!([(); 3].map(|()| due(&position(4, 8, None, None))), [false, false, true]);
    }

    /// The story: an entry of 16 MiB is on its way for 16 s where a link is slow. The leader left, the client repeated
    /// its put at the next one, and that was never committed.
    #[test]
    fn a_leader_is_stuck_after_ten_seconds_beside_the_largest_entry_or_six_elections() {
        let after = |election_max_ms, largest_entry_bytes| {
            let usual = ReplicaConfig::new(Mode::Replicated, BTreeMap::new());
            stuck_after(&ReplicaConfig { election_max_ms, largest_entry_bytes, ..usual })
        };
        assert_eq!(after(1_000, 0), SECOND * 10);
        assert_eq!(after(1_000, 16 << 20), SECOND * 26);
        assert_eq!(after(10_000, 16 << 20), SECOND * 60);
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
            others_can_elect(std::slice::from_ref(&three), id(10), id(4), &others)
        };
        assert!(elect(&[(TWO, fit(id(10))), (THREE, fit(id(10)))]));
        assert!(elect(&[(TWO, fit(id(12))), (THREE, unfit(id(9)))]), "it votes");
        assert!(elect(&[(TWO, fit(id(12))), (THREE, unfit(id(4)))]), "its log goes on from there");
        assert!(!elect(&[(TWO, fit(id(12))), (THREE, unfit(id(3)))]), "it needs a snapshot");
        assert!(!elect(&[(TWO, fit(id(10))), (THREE, unfit(id(11)))]), "it grants no vote");
        assert!(!elect(&[(TWO, fit(id(12)))]), "this leader's log is longer");
        assert!(!elect(&[(TWO, fit(id(9))), (THREE, fit(id(9)))]), "they lack what is committed");
        assert!(!elect(&[(TWO, fit(id(10))), (THREE, recovers(id(10)))]));
        assert!(!elect(&[(TWO, fit(None)), (THREE, fit(None))]));
        assert!(!elect(&[]));
        // The members change: it needs a quorum of both configurations.
        let joint = [three.clone(), [NodeId::new(4, 4), NodeId::new(5, 5), THREE].into()];
        let others = [(TWO, fit(id(10))), (THREE, fit(id(10)))].into();
        assert!(!others_can_elect(&joint, id(10), id(4), &others));
        let others = [TWO, THREE, NodeId::new(4, 4)].map(|one| (one, fit(id(10)))).into();
        assert!(others_can_elect(&joint, id(10), id(4), &others));
    }
}
