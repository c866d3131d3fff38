//! Majorities of voters: of one configuration, and of each.

use super::ids::NodeId;
use std::collections::BTreeSet;

/// How many of so many voters are a majority.
pub fn majority(voters: usize) -> usize {
    voters / 2 + 1
}

/// Whether these members include a majority of the voters of each configuration: of one, or of both
/// while the members change (Raft, section 6). Without a configuration nobody is a quorum.
pub fn is_quorum(configurations: &[BTreeSet<NodeId>], members: &BTreeSet<NodeId>) -> bool {
    let has_majority = |voters: &BTreeSet<NodeId>| is_majority(voters, members);
    !configurations.is_empty() && configurations.iter().all(has_majority)
}

/// Whether these members include a majority of these voters.
pub fn is_majority(voters: &BTreeSet<NodeId>, members: &BTreeSet<NodeId>) -> bool {
    voters.intersection(members).count() >= majority(voters.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quorum_has_a_majority_of_each_configuration() {
        let set = |slots: &[u16]| slots.iter().map(|slot| NodeId::new(*slot, 7)).collect();
        // (configurations, members, whether they are a quorum)
        type Case<'a> = (&'a [&'a [u16]], &'a [u16], bool);
        let table: [Case<'_>; 15] = [
            (&[], &[1], false),
            (&[&[]], &[1], false),
            (&[&[1]], &[], false),
            (&[&[1]], &[1], true),
            (&[&[1, 2]], &[1], false),
            (&[&[1, 2, 3]], &[1], false),
            (&[&[1, 2, 3]], &[1, 2], true),
            // A learner does not help.
            (&[&[1, 2, 3]], &[1, 4], false),
            (&[&[1, 2, 3, 4]], &[1, 2], false),
            (&[&[1, 2, 3, 4, 5]], &[1, 2, 5], true),
            (&[&[1, 2, 3], &[3, 4, 5]], &[1, 2, 3], false),
            (&[&[1, 2, 3], &[3, 4, 5]], &[3, 4, 5], false),
            (&[&[1, 2, 3], &[3, 4, 5]], &[1, 3, 4], true),
            // It leaves, and is no voter any more in the second half.
            (&[&[1, 2], &[2]], &[1], false),
            (&[&[1, 2], &[2]], &[1, 2], true),
        ];
        for (configurations, members, quorum) in table {
            let halves: Vec<_> = configurations.iter().map(|slots| set(slots)).collect();
            let found = is_quorum(&halves, &set(members));
            assert_eq!(found, quorum, "{configurations:?}, members: {members:?}");
        }
    }
}
