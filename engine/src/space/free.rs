//! The free blocks of the data area, and which of them the next value takes.
//!
//! Allocation goes on behind the last one as long as the run there lasts, so that values that are
//! written together lie together. Then it goes on in the longest run, as long as the largest value
//! of late would fit there. On an aged disk it would not. Then small values would break up the runs
//! that large ones need, so each takes the first run into which it fits. A value that fits into no
//! run takes several: the longest ones, and the first into which the rest fits. So whole blocks are
//! found whenever there are enough.
//!
//! Shared tails are packed into a run that is kept apart for them, on an aged disk a short one. It
//! is filled from its first block to its last, by one group commit after another; each begins with
//! a new block. The unused rest counts as free, and goes back if whole blocks need it.

use super::free_runs::FreeRuns;
use crate::layout::BLOCK_BYTES;
use crate::value_ref::Run;

/// The most blocks of a run that is kept apart for tails, and the fewest if there are as many.
const TAIL_BLOCKS: u32 = 64;
const FEWEST_TAIL_BLOCKS: u32 = 4;

/// What a block counts in [`Free::largest`].
const ONE: u64 = 1 << 10;

/// The run into which shared tails are packed.
#[derive(Clone, Copy, Debug)]
struct Tails {
    /// The first byte not yet allocated.
    cursor: u64,
    /// The end of the run, in blocks.
    end: u32,
}

impl Tails {
    /// The first block that holds nothing yet.
    fn next_block(&self) -> u32 {
        self.cursor.div_ceil(BLOCK_BYTES) as u32
    }

    fn rest(&self) -> Run {
        Run { first: self.next_block(), blocks: self.end - self.next_block() }
    }

    fn fits(&self, len: u32) -> bool {
        u64::from(self.end) * BLOCK_BYTES - self.cursor >= u64::from(len)
    }
}

pub(super) struct Free {
    runs: FreeRuns,
    /// Free blocks, those kept for tails included.
    free: u32,
    /// The block behind the last allocation.
    next: u32,
    /// The blocks of the largest value of late, in fractions of [`ONE`].
    largest: u64,
    tails: Option<Tails>,
}

impl Free {
    /// An area of so many blocks, of which these runs are free.
    pub(super) fn new(blocks: u32, runs: &[Run]) -> Free {
        let free = runs.iter().map(|run| run.blocks).sum();
        let runs = FreeRuns::new(blocks, runs.iter().copied());
        Free { runs, free, next: 0, largest: 0, tails: None }
    }

    /// Free blocks.
    pub(super) fn blocks(&self) -> u32 {
        self.free
    }

    /// Whether there are enough free blocks for so many whole ones and a tail.
    pub(super) fn has(&self, whole: u32, tail: u32) -> bool {
        let new = match self.tails.filter(|tails| tails.fits(tail)) {
            None => u32::from(tail > 0),
            Some(tails) => {
                let after = (tails.cursor + u64::from(tail)).div_ceil(BLOCK_BYTES) as u32;
                after - tails.next_block()
            }
        };
        whole.checked_add(new).is_some_and(|needed| needed <= self.free)
    }

    /// Whether a tail of this length begins a new run of tails.
    pub(super) fn begins_run(&self, tail: u32) -> bool {
        !self.tails.is_some_and(|tails| tails.fits(tail))
    }

    /// Allocates a tail, if there is a block for it. The caller has closed the last block of a run
    /// into which it does not fit.
    pub(super) fn allocate_tail(&mut self, len: u32) -> Option<u64> {
        if self.begins_run(len) {
            self.release_tails();
            let first = self.choose(FEWEST_TAIL_BLOCKS).or_else(|| self.runs.longest())?.first;
            let run = Run { first, blocks: self.runs.free_from(first, TAIL_BLOCKS) };
            self.take(run);
            self.free += run.blocks;
            let cursor = u64::from(run.first) * BLOCK_BYTES;
            self.tails = Some(Tails { cursor, end: run.end() });
        }
        let tails = self.tails.as_mut()?;
        let (offset, before) = (tails.cursor, tails.next_block());
        tails.cursor += u64::from(len);
        self.free -= tails.next_block() - before;
        Some(offset)
    }

    /// The block of the next tail, if it already holds others.
    pub(super) fn open_block(&self) -> Option<u32> {
        let tails = self.tails.filter(|tails| !tails.cursor.is_multiple_of(BLOCK_BYTES))?;
        Some((tails.cursor / BLOCK_BYTES) as u32)
    }

    /// The next tail begins a block. Returns the block before it if that is not full.
    pub(super) fn close_block(&mut self) -> Option<u32> {
        let open = self.open_block();
        if let Some(tails) = &mut self.tails {
            tails.cursor = tails.cursor.next_multiple_of(BLOCK_BYTES);
        }
        open
    }

    /// Allocates whole blocks, more than zero: one run, or `several` if there is none. The caller
    /// has checked that there are enough.
    pub(super) fn allocate(&mut self, blocks: u32, several: &mut Vec<Run>) -> Option<Run> {
        // A large value is forgotten as others come: half of it after 700 of them.
        self.largest = self.largest.max(u64::from(blocks) * ONE);
        self.largest -= self.largest / ONE;
        if let Some(run) = self.find(blocks) {
            self.take(run);
            self.next = run.end();
            return Some(run);
        }
        let (mut left, kept) = (blocks, self.tails.map_or(0, |tails| tails.rest().blocks));
        if self.free - kept < blocks {
            self.release_tails();
        }
        while left > 0 {
            let run = self.runs.first(left).or_else(|| self.runs.longest());
            assert!(run.is_some(), "{left} of {blocks} blocks are missing among {}", self.free);
            let Some(run) = run else { break };
            let run = Run { blocks: run.blocks.min(left), ..run };
            self.take(run);
            self.next = run.end();
            several.push(run);
            left -= run.blocks;
        }
        None
    }

    /// `blocks` blocks of a free run that has as many.
    fn find(&self, blocks: u32) -> Option<Run> {
        if self.runs.free_from(self.next, blocks) == blocks {
            return Some(Run { first: self.next, blocks });
        }
        self.choose(blocks)
    }

    /// As many blocks in the longest run, or in the first if the largest value of late would not
    /// fit into the longest.
    fn choose(&self, blocks: u32) -> Option<Run> {
        let longest = self.runs.length_of_longest();
        if u64::from(longest) * ONE < self.largest {
            return self.runs.first(blocks);
        }
        let run = self.runs.longest().filter(|run| run.blocks >= blocks)?;
        Some(Run { blocks, ..run })
    }

    /// Gives back what is kept for tails and not used.
    fn release_tails(&mut self) {
        let Some(tails) = &mut self.tails else { return };
        let rest = tails.rest();
        tails.end = rest.first;
        if rest.blocks > 0 {
            self.free -= rest.blocks;
            self.give(rest);
        }
    }

    /// Takes a part of a free run.
    fn take(&mut self, run: Run) {
        assert!(self.runs.take(run), "{run:?} is allocated twice");
        self.free -= run.blocks;
    }

    /// Marks blocks as free again.
    pub(super) fn give(&mut self, run: Run) {
        assert!(self.runs.give(run), "{run:?} is freed twice");
        self.free += run.blocks;
    }
}
