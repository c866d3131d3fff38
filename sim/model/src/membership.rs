//! Who votes: a configuration of one or, while a replacement is half made, two halves.

use crate::log::{Content, Log};
use crate::state::REBORN;

/// Sets of identities, as bits. Both halves are equal when no replacement is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Membership {
    old: u8,
    new: u8,
}

impl Membership {
    /// What a log says; Raft uses a configuration from the moment that it is in the log.
    pub(crate) fn of(log: Log, first: u8) -> Membership {
        log.entries().fold(Membership::uniform(first), |m, entry| match entry.content() {
            Content::Joint(slot) => {
                Membership { old: m.old, new: m.old & !(1 << slot) | 1 << (slot + REBORN) }
            }
            Content::Final(_) => Membership { old: m.new, new: m.new },
            Content::Add(slot) => Membership::uniform(m.new | 1 << (slot + REBORN)),
            Content::Remove(slot) => Membership::uniform(m.new & !(1 << slot)),
            Content::Blank | Content::Value(_) | Content::Mark { .. } => m,
        })
    }

    fn uniform(voters: u8) -> Membership {
        Membership { old: voters, new: voters }
    }

    pub(crate) fn contains(self, id: u8) -> bool {
        (self.old | self.new) >> id & 1 == 1
    }

    /// Whether a replacement is half made.
    pub(crate) fn is_joint(self) -> bool {
        self.old != self.new
    }

    pub(crate) fn is_quorum(self, ids: u8) -> bool {
        let majority = |voters: u8| 2 * (ids & voters).count_ones() > voters.count_ones();
        majority(self.old) && majority(self.new)
    }
}
