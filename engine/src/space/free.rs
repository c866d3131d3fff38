//! Which blocks of the data area are allocated, and where the next value goes.
//!
//! A value needs one free run, and members pack values differently. A value that fits on a leader
//! may not fit on a follower. Replication that waits for space would then wait forever, and the
//! deletes that would free space would wait behind it. So the end of the area is a reserve that
//! stays in one piece. A value goes there only if it fits nowhere else, and a leader accepts no
//! client's write that would fit only into the reserve.

use crate::io::BLOCK;

const BLOCK_BYTES: u64 = BLOCK as u64;
/// The longest run opened for small values, in blocks.
const RUN_BLOCKS: u32 = 256;
/// The fraction of the data area that is the reserve, and its maximum in blocks.
const RESERVE_PART: u32 = 16;
const RESERVE_BLOCKS_MAX: u32 = 1 << 18;

/// A free run into which values are packed one after another.
#[derive(Clone, Copy, Debug)]
struct BlockRun {
    /// The first byte not yet allocated.
    cursor: u64,
    /// The end of the run, in bytes.
    end: u64,
}

#[derive(Clone)]
pub(super) struct Free {
    /// One bit per block: allocated, whether live or dead.
    taken: Vec<u64>,
    blocks: u32,
    /// Where the reserve begins.
    reserve: u32,
    /// Free blocks of the reserve.
    reserve_free: u32,
    free: u32,
    /// No free run of this many blocks exists outside the reserve, and none was freed since that
    /// was found.
    unfit: u32,
    /// Where the search for the next run begins.
    hint: u32,
    run: Option<BlockRun>,
}

impl Free {
    pub(super) fn new(blocks: u32) -> Free {
        let reserve = blocks - (blocks / RESERVE_PART).min(RESERVE_BLOCKS_MAX);
        Free {
            taken: vec![0; (blocks as usize).div_ceil(64)],
            blocks,
            reserve,
            reserve_free: blocks - reserve,
            free: blocks,
            unfit: u32::MAX,
            hint: 0,
            run: None,
        }
    }

    pub(super) fn free_bytes(&self) -> u64 {
        u64::from(self.free) * BLOCK_BYTES
    }

    pub(super) fn capacity_bytes(&self) -> u64 {
        u64::from(self.blocks) * BLOCK_BYTES
    }

    pub(super) fn reserve_bytes(&self) -> u64 {
        u64::from(self.blocks - self.reserve) * BLOCK_BYTES
    }

    /// Whether `len` bytes fit into the open run.
    pub(super) fn fits_open_run(&self, len: u32) -> bool {
        self.run.is_some_and(|run| run.end - run.cursor >= u64::from(len))
    }

    /// Allocates `len` bytes, more than zero, in the open run or at the beginning of a new one. The
    /// caller has closed an open run that is too short.
    pub(super) fn allocate(&mut self, len: u32) -> Option<u64> {
        if !self.fits_open_run(len) {
            assert!(
                self.run.is_none(),
                "a run is abandoned whose last block may be partly allocated"
            );
            self.run = Some(self.find_run(len.div_ceil(BLOCK as u32))?);
        }
        let run = self.run.as_mut()?;
        let offset = run.cursor;
        run.cursor += u64::from(len);
        self.take(offset, len);
        Some(offset)
    }

    /// Allocates whole blocks for `len` bytes. No run is open.
    pub(super) fn allocate_apart(&mut self, len: u32) -> Option<u64> {
        let run = self.find_run(len.div_ceil(BLOCK as u32))?;
        self.take(run.cursor, len);
        self.hint = blocks_before(run.cursor + u64::from(len));
        Some(run.cursor)
    }

    /// Closes the open run. Returns its last block if that is not full.
    pub(super) fn close_run(&mut self) -> Option<u32> {
        let open = self.open_block();
        let run = self.run.take()?;
        // The rest of the run was never allocated: the next run begins right here.
        self.hint = blocks_before(run.cursor);
        open
    }

    /// The block of the next value in the open run, if it already holds other values.
    pub(super) fn open_block(&self) -> Option<u32> {
        let run = self.run.filter(|run| run.cursor % BLOCK_BYTES != 0)?;
        Some((run.cursor / BLOCK_BYTES) as u32)
    }

    /// Marks the blocks under these bytes as allocated.
    pub(super) fn take(&mut self, offset: u64, len: u32) {
        for block in (offset / BLOCK_BYTES) as u32..blocks_before(offset + u64::from(len)) {
            if !self.is_taken(block) {
                self.set_taken(block, true);
                self.free -= 1;
            }
        }
    }

    /// Marks a block as free again.
    pub(super) fn release(&mut self, block: u32) {
        assert!(self.is_taken(block), "block {block} is freed twice");
        self.set_taken(block, false);
        self.free += 1;
    }

    /// Whether values of these lengths all fit, allocated one after another. `blocks` is what they
    /// take if each begins a block.
    ///
    /// Fast path: the reserve is free and large enough. Else look for one long run. Else simulate
    /// the allocation on a copy of the map.
    pub(super) fn fits(&self, blocks: u64, lengths: impl FnOnce() -> Vec<u64>) -> bool {
        let reserve = self.blocks - self.reserve;
        if self.reserve_free == reserve && blocks <= u64::from(reserve) {
            return true;
        }
        if blocks > u64::from(self.free) {
            // Packed they may still fit.
            return self.try_all(lengths());
        }
        let in_one = |needed| {
            let from_hint = self.scan(self.hint, self.blocks, needed, needed);
            from_hint.or_else(|| self.scan(0, self.hint, needed, needed))
        };
        u32::try_from(blocks).is_ok_and(|needed| in_one(needed).is_some())
            || self.try_all(lengths())
    }

    fn try_all(&self, lengths: Vec<u64>) -> bool {
        let mut trial = self.clone();
        trial.close_run();
        lengths.into_iter().all(|len| {
            // A group commit may begin before and end after any value. The padding that this costs
            // short values is not counted, since most of them come in one group commit.
            let apart = len > BLOCK_BYTES / 2;
            let found = u32::try_from(len).is_ok_and(|len| {
                if apart || !trial.fits_open_run(len) {
                    trial.close_run();
                }
                len == 0 || trial.allocate(len).is_some()
            });
            if apart {
                trial.close_run();
            }
            found
        })
    }

    /// Whether one value of this length would fit outside the reserve.
    pub(super) fn fits_unreserved(&mut self, len: u64) -> bool {
        u32::try_from(len.div_ceil(BLOCK_BYTES))
            .is_ok_and(|needed| needed == 0 || self.unreserved(needed, needed).is_some())
    }

    /// A free run outside the reserve of at least `needed` blocks. The search for a longer one
    /// stops at `enough`.
    fn unreserved(&mut self, needed: u32, enough: u32) -> Option<(u32, u32)> {
        if needed >= self.unfit {
            return None;
        }
        let found = self
            .scan(self.hint, self.reserve, needed, enough)
            .or_else(|| self.scan(0, self.reserve, needed, enough));
        if found.is_none() {
            self.unfit = needed;
        }
        found
    }

    /// The next free run: at least `needed` blocks, and at most [`RUN_BLOCKS`] if that is enough.
    /// If it reaches into the reserve, no more than needed.
    fn find_run(&mut self, needed: u32) -> Option<BlockRun> {
        if needed > self.free {
            return None;
        }
        let (start, len) = match self.unreserved(needed, needed.max(RUN_BLOCKS)) {
            Some((start, len)) => {
                self.hint = start + len;
                (start, len)
            }
            None => {
                let before =
                    (0..self.reserve).rev().take_while(|block| !self.is_taken(*block)).count()
                        as u32;
                (self.scan(self.reserve - before, self.blocks, needed, needed)?.0, needed)
            }
        };
        Some(BlockRun {
            cursor: u64::from(start) * BLOCK_BYTES,
            end: u64::from(start + len) * BLOCK_BYTES,
        })
    }

    /// The first free run of at least `needed` blocks, and at most `enough`.
    fn scan(&self, from: u32, to: u32, needed: u32, enough: u32) -> Option<(u32, u32)> {
        let (mut start, mut len, mut block) = (from, 0, from);
        while block < to {
            if block % 64 == 0 && len == 0 && self.taken.get(block as usize / 64) == Some(&u64::MAX)
            {
                block += 64;
                start = block;
                continue;
            }
            if self.is_taken(block) {
                if len >= needed {
                    break;
                }
                len = 0;
                start = block + 1;
            } else {
                len += 1;
                if len == enough {
                    break;
                }
            }
            block += 1;
        }
        (len >= needed).then_some((start, len))
    }

    fn is_taken(&self, block: u32) -> bool {
        self.taken.get(block as usize / 64).is_none_or(|word| word & (1 << (block % 64)) != 0)
    }

    fn set_taken(&mut self, block: u32, taken: bool) {
        if let Some(word) = self.taken.get_mut(block as usize / 64) {
            let bit = 1 << (block % 64);
            *word = if taken { *word | bit } else { *word & !bit };
        }
        if !taken {
            self.unfit = u32::MAX;
        }
        if block >= self.reserve {
            self.reserve_free = if taken { self.reserve_free - 1 } else { self.reserve_free + 1 };
        }
    }
}

/// How many blocks lie before this offset, a partial one included.
fn blocks_before(offset: u64) -> u32 {
    offset.div_ceil(BLOCK_BYTES) as u32
}
