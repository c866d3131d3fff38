//! How a capacity is shared: after admission an owner holds at most as much as remains free
//! (dynamic thresholds, as in switches with shared memory). So no share needs configuration, one
//! owner alone can hold half of the capacity, and a small request of another is admitted while large
//! ones wait or are refused. Strangers have a small part of the capacity for all of them.

use crate::access::Identity;
use std::collections::BTreeMap;

/// Whose holdings are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// One connection, if nothing else tells its client from others.
    Connection(u64),
    /// A name of the configuration, over all its connections.
    Name(u64),
    /// A connection whose requests prove no name with a role.
    Stranger(u64),
}

/// The part of a capacity that all strangers together may hold.
const STRANGERS_PART: usize = 16;

impl Owner {
    /// The owner of what the identity asks for over this connection.
    pub(crate) fn of(identity: &Identity, connection: Owner) -> Owner {
        identity.number().map_or(connection, Owner::Name)
    }

    /// The owner of what nobody with a role asks for over this connection.
    pub(crate) fn stranger(self) -> Owner {
        match self {
            Owner::Connection(number) | Owner::Stranger(number) => Owner::Stranger(number),
            Owner::Name(_) => self,
        }
    }
}

/// A capacity and who holds how much of it.
#[derive(Default)]
pub(crate) struct Shares {
    most: usize,
    held: usize,
    /// What strangers hold of it.
    strangers: usize,
    owners: BTreeMap<Owner, usize>,
}

impl Shares {
    pub(crate) fn new(most: usize) -> Shares {
        Shares { most, ..Shares::default() }
    }

    /// The capacity.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Changes the capacity. What is held stays held.
    pub(crate) fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    /// What all owners hold.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Whether the owner may take this much now. What is longer than the capacity is admitted
    /// alone, but not for a stranger.
    pub(crate) fn fits(&self, owner: Owner, amount: usize) -> bool {
        let then_free = self.most.saturating_sub(self.held.saturating_add(amount));
        let then_free = match owner {
            Owner::Stranger(_) => then_free.min(
                (self.most / STRANGERS_PART).saturating_sub(self.strangers.saturating_add(amount)),
            ),
            _ if self.held == 0 => return true,
            _ => then_free,
        };
        self.of(owner).saturating_add(amount) <= then_free
    }

    /// Whether the owner may take this much when nobody else holds anything.
    pub(crate) fn may_fit(&self, owner: Owner, amount: usize) -> bool {
        Shares::new(self.most).fits(owner, amount)
    }

    fn of(&self, owner: Owner) -> usize {
        self.owners.get(&owner).copied().unwrap_or(0)
    }

    /// Counts this much, whether it fits or not.
    pub(crate) fn take(&mut self, owner: Owner, amount: usize) {
        if amount > 0 {
            self.held = self.held.saturating_add(amount);
            if let Owner::Stranger(_) = owner {
                self.strangers = self.strangers.saturating_add(amount);
            }
            let own = self.owners.entry(owner).or_default();
            *own = own.saturating_add(amount);
        }
    }

    pub(crate) fn release(&mut self, owner: Owner, amount: usize) {
        self.held = self.held.saturating_sub(amount);
        if let Owner::Stranger(_) = owner {
            self.strangers = self.strangers.saturating_sub(amount);
        }
        if let Some(own) = self.owners.get_mut(&owner) {
            *own = own.saturating_sub(amount);
            if *own == 0 {
                self.owners.remove(&owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Owner = Owner::Name(1);
    const OTHER: Owner = Owner::Connection(1);

    /// Whoever proves no role is a stranger; a name that may not do one thing is still that name.
    #[test]
    fn a_connection_without_a_role_is_a_stranger_and_a_name_stays_one() {
        assert_eq!(Owner::Connection(7).stranger(), Owner::Stranger(7));
        assert_eq!(Owner::Stranger(7).stranger(), Owner::Stranger(7));
        assert_eq!(Owner::Name(7).stranger(), Owner::Name(7));
    }

    #[test]
    fn an_owner_holds_at_most_as_much_as_remains_free() {
        let mut shares = Shares::new(100);
        assert!(shares.fits(ONE, 1000), "alone");
        shares.take(ONE, 40);
        assert!(shares.fits(ONE, 10) && !shares.fits(ONE, 11));
        assert!(shares.fits(OTHER, 30) && !shares.fits(OTHER, 31));
        shares.take(OTHER, 30);
        assert!(!shares.fits(ONE, 1) && !shares.fits(OTHER, 1));
        shares.release(ONE, 40);
        shares.release(OTHER, 30);
        assert!(shares.held() == 0 && shares.owners.is_empty());
    }

    #[test]
    fn strangers_together_hold_a_small_part_and_leave_some_for_the_next() {
        let mut shares = Shares::new(1 << 16);
        for number in 0..10 {
            while shares.fits(Owner::Stranger(number), 1) {
                shares.take(Owner::Stranger(number), 1);
            }
        }
        assert!(shares.held() < 4096 && shares.fits(Owner::Stranger(10), 1));
        assert!(shares.fits(ONE, 30_000), "a name has the rest");
        assert!(
            !shares.may_fit(Owner::Stranger(1), 2049) && shares.may_fit(Owner::Stranger(1), 2048)
        );
        for number in 0..10 {
            let held = shares.of(Owner::Stranger(number));
            shares.release(Owner::Stranger(number), held);
        }
        assert_eq!((shares.held(), shares.strangers), (0, 0));
    }

    /// However many owners take what they can, one more always gets a small share.
    #[test]
    fn owners_that_take_all_they_can_leave_some_for_the_next() {
        let mut shares = Shares::new(4096);
        for number in 0..10 {
            while shares.fits(Owner::Name(number), 1) {
                shares.take(Owner::Name(number), 1);
            }
        }
        assert!(!shares.fits(ONE, 1) && shares.fits(OTHER, 1), "{} held", shares.held());
    }
}
