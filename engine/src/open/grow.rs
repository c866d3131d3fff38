//! Enlarging a directory that no process has open.
//!
//! The files grow first; then the superblock says so. Both areas of a checkpoint, and the data area,
//! are addressed from their beginning, so nothing moves.
//!
//! What holds here: The superblock never says more than the files hold, synced. So a crash leaves
//! files that are longer than the superblock says, and an open reads only what the superblock says.
//! The lock on the superblock's file, which every open takes first, is held from the first read to
//! the last sync.

use super::files::open_files;
use super::format::check_expected;
use super::lost_identity::open_superblock;
use crate::error::{Error, Result};
use crate::geometry::{Area, Sizing};
use crate::io::Directory;
use crate::superblock::SuperblockStore;
use crate::types::Geometry;

/// A growth that has begun. Dropping it ends it; the directory then keeps its sizes.
pub struct Growth {
    superblock: SuperblockStore,
    from: Geometry,
    to: Geometry,
}

impl Growth {
    /// Locks the directory and reads its sizes. `sizing` is the new one of the whole directory.
    /// `expected` is its cluster and slot. The journal keeps its size. Writes nothing.
    ///
    /// # Errors
    /// `CannotShrink`; `Invalid` for a size out of bounds; `NotFormatted`, `OtherFormat`, `Foreign`,
    /// `InUse`, `TooShort`, `Corrupt`, `Io`.
    pub async fn begin(
        directory: &dyn Directory,
        expected: Option<&(String, u16)>,
        sizing: impl Into<Sizing>,
    ) -> Result<Growth> {
        let sizing = sizing.into();
        let location = directory.location();
        let superblock = SuperblockStore::read(open_superblock(directory).await?).await?;
        check_expected(&location, &superblock.current().identity, expected)?;
        let from = superblock.current().geometry;
        open_files(directory, &from)?;
        let to = from.enlarged(sizing)?.map_err(|(smaller, bytes)| {
            let (area, present) = match smaller {
                Area::Data => ("data area", from.data_bytes),
                Area::Checkpoint => ("checkpoint area", from.checkpoint_bytes),
            };
            let asked = sizing.total_bytes;
            Error::CannotShrink { location, area, present, asked, smaller: bytes }
        })?;
        Ok(Growth { superblock, from, to })
    }

    /// The sizes that the superblock says.
    pub fn from(&self) -> Geometry {
        self.from
    }

    /// The sizes that the files must have for [`Growth::record`].
    pub fn to(&self) -> Geometry {
        self.to
    }

    /// Records the new sizes; synced when this returns. The files have them, with zeros that are
    /// written and synced.
    ///
    /// # After a crash
    /// During this call: the old sizes or the new ones.
    ///
    /// # Errors
    /// `TooShort` if a file is shorter; `InUse`, `Io`, `Failed`.
    pub async fn record(mut self, directory: &dyn Directory) -> Result<()> {
        open_files(directory, &self.to)?;
        // A sync of an earlier process may have failed. The update overwrites two copies at once
        // and relies on the other two.
        self.superblock.rewrite_copies().await?;
        if self.from != self.to {
            let to = self.to;
            self.superblock.update(|superblock| superblock.geometry = to).await?;
        }
        Ok(())
    }
}
