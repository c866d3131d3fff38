//! Which of many has to end before one more begins: the oldest of the address that has most.
//!
//! What holds here: an address that begins many replaces its own, and none of an address that has
//! fewer. The addresses of one IPv6 network of 64 bits are one: a host has all of them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

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
        let address = address.map(of_host);
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

/// The same for all addresses that one host may have.
fn of_host(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(address) if address.to_ipv4_mapped().is_none() => {
            Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into()
        }
        address => address.to_canonical(),
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
    fn a_host_has_all_addresses_of_its_network() {
        let parsed = |text: &str| Some(text.parse().expect("an address"));
        let mut crowd = Crowd::new();
        for of in ["10.0.0.1", "2001:db8::1", "::ffff:10.0.0.2", "2001:db8::2", "2001:db8:0:1::1"] {
            crowd.add(parsed(of), of);
        }
        let ended: Vec<_> = std::iter::from_fn(|| crowd.make_way()).take(2).collect();
        assert_eq!(ended, ["2001:db8::1", "10.0.0.1"]);
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
