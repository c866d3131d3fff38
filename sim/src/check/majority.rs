//! What one node has applied is in the logs of a majority.
//!
//! A node that is down may have it; a node counts as lacking it only if it runs and certainly does
//! not have it.

use cairn_clients::Violation;
use cairn_engine::LogId;

/// The property's name.
pub const NAME: &str = "applied is on a majority";

/// Checks one applied position against the members that certainly do not hold it.
pub fn check(members: usize, applied: LogId, by: u16, lacking: &[u16]) -> Option<Violation> {
    let majority = members / 2 + 1;
    (members.saturating_sub(lacking.len()) < majority).then(|| {
        Violation::new(
            NAME,
            format!(
                "node {by} applied {applied}, which nodes {lacking:?} of {members} do not have"
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minority_may_lack_what_is_applied() {
        let id = LogId { term: 2, index: 7 };
        assert_eq!(check(3, id, 1, &[]), None);
        assert_eq!(check(3, id, 1, &[2]), None);
        assert!(check(3, id, 1, &[2, 3]).is_some());
        assert_eq!(check(5, id, 1, &[2, 3]), None);
        assert!(check(5, id, 1, &[2, 3, 4]).is_some());
    }
}
