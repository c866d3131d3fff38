//! Check-quorum: a leader that no quorum answers stops leading, so that members that reach one
//! another can elect another leader (Ongaro's thesis, 6.2).
//!
//! The story: of five members the network left the leader one neighbour, and only that neighbour
//! reached all others. He and the others were a majority. But the leader's heartbeats kept him from
//! voting, the leader stayed leader, and nobody served a write for as long as the network stayed so.
//!
//! What holds here:
//! - A leader whose heartbeats no quorum answered for [`QUORUM_TIMEOUTS`] of the longest election
//!   timeouts is *suspended*: it sends no heartbeat, append or snapshot, so the others' leases run
//!   out. It proposes nothing, serves no reads, and does not say that it leads. The writes that it
//!   proposed before end as unknown, so that clients ask the next leader.
//! - In place of each heartbeat a suspended leader asks whether the member is there. That keeps
//!   nobody from voting. When a quorum of each configuration answers within the time of a heartbeat,
//!   it leads again. If another leader was elected meanwhile, the first answer to an append says so.
//! - A suspended leader keeps its term and does not campaign. Where a majority lost power, the others
//!   recover only with the help of the leader that they acknowledged to, since recovering members
//!   elect nobody. A leader that gave its term up would need an operator there.
//! - Safety does not rest on this: a leader without a quorum commits nothing.
//! - Checks are counted, not time. A process that did not run asked nobody, so silence meanwhile
//!   says nothing of the others.

use crate::core::config::ReplicaConfig;
use crate::core::ids::NodeId;
use crate::core::quorum::is_quorum;
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime;
use crate::core::types::TypeConfig;
use crate::storage::Raft;
use openraft::{RaftMetrics, ServerState};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// A leader that no quorum answered for this many of the longest election timeouts stops leading. A
/// follower that heard no leader for as long serves nobody.
pub(crate) const QUORUM_TIMEOUTS: u32 = 2;

/// How often a leader checks.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// For how many heartbeat intervals an answer to a suspended leader counts. The members are asked
/// once in each, and not all at the same moment.
const ANSWER_INTERVALS: u32 = 3;

/// Whether this member, as leader, is suspended.
#[derive(Default)]
pub(crate) struct CheckQuorum {
    suspended: AtomicBool,
    /// Tells those who wait that it is suspended.
    begun: Notify,
    /// The members that answered the suspended leader, and when last.
    answered: Mutex<BTreeMap<NodeId, runtime::Instant>>,
}

/// What a check sees of a leader.
#[derive(Clone)]
struct Leading {
    term: u64,
    /// When the heartbeat was sent that a quorum answered last.
    acked: Option<runtime::Instant>,
    /// This member is the only voter.
    alone: bool,
}

/// For how many checks in a row no quorum has answered a leader.
#[derive(Default)]
struct Silence {
    seen: Option<(u64, Option<runtime::Instant>)>,
    checks: u32,
}

impl Leading {
    /// `None`: this member does not lead.
    fn of(metrics: &RaftMetrics<TypeConfig>) -> Option<Leading> {
        (metrics.state == ServerState::Leader).then(|| Leading {
            term: metrics.current_term,
            acked: metrics.last_quorum_acked.map(|at| *at),
            alone: metrics.membership_config.voter_ids().all(|voter| voter == metrics.id),
        })
    }
}

impl Silence {
    /// One more check. Returns for how many in a row nothing has come from a quorum. A leader of a
    /// new term begins anew.
    fn check(&mut self, leading: &Leading) -> u32 {
        let seen = Some((leading.term, leading.acked));
        self.checks = if leading.alone || self.seen != seen { 0 } else { self.checks + 1 };
        self.seen = seen;
        self.checks
    }
}

impl CheckQuorum {
    /// Whether this member was elected and has stopped leading, since no quorum answers it.
    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::SeqCst)
    }

    /// Returns once this member is suspended.
    pub(crate) async fn until_suspended(&self) {
        loop {
            // Before the look, so that nothing is missed.
            let begun = self.begun.notified();
            if self.is_suspended() {
                return;
            }
            begun.await;
        }
    }

    /// A member answered the suspended leader.
    pub(crate) fn is_there(&self, member: NodeId) {
        self.answered.lock().insert(member, runtime::now());
    }

    /// Checks while the member with this `raft` leads. Runs until it `stops`.
    pub(crate) async fn run(
        self: Arc<Self>,
        raft: Raft,
        config: ReplicaConfig,
        stops: impl Fn() -> bool + Send,
    ) {
        let limit = silent_checks(config.election_max_ms);
        let recent = Duration::from_millis(config.heartbeat_ms) * ANSWER_INTERVALS;
        let node = *raft.node_id();
        let mut silence = Silence::default();
        loop {
            runtime::sleep(POLL_INTERVAL).await;
            if stops() {
                return;
            }
            let leading = with_metrics(&raft, Leading::of);
            let Some(leading) = leading else {
                silence = Silence::default();
                self.set(false);
                continue;
            };
            if self.is_suspended() {
                let configurations = with_metrics(&raft, |metrics| {
                    metrics.membership_config.membership().get_joint_config().clone()
                });
                let mut there = self.answered_within(recent);
                there.insert(node);
                if is_quorum(&configurations, &there) {
                    tracing::info!(%node, term = leading.term, "a quorum answers again: this member leads on");
                    silence = Silence::default();
                    self.set(false);
                }
            } else if silence.check(&leading) >= limit {
                tracing::warn!(
                    %node, term = leading.term,
                    "no quorum has answered this leader for {QUORUM_TIMEOUTS} election timeouts: it stops leading until one does, \
                     or another member is elected"
                );
                self.set(true);
            }
        }
    }

    /// As after a long silence.
    #[cfg(test)]
    pub(crate) fn suspend(&self) {
        self.set(true);
    }

    fn set(&self, suspended: bool) {
        self.answered.lock().clear();
        self.suspended.store(suspended, Ordering::SeqCst);
        if suspended {
            self.begun.notify_waiters();
        }
    }

    fn answered_within(&self, time: Duration) -> BTreeSet<NodeId> {
        let now = runtime::now();
        let answered = self.answered.lock();
        answered.iter().filter(|(_, at)| now - **at < time).map(|(id, _)| *id).collect()
    }
}

/// After how many checks without an answer a leader is suspended.
fn silent_checks(election_max_ms: u64) -> u32 {
    let limit = Duration::from_millis(election_max_ms).saturating_mul(QUORUM_TIMEOUTS);
    u32::try_from(limit.as_millis() / POLL_INTERVAL.as_millis()).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leading(term: u64, acked: Option<runtime::Instant>) -> Leading {
        Leading { term, acked, alone: false }
    }

    #[test]
    fn a_leader_is_silent_from_the_last_answer_of_a_quorum_on_and_a_new_one_from_its_election_on() {
        let (first, second) = (runtime::now(), runtime::now() + Duration::from_millis(100));
        let mut silence = Silence::default();
        // (the term, what a quorum answered last, for how many checks it has been silent)
        let checks = [
            (4, None, 0),
            (4, None, 1),
            (4, None, 2),
            (4, Some(first), 0),
            (4, Some(first), 1),
            (4, Some(second), 0),
            (4, Some(second), 1),
            (4, Some(second), 2),
            // Elected again, and nothing of before counts.
            (7, Some(second), 0),
            (7, Some(second), 1),
        ];
        for (number, (term, acked, silent)) in checks.into_iter().enumerate() {
            assert_eq!(silence.check(&leading(term, acked)), silent, "check {number}");
        }
    }

    /// The time between two checks does not matter: a process that was stopped for an hour asked
    /// nobody.
    #[test]
    fn a_leader_is_suspended_after_two_election_timeouts_of_checks() {
        assert_eq!(silent_checks(1_000), 40);
        assert_eq!(silent_checks(200), 8);
        assert_eq!(silent_checks(0), 1);
        assert_eq!(silent_checks(u64::MAX), u32::MAX);
    }

    /// Learners may be silent: their answers are not needed.
    #[test]
    fn the_only_voter_is_never_silent() {
        let mut silence = Silence::default();
        let alone = Leading { alone: true, ..leading(1, None) };
        assert!((0..1_000).all(|_| silence.check(&alone) == 0));
    }

    #[test]
    fn an_old_answer_does_not_count() {
        let check = CheckQuorum::default();
        check.is_there(NodeId::new(2, 2));
        assert_eq!(check.answered_within(Duration::from_secs(3600)).len(), 1);
        assert!(check.answered_within(Duration::ZERO).is_empty());
        check.set(true);
        assert!(check.is_suspended());
        assert!(check.answered_within(Duration::from_secs(3600)).is_empty(), "before it asked");
    }
}
