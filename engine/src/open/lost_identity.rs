//! A directory whose identity cannot be read any more. It counts as a lost disk.
//!
//! The superblock holds the votes. When no two of its copies agree, the votes of this member are
//! unknown. So the member's old identity must not be used again, and nothing else in the directory
//! is read. Once a leader has confirmed that the cluster does not need it, the directory becomes an
//! empty one of another identity.
//!
//! What holds here: An identity that can be read is never replaced, nor a directory of another
//! cluster or slot. The first write makes every copy of the superblock unusable, synced, so that
//! the old identity cannot come back with less than it had. A crash from there on leaves a
//! directory without an identity, on which the same steps are repeated.

use super::files::{open_file, open_sized};
use super::format::{check_expected, check_identity};
use super::recovery::is_written;
use crate::error::{Corruption, Error, Result};
use crate::io::{AlignedBuf, BLOCK, Directory, FileKind, OpenFile, SUPERBLOCK_BYTES};
use crate::state::Engine;
use crate::superblock::{NO_SUPERBLOCK, SuperblockStore, readable_copies, void_copies};
use crate::types::{Geometry, Identity};

/// Bytes zeroed by one write.
const PIECE_BYTES: u64 = 1 << 20;

/// Opens the file of the superblock. Without a byte in it and a written journal, a format was killed
/// when it had just made the file, which is its last one.
pub(super) async fn open_superblock(directory: &dyn Directory) -> Result<OpenFile> {
    match open_sized(directory, FileKind::Superblock, SUPERBLOCK_BYTES) {
        Err(Error::TooShort { location, found: 0, .. })
            if !is_written(&open_file(directory, FileKind::Journal)?).await =>
        {
            Err(Error::NotFormatted { location, reason: NO_SUPERBLOCK.to_owned() })
        }
        opened => opened,
    }
}

/// The error for a directory without a readable superblock. One intact copy suffices to recognise a
/// directory of another cluster or slot. A journal with content distinguishes an erased superblock
/// from a format that did not finish.
pub(super) async fn open_error(
    directory: &dyn Directory,
    superblock: &OpenFile,
    expected: Option<&(String, u16)>,
    error: Error,
) -> Error {
    match error {
        Error::Corrupt(_) => {
            let copies = readable_copies(superblock).await;
            let foreign = copies
                .iter()
                .find_map(|c| check_expected(&directory.location(), &c.identity, expected).err());
            foreign.unwrap_or(error)
        }
        Error::NotFormatted { .. } => {
            let Ok(journal) = open_file(directory, FileKind::Journal) else { return error };
            if !is_written(&journal).await {
                return error;
            }
            let expected = "the superblock of a directory whose journal was written to";
            let (file, length) = (FileKind::Superblock, SUPERBLOCK_BYTES);
            Corruption::new(file, 0, length, expected, "no two copies").into()
        }
        error => error,
    }
}

impl Engine {
    /// Whether the identity of a directory can be read. If it could not, callers ask again, since
    /// the storage may have been away. Does not lock out other processes, and changes nothing.
    pub async fn reads_identity(directory: &dyn Directory) -> bool {
        let Ok(superblock) = open_superblock(directory).await else { return false };
        SuperblockStore::read(superblock).await.is_ok()
    }

    /// Formats a directory whose identity cannot be read ([`Error::is_identity_lost`]) as an empty
    /// one of another identity. Call this only if the cluster does not need what the directory
    /// holds: the first write destroys it. If the identity turns out to be readable, the directory
    /// is left as it is. Ends synced.
    ///
    /// # After a crash
    /// During this call: the old state; or no identity, and the next call continues; or the new
    /// identity with no data.
    ///
    /// # Errors
    /// `Invalid` for a bad identity, `Foreign`, `NotFormatted`, `OtherFormat`, `TooShort`,
    /// `InUse`, `Io`, `Failed`.
    pub async fn format_again(directory: &dyn Directory, identity: &Identity) -> Result<()> {
        check_identity(identity)?;
        {
            let superblock = open_superblock(directory).await?;
            let Err(error) = SuperblockStore::read(superblock.clone()).await else {
                return Ok(());
            };
            let expected = (identity.cluster.clone(), identity.slot);
            let lost = open_error(directory, &superblock, Some(&expected), error).await;
            if !lost.is_identity_lost() {
                return Err(lost);
            }
            void_copies(&superblock).await?;
        }
        let geometry = geometry_of(directory)?;
        // Recovery takes journal blocks of another identity for damage.
        zero(open_file(directory, FileKind::Journal)?).await?;
        Engine::format(directory, geometry, identity).await?;
        tracing::warn!(
            location = directory.location(),
            new_incarnation = format!("{:012x}", identity.incarnation),
            "the identity of this directory could not be read; the directory was formatted under a new one and is empty"
        );
        Ok(())
    }
}

/// The sizes of the files as they are: no copy of the superblock says how they should be. All of
/// their bytes are written, also after a growth that did not end.
fn geometry_of(directory: &dyn Directory) -> Result<Geometry> {
    let block = BLOCK as u64;
    let size = |kind| open_file(directory, kind).map(|file| file.size() / block * block);
    let geometry = Geometry {
        journal_bytes: size(FileKind::Journal)?,
        checkpoint_bytes: size(FileKind::Checkpoint0)?.min(size(FileKind::Checkpoint1)?),
        data_bytes: size(FileKind::Data)?,
    };
    geometry.check()?;
    Ok(geometry)
}

/// Fills a file with zeros, synced.
async fn zero(file: OpenFile) -> Result<()> {
    let size = file.size() / BLOCK as u64 * BLOCK as u64;
    for offset in (0..size).step_by(PIECE_BYTES as usize) {
        let piece = AlignedBuf::zeroed(PIECE_BYTES.min(size - offset) as usize);
        file.write(offset, piece).await?;
    }
    file.sync().await
}
