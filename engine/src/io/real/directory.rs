//! A data directory of real files, opened for direct I/O under an exclusive lock.

use super::create::Created;
use super::file::{failed, lock_with_timeout, open_file};
use super::{create, grow, ring::Ring, set_aside, threads::Pool};
use crate::error::{Error, Result};
use crate::io::{Device, Directory, FileKind, IoFuture, Progress};
use crate::types::Geometry;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use tokio::sync::oneshot;

/// How to do I/O on real files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// io_uring where it works, else threads.
    #[default]
    Auto,
    /// io_uring, or an error.
    IoUring,
    /// A pool of threads with `pread` and `pwrite`.
    Threads,
}

enum Running {
    Ring(Ring),
    Pool(Pool),
}

/// A data directory of real files. Its threads, or its task, end when it and all devices opened from
/// it are gone.
pub struct FileDirectory {
    path: PathBuf,
    running: Running,
    direct: bool,
}

impl FileDirectory {
    /// Creates the directory (mode 0700) if it does not exist, and in it all files (mode 0600) at
    /// their full size, filled with zeros, synced, the superblock last. `progress` can end it. What an
    /// unfinished format left is removed first, if it holds nothing.
    ///
    /// Blocks for as long as the writing takes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a geometry that is not whole blocks. [`Error::Io`] if the directory
    /// is not empty (apart from `lost+found`), if the filesystem has too little space, if it left
    /// ranges unwritten, if `progress` ends it, or if a call to the system fails. [`Error::InUse`] if
    /// another format is under way. After any error, what this call created is removed, and what was
    /// there before is untouched.
    ///
    /// # After a crash
    /// Files without a superblock may be left behind: [`FileDirectory::open`] reports
    /// [`Error::NotFormatted`], and the next `create` removes them.
    pub fn create(path: &Path, geometry: &Geometry, progress: Progress<'_>) -> Result<Created> {
        create::create(path, geometry, progress)
    }

    /// Whether a directory holds what an unfinished format leaves: files of a data directory without a
    /// superblock.
    pub fn is_unfinished(path: &Path) -> bool {
        create::is_unfinished(path)
    }

    /// Enlarges the files of a directory from the sizes `from`, which its superblock says, to the
    /// sizes `to`, by zeros, synced. Superblock and journal stay as they are. The caller holds the
    /// lock of the superblock's file, and changes the superblock afterwards ([`Growth`]). `progress`
    /// can end it.
    ///
    /// Blocks for as long as the writing takes.
    ///
    /// # Errors
    /// [`Error::InUse`]; [`Error::TooShort`] if a file is shorter than `from` or would shrink.
    /// [`Error::Io`] if the filesystem has too little space, if it left ranges unwritten, if
    /// `progress` ends it, or if a call to the system fails. After any error the files have the
    /// sizes `from`.
    ///
    /// # After a crash
    /// Files may be longer than `from`, which an open accepts. The next call begins again.
    ///
    /// [`Growth`]: crate::Growth
    pub fn grow(path: &Path, from: &Geometry, to: &Geometry, progress: Progress<'_>) -> Result<()> {
        grow::grow(path, from, to, progress)
    }

    /// Finds the files and starts the backend. Takes no lock: [`Directory::open`] does, file by
    /// file.
    ///
    /// # Errors
    /// [`Error::NotFormatted`] if a file is missing and no superblock was written;
    /// [`Error::MissingFile`] if one was. [`Error::Io`] if a file cannot be opened, or if `backend`
    /// is [`Backend::IoUring`] and io_uring is not available.
    pub fn open(path: &Path, backend: Backend) -> Result<FileDirectory> {
        open(path, backend, Ring::start)
    }

    /// The same, but io_uring runs as a task, which `spawn` starts on a tokio runtime with I/O. Its
    /// operations then cost no switch to another thread if they begin on a thread of that runtime.
    /// They fail once the runtime has ended.
    ///
    /// # Errors
    /// As [`FileDirectory::open`].
    pub fn open_as_task(
        path: &Path,
        backend: Backend,
        spawn: impl FnOnce(IoFuture<()>),
    ) -> Result<FileDirectory> {
        open(path, backend, || {
            let (ring, ring_loop) = Ring::new()?;
            spawn(Box::pin(ring_loop.run()));
            Ok(ring)
        })
    }

    /// Whether I/O bypasses the page cache. If not, a completed write is not on the device before a
    /// sync.
    pub fn direct(&self) -> bool {
        self.direct
    }
}

fn open(
    path: &Path,
    backend: Backend,
    ring: impl FnOnce() -> io::Result<Ring>,
) -> Result<FileDirectory> {
    let mut direct = true;
    for kind in FileKind::ALL {
        direct &= probe(path, kind)?;
    }
    if !direct {
        tracing::warn!(
            directory = %path.display(),
            "the filesystem refuses O_DIRECT: a completed write is in the page cache, not on the device"
        );
    }
    let running = start(path, backend, ring)?;
    Ok(FileDirectory { path: path.to_owned(), running, direct })
}

impl Directory for FileDirectory {
    fn open(&self, kind: FileKind) -> io::Result<Arc<dyn Device>> {
        let (file, _) = open_file(&self.path.join(kind.name()), true)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        lock_with_timeout(&file)?;
        Ok(match &self.running {
            Running::Ring(ring) => ring.attach(file, metadata.len()),
            Running::Pool(pool) => pool.attach(file, metadata.len()),
        })
    }

    fn location(&self) -> String {
        self.path.display().to_string()
    }

    fn backend(&self) -> &'static str {
        match self.running {
            Running::Ring(_) => "io_uring",
            Running::Pool(_) => "threads",
        }
    }

    /// On a thread of its own: the caller shares its thread with others.
    fn set_aside(&self, number: u64) -> IoFuture<io::Result<String>> {
        let path = self.path.clone();
        let (sender, copied) = oneshot::channel();
        let copying = std::thread::Builder::new().name("set-aside".to_owned()).spawn(move || {
            let copy = set_aside::set_aside(&path, number, || sender.is_closed());
            drop(sender.send(copy.map(|copy| copy.display().to_string())));
        });
        Box::pin(async move {
            copying?;
            copied.await.unwrap_or_else(|_| Err(io::Error::other("the copy ended early")))
        })
    }
}

/// Whether the file is there, and allows direct I/O.
fn probe(directory: &Path, kind: FileKind) -> Result<bool> {
    let path = directory.join(kind.name());
    let not_formatted =
        |reason: String| Error::NotFormatted { location: directory.display().to_string(), reason };
    let (file, direct) = open_file(&path, false).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            if create::has_superblock(directory) =>
        {
            Error::MissingFile { location: directory.display().to_string(), file: kind }
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            not_formatted(missing(directory, kind))
        }
        _ => failed(&path, "open", error),
    })?;
    let metadata = file.metadata().map_err(|error| failed(&path, "stat", error))?;
    if !metadata.is_file() {
        return Err(not_formatted(format!("`{}` is not a regular file", kind.name())));
    }
    Ok(direct)
}

/// Why a directory without a file and without a superblock is not formatted.
fn missing(directory: &Path, kind: FileKind) -> String {
    let name = kind.name();
    let left: Vec<&str> = FileKind::ALL
        .iter()
        .map(|kind| kind.name())
        .filter(|name| directory.join(name).exists())
        .collect();
    match left.is_empty() {
        true => format!("file `{name}` is missing"),
        false => format!(
            "file `{name}` is missing, as an unfinished format leaves it; if so, `cairn format` removes the others ({})",
            left.join(", ")
        ),
    }
}

fn start(
    path: &Path,
    backend: Backend,
    ring: impl FnOnce() -> io::Result<Ring>,
) -> Result<Running> {
    static FALLBACK: Once = Once::new();
    let ring = match backend {
        Backend::Threads => None,
        Backend::IoUring => Some(ring().map_err(|error| {
            failed(path, "setting up io_uring, which the configuration requires,", error)
        })?),
        Backend::Auto => ring()
            .inspect_err(|error| {
                FALLBACK.call_once(
                    || tracing::warn!(%error, "io_uring is not available; I/O uses a pool of threads"),
                );
            })
            .ok(),
    };
    match ring {
        Some(ring) => Ok(Running::Ring(ring)),
        None => Pool::start()
            .map(Running::Pool)
            .map_err(|error| failed(path, "starting I/O threads", error)),
    }
}
