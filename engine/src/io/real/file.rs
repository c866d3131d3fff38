//! Opening one file, and the error of a call to the system.

use crate::error::Error;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

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
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    match options.custom_flags(flags | libc::O_DIRECT).open(path) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            options.custom_flags(flags).open(path).map(|file| (file, false))
        }
        opened => opened.map(|file| (file, true)),
    }
}
