//! The sizes of the five files: how a total is divided, and the checks that come before any
//! arithmetic with them.

use crate::error::{Error, Result};
use crate::io::{BLOCK, SUPERBLOCK_BYTES};
use crate::types::Geometry;

const BLOCK_BYTES: u64 = BLOCK as u64;
const MIB: u64 = 1 << 20;

impl Geometry {
    /// The smallest journal: it holds a full group commit beside an unfinished checkpoint.
    pub const MIN_JOURNAL_BYTES: u64 = MIB;
    /// The smallest checkpoint area.
    pub const MIN_CHECKPOINT_BYTES: u64 = MIB;
    /// The smallest data area.
    pub const MIN_DATA_BYTES: u64 = 4 * MIB;
    /// The largest total: half of what the format's 32-bit block numbers allow.
    pub const MAX_TOTAL_BYTES: u64 = 1 << 43;

    /// Divides `total` bytes: a sixteenth for the journal (2 MiB to 1 GiB), a tenth for each
    /// checkpoint area, the rest for data.
    ///
    /// # Errors
    /// `Invalid`, naming the bounds, if `total` is below 16 MiB or above 8 TiB.
    pub fn for_total(total: u64) -> Result<Geometry> {
        if !(16 * MIB..=Self::MAX_TOTAL_BYTES).contains(&total) {
            return Err(Error::Invalid(format!(
                "a data directory of {total} bytes: choose between 16 MiB and {} TiB",
                Self::MAX_TOTAL_BYTES >> 40
            )));
        }
        let whole = |bytes: u64| bytes / BLOCK_BYTES * BLOCK_BYTES;
        let journal_bytes = whole((total / 16).clamp(2 * MIB, 1024 * MIB));
        let checkpoint_bytes = whole((total / 10).max(Self::MIN_CHECKPOINT_BYTES));
        let data_bytes = whole(total - SUPERBLOCK_BYTES - journal_bytes - 2 * checkpoint_bytes);
        let geometry = Geometry { journal_bytes, checkpoint_bytes, data_bytes };
        geometry.check()?;
        Ok(geometry)
    }

    /// Bytes of all files together.
    pub fn total_bytes(&self) -> u64 {
        SUPERBLOCK_BYTES + self.journal_bytes + 2 * self.checkpoint_bytes + self.data_bytes
    }

    /// Checks that every size is a whole number of blocks and within its bounds.
    ///
    /// # Errors
    /// `Invalid`, naming the size that is not.
    pub fn check(&self) -> Result<()> {
        let sizes = [
            ("journal", self.journal_bytes, Self::MIN_JOURNAL_BYTES),
            ("checkpoint area", self.checkpoint_bytes, Self::MIN_CHECKPOINT_BYTES),
            ("data area", self.data_bytes, Self::MIN_DATA_BYTES),
        ];
        for (name, bytes, least) in sizes {
            if bytes % BLOCK_BYTES != 0 || bytes < least || bytes > Self::MAX_TOTAL_BYTES {
                return Err(Error::Invalid(format!(
                    "a {name} of {bytes} bytes: it must be a multiple of {BLOCK_BYTES}, at least {least} and at most {}",
                    Self::MAX_TOTAL_BYTES
                )));
            }
        }
        Ok(())
    }

    pub(crate) fn journal_blocks(&self) -> u64 {
        self.journal_bytes / BLOCK_BYTES
    }

    pub(crate) fn data_blocks(&self) -> u32 {
        u32::try_from(self.data_bytes / BLOCK_BYTES).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_accepted_total_is_divided_into_checked_sizes_that_fit() {
        for total in
            [16 * MIB, 17 * MIB + 123, 100 * MIB, 1 << 30, 1 << 40, Geometry::MAX_TOTAL_BYTES]
        {
            let geometry = Geometry::for_total(total).unwrap();
            assert!(geometry.total_bytes() <= total, "{geometry:?}");
            assert!(geometry.total_bytes() > total - 4 * BLOCK_BYTES, "{geometry:?}");
        }
    }

    #[test]
    fn totals_out_of_bounds_are_refused_with_the_bounds() {
        for total in [0, 16 * MIB - 1, Geometry::MAX_TOTAL_BYTES + 1] {
            assert!(Geometry::for_total(total).unwrap_err().to_string().contains("16 MiB"));
        }
    }
}
