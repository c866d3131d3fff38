//! The space map: which 4 KiB blocks of the data area hold live bytes, and when a dead block may be
//! used again.
//!
//! A block's life: **free** → allocated into the open run → **live** (its count of referenced bytes
//! is above zero) → **dead** (the count fell to zero) → free again. The last step happens only when
//! the journal block that recorded its death is synced, a synced block says so, and no view made
//! before its death is left. Until then an older state of the disk, or a reader, may still need the
//! bytes.
//!
//! References are counted in bytes, once for the log entry and once for the key: an extent lives
//! while either refers to it. The map is not on disk. Open rebuilds it from the keys and the log.

mod free;

use crate::error::Error;
use crate::io::BLOCK;
use crate::types::ValueRef;
use free::Free;
use std::collections::{BTreeMap, VecDeque};

const BLOCK_BYTES: u64 = BLOCK as u64;
/// Block numbers in the data area.
type Blocks = Vec<u32>;

/// Blocks that died before a group commit was closed.
pub(crate) struct NewlyDead {
    view: u64,
    blocks: Blocks,
}

impl NewlyDead {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

/// Blocks whose death is recorded in journal block `sequence`.
struct Dead {
    sequence: u64,
    view: u64,
    blocks: Blocks,
}

pub(crate) struct SpaceMap {
    /// Referenced bytes in each block.
    live: Vec<u32>,
    free: Free,
    /// Died since the last group commit; no record covers them yet.
    unrecorded: Blocks,
    dead: VecDeque<Dead>,
    /// Synced journal blocks say that everything up to this sequence is synced.
    synced_stamp: u64,
    /// Live views, by the clock at which they were made.
    views: BTreeMap<u64, usize>,
    view_clock: u64,
}

impl SpaceMap {
    pub(crate) fn new(blocks: u32) -> SpaceMap {
        SpaceMap {
            live: vec![0; blocks as usize],
            free: Free::new(blocks),
            unrecorded: Vec::new(),
            dead: VecDeque::new(),
            synced_stamp: 0,
            views: BTreeMap::new(),
            view_clock: 0,
        }
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.free.free_bytes()
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.free.capacity_bytes()
    }

    pub(crate) fn reserve_bytes(&self) -> u64 {
        self.free.reserve_bytes()
    }

    /// The error for `needed` bytes that find no space.
    pub(crate) fn full(&self, needed: u64) -> Error {
        Error::Full { needed, free: self.free_bytes(), capacity: self.capacity_bytes() }
    }

    /// As [`Free::fits`].
    pub(crate) fn fits(&self, blocks: u64, lengths: impl FnOnce() -> Vec<u64>) -> bool {
        self.free.fits(blocks, lengths)
    }

    /// As [`Free::fits_unreserved`].
    pub(crate) fn fits_unreserved(&mut self, len: u64) -> bool {
        self.free.fits_unreserved(len)
    }

    /// Whether dead blocks wait for a journal block: to record them, or to say that their record is
    /// synced.
    pub(crate) fn waits_for_journal(&self) -> bool {
        !self.unrecorded.is_empty()
            || self.dead.iter().any(|dead| dead.sequence > self.synced_stamp)
    }

    /// Allocates `len` bytes in one run, behind the last allocation if possible, and counts one
    /// reference.
    pub(crate) fn allocate(&mut self, len: u32) -> Option<u64> {
        if len == 0 {
            return Some(0);
        }
        if !self.free.fits_open_run(len) {
            self.close_run();
        }
        let offset = self.free.allocate(len)?;
        self.count(offset, len, true);
        Some(offset)
    }

    /// Allocates whole blocks for `len` bytes, apart from the open run. Counts no reference.
    pub(crate) fn allocate_apart(&mut self, len: u32) -> Option<u64> {
        self.close_run();
        self.free.allocate_apart(len)
    }

    /// Closes the open run: no later allocation shares a block with an earlier one, so that no
    /// block is written twice.
    pub(crate) fn close_run(&mut self) {
        if let Some(last) = self.free.close_run()
            && self.live_in(last) == 0
        {
            self.unrecorded.push(last);
        }
    }

    /// Counts one more reference.
    pub(crate) fn link(&mut self, value: &ValueRef) {
        self.count(value.offset, value.len, true);
    }

    /// Counts one reference less. Blocks without a reference die.
    pub(crate) fn unlink(&mut self, value: &ValueRef) {
        self.count(value.offset, value.len, false);
    }

    /// Marks a value found at recovery as allocated and counts one reference. `false` if it lies
    /// outside the area.
    pub(crate) fn restore(&mut self, value: &ValueRef) -> bool {
        if !self.contains(value) {
            return false;
        }
        if value.len > 0 {
            self.free.take(value.offset, value.len);
            self.count(value.offset, value.len, true);
        }
        true
    }

    /// Whether the value lies inside the data area.
    pub(crate) fn contains(&self, value: &ValueRef) -> bool {
        value
            .offset
            .checked_add(u64::from(value.len))
            .is_some_and(|end| end <= self.capacity_bytes())
    }

    /// The deaths so far. Pass them to [`SpaceMap::recorded`] once the journal block that records
    /// them is known.
    pub(crate) fn take_newly_dead(&mut self) -> NewlyDead {
        let view = self.view_clock;
        let blocks = std::mem::take(&mut self.unrecorded);
        self.view_clock += u64::from(!blocks.is_empty());
        NewlyDead { view, blocks }
    }

    /// These deaths are recorded in journal block `sequence`.
    pub(crate) fn recorded(&mut self, sequence: u64, newly_dead: NewlyDead) {
        let NewlyDead { view, blocks } = newly_dead;
        if !blocks.is_empty() {
            self.dead.push_back(Dead { sequence, view, blocks });
        }
    }

    /// Frees the blocks whose death is recorded at or below `synced_stamp` and that no view can
    /// reach. Synced journal blocks say that everything up to `synced_stamp` is synced.
    pub(crate) fn release(&mut self, synced_stamp: u64) {
        self.synced_stamp = self.synced_stamp.max(synced_stamp);
        let oldest_view = self.views.keys().next().copied().unwrap_or(u64::MAX);
        while let Some(dead) = self.dead.front() {
            // A view made at clock c sees the blocks that lived then: those whose deaths were
            // recorded at c or later.
            if dead.sequence > self.synced_stamp || dead.view >= oldest_view {
                break;
            }
            let Some(dead) = self.dead.pop_front() else { break };
            for block in dead.blocks {
                assert_eq!(self.live_in(block), 0, "block {block} is freed while referenced");
                self.free.release(block);
            }
        }
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

    fn count(&mut self, offset: u64, len: u32, up: bool) {
        let end = offset + u64::from(len);
        let mut at = offset;
        while at < end {
            let block = block_number(at);
            let next = (u64::from(block) + 1) * BLOCK_BYTES;
            let bytes = (next.min(end) - at) as u32;
            let open = self.free.open_block() == Some(block);
            if let Some(live) = self.live.get_mut(block as usize) {
                if up {
                    *live += bytes;
                } else {
                    assert!(*live >= bytes, "block {block} loses {bytes} of {live} live bytes");
                    *live -= bytes;
                    if *live == 0 && !open {
                        self.unrecorded.push(block);
                    }
                }
            }
            at = next;
        }
    }

    fn live_in(&self, block: u32) -> u32 {
        self.live.get(block as usize).copied().unwrap_or(0)
    }
}

fn block_number(offset: u64) -> u32 {
    (offset / BLOCK_BYTES) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(map: &mut SpaceMap, sequence: u64) {
        let newly_dead = map.take_newly_dead();
        map.recorded(sequence, newly_dead);
    }

    fn at(offset: u64, len: u32) -> ValueRef {
        ValueRef { offset, len, hash: 0 }
    }

    fn fits(map: &SpaceMap, lengths: &[u64]) -> bool {
        map.fits(lengths.iter().map(|len| len.div_ceil(BLOCK_BYTES)).sum(), || lengths.to_vec())
    }

    #[test]
    fn fragmented_free_space_does_not_fit_a_value() {
        let block = BLOCK_BYTES;
        let mut map = SpaceMap::new(1024);
        assert!(fits(&map, &[1024 * block]) && !fits(&map, &[1024 * block + 1]));
        // Every eighth block is taken.
        for number in 0..128 {
            assert!(map.restore(&at(number * 8 * block, 10)));
        }
        assert_eq!(map.free_bytes(), 896 * block);
        assert!(fits(&map, &[7 * block]) && !fits(&map, &[8 * block]));
        assert!(fits(&map, &[7 * block; 128]) && !fits(&map, &[7 * block; 129]));
        assert!(fits(&map, &[block; 896]) && !fits(&map, &[block; 897]));
        assert!(fits(&map, &[0, 3 * block, 4 * block, 7 * block]));
        let behind = map.allocate(7 * BLOCK as u32).unwrap();
        map.close_run();
        assert!(
            behind < 16 * block && fits(&map, &[7 * block; 127]) && !fits(&map, &[7 * block; 128])
        );
        // The last allocation ended at the end of the area.
        let mut full = SpaceMap::new(64);
        assert_eq!(full.allocate(64 * BLOCK as u32), Some(0));
        full.close_run();
        assert_eq!(full.free_bytes(), 0);
        assert!(!fits(&full, &[block]) && fits(&full, &[0]));
    }

    #[test]
    fn the_reserve_stays_in_one_piece_and_serves_what_fits_nowhere_else() {
        let block = BLOCK as u32;
        let mut map = SpaceMap::new(64);
        assert_eq!(map.reserve_bytes(), 4 * BLOCK_BYTES);
        // Holes of one block, one after another, everywhere except in the reserve.
        let values: Vec<ValueRef> =
            (0..60).map(|_| at(map.allocate(block).unwrap(), block)).collect();
        map.close_run();
        assert!(!map.fits_unreserved(1) && fits(&map, &[4 * BLOCK_BYTES]));
        for value in values.iter().step_by(2) {
            map.unlink(value);
        }
        record(&mut map, 1);
        map.release(1);
        assert!(map.fits_unreserved(BLOCK_BYTES) && !map.fits_unreserved(2 * BLOCK_BYTES));
        assert!(fits(&map, &[2 * BLOCK_BYTES, 2 * BLOCK_BYTES]) && !fits(&map, &[5 * BLOCK_BYTES]));
        let short = |map: &mut SpaceMap| map.allocate(100).map(|offset| offset / BLOCK_BYTES);
        assert_eq!(short(&mut map), Some(0));
        assert_eq!(map.allocate(block * 3), Some(60 * BLOCK_BYTES));
        // A short value does not continue where the long one ended.
        assert_eq!(short(&mut map), Some(2));
        map.close_run();
        assert!(
            !fits(&map, &[2 * BLOCK_BYTES])
                && fits(&map, &[BLOCK_BYTES; 29])
                && !fits(&map, &[BLOCK_BYTES; 30])
        );
        assert!(!map.fits_unreserved(2 * BLOCK_BYTES), "only a follower may use the reserve");
        // A value longer than half a block takes a whole one.
        assert!(fits(&map, &[2100; 29]) && !fits(&map, &[2100; 30]) && fits(&map, &[2000; 58]));
    }

    #[test]
    fn small_values_are_packed_and_a_closed_run_shares_no_block() {
        let mut map = SpaceMap::new(64);
        assert_eq!(map.allocate(100), Some(0));
        assert_eq!(map.allocate(100), Some(100));
        map.close_run();
        assert_eq!(map.allocate(100).map(|o| o % BLOCK_BYTES), Some(0));
        assert_eq!(map.free_bytes(), 62 * BLOCK_BYTES);
    }

    #[test]
    fn a_dead_block_is_reused_only_after_its_record_is_synced() {
        let mut map = SpaceMap::new(1);
        let offset = map.allocate(4096).unwrap();
        map.close_run();
        map.unlink(&at(offset, 4096));
        map.release(6);
        assert_eq!(map.allocate(1), None, "no record yet");
        record(&mut map, 7);
        map.release(6);
        assert_eq!(map.allocate(1), None, "not synced yet");
        map.release(7);
        assert_eq!(map.allocate(1), Some(0));
    }

    #[test]
    fn an_extent_lives_while_log_or_key_refers_to_it() {
        let mut map = SpaceMap::new(1);
        let value = at(map.allocate(10).unwrap(), 10);
        map.link(&value);
        map.close_run();
        map.unlink(&value);
        record(&mut map, 1);
        map.release(1);
        assert_eq!(map.allocate(1), None);
        map.unlink(&value);
        record(&mut map, 2);
        map.release(2);
        assert!(map.allocate(1).is_some());
    }

    #[test]
    fn a_view_keeps_what_it_can_see() {
        let mut map = SpaceMap::new(1);
        let value = at(map.allocate(10).unwrap(), 10);
        map.close_run();
        let view = map.view_begins();
        map.unlink(&value);
        record(&mut map, 1);
        map.release(1);
        assert_eq!(map.allocate(1), None);
        map.view_ends(view);
        map.release(1);
        assert!(map.allocate(1).is_some());
    }

    #[test]
    fn a_value_that_dies_before_its_run_is_closed_is_freed_once() {
        let mut map = SpaceMap::new(1);
        let value = at(map.allocate(10).unwrap(), 10);
        map.unlink(&value);
        let second = at(map.allocate(20).unwrap(), 20);
        map.close_run();
        record(&mut map, 1);
        map.release(1);
        map.unlink(&second);
        record(&mut map, 2);
        map.release(2);
        assert_eq!(map.free_bytes(), BLOCK_BYTES);
    }

    proptest! {
        /// Allocations and frees in any order: live extents never overlap, and all space comes
        /// back.
        #[test]
        fn live_extents_never_overlap_and_nothing_leaks(steps in prop::collection::vec((0u8..4, 1u32..20_000, any::<prop::sample::Index>()), 1..200)) {
            let mut map = SpaceMap::new(300);
            let mut live: Vec<ValueRef> = Vec::new();
            let mut sequence = 0;
            for (what, len, pick) in steps {
                match what {
                    0 | 1 => if let Some(offset) = map.allocate(len) {
                        let new = at(offset, len);
                        for old in &live {
                            prop_assert!(old.offset + u64::from(old.len) <= new.offset || new.offset + u64::from(new.len) <= old.offset);
                        }
                        live.push(new);
                    },
                    2 => if !live.is_empty() {
                        let value = live.swap_remove(pick.index(live.len()));
                        map.unlink(&value);
                    },
                    _ => {
                        map.close_run();
                        sequence += 1;
                        record(&mut map, sequence);
                        map.release(sequence);
                    }
                }
            }
            for value in live.drain(..) { map.unlink(&value); }
            map.close_run();
            record(&mut map, sequence + 1);
            map.release(sequence + 1);
            prop_assert_eq!(map.free_bytes(), map.capacity_bytes());
        }
    }
}
