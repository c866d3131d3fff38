//! When compaction is worthwhile, and how much of the device it may use.

use crate::layout::BLOCK_BYTES;

/// Above this part of the area free, space is plentiful.
const PLENTY_PART: u64 = 4;
/// Below this part of the area free, each block counts. Moves take as much of the disk as writes:
/// on a disk that is 80 % live, compaction that begins earlier takes a third of the puts, and gains
/// little more than a hundredth of the area.
const SCARCE_PART: u64 = 64;
/// Blocks below a quarter full are emptied even where space is plentiful: each gives back three
/// blocks or more for one written.
const SPARSE: u64 = BLOCK_BYTES / 4;
/// The usual limit: what is gained is at least what is written.
const HALF: u64 = BLOCK_BYTES / 2;
/// The limit where nothing is free: a fuller block gains less than a sixteenth of what it costs.
const NEARLY_FULL: u64 = BLOCK_BYTES / 16 * 15;

/// Compaction begins when it could gain this part of the area; a smaller one where space is scarce.
/// Looking for values visits every key.
const GAIN_PART: u64 = 32;
const SCARCE_GAIN_PART: u64 = 256;

/// What compaction may move between two syncs: so much, however idle the node is, ...
const IDLE_BYTES: u64 = 8 << 20;
/// ... and this part of what was written to the device meanwhile, moves included: a third of what
/// all others write; as much as they where space is scarce.
const SHARE_PART: u64 = 4;
const SCARCE_SHARE_PART: u64 = 2;
/// Unused permission is kept up to this: a burst after a quiet time stays short.
const SAVED_BYTES: u64 = 2 * IDLE_BYTES;

/// About the most bytes of tails that one round moves: few, so that few reads are under way beside
/// foreground work, and more where space is scarce.
const ROUND_BYTES: u64 = 32 << 10;
const SCARCE_ROUND_BYTES: u64 = 1 << 20;

/// The space of a data area, in bytes: free beside the reserve, and all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub free: u64,
    pub area: u64,
}

impl Room {
    fn is_plentiful(self) -> bool {
        self.free > self.area / PLENTY_PART
    }

    fn is_scarce(self) -> bool {
        self.free < self.area / SCARCE_PART
    }

    /// Blocks with fewer live bytes than this are emptied. The scarcer space is, the higher.
    pub(super) fn limit(self) -> u16 {
        let limit = match (self.is_plentiful(), self.is_scarce()) {
            (true, _) => SPARSE,
            (_, false) => HALF,
            _ => {
                let scarce = self.area / SCARCE_PART;
                let missing = u128::from(scarce - self.free) * u128::from(NEARLY_FULL - HALF);
                HALF + (missing / u128::from(scarce.max(1))) as u64
            }
        };
        // Counted in levels of 256 bytes.
        (limit / 256 * 256) as u16
    }

    /// Whether a possible gain of so many bytes is worth the search.
    pub(super) fn is_worth(self, gain: u64) -> bool {
        let part = if self.is_scarce() { SCARCE_GAIN_PART } else { GAIN_PART };
        gain >= (self.area / part).max(4 * BLOCK_BYTES)
    }

    /// About the most bytes of tails that one round moves.
    pub(super) fn round_bytes(self) -> u64 {
        if self.is_scarce() { SCARCE_ROUND_BYTES } else { ROUND_BYTES }
    }

    /// What may be moved from now on, with `allowed` left from before, after so many bytes were
    /// written.
    pub(super) fn allow(self, allowed: u64, written: u64) -> u64 {
        let part = if self.is_scarce() { SCARCE_SHARE_PART } else { SHARE_PART };
        let now = IDLE_BYTES + written / part;
        (allowed + now).min(now + SAVED_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(free: u64) -> Room {
        Room { free, area: 1 << 30 }
    }

    #[test]
    fn fuller_blocks_are_emptied_the_scarcer_space_is() {
        let limits = [900, 300, 250, 20, 15, 8, 4, 0].map(|mib| room(mib << 20).limit());
        assert_eq!(limits, [1024, 1024, 2048, 2048, 2048, 2816, 3328, 3840]);
    }

    #[test]
    fn a_small_gain_is_worth_the_search_only_where_space_is_scarce() {
        assert!(!room(512 << 20).is_worth(16 << 20) && room(512 << 20).is_worth(32 << 20));
        assert!(room(12 << 20).is_worth(4 << 20) && !room(12 << 20).is_worth(3 << 20));
        assert!(!Room { free: 0, area: 1 << 20 }.is_worth(12 << 10));
    }

    #[test]
    fn what_may_be_moved_is_a_share_of_what_is_written() {
        assert_eq!(room(128 << 20).allow(0, 64 << 20), (8 << 20) + (16 << 20));
        assert_eq!(room(0).allow(1 << 20, 64 << 20), (9 << 20) + (32 << 20));
        assert_eq!(room(0).allow(1 << 40, 0), 24 << 20);
    }
}
