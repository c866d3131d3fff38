//! The space map: which 4 KiB blocks of the data area hold live bytes, and when a dead block may be
//! used again.
//!
//! A block's life: **free** → allocated → **live** (its count of referenced bytes is above zero) →
//! **dead** (the count fell to zero) → free again. The last step happens only when the journal
//! block that recorded its death is synced, a synced block says so, and no view made before its
//! death is left. Until then an older state of the disk, or a reader, may still need the bytes.
//!
//! References are counted in bytes: once for the log entry, once for the key, once for each
//! snapshot being installed. An extent lives while any of them refers to it. The map is not on
//! disk. Open rebuilds it from the keys and the log.
//!
//! Members fragment their data areas differently, but a value finds space wherever the number of
//! free blocks suffices. So the **reserve** is a number of blocks: clients' writes leave it free,
//! for the log itself and for followers that need a few blocks more than their leader.

mod free;

use crate::error::Error;
use crate::layout::{BLOCK_BYTES, shared_tail, whole_blocks};
use crate::value_ref::{Run, ValueRef};
use free::Free;
use std::borrow::Borrow;
use std::collections::{BTreeMap, VecDeque};

/// The fraction of the data area that is the reserve, and its maximum in blocks: 1 GiB.
const RESERVE_PART: u32 = 16;
const RESERVE_BLOCKS_MAX: u32 = 1 << 18;

/// Blocks in the order of their death.
#[derive(Default)]
struct Blocks(Vec<Run>);

impl Blocks {
    fn push(&mut self, block: u32) {
        match self.0.last_mut() {
            Some(last) if last.end() == block => last.blocks += 1,
            _ => self.0.push(Run { first: block, blocks: 1 }),
        }
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|run| u64::from(run.blocks)).sum::<u64>() * BLOCK_BYTES
    }
}

/// Blocks that died before a group commit was closed.
pub(crate) struct NewlyDead {
    view: u64,
    blocks: Blocks,
}

impl NewlyDead {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.0.is_empty()
    }
}

/// Blocks whose death is recorded in journal block `sequence`.
struct Dead {
    sequence: u64,
    view: u64,
    blocks: Blocks,
}

/// Bytes in dead blocks, by what they wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeadBytes {
    /// A journal block that records their death.
    pub record: u64,
    /// The sync of that block, and a synced block that says so.
    pub sync: u64,
    /// The end of a view.
    pub view: u64,
}

pub(crate) struct SpaceMap {
    /// Referenced bytes in each block. At most 15 references to a byte fit: see
    /// [`SpaceMap::link`].
    live: Vec<u16>,
    free: Free,
    /// Died since the last group commit; no record covers them yet.
    unrecorded: Blocks,
    /// Taken by the group commit that is being recorded.
    recording: u64,
    dead: VecDeque<Dead>,
    /// Synced journal blocks say that everything up to this sequence is synced.
    synced_stamp: u64,
    /// Live views, by the clock at which they were made.
    views: BTreeMap<u64, usize>,
    view_clock: u64,
}

impl SpaceMap {
    /// The map of an area of so many blocks that holds these values, one reference for each. `Err`
    /// is a value that lies outside the area, or one to which too much refers.
    pub(crate) fn of(
        blocks: u32,
        values: impl IntoIterator<Item = impl Borrow<ValueRef>>,
    ) -> Result<SpaceMap, ValueRef> {
        let mut live = vec![0u16; blocks as usize];
        for value in values {
            let value = value.borrow();
            for (block, bytes) in parts(value) {
                let counted = live.get_mut(block as usize).and_then(|count| {
                    *count = count.checked_add(bytes)?;
                    Some(())
                });
                counted.ok_or_else(|| value.clone())?;
            }
        }
        let free = Free::new(free_runs(&live));
        Ok(SpaceMap {
            live,
            free,
            unrecorded: Blocks::default(),
            recording: 0,
            dead: VecDeque::new(),
            synced_stamp: 0,
            views: BTreeMap::new(),
            view_clock: 0,
        })
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        u64::from(self.free.blocks()) * BLOCK_BYTES
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.live.len() as u64 * BLOCK_BYTES
    }

    pub(crate) fn reserve_bytes(&self) -> u64 {
        let blocks = self.live.len() as u32;
        u64::from((blocks / RESERVE_PART).min(RESERVE_BLOCKS_MAX)) * BLOCK_BYTES
    }

    /// Bytes of dead blocks that are not free yet.
    pub(crate) fn dead_bytes(&self) -> DeadBytes {
        let open = self.free.open_block().filter(|block| self.live_in(*block) == 0);
        let open = u64::from(open.is_some()) * BLOCK_BYTES;
        let record = self.unrecorded.bytes() + self.recording + open;
        let mut bytes = DeadBytes { record, ..DeadBytes::default() };
        for dead in &self.dead {
            match dead.sequence > self.synced_stamp {
                true => bytes.sync += dead.blocks.bytes(),
                false => bytes.view += dead.blocks.bytes(),
            }
        }
        bytes
    }

    /// The error for `needed` bytes that find no space.
    pub(crate) fn full(&self, needed: u64) -> Error {
        Error::Full { needed, free: self.free_bytes(), capacity: self.capacity_bytes() }
    }

    /// Whether dead blocks wait for a journal block: to record them, or to say that their record is
    /// synced.
    pub(crate) fn waits_for_journal(&self) -> bool {
        !self.unrecorded.0.is_empty()
            || self.dead.iter().any(|dead| dead.sequence > self.synced_stamp)
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
            if self.free.begins_run(tail) {
                self.close_block();
            }
            offset = Some(self.free.allocate_tail(tail)?);
        }
        let (mut one, mut several) = (None, Vec::new());
        if whole > 0 {
            one = self.free.allocate(whole, &mut several);
        }
        let runs = one.as_ref().map_or(several.as_slice(), std::slice::from_ref);
        let value = ValueRef::new(len, hash, runs, offset);
        assert!(value.is_some(), "{runs:?} and {offset:?} are allocated for {len} bytes");
        value.inspect(|value| self.link(value))
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
                *live = now.unwrap_or(u16::MAX);
            }
        }
    }

    /// Counts one reference less. Blocks without a reference die.
    pub(crate) fn unlink(&mut self, value: &ValueRef) {
        let open = self.free.open_block();
        for (block, bytes) in parts(value) {
            if let Some(live) = self.live.get_mut(block as usize) {
                assert!(*live >= bytes, "block {block} loses {bytes} of {live} live bytes");
                *live -= bytes;
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

    /// The deaths so far. Pass them to [`SpaceMap::recorded`] once the journal block that records
    /// them is known.
    pub(crate) fn take_newly_dead(&mut self) -> NewlyDead {
        let view = self.view_clock;
        let blocks = std::mem::take(&mut self.unrecorded);
        self.view_clock += u64::from(!blocks.0.is_empty());
        self.recording += blocks.bytes();
        NewlyDead { view, blocks }
    }

    /// These deaths are recorded in journal block `sequence`.
    pub(crate) fn recorded(&mut self, sequence: u64, newly_dead: NewlyDead) {
        let NewlyDead { view, blocks } = newly_dead;
        self.recording -= blocks.bytes();
        if !blocks.0.is_empty() {
            self.dead.push_back(Dead { sequence, view, blocks });
        }
    }

    /// Frees the blocks whose death is recorded at or below `synced_stamp` and that no view can
    /// reach. Synced journal blocks say that everything up to `synced_stamp` is synced. Returns them.
    pub(crate) fn release(&mut self, synced_stamp: u64) -> Vec<Run> {
        let mut freed = Vec::new();
        self.synced_stamp = self.synced_stamp.max(synced_stamp);
        let oldest_view = self.views.keys().next().copied().unwrap_or(u64::MAX);
        while let Some(dead) = self.dead.front() {
            // A view made at clock c sees the blocks that lived then: those whose deaths were
            // recorded at c or later.
            if dead.sequence > self.synced_stamp || dead.view >= oldest_view {
                break;
            }
            let Some(dead) = self.dead.pop_front() else { break };
            for run in dead.blocks.0 {
                for block in run.first..run.end() {
                    assert_eq!(self.live_in(block), 0, "block {block} is freed while referenced");
                }
                self.free.give(run);
                freed.push(run);
            }
        }
        freed
    }

    /// Begins a view. Pass its number to [`SpaceMap::view_ends`].
    pub(crate) fn view_begins(&mut self) -> u64 {
        *self.views.entry(self.view_clock).or_default() += 1;
        self.view_clock
    }

    pub(crate) fn view_ends(&mut self, view: u64) {
        if let Some(count) = self.views.get_mut(&view) {
            *count -= 1;
            if *count == 0 {
                self.views.remove(&view);
            }
        }
    }

    fn live_in(&self, block: u32) -> u16 {
        self.live.get(block as usize).copied().unwrap_or(0)
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
