//! What a leader sees of the members.

use super::change::ChangeError;
use super::reconciler::Reconciler;
use super::step;
use crate::core::ids::NodeId;
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime;
use crate::core::types::{Membership, RaftLogId, TypeConfig, engine_log_id};
use crate::durability::leadership;
use cairn_engine::LogId;
use openraft::{RaftMetrics, ServerState};
use std::collections::BTreeSet;
use std::time::Duration;

/// An identity without contact for this long may be replaced. A leader must have led this long
/// before it judges that.
pub(super) const SILENT_AFTER: Duration = Duration::from_secs(5);
/// A learner may lack at most this many entries when it becomes a voter.
const CAUGHT_UP_ENTRIES: u64 = 1000;

/// The members with which the leader had contact lately, the leader included.
pub(super) fn alive(metrics: &RaftMetrics<TypeConfig>) -> BTreeSet<NodeId> {
    let now = runtime::now();
    let answered = metrics.heartbeat.iter().flatten();
    let answered = answered.filter(|(_, at)| at.is_some_and(|at| now - *at < SILENT_AFTER));
    answered.map(|(id, _)| *id).chain([metrics.id]).collect()
}

/// The members that hold nearly all that the leader has, and an entry of the leader's term. After
/// an unsafe recovery, a member that refuses the new leader's entries lacks the second.
pub(super) fn caught_up(metrics: &RaftMetrics<TypeConfig>) -> BTreeSet<NodeId> {
    let last = metrics.last_log_index.unwrap_or(0);
    let matched = metrics.replication.iter().flatten();
    let matched = matched.filter_map(|(id, matched)| Some((*id, matched.as_ref()?)));
    let own = |id: &RaftLogId| id.committed_leader_id().term == metrics.current_term;
    matched
        .filter(|(_, id)| own(id) && id.index() + CAUGHT_UP_ENTRIES >= last)
        .map(|(id, _)| id)
        .collect()
}

/// The membership is committed, and an entry of the leader's own term: only then it knows what is
/// committed.
pub(super) fn is_settled(metrics: &RaftMetrics<TypeConfig>) -> bool {
    let committed =
        metrics.committed_membership_config.log_id() == metrics.membership_config.log_id();
    let applied: Option<LogId> = metrics.last_applied.as_ref().map(engine_log_id);
    committed && applied.is_some_and(|applied| applied.term == metrics.current_term)
}

/// What a leader sees when an operator asks for a change.
pub(super) struct Seen {
    pub(super) metrics: RaftMetrics<TypeConfig>,
    pub(super) voters: BTreeSet<NodeId>,
    pub(super) healthy: BTreeSet<NodeId>,
}

impl Seen {
    pub(super) fn membership(&self) -> &Membership {
        self.metrics.membership_config.membership()
    }
}

impl Reconciler {
    /// What this leader sees, or what a change waits for.
    pub(super) fn seen(&self) -> Result<Result<Seen, String>, ChangeError> {
        let metrics = with_metrics(&self.member.raft, Clone::clone);
        if let Err(fatal) = &metrics.running_state {
            return Err(ChangeError::Stopped(fatal.to_string()));
        }
        if metrics.state != ServerState::Leader {
            return Err(ChangeError::NotLeader { leader: leadership::leader(&metrics) });
        }
        let [voters] = metrics.membership_config.membership().get_joint_config().as_slice() else {
            return Ok(Err("another change of the members is under way".into()));
        };
        if !is_settled(&metrics) {
            return Ok(Err("the leader commits what was begun before".into()));
        }
        let voters = voters.clone();
        let timeout = Duration::from_millis(self.member.config.election_min_ms);
        let healthy = self.ack_modes.healthy(&metrics, &self.member.progress, timeout);
        if !step::is_majority(&healthy, &voters) {
            return Ok(Err("the leader has no contact with a majority of the voters".into()));
        }
        Ok(Ok(Seen { metrics, voters, healthy }))
    }
}
