//! Creating a data directory: every file at its full size, every block written, so that no later
//! write needs metadata.
//!
//! The superblock file is made last, after everything else is synced: it makes the directory valid.
//! What holds nothing but zeros, without a superblock, is what an unfinished format left, and is
//! removed. The lock on the directory tells it from a format that is still under way.

use super::file::{failed, open_file};
use super::system;
use super::zeros::{self, Zeros};
use crate::error::{Error, Result};
use crate::io::{AlignedBuf, BLOCK, FileKind, Progress, SUPERBLOCK_BYTES, is_zero};
use crate::types::Geometry;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes left to the filesystem for its own metadata.
pub(super) const SPARE_BYTES: u64 = 1 << 20;

/// Bytes read at once to see whether a file holds anything.
const READ_BYTES: usize = 4 << 20;
/// An unfinished format may have written the empty checkpoint, which takes so many bytes.
const EMPTY_CHECKPOINT_BYTES: u64 = 4 * BLOCK as u64;

/// A directory whose files are made, and which is not formatted yet. Keep it until it is: it holds the
/// lock that keeps another format away.
#[derive(Debug)]
pub struct Created {
    _lock: Option<File>,
}

pub(super) fn create(path: &Path, geometry: &Geometry, progress: Progress<'_>) -> Result<Created> {
    let total = total_bytes(geometry)?;
    let path = std::path::absolute(path).map_err(|error| failed(path, "format", error))?;
    let mut locked = lock(&path)?;
    if locked.is_some() && is_unfinished(&path) {
        remove_unfinished(&path, &mut || progress(0, total))?;
    }
    refuse_unless_empty(&path)?;
    let missing: Vec<&Path> = path.ancestors().take_while(|ancestor| !ancestor.exists()).collect();
    let existing = path.ancestors().nth(missing.len()).unwrap_or(&path);
    refuse_unless_space(&path, existing, total, "format")?;

    let mut made = Made::default();
    for directory in missing.into_iter().rev() {
        made.directory(directory)?;
    }
    if locked.is_none() {
        locked = lock(&path)?;
    }
    let stopped = || Err(failed(&path, "format", "stopped; what it made is removed".to_owned()));
    let mut zeros = Zeros::new(total, progress, &stopped)?;
    for kind in FileKind::ALL {
        if kind == FileKind::Superblock {
            sync_directory(&path)?;
        }
        let file = path.join(kind.name());
        made.file(&file)?;
        let bytes = geometry.bytes_of(kind);
        let (opened, _) = open_file(&file, true).map_err(|error| failed(&file, "open", error))?;
        zeros::reserve(&opened, &file, bytes)?;
        zeros.fill(&opened, &file, kind, 0..bytes)?;
    }
    sync_directory(&path)?;
    made.keep();
    Ok(Created { _lock: locked })
}

/// Takes the lock of a format on an existing directory. `None` if there is no directory, or if its
/// filesystem has no such locks.
fn lock(path: &Path) -> Result<Option<File>> {
    let Ok(directory) = File::open(path) else { return Ok(None) };
    match directory.try_lock() {
        Ok(()) => Ok(Some(directory)),
        Err(TryLockError::WouldBlock) => Err(Error::InUse { location: path.display().to_string() }),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// Whether a directory holds the files of a data directory, or some of them, and no superblock was
/// written: as a format leaves it that was killed, or is under way.
pub(super) fn is_unfinished(path: &Path) -> bool {
    let Ok((ours, foreign)) = names(path) else { return false };
    !ours.is_empty() && foreign == 0 && !has_superblock(path)
}

/// Removes what an unfinished format left: files of zeros, and perhaps the empty checkpoint. With
/// anything else in them nothing is removed: then they are a data directory whose superblock is lost.
fn remove_unfinished(path: &Path, more: &mut dyn FnMut() -> ControlFlow<()>) -> Result<()> {
    let (ours, _) = names(path)?;
    for kind in &ours {
        let file = path.join(kind.name());
        let blank = is_blank(&file, *kind, more).map_err(|error| failed(&file, "read", error))?;
        if !blank {
            return Ok(());
        }
    }
    tracing::warn!(directory = %path.display(), "removing the files of an unfinished format, which hold nothing");
    for kind in ours {
        let file = path.join(kind.name());
        std::fs::remove_file(&file).map_err(|error| failed(&file, "remove", error))?;
    }
    sync_directory(path)
}

/// Whether a file holds nothing that anybody put there.
fn is_blank(
    path: &Path,
    kind: FileKind,
    more: &mut dyn FnMut() -> ControlFlow<()>,
) -> io::Result<bool> {
    let (file, _) = open_file(path, false)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok(false);
    }
    let mut offset = match kind {
        FileKind::Checkpoint0 | FileKind::Checkpoint1 => EMPTY_CHECKPOINT_BYTES,
        _ => 0,
    };
    let mut piece = AlignedBuf::zeroed(READ_BYTES);
    loop {
        if more().is_break() {
            return Err(io::Error::other("stopped; nothing was changed"));
        }
        let read = file.read_at(&mut piece, offset)?;
        if piece.get(..read).is_none_or(|read| !is_zero(read)) {
            return Ok(false);
        }
        offset += read as u64;
        if read == 0 || !read.is_multiple_of(BLOCK) {
            return Ok(true);
        }
    }
}

/// Which of a data directory's files are there, and how many others.
fn names(path: &Path) -> Result<(Vec<FileKind>, usize)> {
    let entries = match std::fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), 0)),
        entries => entries.map_err(|error| failed(path, "format", error))?,
    };
    let (mut ours, mut foreign) = (Vec::new(), 0usize);
    for entry in entries {
        let name = entry.map_err(|error| failed(path, "format", error))?.file_name();
        match FileKind::ALL.into_iter().find(|kind| name == kind.name()) {
            Some(kind) => ours.push(kind),
            None if name == "lost+found" => {}
            None => foreign += 1,
        }
    }
    Ok((ours, foreign))
}

/// Bytes of all files.
fn total_bytes(geometry: &Geometry) -> Result<u64> {
    FileKind::ALL.into_iter().try_fold(0u64, |total, kind| {
        let bytes = geometry.bytes_of(kind);
        if bytes == 0 || !bytes.is_multiple_of(BLOCK as u64) || i64::try_from(bytes).is_err() {
            let name = kind.name();
            return Err(Error::Invalid(format!(
                "file `{name}` of {bytes} bytes: not a multiple of {BLOCK}"
            )));
        }
        total
            .checked_add(bytes)
            .ok_or_else(|| Error::Invalid("the sizes overflow 64 bits".to_owned()))
    })
}

/// A directory with other content may hold data of others.
fn refuse_unless_empty(path: &Path) -> Result<()> {
    let (ours, foreign) = names(path)?;
    let mut ours: Vec<&str> = ours.into_iter().map(FileKind::name).collect();
    ours.sort_unstable();
    let files = ours.join(", ");
    let reason = match (has_superblock(path), ours.is_empty(), foreign) {
        (true, ..) => format!(
            "it already is a Cairn data directory ({files}); to make it anew, move it away first: what it holds is given up"
        ),
        (false, false, _) => {
            format!(
                "it has no superblock, and holds more than an unfinished format leaves ({files}): if nobody needs it, \
                 remove these files"
            )
        }
        (false, true, 1..) => format!("it is not empty ({foreign} files or directories)"),
        (false, true, 0) => return Ok(()),
    };
    Err(failed(path, "format", format!("{reason}; nothing was changed")))
}

/// Whether anything was written to the superblock's file, which is the last step of a format. An
/// unreadable file counts as written.
pub(super) fn has_superblock(directory: &Path) -> bool {
    let file = match File::open(directory.join(FileKind::Superblock.name())) {
        Err(error) => {
            return error.kind() != io::ErrorKind::NotFound
                && error.kind() != io::ErrorKind::NotADirectory;
        }
        Ok(file) => file,
    };
    let mut bytes = Vec::new();
    let read = file.take(SUPERBLOCK_BYTES).read_to_end(&mut bytes);
    read.is_err() || !is_zero(&bytes)
}

pub(super) fn refuse_unless_space(
    path: &Path,
    existing: &Path,
    total: u64,
    operation: &'static str,
) -> Result<()> {
    let free = system::free_space(existing);
    let free = free.map_err(|error| failed(existing, "statvfs", error))?.free_bytes;
    let needed = total.saturating_add(SPARE_BYTES);
    if needed > free {
        let reason =
            format!("not enough space: {needed} bytes needed, {free} free; nothing was changed");
        return Err(failed(path, operation, reason));
    }
    Ok(())
}

pub(super) fn sync_directory(path: &Path) -> Result<()> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| failed(path, "fsync of the directory", error))
}

/// The directories and files that this call created, in order. Drop removes them, the last one
/// first, unless they are kept.
#[derive(Default)]
struct Made(Vec<PathBuf>);

impl Made {
    fn directory(&mut self, path: &Path) -> Result<()> {
        DirBuilder::new().mode(0o700).create(path).map_err(|error| failed(path, "mkdir", error))?;
        self.0.push(path.to_owned());
        path.parent().map_or(Ok(()), sync_directory)
    }

    /// Creates an empty file. It is opened for direct I/O later: with `O_DIRECT`, a failed open can
    /// leave a file behind.
    fn file(&mut self, path: &Path) -> Result<()> {
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|error| failed(path, "create", error))?;
        self.0.push(path.to_owned());
        Ok(())
    }

    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in self.0.drain(..).rev() {
            let removed = match path.is_dir() {
                true => std::fs::remove_dir(&path),
                false => std::fs::remove_file(&path),
            };
            if let Err(error) = removed {
                tracing::warn!(path = %path.display(), %error, "could not remove a file or directory of a failed format");
            }
        }
    }
}
