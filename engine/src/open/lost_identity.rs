//! A directory whose identity cannot be read any more: it is as good as a lost disk.
//!
//! The superblock holds the votes. With no two of its copies left nobody knows what this member promised, so nobody may
//! speak for it, and what else it holds is not looked at. Once a leader has said that the cluster does without it, the
//! directory becomes an empty one of another identity.
//!
//! What holds here: an identity that can be read is never replaced, nor one of another cluster or slot; the first thing
//! written makes every copy of the superblock unusable, synced, so that the old identity does not come back with less than
//! it had. A crash from there on leaves a directory without an identity, to which the same is done again.

use super::files::{open_file, open_superblock};
use super::format::{check_expected, check_identity, format};
use super::recovery::is_written;
use crate::error::{Corruption, CorruptionKind, Error, Result};
use crate::io::{AlignedBuf, BLOCK, Device, Directory, FileKind, SUPERBLOCK_BYTES};
use crate::superblock::{SuperblockStore, readable_copies, void_copies};
use crate::types::{Geometry, Identity};

/// Zeroed at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Why a directory without a readable superblock cannot be opened. One copy suffices to tell a directory of somebody else,
/// and a journal that was written to tells an erased superblock from a format that did not end.
pub(super) async fn judge(
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
                    expected: "the superblock of a directory whose journal was written to".to_owned(),
                    found: "empty copies".to_owned(),
                    log_ids: Vec::new(),
                }),
                false => error,
            }
        }
        error => error,
    }
}

/// Whether an identity can be read: nothing else is looked at, and nothing is changed.
pub(crate) async fn is_readable(directory: &dyn Directory) -> bool {
    let Ok(superblock) = open_superblock(directory) else { return false };
    SuperblockStore::read(superblock, directory.location()).await.is_ok()
}

/// Makes the directory an empty one of `identity`. Leaves it as it is where its identity can be read after all. Ends synced.
pub(crate) async fn format_again(directory: &dyn Directory, identity: &Identity) -> Result<()> {
    check_identity(identity)?;
    let location = directory.location();
    {
        let superblock = open_superblock(directory)?;
        let Err(error) = SuperblockStore::read(superblock.clone(), location.clone()).await else {
            return Ok(());
        };
        let expected = (identity.cluster.clone(), identity.slot);
        let lost = judge(directory, superblock.as_ref(), Some(&expected), error).await;
        if !lost.is_identity_lost() {
            return Err(lost);
        }
        void_copies(superblock.as_ref(), &location).await?;
    }
    let geometry = geometry_of(directory)?;
    // Blocks of another identity are damage to whoever reads the ring.
    zero(directory, FileKind::Journal).await?;
    format(directory, geometry, identity).await?;
    tracing::warn!(
        location,
        now = format!("{:012x}", identity.incarnation),
        "the identity of this directory could not be read: it is empty now, under another one"
    );
    Ok(())
}

/// As the files are: no copy of the superblock says how they should be.
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
    let failed =
        |operation, error: std::io::Error| Error::failed(&directory.location(), kind, operation, error);
    let size = device.size() / BLOCK as u64 * BLOCK as u64;
    for offset in (0..size).step_by(PIECE_BYTES as usize) {
        let piece = AlignedBuf::zeroed(PIECE_BYTES.min(size - offset) as usize);
        device.write(offset, piece).await.0.map_err(|error| failed("write", error))?;
    }
    device.sync().await.map_err(|error| failed("sync", error))
}
