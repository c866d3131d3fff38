//! In each configuration a slot has at most one voter, and a dropped identity, whether another took
//! its slot or nobody, never votes or leads again.

use cairn_clients::Violation;
use cairn_raft::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// The property's name.
pub const NAME: &str = "one voter per slot, identities never reused";

/// The identities seen.
#[derive(Debug, Default)]
pub struct Members {
    voters: BTreeSet<NodeId>,
    /// With the term of the leader that did without them.
    dropped: BTreeMap<NodeId, u64>,
    /// The term of the latest leader.
    term: u64,
}

impl Members {
    /// A node uses these configurations, one or two. They need not be committed. A single
    /// configuration that drops a voter follows a joint configuration that was committed. A joint
    /// configuration that was not committed may vanish with its leader, so an identity that votes
    /// only there is no voter yet.
    pub fn saw(&mut self, configurations: &[BTreeSet<NodeId>]) -> Option<Violation> {
        for voters in configurations {
            let slots: BTreeSet<u16> = voters.iter().map(|voter| voter.slot()).collect();
            if slots.len() < voters.len() {
                return Some(Violation::new(NAME, format!("two voters in one slot: {voters:?}")));
            }
        }
        if let [voters] = configurations {
            self.voters.extend(voters);
        }
        None
    }

    /// The leader of this term uses one configuration. An earlier voter that is not in it is
    /// dropped, since only a committed joint configuration leads there.
    pub fn settled(&mut self, term: u64, voters: &BTreeSet<NodeId>) -> Option<Violation> {
        if term < self.term {
            return None;
        }
        self.term = term;
        if let Some(back) = voters.iter().find(|voter| self.dropped.contains_key(voter)) {
            return Some(Violation::new(NAME, format!("{back} was dropped and votes again")));
        }
        for gone in self.voters.iter().filter(|known| !voters.contains(known)) {
            self.dropped.entry(*gone).or_insert(term);
        }
        None
    }

    /// This identity leads this term. A leader that others have left behind may not know it yet, and
    /// one that finished the change which drops it leads on until another one is elected.
    pub fn leads(&self, id: NodeId, term: u64) -> Option<Violation> {
        let dropped = self.dropped.get(&id).filter(|dropped| term > **dropped)?;
        let detail = format!("{id} was dropped in term {dropped} and leads term {term}");
        Some(Violation::new(NAME, detail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_voters_in_a_slot_and_a_return_are_reported() {
        let set = |ids: &[(u16, u64)]| -> BTreeSet<NodeId> {
            ids.iter().map(|(slot, incarnation)| NodeId::new(*slot, *incarnation)).collect()
        };
        let (before, after) = (set(&[(1, 1), (2, 2)]), set(&[(1, 1), (2, 3)]));
        let mut members = Members::default();
        assert_eq!(members.saw(&[before.clone(), after.clone()]), None);
        assert!(members.saw(&[set(&[(1, 1), (2, 2), (2, 3)])]).is_some());
        assert_eq!(members.settled(1, &before), None);
        let mut members = Members::default();
        assert_eq!(members.saw(std::slice::from_ref(&before)), None);
        assert_eq!(members.settled(2, &after), None);
        assert!(members.leads(NodeId::new(2, 2), 3).is_some());
        assert_eq!(members.leads(NodeId::new(2, 2), 2), None, "it finished the change itself");
        assert_eq!(members.leads(NodeId::new(2, 2), 1), None, "a leader that was left behind");
        assert_eq!(members.leads(NodeId::new(2, 3), 3), None);
        assert_eq!(members.settled(1, &before), None, "a leader of an older term");
        assert!(members.settled(2, &before).is_some());
    }

    #[test]
    fn a_voter_whose_slot_nobody_took_is_dropped_too() {
        let set = |ids: &[(u16, u64)]| -> BTreeSet<NodeId> {
            ids.iter().map(|(slot, incarnation)| NodeId::new(*slot, *incarnation)).collect()
        };
        let (before, after) = (set(&[(1, 1), (2, 2)]), set(&[(1, 1)]));
        let mut members = Members::default();
        assert_eq!(members.saw(std::slice::from_ref(&before)), None);
        assert_eq!(members.settled(2, &after), None);
        assert!(members.leads(NodeId::new(2, 2), 3).is_some());
        assert_eq!(members.settled(3, &set(&[(1, 1), (2, 3)])), None);
        assert!(members.settled(3, &before).is_some());
    }

    #[test]
    fn a_joining_node_of_an_abandoned_joint_configuration_may_vote_later() {
        let set = |ids: &[(u16, u64)]| -> BTreeSet<NodeId> {
            ids.iter().map(|(slot, incarnation)| NodeId::new(*slot, *incarnation)).collect()
        };
        let (before, after) = (set(&[(1, 1), (2, 2)]), set(&[(1, 1), (2, 3)]));
        let mut members = Members::default();
        assert_eq!(members.saw(std::slice::from_ref(&before)), None);
        assert_eq!(members.saw(&[before.clone(), after.clone()]), None);
        assert_eq!(members.settled(2, &before), None, "the next leader never saw the joint one");
        assert_eq!(members.settled(2, &after), None, "it makes the change itself");
        assert!(members.leads(NodeId::new(2, 2), 3).is_some());
    }
}
