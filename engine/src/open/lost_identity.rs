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
//! directory without an identity, on which the same steps are repeated. written makes every copy of
//! the superblock unusable, synced, so that the old identity does not come back with less than it
//! had. A crash from there on leaves a directory without an identity, to which the same is done
//! again.

use super::files::{open_file, open_superblock};
use super::format::{check_expected, check_identity, format};
use super::recovery::is_written;
use crate::error::{Corruption, CorruptionKind, Error, Result};
use crate::io::{AlignedBuf, BLOCK, Device, Directory, FileKind, SUPERBLOCK_BYTES};
use crate::superblock::{SuperblockStore, readable_copies, void_copies};
use crate::types::{Geometry, Identity};

/// Bytes zeroed by one write.
const PIECE_BYTES: u64 = 1 << 20;

/// The error for a directory without a readable superblock. One intact copy suffices to recognise a
/// directory of another cluster or slot. A journal with content distinguishes an erased superblock
/// from a format that did not finish.
pub(super) async fn open_error(
    directory: &dyn Directory,
    superblock: &dyn Device,
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
            match is_written(journal.as_ref()).await {
                true => Error::Corrupt(Corruption {
                    file: FileKind::Superblock,
                    offset: 0,
                    length: SUPERBLOCK_BYTES,
                    kind: CorruptionKind::Superblock,
                    expected: "the superblock of a directory whose journal was written to"
                        .to_owned(),
                    found: "empty copies".to_owned(),
                    log_ids: Vec::new(),
                }),
                false => error,
            }
        }
        error => error,
    }
}

/// Whether an identity can be read. Reads nothing else, and changes nothing.
pub(crate) async fn is_readable(directory: &dyn Directory) -> bool {
    let Ok(superblock) = open_superblock(directory) else { return false };
    SuperblockStore::read(superblock, directory.location()).await.is_ok()
}

/// Formats the directory as an empty one of `identity`. Leaves it as it is if its identity turns
/// out to be readable. Ends synced.
pub(crate) async fn format_again(directory: &dyn Directory, identity: &Identity) -> Result<()> {
    check_identity(identity)?;
    let location = directory.location();
    {
        let superblock = open_superblock(directory)?;
        let Err(error) = SuperblockStore::read(superblock.clone(), location.clone()).await else {
            return Ok(());
        };
        let expected = (identity.cluster.clone(), identity.slot);
        let lost = open_error(directory, superblock.as_ref(), Some(&expected), error).await;
        if !lost.is_identity_lost() {
            return Err(lost);
        }
        void_copies(superblock.as_ref(), &location).await?;
    }
    let geometry = geometry_of(directory)?;
    // Recovery takes journal blocks of another identity for damage.
    zero(directory, FileKind::Journal).await?;
    format(directory, geometry, identity).await?;
    tracing::warn!(
        location,
        new_incarnation = format!("{:012x}", identity.incarnation),
        "the identity of this directory could not be read; the directory was formatted under a new one and is empty"
    );
    Ok(())
}

/// The sizes of the files as they are: no copy of the superblock says how they should be.
fn geometry_of(directory: &dyn Directory) -> Result<Geometry> {
    let size = |kind| open_file(directory, kind).map(|device| device.size());
    let geometry = Geometry {
        journal_bytes: size(FileKind::Journal)?,
        checkpoint_bytes: size(FileKind::Checkpoint0)?,
        data_bytes: size(FileKind::Data)?,
    };
    geometry.check()?;
    Ok(geometry)
}

/// Fills a file with zeros, synced.
async fn zero(directory: &dyn Directory, kind: FileKind) -> Result<()> {
    let device = open_file(directory, kind)?;
    let failed = |operation, error: std::io::Error| {
        Error::failed(&directory.location(), kind, operation, error)
    };
    let size = device.size() / BLOCK as u64 * BLOCK as u64;
    for offset in (0..size).step_by(PIECE_BYTES as usize) {
        let piece = AlignedBuf::zeroed(PIECE_BYTES.min(size - offset) as usize);
        device.write(offset, piece).await.0.map_err(|error| failed("write", error))?;
    }
    device.sync().await.map_err(|error| failed("sync", error))
}
