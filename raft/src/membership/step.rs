//! What a leader does next about its members: a function of what it sees, without side effects.
//!
//! What holds here: nothing is done while a change is under way, but its end; no slot ever has two voters in one
//! configuration; an identity that was heard of lately is not replaced.

use crate::core::ids::{MemberAddress, NodeId};
use crate::core::types::Membership;
use crate::transport::Applicant;
use std::collections::{BTreeMap, BTreeSet};

/// What a leader sees.
pub(super) struct View<'v> {
    pub(super) own: NodeId,
    /// The membership in force, which is committed.
    pub(super) membership: &'v Membership,
    /// The members that were heard of lately.
    pub(super) alive: &'v BTreeSet<NodeId>,
    /// Those that hold nearly all that the leader has.
    pub(super) level: &'v BTreeSet<NodeId>,
    /// Who asked of late to be taken in, by slot.
    pub(super) applicants: &'v BTreeMap<u16, Applicant>,
}

/// A change of the membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The joint configuration becomes its last part.
    Finish,
    /// A learner of whom nothing was heard lately makes room for another one of its slot.
    Drop(NodeId),
    /// A newcomer becomes a learner.
    Add(NodeId, MemberAddress),
    /// One identity takes another one's place.
    Replace { old: NodeId, new: NodeId },
}

/// The next step, if any.
pub(super) fn next(view: &View<'_>) -> Option<Step> {
    let configurations = view.membership.get_joint_config();
    let [voters] = configurations.as_slice() else {
        return Some(Step::Finish);
    };
    view.applicants.values().find_map(|applicant| step_for(view, voters, applicant))
}

fn step_for(view: &View<'_>, voters: &BTreeSet<NodeId>, applicant: &Applicant) -> Option<Step> {
    let slot = applicant.id.slot();
    let old = place(view, voters, applicant.id).ok().filter(|old| *old != applicant.id)?;
    if view.membership.get_node(&applicant.id).is_none() {
        let mut members = view.membership.nodes().map(|(id, _)| *id);
        return Some(match members.find(|id| id.slot() == slot && !voters.contains(id)) {
            Some(stale) => Step::Drop(stale),
            None => Step::Add(applicant.id, applicant.address.clone()),
        });
    }
    (applicant.active && view.alive.contains(&applicant.id) && view.level.contains(&applicant.id))
        .then_some(Step::Replace { old, new: applicant.id })
}

/// The voter whose place a newcomer may take; itself if it votes.
///
/// # Errors
/// Why it cannot be taken in now.
pub(super) fn place(view: &View<'_>, voters: &BTreeSet<NodeId>, newcomer: NodeId) -> Result<NodeId, String> {
    let slot = newcomer.slot();
    let Some(old) = voters.iter().find(|voter| voter.slot() == slot) else {
        return Err(format!("the cluster has no slot {slot}"));
    };
    if *old == newcomer {
        return Ok(newcomer);
    }
    if *old == view.own || view.alive.contains(old) {
        return Err(format!("slot {slot} is held by member {old}, which is alive; stop it first"));
    }
    let mut rivals = view.membership.nodes().map(|(id, _)| id);
    match rivals.find(|id| id.slot() == slot && **id != newcomer && view.alive.contains(id)) {
        Some(rival) => Err(format!("slot {slot} is about to be taken by {rival}, which is alive")),
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
        level: Vec<NodeId>,
        applicants: Vec<(NodeId, bool)>,
    }

    /// Member 2 is gone, and nobody has asked yet.
    fn scene() -> Scene {
        Scene {
            configurations: vec![vec![ONE, TWO, THREE]],
            learners: vec![],
            alive: vec![ONE, THREE],
            level: vec![ONE, THREE],
            applicants: vec![],
        }
    }

    impl Scene {
        fn next(&self) -> Option<Step> {
            let sets: Vec<BTreeSet<NodeId>> =
                self.configurations.iter().map(|set| set.iter().copied().collect()).collect();
            let ids = self.configurations.iter().flatten().chain(&self.learners);
            let nodes: BTreeMap<NodeId, MemberAddress> =
                ids.map(|id| (*id, MemberAddress::default())).collect();
            let applicant = |(id, active): &(NodeId, bool)| {
                (id.slot(), Applicant { id: *id, address: MemberAddress::default(), active: *active })
            };
            next(&View {
                own: ONE,
                membership: &Membership::new(sets, nodes).unwrap(),
                alive: &self.alive.iter().copied().collect(),
                level: &self.level.iter().copied().collect(),
                applicants: &self.applicants.iter().map(applicant).collect(),
            })
        }
    }

    #[test]
    fn a_newcomer_learns_and_then_takes_the_place_of_a_silent_identity() {
        let mut scene = scene();
        assert_eq!(scene.next(), None, "nobody asks");
        scene.applicants = vec![(NEW, true)];
        assert_eq!(scene.next(), Some(Step::Add(NEW, MemberAddress::default())));
        scene.learners = vec![NEW];
        assert_eq!(scene.next(), None, "it has nothing yet");
        scene.alive.push(NEW);
        scene.level.push(NEW);
        assert_eq!(scene.next(), Some(Step::Replace { old: TWO, new: NEW }));
        scene.configurations = vec![vec![ONE, TWO, THREE], vec![ONE, NEW, THREE]];
        assert_eq!(scene.next(), Some(Step::Finish));
        (scene.configurations, scene.learners) = (vec![vec![ONE, NEW, THREE]], vec![]);
        assert_eq!(scene.next(), None);
    }

    #[test]
    fn an_identity_that_is_alive_is_not_replaced_nor_is_the_leader() {
        let mut scene = scene();
        scene.applicants = vec![(NEW, true)];
        scene.alive.push(TWO);
        assert_eq!(scene.next(), None);
        scene.alive.pop();
        scene.applicants = vec![(NodeId::new(1, 9), true)];
        assert_eq!(scene.next(), None);
    }

    #[test]
    fn a_newcomer_that_recovers_is_not_made_a_voter() {
        let mut scene = scene();
        (scene.learners, scene.applicants) = (vec![NEW], vec![(NEW, false)]);
        scene.alive.push(NEW);
        scene.level.push(NEW);
        assert_eq!(scene.next(), None);
    }

    #[test]
    fn a_learner_that_was_given_up_makes_room_and_one_that_is_alive_does_not() {
        let mut scene = scene();
        (scene.learners, scene.applicants) = (vec![NEW], vec![(NEWER, true)]);
        assert_eq!(scene.next(), Some(Step::Drop(NEW)));
        scene.alive.push(NEW);
        assert_eq!(scene.next(), None);
    }

    #[test]
    fn a_slot_that_the_cluster_does_not_have_is_not_taken() {
        let mut scene = scene();
        scene.applicants = vec![(NodeId::new(7, 7), true)];
        assert_eq!(scene.next(), None);
    }
}
