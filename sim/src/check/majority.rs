//! What one node has applied is in the logs of a majority of each configuration that is in force.
//!
//! A node that is down may have it; a node counts as lacking it only if it runs and certainly does
//! not have it. An identity that is in no configuration does not count.

use cairn_clients::Violation;
use cairn_engine::LogId;
use cairn_raft::NodeId;
use std::collections::BTreeSet;

/// The property's name.
pub const NAME: &str = "applied is on a majority";

/// Checks one applied position against the members that certainly do not hold it.
pub fn check(
    configurations: &[BTreeSet<NodeId>],
    applied: LogId,
    by: u16,
    lacking: &BTreeSet<NodeId>,
) -> Option<Violation> {
    let voters = configurations.iter().find(|voters| !leaves_majority(voters, lacking))?;
    let lacking: Vec<&NodeId> = voters.intersection(lacking).collect();
    let of = voters.len();
    let detail = format!("node {by} applied {applied}, which {lacking:?} of {of} do not have");
    Some(Violation::new(NAME, detail))
}

/// Whether a majority of the voters is left without these.
pub(super) fn leaves_majority(voters: &BTreeSet<NodeId>, without: &BTreeSet<NodeId>) -> bool {
    voters.difference(without).count() > voters.len() / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(slots: &[u16]) -> BTreeSet<NodeId> {
        slots.iter().map(|slot| NodeId::new(*slot, u64::from(*slot))).collect()
    }

    #[test]
    fn a_minority_may_lack_what_is_applied() {
        let id = LogId { term: 2, index: 7 };
        let lacks =
            |voters: &[u16], lacking: &[u16]| check(&[set(voters)], id, 1, &set(lacking)).is_some();
        assert!(!lacks(&[1, 2, 3], &[]));
        assert!(!lacks(&[1, 2, 3], &[2]));
        assert!(lacks(&[1, 2, 3], &[2, 3]));
        assert!(!lacks(&[1, 2, 3, 4, 5], &[2, 3]));
        assert!(lacks(&[1, 2, 3, 4, 5], &[2, 3, 4]));
        assert!(lacks(&[1, 2], &[2]));
        assert!(!lacks(&[1, 2], &[3, 4]), "they are no members");
    }

    #[test]
    fn in_a_joint_configuration_it_is_on_a_majority_of_both() {
        let id = LogId { term: 2, index: 7 };
        let both = [set(&[1, 2, 3]), set(&[1, 2])];
        assert_eq!(check(&both, id, 1, &set(&[3])), None);
        assert!(check(&both, id, 1, &set(&[2])).is_some());
    }
}
