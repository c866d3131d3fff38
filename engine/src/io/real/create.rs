//! Creating a data directory: every file at its full size, every block written, so that no later
//! write needs metadata.
//!
//! The superblock file is made last, after everything else is synced: it makes the directory valid.

use super::file::{failed, open_file};
use super::system;
use super::zeros::{self, Zeros};
use crate::error::{Error, Result};
use crate::io::{BLOCK, FileKind, Progress, SUPERBLOCK_BYTES};
use crate::types::Geometry;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes left to the filesystem for its own metadata.
const SPARE_BYTES: u64 = 1 << 20;

pub(super) fn create(path: &Path, geometry: &Geometry, progress: Progress<'_>) -> Result<()> {
    let total = total_bytes(geometry)?;
    let path = std::path::absolute(path).map_err(|error| failed(path, "format", error))?;
    refuse_unless_empty(&path)?;
    let missing: Vec<&Path> = path.ancestors().take_while(|ancestor| !ancestor.exists()).collect();
    let existing = path.ancestors().nth(missing.len()).unwrap_or(&path);
    refuse_unless_space(&path, existing, total, "format")?;

    let mut made = Made::default();
    for directory in missing.into_iter().rev() {
        made.directory(directory)?;
    }
    let stopped = || Err(failed(&path, "format", "stopped; what it made is removed".to_owned()));
    let mut zeros = Zeros::new(total, progress, &stopped)?;
    for kind in FileKind::ALL {
        if kind == FileKind::Superblock {
            sync_directory(&path)?;
        }
        let file = path.join(kind.name());
        made.file(&file)?;
        let bytes = size(kind, geometry);
        let (opened, _) = open_file(&file, true).map_err(|error| failed(&file, "open", error))?;
        zeros::reserve(&opened, &file, bytes)?;
        zeros.fill(&opened, &file, kind, 0..bytes)?;
    }
    sync_directory(&path)?;
    made.keep();
    Ok(())
}

pub(super) fn size(kind: FileKind, geometry: &Geometry) -> u64 {
    match kind {
        FileKind::Superblock => SUPERBLOCK_BYTES,
        FileKind::Journal => geometry.journal_bytes,
        FileKind::Checkpoint0 | FileKind::Checkpoint1 => geometry.checkpoint_bytes,
        FileKind::Data => geometry.data_bytes,
    }
}

/// Bytes of all files.
fn total_bytes(geometry: &Geometry) -> Result<u64> {
    FileKind::ALL.into_iter().try_fold(0u64, |total, kind| {
        let bytes = size(kind, geometry);
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
    let entries = match std::fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|error| failed(path, "format", error))?,
    };
    let mut ours = Vec::new();
    let mut foreign = 0usize;
    for entry in entries {
        let name = entry.map_err(|error| failed(path, "format", error))?.file_name();
        match FileKind::ALL.into_iter().find(|kind| name == kind.name()) {
            Some(kind) => ours.push(kind.name()),
            None if name == "lost+found" => {}
            None => foreign += 1,
        }
    }
    ours.sort_unstable();
    let files = ours.join(", ");
    let reason = match (has_superblock(path), ours.is_empty(), foreign) {
        (true, ..) => format!(
            "it already is a Cairn data directory ({files}); to make it anew, move it away first: what it holds is given up"
        ),
        (false, false, _) => {
            format!(
                "it holds files as an unfinished format leaves them; if so, remove them ({files})"
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
    read.is_err() || bytes.iter().any(|byte| *byte != 0)
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
