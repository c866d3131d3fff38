//! At most one leader per term, and a restarted node never leads a term that it led before.

use cairn_clients::Violation;
use std::collections::BTreeMap;

/// The property's name.
pub const NAME: &str = "one leader per term";

/// The leader seen in each term.
#[derive(Debug, Default)]
pub struct Leaders {
    terms: BTreeMap<u64, (u16, u32)>,
}

impl Leaders {
    /// A node, in its `run`-th process, reports that it leads `term`.
    pub fn saw(&mut self, slot: u16, run: u32, term: u64) -> Option<Violation> {
        let (leader, life) = *self.terms.entry(term).or_insert((slot, run));
        ((leader, life) != (slot, run)).then(|| {
            let detail = format!(
                "term {term} was led by node {leader} (life {life}) and by node {slot} (life {run})"
            );
            Violation::new(NAME, detail)
        })
    }

    /// Terms that had a leader.
    pub fn terms(&self) -> usize {
        self.terms.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_leader_of_a_term_is_reported() {
        let mut leaders = Leaders::default();
        assert_eq!(leaders.saw(1, 0, 5), None);
        assert_eq!(leaders.saw(1, 0, 5), None);
        assert_eq!(leaders.saw(2, 0, 6), None);
        assert!(leaders.saw(2, 0, 5).is_some());
        assert!(leaders.saw(1, 1, 5).is_some(), "the same node after a restart");
    }
}
