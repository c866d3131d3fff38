//! The live extents of a group, and rewriting one that is damaged.
//!
//! Why a mended block does not break "between two syncs no block is written twice". The rule is there because a power cut
//! may leave each sector of a block old or new: what was intact in the block must not be at stake. A mended block is
//! written with the bytes that were read from it, but for those of the damaged value:
//! - the sectors of its neighbours are the same before and after, so a torn rewrite leaves them as they are; two reads must
//!   agree on them, so that a misread is not made permanent;
//! - the damaged value ends as it was, as it should be, or as a mixture: unreadable, or right, never something else;
//! - no other write can be under way to the block: the values of one gathering share blocks with no other gathering, a
//!   value whose gathering is not yet written is never mended, and mending is done by one at a time;
//! - the extent cannot be given to another value meanwhile: a view is taken before it is looked up;
//! - it was not given to another one before the restart: nothing is mended for an entry whose purge is due, nor for a key
//!   before the log is applied again as far as it was. Both may refer to an extent that was freed.

use crate::codec::hash;
use crate::error::{Error, Result};
use crate::group::LogEntry;
use crate::io::{AlignedBuf, BLOCK, FileKind, give_way};
use crate::journal::encode_body;
use crate::state::{Engine, Shared, State, View};
use crate::types::{GroupId, KeyEntry, LogId, ValueRef};
use crate::values::read_value;
use bytes::Bytes;
use std::ops::Range;
use std::sync::atomic::Ordering;

const BLOCK_BYTES: u64 = BLOCK as u64;
/// Keys or entries looked at before other tasks are let run.
const STRIDE: usize = 4096;
/// How often the blocks of a damaged value are read until two reads agree.
const AGREEMENTS: usize = 4;

/// Who refers to an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This key, and perhaps the log entry that wrote it.
    Key(Bytes),
    /// A log entry has it as a value.
    Entry,
    /// It is a log entry's own body, too long for its journal record.
    Body,
}

/// A value in the data area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where, and what its bytes must hash to.
    pub at: ValueRef,
    /// The entry that brought it.
    pub log_id: LogId,
    /// Who refers to it.
    pub owner: Owner,
}

impl Extent {
    /// The value of a key.
    pub fn of_key(key: Bytes, entry: &KeyEntry) -> Extent {
        Extent { at: entry.value, log_id: entry.version, owner: Owner::Key(key) }
    }

    /// Whether somebody refers to it whose extents cannot be another's.
    fn is_live(&self, state: &State, group: GroupId) -> bool {
        let Some(group) = state.groups.get(&group) else {
            return false;
        };
        let index = self.log_id.index;
        let logged = group.log.get(index).filter(|entry| entry.id == self.log_id);
        let logged = logged.filter(|_| group.keeps_extents_of(index));
        let in_log = |refers: fn(&LogEntry, &ValueRef) -> bool| logged.is_some_and(|e| refers(e, &self.at));
        match &self.owner {
            Owner::Body => in_log(|entry, at| entry.spilled.as_ref() == Some(at)),
            Owner::Entry => in_log(|entry, at| entry.values.contains(at)),
            Owner::Key(key) => {
                let held = KeyEntry { version: self.log_id, value: self.at };
                (group.is_reapplied() && group.keys.get(key) == Some(held))
                    || in_log(|entry, at| entry.values.contains(at))
            }
        }
    }

    /// The blocks that hold it, in bytes.
    fn blocks(&self) -> Range<u64> {
        let end = self.at.offset + u64::from(self.at.len);
        self.at.offset / BLOCK_BYTES * BLOCK_BYTES..end.next_multiple_of(BLOCK_BYTES)
    }
}

impl Engine {
    /// The live extents that begin in `range` of the data area, in order of their offset; none that may be another's by now:
    /// of an entry whose purge is due, or of keys that are older than before the restart. Looks at every key; other tasks run
    /// meanwhile.
    pub async fn extents(&self, id: GroupId, range: Range<u64>) -> Vec<Extent> {
        let (reapplied, entries) = {
            let state = self.shared.state.lock();
            let Some(group) = state.groups.get(&id) else {
                return Vec::new();
            };
            let kept = group.log.entries().filter(|entry| group.keeps_extents_of(entry.id.index));
            (group.is_reapplied(), kept.cloned().collect::<Vec<_>>())
        };
        let view = View::new(&self.shared, id);
        let wanted = |at: &ValueRef| at.len > 0 && range.contains(&at.offset);
        let mut found = Vec::new();
        for (number, (key, entry)) in view.keys().iter().filter(|_| reapplied).enumerate() {
            if wanted(&entry.value) {
                found.push(Extent::of_key(Bytes::copy_from_slice(key), entry));
            }
            if number % STRIDE == STRIDE - 1 {
                give_way().await;
            }
        }
        for entry in entries {
            let of = |at: &ValueRef, owner| Extent { at: *at, log_id: entry.id, owner };
            found.extend(entry.values.iter().filter(|at| wanted(at)).map(|at| of(at, Owner::Entry)));
            found.extend(entry.spilled.iter().filter(|at| wanted(at)).map(|at| of(at, Owner::Body)));
        }
        // A key's value that the log refers to as well comes once, with its key: the sort is stable.
        found.sort_by_key(|extent| extent.at.offset);
        found.dedup_by_key(|extent| extent.at.offset);
        found
    }

    /// Reads an extent from the device and checks it. `None` where nobody refers to it any more, where it may be another's by
    /// now, or while its write is under way.
    ///
    /// # Errors
    /// `Corrupt`; `Io`.
    pub async fn read_extent(&self, group: GroupId, extent: &Extent) -> Result<Option<Bytes>> {
        let shared = &self.shared;
        let _pinned = View::new(shared, group);
        if !self.can_be_read(group, extent) {
            return Ok(None);
        }
        read_value(shared.devices.data.as_ref(), &extent.at, extent.log_id).await.map(Some)
    }

    /// Reads extents that lie near one another, given in order, together. Returns the blocks read, and the extents that did
    /// not match: damaged, or no longer live, or under way.
    pub async fn check_extents(&self, extents: &[Extent]) -> (u64, Vec<Extent>) {
        let (Some(first), Some(last)) = (extents.first(), extents.last()) else {
            return (0, Vec::new());
        };
        let (start, end) = (first.blocks().start, last.blocks().end);
        let shared = &self.shared;
        if start >= end || end > shared.devices.data.size() {
            return (0, extents.to_vec());
        }
        let (result, buf) = shared.devices.data.read(start, AlignedBuf::zeroed((end - start) as usize)).await;
        let intact = |extent: &&Extent| {
            let at = extent.at.offset.checked_sub(start).and_then(|at| usize::try_from(at).ok());
            let bytes = at.and_then(|at| buf.get(at..)?.get(..extent.at.len as usize));
            result.is_ok() && bytes.is_some_and(|bytes| hash(bytes) == extent.at.hash)
        };
        let suspects = extents.iter().filter(|extent| !intact(extent)).cloned().collect();
        ((end - start) / BLOCK_BYTES, suspects)
    }

    /// The bytes of the value that entry `log_id` wrote and that hashes to `hash`, from wherever they are intact: memory,
    /// the log, or `key` if that entry wrote it.
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
        let right = |bytes: &Bytes| bytes.len() == len as usize && crate::codec::hash(bytes) == hash;
        let (cached, places) = {
            let state = shared.state.lock();
            let group = state.groups.get(&group)?;
            let logged = group.log.get(log_id.index).filter(|entry| entry.id == log_id);
            let number = logged.and_then(|entry| entry.values.iter().position(wanted));
            let cached = group.log.cached(log_id.index);
            let cached = number.and_then(|number| cached?.get(number).cloned());
            let in_log = number.and_then(|number| logged?.values.get(number).copied());
            let keyed = group.keys.get(key).filter(|entry| entry.version == log_id && wanted(&entry.value));
            (cached, [keyed.map(|entry| entry.value), in_log])
        };
        if let Some(bytes) = cached.filter(right) {
            return Some(bytes);
        }
        for at in places.into_iter().flatten() {
            if let Ok(bytes) = shared.read_quietly(&at, log_id).await
                && right(&bytes)
            {
                return Some(bytes);
            }
        }
        None
    }

    /// It is live, nobody else's, and on the device.
    fn can_be_read(&self, group: GroupId, extent: &Extent) -> bool {
        let state = self.shared.state.lock();
        extent.at.len > 0
            && extent.is_live(&state, group)
            && !state.unwritten.contains_key(&extent.at.offset)
            && state.space.contains(&extent.at)
    }

    /// The body of an entry as the data area should hold it, from memory.
    pub fn body_of(&self, group: GroupId, log_id: LogId) -> Option<Bytes> {
        let state = self.shared.state.lock();
        let entry = state.groups.get(&group)?.log.get(log_id.index).filter(|entry| entry.id == log_id)?;
        Some(encode_body(&entry.values, &entry.meta).into())
    }

    /// Puts the right bytes of a damaged extent back in its place, synced, and reads them again. `false` where nobody
    /// refers to it any more, it may be another's by now, its write is still under way, or it is intact: then nothing was
    /// written.
    ///
    /// # After a crash
    /// During this call: the extent is damaged or mended; nothing else has changed.
    ///
    /// # Errors
    /// `Invalid` for other bytes than the extent's; `Corrupt` or `Io` where the device does not keep what was written;
    /// `Failed`, `Closed`.
    pub async fn mend(&self, group: GroupId, extent: &Extent, bytes: &[u8]) -> Result<bool> {
        if bytes.len() != extent.at.len as usize || hash(bytes) != extent.at.hash {
            return Err(Error::Invalid(format!(
                "a value of entry {} is to be mended with other bytes",
                extent.log_id
            )));
        }
        // Whoever asks may give up waiting, and a failed sync is told only once: this goes on.
        let (engine, extent, bytes) = (self.clone(), extent.clone(), Bytes::copy_from_slice(bytes));
        let mending = tokio::spawn(async move { engine.mend_with(group, &extent, &bytes).await });
        mending.await.unwrap_or(Err(Error::Closed))
    }

    async fn mend_with(&self, group: GroupId, extent: &Extent, bytes: &[u8]) -> Result<bool> {
        let shared = &self.shared;
        let _one_at_a_time = shared.mending.lock().await;
        let _pinned = View::new(shared, group);
        if !self.can_be_read(group, extent) {
            return Ok(false);
        }
        shared.state.lock().check_open()?;
        let read = || read_value(shared.devices.data.as_ref(), &extent.at, extent.log_id);
        if read().await.is_ok() {
            return Ok(false);
        }
        let (from, mut buf) = shared.settled_blocks_of(extent).await?;
        let start = (extent.at.offset - from) as usize;
        if let Some(place) = buf.get_mut(start..start + bytes.len()) {
            place.copy_from_slice(bytes);
        }
        shared.counters.device_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        let (result, _) = shared.devices.data.write(from, buf).await;
        result.map_err(|error| shared.fail_device(FileKind::Data, "write", error))?;
        shared.sync_now().await?;
        read().await?;
        shared.counters.mended_values.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }
}

impl Shared {
    /// The blocks of an extent as two reads agree that they are. The neighbours' bytes in them are written back, so what is
    /// wrong with a single read must not become wrong on the device.
    async fn settled_blocks_of(&self, extent: &Extent) -> Result<(u64, AlignedBuf)> {
        let (start, mut buf) = self.blocks_of(extent).await;
        for _ in 0..AGREEMENTS {
            let (_, again) = self.blocks_of(extent).await;
            if *again == *buf {
                return Ok((start, buf));
            }
            buf = again;
        }
        Err(Error::Io {
            location: self.facts.location.clone(),
            operation: "read",
            reason: format!("the blocks of the value at {} read differently each time", extent.at.offset),
        })
    }

    /// The blocks of an extent as they are; those that cannot be read are zeros.
    async fn blocks_of(&self, extent: &Extent) -> (u64, AlignedBuf) {
        let range = extent.blocks();
        let device = self.devices.data.as_ref();
        let len = (range.end - range.start) as usize;
        let (result, buf) = device.read(range.start, AlignedBuf::zeroed(len)).await;
        if result.is_ok() {
            return (range.start, buf);
        }
        let mut all = AlignedBuf::zeroed(len);
        for (place, offset) in all.chunks_mut(BLOCK).zip(range.clone().step_by(BLOCK)) {
            let (result, block) = device.read(offset, AlignedBuf::zeroed(BLOCK)).await;
            if result.is_ok() {
                place.copy_from_slice(&block);
            }
        }
        (range.start, all)
    }
}
