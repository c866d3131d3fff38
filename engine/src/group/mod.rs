//! One replicated group in memory: its log, its keys, and how far the log is applied to the keys.

mod entries;
mod entry;
mod keys;
mod log;
mod touched;

pub(crate) use entries::Entries;
pub(crate) use entry::{LogEntry, checkpoint_bytes_max};
#[cfg(test)]
pub(crate) use keys::DROPPED_AT_ONCE;
pub(crate) use keys::{KEY_FIXED_BYTES_MAX, Keys, drop_in_pieces};
pub(crate) use log::Log;
pub(crate) use touched::{Interval, KeyList, Touched};

use crate::journal::Moved;
use crate::types::{KeyEntry, LogId, SharedImage};
use std::sync::Arc;

/// A group's state. All of it is also on the device, or in the queue to it.
#[derive(Default)]
pub(crate) struct Group {
    pub log: Log,
    pub keys: Keys,
    pub applied: Option<LogId>,
    /// The applied position that the journal has recorded.
    pub applied_recorded: Option<LogId>,
    /// The position through which the log was purged before the restart. See [`Group::purge_due`].
    pub purged_before: Option<LogId>,
    /// The position that was applied before the restart.
    pub applied_before: Option<LogId>,
    pub image: Option<SharedImage>,
    pub touched: Touched,
    /// Entries of the log up to here are left out of checkpoints once they are applied.
    pub left_out: Option<u64>,
}

impl Group {
    /// Purges through `through`, as the journal or a checkpoint recorded. Entries that are not
    /// applied are kept until they are; their purge stays due.
    pub(crate) fn purge_applied(&mut self, through: LogId) -> Vec<Arc<LogEntry>> {
        self.purged_before = self.purged_before.max(Some(through));
        let now = self
            .applied
            .map(|applied| if applied.index < through.index { applied } else { through });
        now.map(|now| self.log.purge(now)).unwrap_or_default()
    }

    /// The position through which the log was purged before the restart, if open had to keep more
    /// of it.
    pub(crate) fn purge_due(&self) -> Option<LogId> {
        let purged = self.log.bounds().purged.map(|purged| purged.index);
        self.purged_before.filter(|due| purged.is_none_or(|purged| purged < due.index))
    }

    /// Whether the extents of the entry at `index` belong to it. A purge before the restart freed
    /// the extents of the entries below it, which may belong to other values now.
    pub(crate) fn keeps_extents_of(&self, index: u64) -> bool {
        self.purge_due().is_none_or(|due| due.index < index)
    }

    /// Whether the keys are as new as before the restart. Until then a key may refer to a value
    /// that was overwritten before the restart, and whose extent may belong to another value now.
    pub(crate) fn is_reapplied(&self) -> bool {
        self.applied.map(|applied| applied.index) >= self.applied_before.map(|before| before.index)
    }

    /// A value was copied to a new place: the entry that wrote it refers to that, and so does the
    /// key if it still has the value. Either may be gone. Returns whether the log has the entry.
    pub(crate) fn value_moved(&mut self, moved: &Moved) -> bool {
        let Moved { id, key, from, to, .. } = moved;
        let logged = self.log.value_moved(*id, from, to);
        let held = self.keys.get(key);
        if let Some(held) = held.filter(|held| held.version == *id && held.value == *from) {
            self.keys.insert(key, KeyEntry { value: to.clone(), ..held });
            self.touched.add(key, self.keys.len());
        }
        logged
    }

    /// Removes a key. Returns its old state.
    pub(crate) fn remove_key(&mut self, key: &[u8]) -> Option<KeyEntry> {
        let old = self.keys.remove(key)?;
        self.touched.add(key, self.keys.len());
        Some(old)
    }

    /// Ends a recovered log before the entry at `index`, and limits the recorded positions to the
    /// new end.
    pub(crate) fn cut_before(&mut self, index: u64) {
        self.log.truncate_after(index.checked_sub(1));
        let last = self.log.bounds().last;
        self.applied_before = self.applied_before.min(last);
        self.purged_before = self.purged_before.min(last);
    }

    /// A snapshot replaces everything. Returns the keys and the log entries that it replaced.
    pub(crate) fn replace(
        &mut self,
        keys: Keys,
        applied: LogId,
        image: SharedImage,
    ) -> (Keys, Entries) {
        let entries = self.log.clear();
        self.log.purge(applied);
        self.purged_before = None;
        self.applied = Some(applied);
        self.applied_recorded = Some(applied);
        self.applied_before = Some(applied);
        self.image = Some(image);
        self.touched = Touched::default();
        self.left_out = None;
        (std::mem::replace(&mut self.keys, keys), entries)
    }

    /// What a checkpoint holds of the log: the position through which it is purged, and the
    /// entries. A due purge is applied there as far as its entries are applied, and stays due for
    /// the rest. What is left out is purged there and not here.
    pub(crate) fn checkpoint_log(&self) -> (Option<LogId>, Entries) {
        let applied = self.applied.map(|applied| applied.index);
        let left_out = self.left_out.min(applied).and_then(|index| self.log.get(index));
        let left_out = left_out.map(|entry| entry.id);
        let gone = self.applied.min(self.purge_due()).max(left_out).map(|gone| gone.index);
        (self.purged().max(left_out), self.log.entries_above(gone))
    }

    /// The position through which the log is purged, or has to be.
    pub(crate) fn purged(&self) -> Option<LogId> {
        self.purge_due().or(self.log.bounds().purged)
    }
}
