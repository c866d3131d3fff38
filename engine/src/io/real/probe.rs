//! What can be learnt of a machine without a data directory being opened: how a filesystem treats files, whether io_uring
//! may be used, what an NVMe drive says of itself. Only facts; what they are worth is judged elsewhere.
//!
//! What holds here: nothing stays behind, no byte of an existing file changes, no lock is taken, so a directory that is
//! in use can be probed.

use super::file::open_file;
use super::system::{DirectAlignment, Extents, Room};
use super::{ring::Ring, system, threads};
use crate::io::{AlignedBuf, BLOCK};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Size of the file that is made and removed again to learn how new files are treated: more than one extent of most
/// allocators' smallest kind, and written in a moment.
const SAMPLE_BYTES: u64 = 1 << 20;

/// How a file is treated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileProbe {
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether it can be opened with `O_DIRECT`.
    pub direct: bool,
    /// The units of direct I/O, `None` where the kernel or the filesystem does not say.
    pub alignment: Option<DirectAlignment>,
    /// Its extents, `None` where the filesystem does not say.
    pub extents: Option<Extents>,
    /// Whether one block of 4 KiB could be transferred and `fdatasync` succeeded; else what the system said.
    pub transfer: Result<(), String>,
}

/// What an NVMe drive says of itself, as it gave it: the data structures of the command Identify, 4096 bytes each, and its health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeIdentify {
    /// Of the controller (CNS 01h).
    pub controller: Vec<u8>,
    /// Of the namespace (CNS 00h).
    pub namespace: Vec<u8>,
    /// The log page SMART / Health Information (02h), 512 bytes; `None` where the drive does not give it.
    pub health: Option<Vec<u8>>,
}

/// Probes an existing file, without changing it.
///
/// # Errors
/// The system's, where the file cannot be opened for reading; `InvalidInput` if it is no regular file.
pub fn probe_file(path: &Path) -> io::Result<FileProbe> {
    let (file, direct) = open_file(path, false)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut block = AlignedBuf::zeroed(BLOCK.min(usize::try_from(metadata.len()).unwrap_or(BLOCK)));
    let read = file.read_at(&mut block, 0).map(drop);
    describe(&file, direct, metadata.len(), read)
}

/// Probes how new files in a directory are treated: makes one without a name the way `format` makes files, and lets it go.
///
/// # Errors
/// The system's, where no file can be made there.
pub fn probe_directory(path: &Path) -> io::Result<FileProbe> {
    let (file, direct) = unnamed_file(path)?;
    let written = system::allocate(&file, SAMPLE_BYTES)
        .and_then(|_| threads::write(&file, 0, &AlignedBuf::zeroed(SAMPLE_BYTES as usize)));
    describe(&file, direct, SAMPLE_BYTES, written)
}

/// Whether io_uring works here.
///
/// # Errors
/// The system's, where io_uring is forbidden or absent.
pub fn probe_io_uring() -> io::Result<()> {
    Ring::start().map(drop)
}

/// The room in the filesystem that holds `path`.
///
/// # Errors
/// The system's.
pub fn room(path: &Path) -> io::Result<Room> {
    system::room(path)
}

/// Asks the NVMe drive behind a block device to identify itself, and for its health.
///
/// # Errors
/// The system's, such as `PermissionDenied`, and `InvalidInput` if `device` is no block device.
pub fn nvme_identify(device: &Path) -> io::Result<NvmeIdentify> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(device)?;
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

fn describe(file: &File, direct: bool, bytes: u64, transferred: io::Result<()>) -> io::Result<FileProbe> {
    let synced = transferred.and_then(|()| file.sync_data());
    Ok(FileProbe {
        bytes,
        direct,
        alignment: system::direct_alignment(file)?,
        extents: system::extents(file, bytes)?,
        transfer: synced.map_err(|error| error.to_string()),
    })
}

/// A file that is gone when it is closed, open for direct I/O where the filesystem allows that.
fn unnamed_file(directory: &Path) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let opened = options.custom_flags(libc::O_TMPFILE | libc::O_DIRECT).open(directory);
    match opened.map_err(|error| (error.raw_os_error(), error)) {
        Ok(file) => Ok((file, true)),
        // The filesystem may know unnamed files without direct I/O, direct I/O without unnamed files, or neither.
        Err((Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT), _)) => {
            let path = directory.join(format!(".cairn-probe-{}", std::process::id()));
            drop(options.clone().create_new(true).custom_flags(0).open(&path)?);
            let opened = open_file(&path, true);
            std::fs::remove_file(&path)?;
            opened
        }
        Err((_, error)) => Err(error),
    }
}
