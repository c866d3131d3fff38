//! What a directory may lack, by how it was left.

use super::recovery::Left;
use crate::superblock::Superblock;
use crate::types::{Mode, Standing};

/// Whether the node still remembers what it acknowledged. A restart of the process does not make a forgetful node
/// whole, a power cut takes nothing where the mark says that everything acknowledged was synced, and what can be read
/// after a failed write or sync is no proof where peers can tell what is missing. Nor is it if the boot id is another one by
/// then: that may have changed for less than a power cut.
pub(super) fn classify(known: &Superblock, power_cut: bool, peers: bool) -> Standing {
    let doubtful = power_cut && known.lazy || known.failed_sync.is_some() && peers;
    match known.standing {
        Standing::Active if !doubtful => Standing::Active,
        _ => Standing::Recovering,
    }
}

/// What the journal may lack. A failed sync under the running kernel counts as a power cut that was survived: blocks may
/// have fallen back one by one, but with no peers what was acknowledged must be there.
pub(super) fn how_it_was_left(known: &Superblock, power_cut: bool, peers: bool) -> Left {
    let keeps = known.mode == Some(Mode::Device);
    let failed_sync = known.failed_sync.filter(|_| !power_cut || keeps);
    Left {
        power_cut: power_cut || failed_sync.is_some(),
        kept_written: match failed_sync {
            // What a failed sync covered may be gone whatever the device promises; where peers hold it, nothing is taken for granted.
            Some(_) => keeps && !peers,
            None => keeps || !power_cut,
        },
        reaches: failed_sync.filter(|_| power_cut || !peers),
        synced: failed_sync.filter(|_| known.mode == Some(Mode::Sync)).unwrap_or(0),
    }
}
