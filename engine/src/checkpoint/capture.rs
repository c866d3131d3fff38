//! The capture of the state from which a checkpoint is written.

use crate::group::{Entries, Group, Keys};
use crate::types::{GroupId, LogId, SharedImage};

/// A consistent capture of everything, taken when the queue was empty.
pub(crate) struct Capture {
    /// It is the first to hold a snapshot that replaced the state: older checkpoints do not lead to
    /// it.
    pub replaces: bool,
    pub groups: Vec<CapturedGroup>,
}

/// A group in a [`Capture`].
pub(crate) struct CapturedGroup {
    pub id: GroupId,
    pub purged: Option<LogId>,
    pub applied: Option<LogId>,
    pub applied_before: Option<LogId>,
    pub image: Option<SharedImage>,
    pub log: Entries,
    pub keys: Keys,
}

impl CapturedGroup {
    /// O(1) for the keys, one reference per chunk of entries for the log.
    pub(crate) fn of((id, group): (&GroupId, &Group)) -> CapturedGroup {
        let (purged, log) = group.checkpoint_log();
        CapturedGroup {
            id: *id,
            purged,
            applied: group.applied,
            applied_before: group.applied_before.max(group.applied),
            image: group.image.clone(),
            log,
            keys: group.keys.clone(),
        }
    }
}
