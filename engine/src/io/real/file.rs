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
    // std adds O_CLOEXEC; O_NONBLOCK means nothing to a regular file and keeps a pipe from blocking
    // the open.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    match options.custom_flags(system::bits(flags | OFlags::DIRECT)).open(path) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {
            options.custom_flags(system::bits(flags)).open(path).map(|file| (file, false))
        }
        opened => opened.map(|file| (file, true)),
    }
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
