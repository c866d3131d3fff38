//! The live extents of a group, and the repair of a damaged one.
//!
//! Repair writes a block a second time, although the rule is "between two syncs no block is written
//! twice". The rule exists because a power cut may leave each sector of a block old or new, which
//! would endanger intact data in the block. A repair writes back the bytes that it read from the
//! block, except those of the damaged value. This is safe:
//! - The sectors of the neighbours are the same before and after, so a torn rewrite leaves them as
//!   they are. Two reads must agree on them, so that a misread is not made permanent.
//! - The damaged value ends as it was, as it should be, or as a mixture: either right, or still
//!   detected as damaged.
//! - No other write to the block can be in flight. The values of one group commit share no block
//!   with another one's, a value whose group commit is not yet written is not repaired, and one
//!   repair runs at a time.
//! - The extent cannot be given to another value meanwhile: the repair takes a view before it looks
//!   the extent up.
//! - The extent was not given to another value before the restart: nothing is repaired for an entry
//!   whose purge is due, nor for a key before the log is re-applied to its old position. Both may
//!   refer to an extent that was freed.

use crate::codec;
use crate::error::{Error, Result};
use crate::group::LogEntry;
use crate::io::yield_once;
use crate::journal::encode_body;
use crate::state::{Engine, State, View};
use crate::types::{GroupId, KeyEntry, LogId, ValueRef};
use crate::values::{read_once, read_value};
use crate::write::plan_writes;
use bytes::Bytes;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Keys or entries visited before the task yields.
const STRIDE: usize = 4096;

/// What refers to an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This key, and perhaps the log entry that wrote it.
    Key(Bytes),
    /// A log entry, as one of its values.
    Entry,
    /// A log entry: the extent is its body, too long for the journal record.
    Body,
}

/// A value in the data area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where, and what its bytes must hash to.
    pub at: ValueRef,
    /// The entry that wrote it.
    pub log_id: LogId,
    /// What refers to it.
    pub owner: Owner,
}

impl Extent {
    /// The value of a key.
    pub fn of_key(key: Bytes, entry: &KeyEntry) -> Extent {
        Extent { at: entry.value.clone(), log_id: entry.version, owner: Owner::Key(key) }
    }

    /// Whether it has a live reference: a log entry that still owns its extents, or a key of a
    /// state that is re-applied.
    fn is_live(&self, state: &State, group: GroupId) -> bool {
        let Some(group) = state.groups.get(&group) else {
            return false;
        };
        let index = self.log_id.index;
        let logged = group.log.get(index).filter(|entry| entry.id == self.log_id);
        let logged = logged.filter(|_| group.keeps_extents_of(index));
        let in_log =
            |refers: fn(&LogEntry, &ValueRef) -> bool| logged.is_some_and(|e| refers(e, &self.at));
        match &self.owner {
            Owner::Body => in_log(|entry, at| entry.spilled.as_ref() == Some(at)),
            Owner::Entry => in_log(|entry, at| entry.values.contains(at)),
            Owner::Key(key) => {
                let held = |entry: KeyEntry| entry.version == self.log_id && entry.value == self.at;
                (group.is_reapplied() && group.keys.get(key).is_some_and(held))
                    || in_log(|entry, at| entry.values.contains(at))
            }
        }
    }
}

impl Engine {
    /// The live extents whose first byte is in `range` of the data area, in order of that byte.
    /// Leaves out those that may belong to another value now: of an entry whose purge is due, or of
    /// keys that are older than before the restart. Visits every key and entry, and yields to other tasks
    /// meanwhile.
    pub async fn extents(&self, id: GroupId, range: Range<u64>) -> Vec<Extent> {
        let (reapplied, entries) = {
            let state = self.shared.state.lock();
            let Some(group) = state.groups.get(&id) else {
                return Vec::new();
            };
            let due = group.purge_due().map(|due| due.index);
            (group.is_reapplied(), group.log.entries_above(due))
        };
        let view = View::new(&self.shared, id);
        let wanted = |at: &ValueRef| at.len > 0 && range.contains(&at.offset());
        let mut found = Vec::new();
        for (number, (key, entry)) in view.entries().filter(|_| reapplied).enumerate() {
            if wanted(&entry.value) {
                found.push(Extent::of_key(Bytes::copy_from_slice(key), &entry));
            }
            if number % STRIDE == STRIDE - 1 {
                yield_once().await;
            }
        }
        for (number, entry) in entries.iter().enumerate() {
            let of = |at: &ValueRef, owner| Extent { at: at.clone(), log_id: entry.id, owner };
            found
                .extend(entry.values.iter().filter(|at| wanted(at)).map(|at| of(at, Owner::Entry)));
            found
                .extend(entry.spilled.iter().filter(|at| wanted(at)).map(|at| of(at, Owner::Body)));
            if number % STRIDE == STRIDE - 1 {
                yield_once().await;
            }
        }
        // If a key and the log refer to one value, it comes once, with its key: the sort is stable.
        found.sort_by_key(|extent| extent.at.offset());
        found.dedup_by_key(|extent| extent.at.offset());
        found
    }

    /// Reads an extent from the device and checks it. `None` if nothing refers to it any more, if
    /// it may belong to another value now, or while its write is in flight.
    ///
    /// # Errors
    /// `Corrupt`; `Io`.
    pub async fn read_extent(&self, group: GroupId, extent: &Extent) -> Result<Option<Bytes>> {
        let shared = &self.shared;
        let _pinned = View::new(shared, group);
        if !self.can_be_read(group, extent) {
            return Ok(None);
        }
        read_value(&shared.files.data, &extent.at, extent.log_id).await.map(Some)
    }

    /// Reads extents once, those near one another together. Returns the number of blocks read, and
    /// the extents that did not match: damaged, no longer live, or with their write in flight.
    pub async fn check_extents(&self, extents: &[Extent]) -> (u64, Vec<Extent>) {
        let mut intact = vec![false; extents.len()];
        let refs = extents.iter().map(|extent| &extent.at);
        let blocks = read_once(&self.shared.files.data, refs, |number, value| {
            if let Some(intact) = intact.get_mut(number) {
                *intact = value.is_some();
            }
        })
        .await;
        let suspects = extents.iter().zip(intact).filter(|(_, intact)| !intact);
        (blocks, suspects.map(|(extent, _)| extent.clone()).collect())
    }

    /// The bytes of the value that entry `log_id` wrote and that hashes to `hash`, from any intact
    /// source: memory, the log, or `key` if that entry wrote it.
    pub async fn find_value(
        &self,
        group: GroupId,
        log_id: LogId,
        key: &[u8],
        len: u32,
        hash: u128,
    ) -> Option<Bytes> {
        let shared = &self.shared;
        let _pinned = View::new(shared, group);
        let wanted = |at: &ValueRef| at.len == len && at.hash == hash;
        let matches = |bytes: &Bytes| bytes.len() == len as usize && codec::hash(bytes) == hash;
        let (cached, places) = {
            let state = shared.state.lock();
            let group = state.groups.get(&group)?;
            let logged = group.log.get(log_id.index).filter(|entry| entry.id == log_id);
            let number = logged.and_then(|entry| entry.values.iter().position(wanted));
            let cached = group.log.cached(log_id.index);
            let cached = number.and_then(|number| cached?.get(number).cloned());
            let in_log = number.and_then(|number| logged?.values.get(number).cloned());
            let keyed =
                group.keys.get(key).filter(|entry| entry.version == log_id && wanted(&entry.value));
            (cached, [keyed.map(|entry| entry.value), in_log])
        };
        if let Some(bytes) = cached.filter(matches) {
            return Some(bytes);
        }
        for at in places.into_iter().flatten() {
            if let Ok(bytes) = shared.read_quietly(&at, log_id).await
                && matches(&bytes)
            {
                return Some(bytes);
            }
        }
        None
    }

    /// Whether it is live, cannot belong to another value, and is on the device.
    fn can_be_read(&self, group: GroupId, extent: &Extent) -> bool {
        let state = self.shared.state.lock();
        extent.at.len > 0
            && extent.is_live(&state, group)
            && !state.unwritten.contains_key(&extent.at.offset())
            && state.space.contains(&extent.at)
    }

    /// The body of an entry as the data area should hold it, from memory.
    pub fn body_of(&self, group: GroupId, log_id: LogId) -> Option<Bytes> {
        let state = self.shared.state.lock();
        let entry =
            state.groups.get(&group)?.log.get(log_id.index).filter(|entry| entry.id == log_id)?;
        let body = encode_body(&entry.values, &entry.meta);
        // Once one of its values has moved, the data area holds a body that nobody knows any more.
        let is_as_written = entry.spilled.as_ref().is_none_or(|at| at.matches(&body));
        is_as_written.then(|| body.into())
    }

    /// Writes the right bytes into a damaged extent, synced, and reads them again. Returns `false`
    /// without a write if nothing refers to the extent any more, if it may belong to another value
    /// now, if its write is in flight, if it is intact, or while the directory may not be written.
    ///
    /// # After a crash
    /// During this call: the extent is damaged or repaired; nothing else has changed.
    ///
    /// # Errors
    /// `Invalid` for bytes other than the extent's; `Corrupt` or `Io` if the device does not keep
    /// what was written; `Failed`, `Closed`.
    pub async fn repair(&self, group: GroupId, extent: &Extent, bytes: &[u8]) -> Result<bool> {
        if !extent.at.matches(bytes) {
            return Err(Error::Invalid(format!(
                "a value of entry {} is to be repaired with other bytes",
                extent.log_id
            )));
        }
        // In a task of its own: the caller may be cancelled, and the kernel reports a failed sync
        // only once.
        let (engine, extent, bytes) = (self.clone(), extent.clone(), Bytes::copy_from_slice(bytes));
        let repairing =
            tokio::spawn(async move { engine.repair_with(group, &extent, &bytes).await });
        repairing.await.unwrap_or(Err(Error::Closed))
    }

    async fn repair_with(&self, group: GroupId, extent: &Extent, bytes: &Bytes) -> Result<bool> {
        let shared = &self.shared;
        let _one_at_a_time = shared.repairing.lock().await;
        let _pinned = View::new(shared, group);
        if !self.can_be_read(group, extent) {
            return Ok(false);
        }
        {
            let state = shared.state.lock();
            state.check_open()?;
            if !state.begun {
                return Ok(false);
            }
        }
        let read = || read_value(&shared.files.data, &extent.at, extent.log_id);
        if read().await.is_ok() {
            return Ok(false);
        }
        for plan in plan_writes(&[(extent.at.clone(), bytes.clone())]) {
            let mut buf = shared.files.data.read_stable(plan.offset, plan.bytes).await?.bytes;
            plan.put_into(&mut buf);
            shared.counters.device_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
            let written = shared.files.data.write(plan.offset, buf).await;
            written.inspect_err(|error| shared.fail(error))?;
        }
        shared.sync_now().await?;
        read().await?;
        shared.counters.repaired_values.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::memory::MemoryDirectory;
    use crate::journal::Moved;
    use crate::types::{Geometry, Identity, KernelBootId, Mode, NewEntry, Options, Promise};
    use std::sync::Arc;

    const GROUP: GroupId = GroupId(0);

    /// The story: a body was damaged whose entry's value had moved since. The body was made again with
    /// the new place, matched no hash, and counted as one that nobody has.
    #[tokio::test]
    async fn a_body_is_known_until_one_of_its_values_moves() {
        let geometry =
            Geometry { journal_bytes: 1 << 20, checkpoint_bytes: 1 << 20, data_bytes: 4 << 20 };
        let identity = Identity { cluster: "test".into(), slot: 1, incarnation: 7 };
        let directory = MemoryDirectory::new(&geometry);
        Engine::format(&directory, geometry, &identity).await.unwrap();
        let options = Options::new(Mode::Replicated, KernelBootId(1), 1);
        let engine = Engine::open(Arc::new(directory), None, options).await.unwrap();
        let id = LogId { term: 1, index: 0 };
        let entry = NewEntry::new(id, vec![7; 3000], vec![Bytes::from(vec![8; 5000])]);
        let (done, written) = tokio::sync::oneshot::channel();
        let done = Box::new(move |result| drop(done.send(result)));
        engine.append(GROUP, vec![entry], Promise::Mode, done).await.unwrap();
        written.await.unwrap().unwrap();
        let found = engine.extents(GROUP, 0..u64::MAX).await;
        let of = |owner: Owner| found.iter().find(|extent| extent.owner == owner).unwrap();
        let (body, from) = (of(Owner::Body), of(Owner::Entry).at.clone());
        let on_disk = engine.read_extent(GROUP, body).await.unwrap();
        assert!(on_disk.is_some() && engine.body_of(GROUP, id) == on_disk);
        {
            let mut state = engine.shared.state.lock();
            let to = state.space.allocate_moved(&from).unwrap();
            let moved = Moved { group: GROUP, id, key: "none".into(), from, to };
            assert!(state.groups.get_mut(&GROUP).unwrap().value_moved(&moved));
        }
        assert_eq!(engine.body_of(GROUP, id), None);
    }
}
