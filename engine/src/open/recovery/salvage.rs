//! What to do about damage that no older state on this disk replaces: refuse, or, with peers, keep
//! what is verified.

use crate::error::{Corruption, Error, Result};
use crate::group::Group;
use crate::types::GroupId;
use std::collections::{BTreeMap, btree_map};

/// Whether damage is accepted, and the first damage that was.
///
/// What holds here: a directory opened in spite of damage never counts as complete. Its node may
/// have lost acknowledged writes, so it recovers.
pub(crate) struct Salvage {
    allowed: bool,
    damage: Option<Corruption>,
}

impl Salvage {
    pub(super) fn new(allowed: bool) -> Salvage {
        Salvage { allowed, damage: None }
    }

    /// Continues in spite of damage if that is allowed; returns any other error.
    pub(super) fn accept(&mut self, error: Error) -> Result<()> {
        match error {
            Error::Corrupt(damage) if self.allowed => {
                self.damage.get_or_insert(damage);
                Ok(())
            }
            error => Err(error),
        }
    }

    /// The damage that was accepted first.
    pub(super) fn damage(self) -> Option<Corruption> {
        self.damage
    }
}

/// Ends each group's log before its first entry whose body cannot be read, and limits the recorded
/// applied position to the new end.
pub(super) fn cut_before(
    groups: &mut BTreeMap<GroupId, Group>,
    unreadable: BTreeMap<(GroupId, u64), Error>,
    salvage: &mut Salvage,
) -> Result<()> {
    let mut first: BTreeMap<GroupId, u64> = BTreeMap::new();
    for ((group, index), error) in unreadable {
        salvage.accept(error)?;
        if let btree_map::Entry::Vacant(vacant) = first.entry(group) {
            vacant.insert(index);
        }
    }
    for (id, index) in first {
        let Some(group) = groups.get_mut(&id) else { continue };
        group.cut_before(index);
    }
    Ok(())
}
