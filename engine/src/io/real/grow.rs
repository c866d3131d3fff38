//! Enlarging the files of a data directory.
//!
//! What holds here: What a file holds is not touched. A file's length never reaches beyond its
//! written extents: its space is reserved without it, and each write of zeros takes the length along.
//! After an error the files have their old lengths. After a crash they may be longer, all of it
//! written; a second growth begins with the old lengths again.

use super::create::{refuse_unless_space, sync_directory};
use super::file::{failed, lock_with_timeout, open_file};
use super::zeros::{self, Zeros};
use crate::error::{Error, Result};
use crate::io::{FileKind, Progress};
use crate::types::Geometry;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// The files that grow, the small ones first.
const GROWING: [FileKind; 3] = [FileKind::Checkpoint0, FileKind::Checkpoint1, FileKind::Data];

struct Growing {
    kind: FileKind,
    path: PathBuf,
    file: File,
    /// Its length by the superblock, and the new one.
    old: u64,
    new: u64,
}

pub(super) fn grow(
    path: &Path,
    from: &Geometry,
    to: &Geometry,
    progress: Progress<'_>,
) -> Result<()> {
    let mut files = Files(Vec::new());
    for kind in GROWING {
        files.0.push(open(path, kind, from.bytes_of(kind), to.bytes_of(kind))?);
    }
    files.cut()?;
    let total = files.0.iter().map(|file| file.new - file.old).sum();
    if total == 0 {
        return files.keep(path);
    }
    refuse_unless_space(path, path, total, "grow")?;
    for file in &files.0 {
        zeros::reserve(&file.file, &file.path, file.new)?;
    }
    let stopped =
        || Err(failed(path, "grow", "stopped; the directory has the size that it had".to_owned()));
    let mut zeros = Zeros::new(total, progress, &stopped)?;
    for Growing { kind, path, file, old, new } in &files.0 {
        zeros.fill(file, path, *kind, *old..*new)?;
    }
    files.keep(path)
}

/// Opens a file and takes its lock.
fn open(directory: &Path, kind: FileKind, old: u64, new: u64) -> Result<Growing> {
    let path = directory.join(kind.name());
    let location = || directory.display().to_string();
    let (file, _) = open_file(&path, true).map_err(|error| failed(&path, "open", error))?;
    lock_with_timeout(&file).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => Error::InUse { location: location() },
        _ => failed(&path, "lock", error),
    })?;
    let found = file.metadata().map_err(|error| failed(&path, "stat", error))?.len();
    if new < old {
        return Err(Error::Invalid(format!("`{}` of {new} bytes: it has {old}", kind.name())));
    }
    if found < old {
        return Err(Error::TooShort { location: location(), file: kind, found, expected: old });
    }
    Ok(Growing { kind, path, file, old, new })
}

/// The files. Drop cuts them to their old lengths, unless they are kept.
struct Files(Vec<Growing>);

impl Files {
    /// Gives back what is behind the old lengths: what a growth left that did not end.
    fn cut(&self) -> Result<()> {
        for Growing { path, file, old, .. } in &self.0 {
            let cut = file.set_len(*old).and_then(|()| file.sync_all());
            cut.map_err(|error| failed(path, "ftruncate", error))?;
        }
        Ok(())
    }

    fn keep(mut self, directory: &Path) -> Result<()> {
        sync_directory(directory)?;
        self.0.clear();
        Ok(())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if let Err(error) = self.cut() {
            tracing::warn!(%error, "a file of a growth that failed keeps its new length, which is unused");
        }
    }
}
