//! The leader's next membership change: a function of what it sees, without side effects.
//!
//! What holds here: while a change is under way, the only next step is to finish it; no slot ever
//! has two voters in one configuration; an identity with recent contact is replaced only if an
//! operator says so; a node of a slot without a voter becomes a member only if an operator adds it;
//! a change of an address adds nobody.

use crate::core::ids::{MemberAddress, NodeId};
use crate::core::types::Membership;
use crate::transport::PendingJoin;
use std::collections::{BTreeMap, BTreeSet};

/// What a leader sees.
pub(super) struct View<'v> {
    pub(super) own: NodeId,
    /// The present membership, which is committed.
    pub(super) membership: &'v Membership,
    /// The members with which the leader had contact lately.
    pub(super) alive: &'v BTreeSet<NodeId>,
    /// Those that gave it no answer for long. After a suspension a member may be neither.
    pub(super) silent: &'v BTreeSet<NodeId>,
    /// Those that hold nearly all that the leader has.
    pub(super) caught_up: &'v BTreeSet<NodeId>,
    /// Recent join requests, by slot.
    pub(super) pending_joins: &'v BTreeMap<u16, PendingJoin>,
    /// Members that are reached at other addresses than the log says.
    pub(super) moved: &'v BTreeMap<NodeId, MemberAddress>,
}

/// A change of the membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The joint configuration becomes its last part.
    Finish,
    /// Removes a learner without recent contact, so that another one of its slot can be added.
    Drop(NodeId),
    /// The log gets the addresses at which a member is reached now.
    Move(NodeId, MemberAddress),
    /// A joining node becomes a learner.
    Add(NodeId, MemberAddress),
    /// A new identity replaces the old one.
    Replace { old: NodeId, new: NodeId },
    /// A learner of a slot without a voter becomes a voter.
    Promote(NodeId),
    /// A voter leaves.
    Remove(NodeId),
}

/// The next step, if any.
pub(super) fn next(view: &View<'_>) -> Option<Step> {
    let configurations = view.membership.get_joint_config();
    let [voters] = configurations.as_slice() else {
        return Some(Step::Finish);
    };
    let moved = view.moved.iter().find(|(id, _)| view.membership.get_node(id).is_some());
    if let Some((id, address)) = moved {
        return Some(Step::Move(*id, address.clone()));
    }
    view.pending_joins.values().find_map(|pending_join| step_for(view, voters, pending_join))
}

fn step_for(
    view: &View<'_>,
    voters: &BTreeSet<NodeId>,
    pending_join: &PendingJoin,
) -> Option<Step> {
    if voter_of(voters, pending_join.id.slot()).is_none() {
        let learns = view.membership.get_node(&pending_join.id).is_some();
        return (learns && is_ready(view, pending_join)).then_some(Step::Promote(pending_join.id));
    }
    let old = voter_to_replace(view.own, view.membership, view.silent, voters, pending_join.id)
        .ok()
        .filter(|old| *old != pending_join.id)?;
    match to_learn(view.membership, voters, pending_join) {
        Some(step) => Some(step),
        None if is_ready(view, pending_join) => Some(Step::Replace { old, new: pending_join.id }),
        None => None,
    }
}

/// What makes a joining node a learner; `None`: it is one.
pub(super) fn to_learn(
    membership: &Membership,
    voters: &BTreeSet<NodeId>,
    pending_join: &PendingJoin,
) -> Option<Step> {
    if membership.get_node(&pending_join.id).is_some() {
        return None;
    }
    Some(match learner_of(membership, voters, pending_join.id.slot()) {
        Some(stale) => Step::Drop(stale),
        None => Step::Add(pending_join.id, pending_join.address.clone()),
    })
}

/// Whether a learner may vote: it is active, and holds nearly everything.
pub(super) fn is_ready(view: &View<'_>, pending_join: &PendingJoin) -> bool {
    pending_join.active
        && view.alive.contains(&pending_join.id)
        && view.caught_up.contains(&pending_join.id)
}

/// The voter of a slot.
pub(super) fn voter_of(voters: &BTreeSet<NodeId>, slot: u16) -> Option<NodeId> {
    voters.iter().copied().find(|voter| voter.slot() == slot)
}

/// The learner of a slot.
pub(super) fn learner_of(
    membership: &Membership,
    voters: &BTreeSet<NodeId>,
    slot: u16,
) -> Option<NodeId> {
    let mut members = membership.nodes().map(|(id, _)| *id);
    members.find(|id| id.slot() == slot && !voters.contains(id))
}

/// The voter that a joining node may replace; the node itself if it votes.
///
/// # Errors
/// Why the node cannot be added now.
pub(super) fn voter_to_replace(
    own: NodeId,
    membership: &Membership,
    silent: &BTreeSet<NodeId>,
    voters: &BTreeSet<NodeId>,
    joiner: NodeId,
) -> Result<NodeId, String> {
    let slot = joiner.slot();
    let Some(old) = voters.iter().find(|voter| voter.slot() == slot) else {
        return Err(format!(
            "the cluster has no slot {slot}: an operator adds it with `cairn members add {slot}`"
        ));
    };
    if *old == joiner {
        return Ok(joiner);
    }
    if *old == own || !silent.contains(old) {
        return Err(format!("slot {slot} is held by member {old}, which is alive; stop it first"));
    }
    let mut rivals = membership.nodes().map(|(id, _)| id);
    match rivals.find(|id| id.slot() == slot && **id != joiner && !silent.contains(id)) {
        Some(rival) => {
            Err(format!("slot {slot} already has another joining node, {rival}, which is alive"))
        }
        None => Ok(*old),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: NodeId = NodeId::new(1, 1);
    const TWO: NodeId = NodeId::new(2, 2);
    const THREE: NodeId = NodeId::new(3, 3);
    const NEW: NodeId = NodeId::new(2, 22);
    const NEWER: NodeId = NodeId::new(2, 23);

    struct Scene {
        configurations: Vec<Vec<NodeId>>,
        learners: Vec<NodeId>,
        alive: Vec<NodeId>,
        /// Of those that are not alive, the ones that are so for less long.
        missed: Vec<NodeId>,
        caught_up: Vec<NodeId>,
        pending_joins: Vec<(NodeId, bool)>,
        moved: Vec<NodeId>,
    }

    /// Member 2 is gone, and no node has asked to join yet.
    fn scene() -> Scene {
        Scene {
            configurations: vec![vec![ONE, TWO, THREE]],
            learners: vec![],
            alive: vec![ONE, THREE],
            missed: vec![],
            caught_up: vec![ONE, THREE],
            pending_joins: vec![],
            moved: vec![],
        }
    }

    impl Scene {
        fn next(&self) -> Option<Step> {
            let sets: Vec<BTreeSet<NodeId>> =
                self.configurations.iter().map(|set| set.iter().copied().collect()).collect();
            let ids = self.configurations.iter().flatten().chain(&self.learners);
            let nodes: BTreeMap<NodeId, MemberAddress> =
                ids.map(|id| (*id, MemberAddress::default())).collect();
            let is_silent = |id: &&NodeId| !self.alive.contains(id) && !self.missed.contains(id);
            let silent = nodes.keys().filter(is_silent).copied().collect();
            let pending_join = |(id, active): &(NodeId, bool)| {
                (
                    id.slot(),
                    PendingJoin { id: *id, address: MemberAddress::default(), active: *active },
                )
            };
            next(&View {
                own: ONE,
                membership: &Membership::new(sets, nodes).unwrap(),
                alive: &self.alive.iter().copied().collect(),
                silent: &silent,
                caught_up: &self.caught_up.iter().copied().collect(),
                pending_joins: &self.pending_joins.iter().map(pending_join).collect(),
                moved: &self.moved.iter().map(|id| (*id, MemberAddress::default())).collect(),
            })
        }
    }

    #[test]
    fn a_joining_node_becomes_a_learner_and_then_replaces_a_silent_identity() {
        let mut scene = scene();
        assert_eq!(scene.next(), None, "no join request");
        scene.pending_joins = vec![(NEW, true)];
        assert_eq!(scene.next(), Some(Step::Add(NEW, MemberAddress::default())));
        scene.learners = vec![NEW];
        assert_eq!(scene.next(), None, "it has nothing yet");
        scene.alive.push(NEW);
        scene.caught_up.push(NEW);
        assert_eq!(scene.next(), Some(Step::Replace { old: TWO, new: NEW }));
        scene.configurations = vec![vec![ONE, TWO, THREE], vec![ONE, NEW, THREE]];
        assert_eq!(scene.next(), Some(Step::Finish));
        (scene.configurations, scene.learners) = (vec![vec![ONE, NEW, THREE]], vec![]);
        assert_eq!(scene.next(), None);
    }

    #[test]
    fn an_identity_that_is_alive_is_not_replaced_nor_is_the_leader() {
        let mut scene = scene();
        scene.pending_joins = vec![(NEW, true)];
        scene.alive.push(TWO);
        assert_eq!(scene.next(), None);
        scene.alive.pop();
        scene.missed.push(TWO);
        assert_eq!(scene.next(), None, "its leader was suspended, and has not heard it again yet");
        scene.pending_joins = vec![(NodeId::new(1, 9), true)];
        assert_eq!(scene.next(), None);
    }

    #[test]
    fn a_learner_that_recovers_is_not_made_a_voter() {
        let mut scene = scene();
        (scene.learners, scene.pending_joins) = (vec![NEW], vec![(NEW, false)]);
        scene.alive.push(NEW);
        scene.caught_up.push(NEW);
        assert_eq!(scene.next(), None);
    }

    #[test]
    fn an_abandoned_learner_is_removed_and_one_that_is_alive_is_not() {
        let mut scene = scene();
        (scene.learners, scene.pending_joins) = (vec![NEW], vec![(NEWER, true)]);
        assert_eq!(scene.next(), Some(Step::Drop(NEW)));
        scene.alive.push(NEW);
        assert_eq!(scene.next(), None);
    }

    #[test]
    fn an_address_is_changed_for_members_only_and_not_in_the_middle_of_another_change() {
        let mut scene = scene();
        scene.moved = vec![NEWER, TWO];
        assert_eq!(scene.next(), Some(Step::Move(TWO, MemberAddress::default())));
        scene.moved = vec![NEWER];
        assert_eq!(scene.next(), None, "not a member");
        scene.moved = vec![TWO];
        scene.configurations = vec![vec![ONE, TWO, THREE], vec![ONE, NEW, THREE]];
        assert_eq!(scene.next(), Some(Step::Finish));
    }

    #[test]
    fn a_slot_that_the_cluster_does_not_have_is_not_taken() {
        let mut scene = scene();
        scene.pending_joins = vec![(NodeId::new(7, 7), true)];
        assert_eq!(scene.next(), None);
    }

    #[test]
    fn a_learner_that_an_operator_added_votes_once_it_has_caught_up() {
        let seven = NodeId::new(7, 7);
        let mut scene = scene();
        (scene.learners, scene.pending_joins) = (vec![seven], vec![(seven, true)]);
        assert_eq!(scene.next(), None, "it has nothing yet");
        scene.alive.push(seven);
        scene.caught_up.push(seven);
        assert_eq!(scene.next(), Some(Step::Promote(seven)));
        scene.pending_joins = vec![(seven, false)];
        assert_eq!(scene.next(), None, "it recovers");
        scene.pending_joins = vec![(NodeId::new(7, 8), true)];
        assert_eq!(scene.next(), None, "another node of that slot was not added");
    }
}
