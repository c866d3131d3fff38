//! What to do about damage that no older state here replaces: refuse, or keep what is verified where peers hold the rest.

use crate::error::{Corruption, Error, Result};
use crate::group::Group;
use crate::types::GroupId;
use std::collections::{BTreeMap, btree_map};

/// Whether damage is accepted, and the first that was.
///
/// What holds here: a directory that was opened in spite of damage is never taken for whole; its node may have forgotten
/// what it acknowledged, and recovers.
pub(crate) struct Salvage {
    allowed: bool,
    damage: Option<Corruption>,
}

impl Salvage {
    pub(super) fn new(allowed: bool) -> Salvage {
        Salvage { allowed, damage: None }
    }

    /// Goes on in spite of damage, where that is allowed; any other error stays one.
    pub(super) fn accept(&mut self, error: Error) -> Result<()> {
        match error {
            Error::Corrupt(damage) if self.allowed => {
                self.damage.get_or_insert(damage);
                Ok(())
            }
            error => Err(error),
        }
    }

    /// What was accepted first.
    pub(super) fn damage(self) -> Option<Corruption> {
        self.damage
    }
}

/// Ends each group's log before its first entry whose body cannot be read, and forgets what was known to be applied of
/// what is gone.
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
