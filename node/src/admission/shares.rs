//! How a capacity is shared: after admission an owner holds at most as much as remains free
//! (dynamic thresholds, as in switches with shared memory). So no share needs configuration, one
//! owner alone can hold half of the capacity, and a small request of another is admitted while large
//! ones wait or are refused.

use crate::access::Identity;
use std::collections::BTreeMap;

/// Whose holdings are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// One connection, if nothing else tells its client from others.
    Connection(u64),
    /// A name of the configuration, over all its connections.
    Name(u64),
}

impl Owner {
    /// The owner of what the identity asks for over this connection.
    pub(crate) fn of(identity: &Identity, connection: Owner) -> Owner {
        identity.number().map_or(connection, Owner::Name)
    }
}

/// A capacity and who holds how much of it.
#[derive(Default)]
pub(crate) struct Shares {
    most: usize,
    held: usize,
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
    /// alone.
    pub(crate) fn fits(&self, owner: Owner, amount: usize) -> bool {
        let then_free = self.most.saturating_sub(self.held.saturating_add(amount));
        self.held == 0 || self.of(owner).saturating_add(amount) <= then_free
    }

    fn of(&self, owner: Owner) -> usize {
        self.owners.get(&owner).copied().unwrap_or(0)
    }

    /// Counts this much, whether it fits or not.
    pub(crate) fn take(&mut self, owner: Owner, amount: usize) {
        if amount > 0 {
            self.held = self.held.saturating_add(amount);
            let own = self.owners.entry(owner).or_default();
            *own = own.saturating_add(amount);
        }
    }

    pub(crate) fn release(&mut self, owner: Owner, amount: usize) {
        self.held = self.held.saturating_sub(amount);
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
