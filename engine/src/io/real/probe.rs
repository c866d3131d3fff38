//! Facts about a machine, found without opening a data directory: how a filesystem treats files,
//! whether io_uring may be used, what an NVMe drive reports about itself. Other modules judge them.
//!
//! What holds here: nothing stays behind, no byte of an existing file changes, and no lock is
//! taken, so a directory in use can be probed.

use super::device::Direction;
use super::file::open_file;
use super::system::{DirectAlignment, Extents};
use super::{ring::Ring, system, threads};
use crate::io::{AlignedBuf, BLOCK};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// The size of the file that is created and removed to see how new files are treated: larger than
/// the smallest extent of most allocators, and written in a moment.
const SAMPLE_BYTES: u64 = 1 << 20;

/// How a file is treated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileProbe {
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether it can be opened with `O_DIRECT`.
    pub direct: bool,
    /// The units of direct I/O; `None` if the kernel or the filesystem does not report them.
    pub alignment: Option<DirectAlignment>,
    /// Its extents; `None` if the filesystem does not report them.
    pub extents: Option<Extents>,
    /// Whether one block of 4 KiB could be transferred and `fdatasync` succeeded; else the system's
    /// error.
    pub transfer: Result<(), String>,
}

/// What an NVMe drive reports about itself, unparsed: the data structures of the command Identify,
/// 4096 bytes each, and its health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeIdentify {
    /// The controller's (CNS 01h).
    pub controller: Vec<u8>,
    /// The namespace's (CNS 00h).
    pub namespace: Vec<u8>,
    /// The log page SMART / Health Information (02h), 512 bytes; `None` if the drive does not
    /// return it.
    pub health: Option<Vec<u8>>,
}

/// Probes an existing file, without changing it.
///
/// # Errors
/// The system's, if the file cannot be opened for reading; `InvalidInput` if it is not a regular
/// file.
pub fn probe_file(path: &Path) -> io::Result<FileProbe> {
    let (file, direct, bytes) = regular_file(path)?;
    let mut block = AlignedBuf::zeroed(BLOCK.min(usize::try_from(bytes).unwrap_or(BLOCK)));
    let read = file.read_at(&mut block, 0).map(drop);
    describe(&file, direct, bytes, read)
}

/// The extents of an existing file now; `None` if the filesystem does not report them. Reads none of its
/// bytes and does not empty the device's cache, so that it can be asked beside a server under load.
///
/// # Errors
/// The system's, if the file cannot be opened for reading; `InvalidInput` if it is not a regular
/// file.
pub fn file_extents(path: &Path) -> io::Result<Option<Extents>> {
    let (file, _, bytes) = regular_file(path)?;
    system::extents(&file, bytes)
}

/// Probes how new files in a directory are treated: creates an unnamed file the way `format`
/// creates files, and closes it, which removes it.
///
/// # Errors
/// The system's, if no file can be created there.
pub fn probe_directory(path: &Path) -> io::Result<FileProbe> {
    let (file, direct) = unnamed_file(path)?;
    let mut zeros = AlignedBuf::zeroed(SAMPLE_BYTES as usize);
    let written = system::allocate(&file, SAMPLE_BYTES)
        .and_then(|_| threads::transfer(&file, Direction::Write, 0, &mut zeros));
    describe(&file, direct, SAMPLE_BYTES, written)
}

/// Whether io_uring works here.
///
/// # Errors
/// The system's, if io_uring is forbidden or absent.
pub fn probe_io_uring() -> io::Result<()> {
    Ring::new().map(drop)
}

/// Reads the identification and the health of the NVMe drive behind a block device.
///
/// # Errors
/// The system's, such as `PermissionDenied`, and `InvalidInput` if `device` is not a block device.
pub fn nvme_identify(device: &Path) -> io::Result<NvmeIdentify> {
    let flags = system::bits(OFlags::NONBLOCK);
    let file = OpenOptions::new().read(true).custom_flags(flags).open(device)?;
    if !file.metadata()?.file_type().is_block_device() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a block device"));
    }
    let namespace = system::nvme_namespace(&file)?;
    Ok(NvmeIdentify {
        controller: system::nvme_identify(&file, system::IDENTIFY_CONTROLLER, 0)?,
        namespace: system::nvme_identify(&file, system::IDENTIFY_NAMESPACE, namespace)?,
        health: system::nvme_health(&file).ok(),
    })
}

/// A regular file, open for reading; whether its I/O is direct, and its bytes.
fn regular_file(path: &Path) -> io::Result<(File, bool, u64)> {
    let (file, direct) = open_file(path, false)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok((file, direct, metadata.len()))
}

fn describe(
    file: &File,
    direct: bool,
    bytes: u64,
    transferred: io::Result<()>,
) -> io::Result<FileProbe> {
    let synced = transferred.and_then(|()| file.sync_data());
    Ok(FileProbe {
        bytes,
        direct,
        alignment: system::direct_alignment(file)?,
        extents: system::extents(file, bytes)?,
        transfer: synced.map_err(|error| error.to_string()),
    })
}

/// A file that is removed when it is closed, open for direct I/O if the filesystem allows that.
fn unnamed_file(directory: &Path) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let opened =
        options.custom_flags(system::bits(OFlags::TMPFILE | OFlags::DIRECT)).open(directory);
    match opened.map_err(|error| (Errno::from_io_error(&error), error)) {
        Ok(file) => Ok((file, true)),
        // The filesystem may support unnamed files without direct I/O, direct I/O without unnamed
        // files, or neither.
        Err((Some(Errno::INVAL | Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT), _)) => {
            let path = directory.join(format!(".cairn-probe-{}", std::process::id()));
            drop(options.clone().create_new(true).custom_flags(0).open(&path)?);
            let opened = open_file(&path, true);
            std::fs::remove_file(&path)?;
            opened
        }
        Err((_, error)) => Err(error),
    }
}
