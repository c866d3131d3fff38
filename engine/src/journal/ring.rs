//! Where a sequence number lies in the ring, and how much of the ring is free.

use crate::io::BLOCK;

/// The ring's size and its reclaimed end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    blocks: u64,
}

impl Ring {
    pub(crate) fn new(blocks: u64) -> Ring {
        assert!(blocks > 0, "an empty journal");
        Ring { blocks }
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Byte offset of a block.
    pub(crate) fn offset(&self, sequence: u64) -> u64 {
        (sequence % self.blocks) * BLOCK as u64
    }

    /// How many of `count` blocks from `sequence` on can be written before the ring's end.
    pub(crate) fn contiguous(&self, sequence: u64, count: u64) -> u64 {
        count.min(self.blocks - sequence % self.blocks)
    }

    /// Blocks that can be written from `next` on while everything above `reclaimed` is kept.
    pub(crate) fn free(&self, next: u64, reclaimed: u64) -> u64 {
        let used = next - 1 - reclaimed;
        assert!(used <= self.blocks, "the journal holds {used} of {} blocks", self.blocks);
        self.blocks - used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_wrap_and_free_space_counts_what_is_kept() {
        let ring = Ring::new(8);
        assert_eq!(ring.offset(1), 4096);
        assert_eq!(ring.offset(8), 0);
        assert_eq!(ring.contiguous(6, 5), 2);
        assert_eq!(ring.contiguous(8, 5), 5);
        assert_eq!(ring.free(1, 0), 8);
        assert_eq!(ring.free(9, 0), 0);
        assert_eq!(ring.free(9, 5), 5);
    }
}
