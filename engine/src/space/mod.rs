//! The space map: which 4 KiB blocks of the data area hold live bytes, and when a dead block may be
//! used again.
//!
//! A block's life: **free** → allocated → **live** (its count of referenced bytes is above zero) →
//! **dead** (the count fell to zero) → free again. `reuse` decides about the last step.
//!
//! References are counted in bytes: once for the log entry, once for the key, once for each
//! snapshot being installed. An extent lives while any of them refers to it. The map is not on
//! disk. Open rebuilds it from the keys and the log.
//!
//! Members fragment their data areas differently, but a value finds space wherever the number of
//! free blocks suffices. So the **reserve** is a number of blocks: clients' writes leave it free,
//! for the log itself and for followers that need a few blocks more than their leader.

mod free;
mod free_runs;
mod reuse;
mod tail_blocks;

use crate::error::Error;
use crate::layout::{BLOCK_BYTES, shared_tail, whole_blocks};
use crate::value_ref::{Run, ValueRef};
use free::Free;
pub(crate) use reuse::NewlyDead;
use reuse::{Blocks, Dead, DeadBytes};
#[cfg(test)]
use std::borrow::Borrow;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use tail_blocks::TailBlocks;

/// The fraction of the data area that is the reserve, and its maximum in blocks: 1 GiB.
const RESERVE_PART: u64 = 32;
const RESERVE_BLOCKS_MAX: u64 = 1 << 18;
/// The part of the reserve that belongs to compaction: this fraction of the data area, at most
/// 16 MiB. Compaction takes blocks before those that it empties are free, and what was promised to
/// a leader must be there nevertheless.
const COMPACTION_PART: u32 = 128;
const COMPACTION_BLOCKS_MAX: u32 = 1 << 12;

/// What clients' writes leave free of a data area of this size, in bytes. While no more is free, puts are refused.
#[must_use]
pub fn data_reserve_bytes(data_bytes: u64) -> u64 {
    let blocks = data_bytes / BLOCK_BYTES;
    (blocks / RESERVE_PART).min(RESERVE_BLOCKS_MAX) * BLOCK_BYTES
}

pub(crate) struct SpaceMap {
    /// Referenced bytes in each block. At most 15 references to a byte fit: see
    /// [`SpaceMap::link`].
    live: Vec<u16>,
    tail_blocks: TailBlocks,
    free: Free,
    /// Blocks allocated since the open.
    allocated: u64,
    /// Blocks that compaction took and has not given back yet, and those of them that it took since
    /// the last group commit.
    lent: u32,
    lent_now: u32,
    /// Died since the last group commit; no record covers them yet.
    unrecorded: Blocks,
    /// Taken by the group commit that is being recorded.
    recording: u64,
    /// Dead, and not known to be synced.
    dead: VecDeque<Dead>,
    /// Their bytes.
    unsynced: u64,
    /// Dead, and waiting only for the end of views.
    viewed: VecDeque<Dead>,
    /// Synced journal blocks say that everything up to this sequence is synced.
    synced_stamp: u64,
    /// Live views, by the clock at which they were made.
    views: BTreeMap<u64, usize>,
    view_clock: u64,
}

impl SpaceMap {
    /// The map of an area of so many blocks that holds these values, one reference for each. `Err`
    /// is a value that lies outside the area, or one to which too much refers.
    #[cfg(test)]
    pub(crate) fn of(
        blocks: u32,
        values: impl IntoIterator<Item = impl Borrow<ValueRef>>,
    ) -> Result<SpaceMap, ValueRef> {
        let mut references = References::new(blocks);
        values.into_iter().try_for_each(|value| references.count(value.borrow()))?;
        Ok(references.into_map())
    }

    /// Bytes of the blocks allocated since the open.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.allocated * BLOCK_BYTES
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        u64::from(self.free.blocks()) * BLOCK_BYTES
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.live.len() as u64 * BLOCK_BYTES
    }

    /// What clients' writes leave free. What compaction has taken comes out of it.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        let lent = u64::from(self.lent) * BLOCK_BYTES;
        data_reserve_bytes(self.capacity_bytes()).saturating_sub(lent)
    }

    /// What clients' writes may take. Dead blocks that only wait for a sync count as free, up to half
    /// of the reserve: until the sync, writes use that half.
    pub(crate) fn writable_bytes(&self) -> u64 {
        let reserve = self.reserve_bytes();
        (self.free_bytes() + self.reclaimable_bytes().min(reserve / 2)).saturating_sub(reserve)
    }

    /// Free bytes beyond the reserve.
    pub(crate) fn unreserved_bytes(&self) -> u64 {
        self.free_bytes().saturating_sub(self.reserve_bytes())
    }

    /// Bytes that can be promised: free, and not compaction's.
    pub(crate) fn promisable_bytes(&self) -> u64 {
        self.free_bytes().saturating_sub(u64::from(self.lendable()) * BLOCK_BYTES)
    }

    /// Blocks that compaction can take now.
    pub(crate) fn lendable(&self) -> u32 {
        let most = (self.live.len() as u32 / COMPACTION_PART).min(COMPACTION_BLOCKS_MAX);
        most.saturating_sub(self.lent)
    }

    /// The most blocks that compaction can take when everything is given back.
    pub(crate) fn lendable_at_most(&self) -> u32 {
        (self.live.len() as u32 / COMPACTION_PART).min(COMPACTION_BLOCKS_MAX)
    }

    /// Bytes of dead blocks that are not free yet.
    pub(crate) fn dead_bytes(&self) -> DeadBytes {
        let open = self.free.open_block().filter(|block| self.live_in(*block) == 0);
        let open = u64::from(open.is_some()) * BLOCK_BYTES;
        let record = self.unrecorded.bytes() + self.recording + open;
        let view = self.viewed.iter().map(|dead| dead.blocks.bytes()).sum();
        DeadBytes { record, sync: self.unsynced, view }
    }

    /// Bytes that group commits and syncs alone would free.
    pub(crate) fn reclaimable_bytes(&self) -> u64 {
        self.unrecorded.bytes() + self.recording + self.unsynced
    }

    /// The error for `needed` bytes that find no space.
    pub(crate) fn full(&self, needed: u64) -> Error {
        Error::Full { needed, free: self.free_bytes(), capacity: self.capacity_bytes() }
    }

    /// Whether dead blocks wait for a journal block: to record them, or to say that their record is
    /// synced.
    pub(crate) fn waits_for_journal(&self) -> bool {
        !self.unrecorded.is_empty() || !self.dead.is_empty()
    }

    /// Allocates space for a value of `len` bytes and counts one reference. `None` if there are too
    /// few free blocks; nothing is allocated then.
    pub(crate) fn allocate(&mut self, len: u32, hash: u128) -> Option<ValueRef> {
        let (whole, tail) = (whole_blocks(len), shared_tail(len));
        if !self.free.has(whole, tail) {
            return None;
        }
        let mut offset = None;
        if tail > 0 {
            offset = Some(self.allocate_tail(tail)?);
        }
        self.allocated += u64::from(whole);
        let (mut one, mut several) = (None, Vec::new());
        if whole > 0 {
            one = self.free.allocate(whole, &mut several);
        }
        let runs = one.as_ref().map_or(several.as_slice(), std::slice::from_ref);
        let value = ValueRef::new(len, hash, runs, offset);
        assert!(value.is_some(), "{runs:?} and {offset:?} are allocated for {len} bytes");
        value.inspect(|value| self.link(value))
    }

    fn allocate_tail(&mut self, len: u32) -> Option<u64> {
        if self.free.begins_run(len) {
            self.close_block();
        }
        let before = self.free.blocks();
        let offset = self.free.allocate_tail(len);
        self.allocated += u64::from(before - self.free.blocks());
        offset
    }

    /// Allocates another place for the tail of a value, and counts one reference to the value there.
    /// `None` if it has no tail, or there is no free block.
    pub(crate) fn allocate_moved(&mut self, value: &ValueRef) -> Option<ValueRef> {
        let tail = shared_tail(value.len);
        if tail == 0 || !self.free.has(0, tail) {
            return None;
        }
        let before = self.free.blocks();
        let offset = self.allocate_tail(tail)?;
        let taken = before - self.free.blocks();
        self.lent += taken;
        self.lent_now += taken;
        value.with_tail(offset).inspect(|moved| self.link(moved))
    }

    /// Blocks that compaction took since the last group commit.
    pub(crate) fn lent_now(&self) -> u32 {
        self.lent_now
    }

    /// The live bytes of a block, once for each reference.
    pub(crate) fn live_bytes_of(&self, block: u32) -> u16 {
        self.live_in(block)
    }

    /// What would be free if all blocks of tails with fewer live bytes than this were emptied, and
    /// their tails took no space.
    pub(crate) fn sparse_bytes(&self, below: u16) -> u64 {
        self.tail_blocks.unused_below(below)
    }

    /// A limit of live bytes below which at most about `blocks` blocks of tails lie; `below` if that
    /// is lower.
    pub(crate) fn sparsest(&self, blocks: u32, below: u16) -> u16 {
        self.tail_blocks.sparsest(blocks).min(below)
    }

    /// The blocks of tails in `range` with fewer live bytes than this, each with its live bytes. The
    /// block of the next tail is left out.
    pub(crate) fn sparse_blocks(
        &self,
        range: Range<u32>,
        below: u16,
    ) -> impl Iterator<Item = (u32, u16)> {
        let open = self.free.open_block();
        let sparse = range.map(|block| (block, self.live_in(block)));
        sparse.filter(move |(block, live)| {
            *live > 0 && *live < below && Some(*block) != open && self.tail_blocks.has(*block)
        })
    }

    /// No later allocation shares a block with an earlier one, so that no block is written twice.
    pub(crate) fn close_block(&mut self) {
        if let Some(last) = self.free.close_block()
            && self.live_in(last) == 0
        {
            self.unrecorded.push(last);
        }
    }

    /// Counts one more reference. A byte has one from its log entry, one from its key, one from
    /// each snapshot that is being installed, and, before the log is re-applied after a restart, a
    /// few from what was purged or overwritten since the checkpoint.
    pub(crate) fn link(&mut self, value: &ValueRef) {
        for (block, bytes) in parts(value) {
            if let Some(live) = self.live.get_mut(block as usize) {
                let now = live.checked_add(bytes);
                assert!(now.is_some(), "block {block} has {live} referenced bytes");
                let before = std::mem::replace(live, now.unwrap_or(u16::MAX));
                self.tail_blocks.changed(block, before, *live);
            }
        }
        for block in value.tail_blocks() {
            let live = self.live_in(block);
            self.tail_blocks.holds_tail(block, live);
        }
    }

    /// Counts one reference less. Blocks without a reference die.
    pub(crate) fn unlink(&mut self, value: &ValueRef) {
        let open = self.free.open_block();
        for (block, bytes) in parts(value) {
            if let Some(live) = self.live.get_mut(block as usize) {
                assert!(*live >= bytes, "block {block} loses {bytes} of {live} live bytes");
                *live -= bytes;
                self.tail_blocks.changed(block, *live + bytes, *live);
                if *live == 0 && open != Some(block) {
                    self.unrecorded.push(block);
                }
            }
        }
    }

    /// Whether its blocks still belong to the value. A shared block does as long as anything in it is
    /// live.
    pub(crate) fn is_live(&self, value: &ValueRef) -> bool {
        parts(value).all(|(block, _)| self.live_in(block) > 0)
    }

    /// Whether the value lies inside the data area.
    pub(crate) fn contains(&self, value: &ValueRef) -> bool {
        value.is_within(self.capacity_bytes())
    }

    fn live_in(&self, block: u32) -> u16 {
        self.live.get(block as usize).copied().unwrap_or(0)
    }
}

/// The references to the values of a data area, counted when it is opened.
pub(crate) struct References {
    live: Vec<u16>,
    tail_blocks: TailBlocks,
}

impl References {
    /// An area of so many blocks without values.
    pub(crate) fn new(blocks: u32) -> References {
        References { live: vec![0u16; blocks as usize], tail_blocks: TailBlocks::new(blocks) }
    }

    /// Counts a reference. `Err` is the value if it lies outside the area, or if too much refers to
    /// it.
    pub(crate) fn count(&mut self, value: &ValueRef) -> Result<(), ValueRef> {
        for block in value.tail_blocks() {
            self.tail_blocks.mark(block);
        }
        for (block, bytes) in parts(value) {
            let counted = self.live.get_mut(block as usize).and_then(|count| {
                *count = count.checked_add(bytes)?;
                Some(())
            });
            counted.ok_or_else(|| value.clone())?;
        }
        Ok(())
    }

    pub(crate) fn into_map(self) -> SpaceMap {
        let References { live, mut tail_blocks } = self;
        let free = Free::new(live.len() as u32, &free_runs(&live));
        tail_blocks.count(&live);
        SpaceMap {
            live,
            tail_blocks,
            free,
            allocated: 0,
            lent: 0,
            lent_now: 0,
            unrecorded: Blocks::default(),
            recording: 0,
            dead: VecDeque::new(),
            unsynced: 0,
            viewed: VecDeque::new(),
            synced_stamp: 0,
            views: BTreeMap::new(),
            view_clock: 0,
        }
    }
}

/// The blocks of a value, with its bytes in each.
fn parts(value: &ValueRef) -> impl Iterator<Item = (u32, u16)> {
    value.segments().flat_map(|segment| {
        let blocks = segment.start / BLOCK_BYTES..segment.end.div_ceil(BLOCK_BYTES);
        blocks.map(move |block| {
            let (start, end) = (block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES);
            let bytes = end.min(segment.end) - start.max(segment.start);
            (u32::try_from(block).unwrap_or(u32::MAX), bytes as u16)
        })
    })
}

/// The runs of blocks without a referenced byte.
fn free_runs(live: &[u16]) -> Vec<Run> {
    let mut runs = Blocks::default();
    for (block, _) in live.iter().enumerate().filter(|(_, count)| **count == 0) {
        runs.push(block as u32);
    }
    runs.0
}

#[cfg(test)]
mod tests;
