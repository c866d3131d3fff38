//! Opening and locking one file, and the error of a call to the system.

use super::system;
use crate::error::Error;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// How long an open waits for a lock. The kernel releases a killed process's files a moment after
/// the process ended, when its last operations have ended. A node that is restarted at once must
/// not fail because of that.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const LOCK_POLL: Duration = Duration::from_millis(2);

/// An error of a call to the system.
pub(super) fn failed(path: &Path, operation: &'static str, reason: impl ToString) -> Error {
    Error::Io { location: path.display().to_string(), operation, reason: reason.to_string() }
}

/// Opens for direct I/O, or for buffered I/O if the filesystem refuses that; returns which. Does
/// not follow a link: a file that was replaced by a link is not the file that was formatted.
pub(super) fn open_file(path: &Path, write: bool) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(write);
    // std adds O_CLOEXEC; O_NONBLOCK keeps a pipe from blocking the open.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let (file, direct) = match options.custom_flags(system::bits(flags | OFlags::DIRECT)).open(path)
    {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {
            (options.custom_flags(system::bits(flags)).open(path)?, false)
        }
        opened => (opened?, true),
    };
    // A kernel before 6.5 refuses what it cannot begin at once, instead of doing it on a thread, where
    // device mapper or software RAID is below (liburing issue 364).
    if file.metadata()?.is_file() {
        rustix::fs::fcntl_setfl(&file, rustix::fs::fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    }
    Ok((file, direct))
}

/// Takes the lock; retries for [`LOCK_TIMEOUT`].
pub(super) fn lock_with_timeout(file: &File) -> io::Result<()> {
    let mut tries = LOCK_TIMEOUT.as_millis() / LOCK_POLL.as_millis();
    loop {
        match system::lock(file) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && tries > 0 => {
                tries -= 1;
                std::thread::sleep(LOCK_POLL);
            }
            locked => return locked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a block device cannot say at once whether it would wait, a kernel before 6.5 answers a read
    /// through io_uring with EAGAIN if the file does not block: the node would call its directory damaged.
    #[test]
    fn a_data_file_blocks_and_is_still_direct() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("data");
        std::fs::write(&path, [0; 4096]).unwrap();
        let (file, direct) = open_file(&path, true).unwrap();
        let flags = rustix::fs::fcntl_getfl(&file).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK), "{flags:?}");
        assert_eq!(flags.contains(OFlags::DIRECT), direct);
    }
}
