//! The sizes of the five files: how a total is divided, and the checks that come before any
//! arithmetic with them.
//!
//! Each key takes space in both checkpoint areas, whatever the length of its value: about
//! [`INDEX_BYTES_PER_KEY`] each. The share of the checkpoint areas decides for which values they are
//! full at the same number of keys as the data area: with a tenth each, about 600 bytes.

use crate::error::{Error, Result};
use crate::io::{BLOCK, FileKind, SUPERBLOCK_BYTES};
use crate::layout::{shared_tail, whole_blocks};
use crate::types::Geometry;

const BLOCK_BYTES: u64 = BLOCK as u64;
const MIB: u64 = 1 << 20;
/// About what a key of 24 bytes takes in a checkpoint.
const INDEX_BYTES_PER_KEY: u64 = 52;
/// About what such a key takes in memory, by measurement (docs/performance.md, index).
const MEMORY_BYTES_PER_KEY: u64 = 65;
/// The part of a checkpoint area that keys may take, in percent: the rest is for the log.
pub(crate) const STATE_PERCENT: u64 = 60;
/// The least and the most of the total that a checkpoint area is: a fiftieth still holds the records
/// of the log, and with two fifths little is left for the values.
const LEAST_PART: u64 = 50;
const MOST_FIFTHS: u64 = 2;

/// How large a directory is to be, and for which values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// Bytes of the whole directory.
    pub total_bytes: u64,
    /// About the bytes of a value. `None`: a tenth of the total for each checkpoint area.
    pub value_bytes: Option<u64>,
}

impl From<u64> for Sizing {
    fn from(total_bytes: u64) -> Sizing {
        Sizing { total_bytes, value_bytes: None }
    }
}

impl Sizing {
    /// The sizes of a new directory.
    ///
    /// # Errors
    /// `Invalid`, naming the bounds, if the total is out of bounds.
    pub fn geometry(self) -> Result<Geometry> {
        match self.value_bytes {
            None => Geometry::for_total(self.total_bytes),
            Some(value_bytes) => Geometry::for_values(self.total_bytes, value_bytes),
        }
    }
}

/// An area that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Area {
    Data,
    Checkpoint,
}

fn whole(bytes: u64) -> u64 {
    bytes / BLOCK_BYTES * BLOCK_BYTES
}

impl Geometry {
    /// The smallest journal: it holds a full group commit beside an unfinished checkpoint.
    pub const MIN_JOURNAL_BYTES: u64 = MIB;
    /// The smallest checkpoint area.
    pub const MIN_CHECKPOINT_BYTES: u64 = MIB;
    /// The smallest data area.
    pub const MIN_DATA_BYTES: u64 = 4 * MIB;
    /// The largest total: half of what the format's 32-bit block numbers allow.
    pub const MAX_TOTAL_BYTES: u64 = 1 << 43;

    /// The size of a file in bytes.
    pub fn bytes_of(&self, kind: FileKind) -> u64 {
        match kind {
            FileKind::Superblock => SUPERBLOCK_BYTES,
            FileKind::Journal => self.journal_bytes,
            FileKind::Checkpoint0 | FileKind::Checkpoint1 => self.checkpoint_bytes,
            FileKind::Data => self.data_bytes,
        }
    }

    /// Divides `total` bytes: a sixteenth for the journal (2 MiB to 1 GiB), a tenth for each
    /// checkpoint area, the rest for data.
    ///
    /// # Errors
    /// `Invalid`, naming the bounds, if `total` is below 16 MiB or above 8 TiB.
    pub fn for_total(total: u64) -> Result<Geometry> {
        Geometry::divided(total, |_| total / 10)
    }

    /// The same, with checkpoint areas that are full at about the same number of keys as the data
    /// area, if values have about `value_bytes`: a fiftieth to two fifths of the total each.
    ///
    /// # Errors
    /// `Invalid`, naming the bounds, if `total` is below 16 MiB or above 8 TiB.
    pub fn for_values(total: u64, value_bytes: u64) -> Result<Geometry> {
        Geometry::divided(total, |rest| {
            let len = u32::try_from(value_bytes).unwrap_or(u32::MAX);
            let value = u64::from(whole_blocks(len)) * BLOCK_BYTES + u64::from(shared_tail(len));
            let index = INDEX_BYTES_PER_KEY * 100 / STATE_PERCENT;
            let keys = rest / (value + 2 * index);
            (keys * index).clamp(total / LEAST_PART, total / 5 * MOST_FIFTHS)
        })
    }

    /// `checkpoint`: the bytes of a checkpoint area, from what superblock and journal leave.
    fn divided(total: u64, checkpoint: impl FnOnce(u64) -> u64) -> Result<Geometry> {
        if !(16 * MIB..=Self::MAX_TOTAL_BYTES).contains(&total) {
            return Err(Error::Invalid(format!(
                "a data directory of {total} bytes: choose between 16 MiB and {} TiB",
                Self::MAX_TOTAL_BYTES >> 40
            )));
        }
        let journal_bytes = whole((total / 16).clamp(2 * MIB, 1024 * MIB));
        let rest = total - SUPERBLOCK_BYTES - journal_bytes;
        // In a small directory the least data area comes first.
        let most = (rest - Self::MIN_DATA_BYTES) / 2;
        let checkpoint_bytes = checkpoint(rest).clamp(Self::MIN_CHECKPOINT_BYTES, most);
        let checkpoint_bytes = whole(checkpoint_bytes);
        let data_bytes = whole(rest - 2 * checkpoint_bytes);
        let geometry = Geometry { journal_bytes, checkpoint_bytes, data_bytes };
        geometry.check()?;
        Ok(geometry)
    }

    /// The sizes of a directory of these sizes that is enlarged: no area becomes smaller. What the
    /// areas of the new division take from one another goes to the one that grows.
    ///
    /// # Errors
    /// The area that would become smaller, and the bytes that it would have. `Invalid` like
    /// [`Geometry::for_total`].
    pub(crate) fn enlarged(
        self,
        sizing: Sizing,
    ) -> Result<std::result::Result<Geometry, (Area, u64)>> {
        // The journal keeps its size: a longer ring would have its blocks at other places.
        let mut to = Geometry { journal_bytes: self.journal_bytes, ..sizing.geometry()? };
        let values = to.growing_bytes();
        let smaller_data = to.data_bytes < self.data_bytes;
        let smaller_checkpoint = to.checkpoint_bytes < self.checkpoint_bytes;
        if smaller_data {
            if smaller_checkpoint || values < self.growing_bytes() {
                return Ok(Err((Area::Data, to.data_bytes)));
            }
            to.checkpoint_bytes = whole((values - self.data_bytes) / 2);
            to.data_bytes = values - 2 * to.checkpoint_bytes;
        } else if smaller_checkpoint {
            if values < self.growing_bytes() {
                return Ok(Err((Area::Checkpoint, to.checkpoint_bytes)));
            }
            to.checkpoint_bytes = self.checkpoint_bytes;
            to.data_bytes = values - 2 * to.checkpoint_bytes;
        }
        to.check()?;
        Ok(Ok(to))
    }

    /// About the memory that the keys take when as many are in a checkpoint area of this size as puts may bring there,
    /// if they have 24 bytes. Shorter ones take up to a sixth more, longer ones less.
    pub fn keys_memory_bytes(checkpoint_bytes: u64) -> u64 {
        let keys = checkpoint_bytes / 100 * STATE_PERCENT / INDEX_BYTES_PER_KEY;
        keys.saturating_mul(MEMORY_BYTES_PER_KEY)
    }

    /// Bytes of the areas that grow: data and both checkpoints.
    pub fn growing_bytes(&self) -> u64 {
        self.data_bytes + 2 * self.checkpoint_bytes
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
    fn both_areas_are_full_at_about_the_same_number_of_keys() {
        for total in [1792 * MIB, 1 << 33, 1 << 40] {
            for (value, data) in [(100, 130), (256, 256), (600, 600), (1000, 1000), (5000, 5000)] {
                let sizes = Geometry::for_values(total, value).unwrap();
                let data = sizes.data_bytes / data.max(value);
                let index = sizes.checkpoint_bytes / 100 * STATE_PERCENT / INDEX_BYTES_PER_KEY;
                let clamped = sizes.checkpoint_bytes < total / LEAST_PART + BLOCK_BYTES;
                let ratio = index as f64 / data as f64;
                assert!(ratio > 0.95 && (ratio < 1.4 || clamped), "{value}: {ratio} {sizes:?}");
                assert_eq!(
                    sizes.growing_bytes(),
                    Geometry::for_total(total).unwrap().growing_bytes(),
                    "{value}"
                );
            }
        }
        // Today's tenth is right for values of about this length.
        let sizes = Geometry::for_values(1 << 33, 600).unwrap();
        assert!((0.09..0.11).contains(&(sizes.checkpoint_bytes as f64 / (1u64 << 33) as f64)));
    }

    #[test]
    fn any_length_of_values_gives_checked_sizes() {
        for total in [16 * MIB, 17 * MIB + 123, 100 * MIB, 1 << 30, Geometry::MAX_TOTAL_BYTES] {
            for value in [0, 1, 10, 3686, 3687, 4096, 1 << 20, u64::MAX] {
                let sizes = Geometry::for_values(total, value).unwrap();
                assert!(sizes.total_bytes() <= total, "{total} {value}: {sizes:?}");
                assert!(
                    sizes.total_bytes() > total - 4 * BLOCK_BYTES,
                    "{total} {value}: {sizes:?}"
                );
            }
        }
    }

    #[test]
    fn an_enlarged_directory_has_no_smaller_area_and_all_of_its_new_size() {
        let totals = [16 * MIB, 100 * MIB, 101 * MIB, 1 << 30];
        let values = [None, Some(64), Some(256), Some(4096)];
        let all = || {
            totals.into_iter().flat_map(move |total_bytes| {
                values.into_iter().map(move |value_bytes| Sizing { total_bytes, value_bytes })
            })
        };
        for from in all() {
            let present = from.geometry().unwrap();
            for to in all() {
                let asked = to.geometry().unwrap();
                let asked = Geometry { journal_bytes: present.journal_bytes, ..asked };
                match present.enlarged(to).unwrap() {
                    Ok(sizes) => {
                        assert!(sizes.data_bytes >= present.data_bytes, "{from:?} {to:?}");
                        assert!(sizes.checkpoint_bytes >= present.checkpoint_bytes);
                        assert_eq!(sizes.growing_bytes(), asked.growing_bytes());
                        sizes.check().unwrap();
                    }
                    Err(_) => assert!(to.total_bytes < from.total_bytes, "{from:?} {to:?}"),
                }
            }
        }
    }

    #[test]
    fn the_keys_of_a_full_area_take_a_quarter_more_memory_than_their_part_of_it() {
        for checkpoint_bytes in [MIB, 1 << 30, Geometry::MAX_TOTAL_BYTES] {
            let part = checkpoint_bytes / 100 * STATE_PERCENT;
            let memory = Geometry::keys_memory_bytes(checkpoint_bytes);
            assert!((part + part / 5..=part + part / 4).contains(&memory), "{checkpoint_bytes}");
        }
        assert_eq!(Geometry::keys_memory_bytes(0), 0);
    }

    #[test]
    fn totals_out_of_bounds_are_refused_with_the_bounds() {
        for total in [0, 16 * MIB - 1, Geometry::MAX_TOTAL_BYTES + 1] {
            assert!(Geometry::for_total(total).unwrap_err().to_string().contains("16 MiB"));
        }
    }
}
