//! What a leader can tell from openraft's metrics.

use crate::core::ids::NodeId;
use crate::core::runtime;
use crate::core::types::{RaftLogId, TypeConfig, engine_log_id};
use cairn_engine::LogId;
use openraft::RaftMetrics;
use std::collections::BTreeSet;
use std::time::Duration;

/// An identity without contact for this long may be replaced. A leader must have led this long
/// before it judges that.
pub(super) const SILENT_AFTER: Duration = Duration::from_secs(5);
/// A leader that a quorum last answered longer ago is cut off. Half of [`SILENT_AFTER`]: what it counts until then
/// makes nobody silent, and the members have as long again to answer when the network is back. Not less: on slow
/// disks a quorum answers late, and a lost identity is replaced there too.
pub(super) const ANSWERED_WITHIN: Duration = Duration::from_millis(SILENT_AFTER.as_secs() * 500);
/// A learner may lack at most this many entries when it becomes a voter.
const CAUGHT_UP_ENTRIES: u64 = 1000;

/// The members with which the leader had contact lately, the leader included.
pub(super) fn alive(metrics: &RaftMetrics<TypeConfig>) -> BTreeSet<NodeId> {
    let now = runtime::now();
    let answered = metrics.heartbeat.iter().flatten();
    let answered = answered.filter(|(_, at)| at.is_some_and(|at| now - *at < SILENT_AFTER));
    answered.map(|(id, _)| *id).chain([metrics.id]).collect()
}

/// Whether a quorum answered this leader lately, or there is nobody else whose answer it needs: of the only voter
/// openraft tells no answer.
pub(super) fn is_answered(metrics: &RaftMetrics<TypeConfig>, now: runtime::Instant) -> bool {
    let alone = metrics.membership_config.voter_ids().all(|voter| voter == metrics.id);
    alone || metrics.last_quorum_acked.is_some_and(|at| now - *at < ANSWERED_WITHIN)
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

/// Whether the change under way, as far as this member has it, ends in a configuration without this
/// member, which votes in the one before.
pub(crate) fn leaves_configuration(metrics: &RaftMetrics<TypeConfig>) -> bool {
    let configurations = metrics.membership_config.membership().get_joint_config();
    let [before @ .., last] = configurations.as_slice() else { return false };
    !last.contains(&metrics.id) && before.iter().any(|voters| voters.contains(&metrics.id))
}

/// The membership is committed, and an entry of the leader's own term: only then it knows what is
/// committed.
pub(super) fn is_settled(metrics: &RaftMetrics<TypeConfig>) -> bool {
    let committed =
        metrics.committed_membership_config.log_id() == metrics.membership_config.log_id();
    let applied: Option<LogId> = metrics.last_applied.as_ref().map(engine_log_id);
    committed && applied.is_some_and(|applied| applied.term == metrics.current_term)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ids::MemberAddress;
    use crate::core::types::{Membership, StoredMembership};
    use std::collections::BTreeMap;
    use std::sync::Arc;

    #[test]
    fn a_leader_is_answered_when_a_quorum_answered_it_lately_or_it_votes_alone() {
        let now = runtime::now() + SILENT_AFTER;
        let of = |slots: &[u16], ago: Option<Duration>| {
            let voters: BTreeSet<NodeId> = slots.iter().map(|slot| NodeId::new(*slot, 1)).collect();
            let nodes = voters.iter().map(|id| (*id, MemberAddress::default()));
            let nodes: BTreeMap<_, _> = nodes.collect();
            let membership = Membership::new(vec![voters], nodes).unwrap();
            let mut metrics = RaftMetrics::new_initial(NodeId::new(1, 1));
            metrics.membership_config = Arc::new(StoredMembership::new(None, membership));
            metrics.last_quorum_acked = ago.map(|ago| (now - ago).into());
            is_answered(&metrics, now)
        };
        let just_now = Some(Duration::from_millis(1));
        assert!(of(&[1, 2, 3], just_now));
        assert!(!of(&[1, 2, 3], Some(ANSWERED_WITHIN)));
        assert!(!of(&[1, 2, 3], None), "nobody has answered yet");
        assert!(of(&[1], None), "it votes alone");
        assert!(!of(&[2], None), "it does not vote");
    }

    /// The story: a member was removed, and said for six seconds more that it was ready.
    #[test]
    fn a_member_knows_that_it_leaves_from_the_first_configuration_without_it() {
        let leaves = |configurations: &[&[u16]]| {
            let id = |slot: &u16| NodeId::new(*slot, 1);
            let sets = configurations.iter().map(|slots| slots.iter().map(id).collect());
            let sets: Vec<BTreeSet<NodeId>> = sets.collect();
            let nodes = sets.iter().flatten().map(|id| (*id, MemberAddress::default()));
            let nodes: BTreeMap<_, _> = nodes.collect();
            let membership = Membership::new(sets, nodes).unwrap();
            let mut metrics = RaftMetrics::new_initial(id(&1));
            metrics.membership_config = Arc::new(StoredMembership::new(None, membership));
            leaves_configuration(&metrics)
        };
        assert!(!leaves(&[&[1, 2, 3]]));
        assert!(leaves(&[&[1, 2, 3], &[2, 3]]));
        assert!(!leaves(&[&[1, 2, 3], &[1, 2]]), "another one leaves");
        assert!(!leaves(&[&[2, 3], &[1, 2, 3]]), "it joins");
        assert!(!leaves(&[&[2, 3]]), "it never voted, or is out");
    }
}
