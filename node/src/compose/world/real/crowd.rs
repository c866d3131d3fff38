//! Which of many has to end before one more begins: the oldest of the address that has most.
//!
//! What holds here: an address that begins many replaces its own, and none of an address that has
//! fewer.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

/// Handshakes or connections.
pub(super) struct Crowd<H> {
    /// By address, the oldest first, each with its number.
    running: BTreeMap<Option<IpAddr>, VecDeque<(u64, H)>>,
    begun: u64,
}

impl<H> Crowd<H> {
    pub(super) fn new() -> Crowd<H> {
        Crowd { running: BTreeMap::new(), begun: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.running.values().map(VecDeque::len).sum()
    }

    pub(super) fn add(&mut self, address: Option<IpAddr>, handle: H) {
        self.begun += 1;
        self.running.entry(address).or_default().push_back((self.begun, handle));
    }

    /// Drops those that have ended.
    pub(super) fn retain(&mut self, runs: impl Fn(&H) -> bool) {
        self.running.retain(|_, of_address| {
            of_address.retain(|(_, handle)| runs(handle));
            !of_address.is_empty()
        });
    }

    /// Takes out the one that has to end. Of addresses that have equally many, the oldest.
    pub(super) fn make_way(&mut self) -> Option<H> {
        let most = self.running.values_mut().max_by_key(|of_address| {
            let oldest = of_address.front().map(|(number, _)| Reverse(*number));
            (of_address.len(), oldest)
        })?;
        most.pop_front().map(|(_, handle)| handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, number]))
    }

    #[test]
    fn the_oldest_of_the_address_that_has_most_makes_way() {
        let mut crowd = Crowd::new();
        for (of, name) in [(1, "first"), (2, "a"), (2, "b"), (3, "last"), (2, "c")] {
            crowd.add(address(of), name);
        }
        assert_eq!((crowd.len(), crowd.make_way(), crowd.make_way()), (5, Some("a"), Some("b")));
        let left: Vec<_> = std::iter::from_fn(|| crowd.make_way()).collect();
        assert_eq!((left, crowd.len()), (vec!["first", "last", "c"], 0), "the oldest of all");
    }

    #[test]
    fn what_has_ended_does_not_count() {
        let mut crowd = Crowd::new();
        for (of, name) in [(1, "ended"), (1, "ended"), (1, "runs"), (2, "d"), (2, "e")] {
            crowd.add(address(of), name);
        }
        crowd.retain(|name| *name != "ended");
        assert_eq!((crowd.len(), crowd.make_way()), (3, Some("d")));
    }
}
