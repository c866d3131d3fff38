//! Copies of what is about to be overwritten in a damaged directory: superblock, journal, checkpoints.
//!
//! What holds here: a copy is complete and synced when it has its name; what a crash leaves of one has
//! another name, and goes with the next copy. A copy takes no more than nine tenths of what the
//! filesystem has free, and there are at most [`MOST_COPIES`]. Blocks of zeros take no space in it.
//! Blocks that cannot be read are zeros in it.

use super::file::open_file;
use super::{create, system};
use crate::io::{AlignedBuf, BLOCK, FileKind, is_zero};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Each is a surprise of its own; nobody looks at more of them.
const MOST_COPIES: usize = 4;
/// Bytes copied at once.
const PIECE_BYTES: usize = 1 << 20;
const PREFIX: &str = "set-aside.";
/// The name of a copy that is not complete.
const PARTIAL: &str = "set-aside-partial";

const COPIED: [FileKind; 4] =
    [FileKind::Superblock, FileKind::Journal, FileKind::Checkpoint0, FileKind::Checkpoint1];

/// Copies the files of `directory`; returns where the copy is. Ends, and leaves nothing, when it is
/// `given_up`.
pub(super) fn set_aside(
    directory: &Path,
    number: u64,
    given_up: impl Fn() -> bool,
) -> io::Result<PathBuf> {
    let partial = directory.join(PARTIAL);
    remove(&partial)?;
    let there = std::fs::read_dir(directory)?
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    if there.count() >= MOST_COPIES {
        let reason = format!("there are {MOST_COPIES} copies already ({PREFIX}*): remove them");
        return Err(io::Error::new(io::ErrorKind::StorageFull, reason));
    }
    let copied = copy(directory, &partial, &given_up).and_then(|()| {
        let copy = directory.join(format!("{PREFIX}{number}"));
        std::fs::rename(&partial, &copy)?;
        File::open(directory)?.sync_all()?;
        Ok(copy)
    });
    if copied.is_err() {
        remove(&partial).ok();
    }
    copied
}

fn remove(partial: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn copy(directory: &Path, to: &Path, given_up: &impl Fn() -> bool) -> io::Result<()> {
    let free = system::free_space(directory)?.free_bytes;
    let mut left = (free / 10 * 9).saturating_sub(create::SPARE_BYTES);
    DirBuilder::new().mode(0o700).create(to)?;
    for kind in COPIED {
        let (from, _) = open_file(&directory.join(kind.name()), false)?;
        let copy = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(to.join(kind.name()))?;
        copy_file(&from, &copy, &mut left, given_up)?;
        copy.sync_all()?;
    }
    File::open(to)?.sync_all()
}

/// Copies a file of whole blocks, but for its zeros. `left` bytes may be written.
fn copy_file(
    from: &File,
    to: &File,
    left: &mut u64,
    given_up: &impl Fn() -> bool,
) -> io::Result<()> {
    let bytes = from.metadata()?.len() / BLOCK as u64 * BLOCK as u64;
    to.set_len(bytes)?;
    let mut offset = 0;
    while offset < bytes {
        if given_up() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "the copy was given up"));
        }
        let len = PIECE_BYTES.min(usize::try_from(bytes - offset).unwrap_or(PIECE_BYTES));
        let mut piece = AlignedBuf::zeroed(len);
        if from.read_exact_at(&mut piece, offset).is_err() {
            for (number, block) in piece.chunks_mut(BLOCK).enumerate() {
                if from.read_exact_at(block, offset + (number * BLOCK) as u64).is_err() {
                    block.fill(0);
                }
            }
        }
        for (number, block) in piece.chunks(BLOCK).enumerate() {
            if is_zero(block) {
                continue;
            }
            *left = left.checked_sub(BLOCK as u64).ok_or_else(|| {
                let reason = "not enough free space for a copy of journal and checkpoints";
                io::Error::new(io::ErrorKind::StorageFull, reason)
            })?;
            to.write_all_at(block, offset + (number * BLOCK) as u64)?;
        }
        offset += len as u64;
    }
    Ok(())
}
