//! The blocks that hold shared tails, and how full they are: what compaction could gain, without
//! visiting each block.
//!
//! A block holds tails from its first tail on until nothing in it is live.

use crate::layout::BLOCK_BYTES;

/// Live bytes of one level, and the number of levels. Where references count twice, a block may
/// have more live bytes than the last level; such a block is not sparse.
const LEVEL_BYTES: u16 = 256;
const LEVELS: usize = BLOCK_BYTES as usize / LEVEL_BYTES as usize;

pub(super) struct TailBlocks {
    /// A bit for each block.
    marks: Vec<u64>,
    /// How many there are at each level of live bytes.
    levels: [u32; LEVELS],
}

impl TailBlocks {
    pub(super) fn new(blocks: u32) -> TailBlocks {
        TailBlocks { marks: vec![0; (blocks as usize).div_ceil(64)], levels: [0; LEVELS] }
    }

    /// Marks a block. [`TailBlocks::count`] counts it later.
    pub(super) fn mark(&mut self, block: u32) {
        if let Some(marks) = self.marks.get_mut(block as usize / 64) {
            *marks |= 1 << (block % 64);
        }
    }

    /// Counts the marked blocks, with the live bytes of all blocks known.
    pub(super) fn count(&mut self, live: &[u16]) {
        for (block, live) in live.iter().enumerate() {
            if self.has(block as u32) {
                self.add(*live);
            }
        }
    }

    pub(super) fn has(&self, block: u32) -> bool {
        self.marks.get(block as usize / 64).is_some_and(|marks| marks >> (block % 64) & 1 == 1)
    }

    /// A tail was put into a block that has so many live bytes now.
    pub(super) fn holds_tail(&mut self, block: u32, live: u16) {
        if !self.has(block) {
            self.mark(block);
            self.add(live);
        }
    }

    /// The live bytes of a block changed.
    pub(super) fn changed(&mut self, block: u32, before: u16, now: u16) {
        if !self.has(block) {
            return;
        }
        if let Some(count) = self.levels.get_mut(usize::from(before / LEVEL_BYTES)) {
            *count -= 1;
        }
        match now {
            0 => {
                if let Some(marks) = self.marks.get_mut(block as usize / 64) {
                    *marks &= !(1 << (block % 64));
                }
            }
            now => self.add(now),
        }
    }

    fn add(&mut self, live: u16) {
        if let Some(count) = self.levels.get_mut(usize::from(live / LEVEL_BYTES)) {
            *count += 1;
        }
    }

    /// Bytes that are not live in the blocks with fewer live bytes than this, a multiple of a
    /// level.
    pub(super) fn unused_below(&self, live: u16) -> u64 {
        let sparse = self.levels.iter().take(usize::from(live / LEVEL_BYTES)).enumerate();
        let unused = |level: usize| BLOCK_BYTES - (level as u64 + 1) * u64::from(LEVEL_BYTES);
        sparse.map(|(level, count)| unused(level) * u64::from(*count)).sum()
    }

    /// A multiple of a level below which at most so many blocks lie; at least the end of the first
    /// level with any.
    pub(super) fn sparsest(&self, blocks: u32) -> u16 {
        let mut sum = 0u32;
        let mut limit = 0;
        for count in self.levels {
            sum = sum.saturating_add(count);
            if sum > blocks && sum > count {
                break;
            }
            limit += LEVEL_BYTES;
            if sum > blocks {
                break;
            }
        }
        limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_tails_are_counted_by_their_live_bytes() {
        let mut blocks = TailBlocks::new(200);
        for (block, live) in [(3, 10), (64, 300), (65, 300), (199, 4000)] {
            blocks.holds_tail(block, live);
            blocks.holds_tail(block, live);
        }
        blocks.changed(5, 0, 4096);
        assert!(blocks.has(65) && !blocks.has(5));
        assert_eq!(blocks.unused_below(256), 4096 - 256);
        assert_eq!(blocks.unused_below(2048), 3 * 4096 - 256 - 2 * 512);
        assert_eq!((blocks.sparsest(1), blocks.sparsest(3), blocks.sparsest(4)), (256, 3840, 4096));
        blocks.changed(64, 300, 8000);
        blocks.changed(64, 8000, 20);
        blocks.changed(65, 300, 0);
        assert!(!blocks.has(65));
        assert_eq!(blocks.unused_below(2048), 2 * (4096 - 256));
        assert_eq!(blocks.sparsest(1), 256);
    }
}
