//! Ranges of zeros in files, as a data directory needs them: written extents.
//!
//! Zeros are *written*, not only reserved. A reserved extent is marked unwritten; the first write
//! to it would change that mark in the filesystem's metadata, and a completed direct write does not
//! include metadata. What the filesystem says of its extents afterwards decides, however the zeros
//! came there.

use super::device::Direction;
use super::file::failed;
use super::{system, threads};
use crate::error::{Error, Result};
use crate::io::{AlignedBuf, FileKind, MEASURED_BYTES, Progress};
use std::fs::File;
use std::io;
use std::ops::{ControlFlow, Range};
use std::path::Path;

/// The size of one write of zeros. The kernel splits it and keeps the device busy with the parts.
const WRITE_BYTES: u64 = 4 << 20;
/// What the drive zeroes in one call: a few milliseconds, each with a change of metadata.
const DRIVE_BYTES: u64 = 64 << 20;

/// Zeros that are being written, in one file after another.
pub(super) struct Zeros<'a> {
    total: u64,
    done: u64,
    progress: Progress<'a>,
    /// The error if `progress` ends the work.
    stopped: &'a dyn Fn() -> Result<()>,
    /// Whether the drive may still be able to write zeros by itself.
    by_drive: bool,
}

impl<'a> Zeros<'a> {
    /// Reports that nothing of `total` bytes is done.
    pub(super) fn new(
        total: u64,
        progress: Progress<'a>,
        stopped: &'a dyn Fn() -> Result<()>,
    ) -> Result<Zeros<'a>> {
        let mut zeros = Zeros { total, done: 0, progress, stopped, by_drive: true };
        zeros.report(0)?;
        Ok(zeros)
    }

    /// Writes zeros over the range, syncs the file, and checks that all of it, which then ends with
    /// the range, is in written extents.
    pub(super) fn fill(
        &mut self,
        file: &File,
        path: &Path,
        kind: FileKind,
        range: Range<u64>,
    ) -> Result<()> {
        let error = |operation, error| no_space(path, operation, range.end, error);
        let mut zeros = AlignedBuf::zeroed(0);
        let mut offset = range.start;
        while offset < range.end {
            let left = range.end - offset;
            let mut part = left.min(DRIVE_BYTES);
            if !self.zeroed_by_drive(file, kind, offset, part) {
                part = left.min(WRITE_BYTES);
                if part != zeros.len() as u64 {
                    zeros = AlignedBuf::zeroed(part as usize);
                }
                threads::transfer(file, Direction::Write, offset, &mut zeros)
                    .map_err(|e| error("write", e))?;
            }
            offset += part;
            if (self.done..self.done + part).contains(&MEASURED_BYTES) {
                // The time until this report says how long the rest takes, so it must not end in a
                // cache.
                file.sync_data().map_err(|e| error("fdatasync", e))?;
            }
            self.report(part)?;
        }
        file.sync_all().map_err(|e| error("fsync", e))?;
        check(file, path, range.end)
    }

    fn report(&mut self, bytes: u64) -> Result<()> {
        self.done += bytes;
        match (self.progress)(self.done, self.total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => (self.stopped)(),
        }
    }

    /// Lets the drive write the zeros, without sending them to it. Returns `false` if it cannot.
    ///
    /// This is safe for what Cairn needs of the bytes. The kernel converts the extents to written
    /// ones after the drive has zeroed them, so that later writes change no metadata of the
    /// filesystem; it refuses instead of writing the zeros itself. The sync at the end covers both
    /// the zeros and the extents, as with ordinary writes. The drive may drop its own mapping of
    /// the blocks and make another at the next write; that is a part of any write in flash, and
    /// mode `device` relies on the drive to complete a write only with it.
    ///
    /// Recovery tells empty journal blocks from damage by their zeros. So the small files, journal
    /// and superblock, get theirs by ordinary writes: no guarantee of a drive about blocks that
    /// nobody wrote is needed.
    fn zeroed_by_drive(&mut self, file: &File, kind: FileKind, offset: u64, bytes: u64) -> bool {
        if matches!(kind, FileKind::Journal | FileKind::Superblock) || !self.by_drive {
            return false;
        }
        // After any error ordinary writes say what is wrong.
        self.by_drive = system::write_zeroes(file, offset, bytes).unwrap_or(false);
        self.by_drive
    }
}

/// Reserves the space of a file up to `end`, so that a full filesystem shows before anything is
/// written. Its length stays.
pub(super) fn reserve(file: &File, path: &Path, end: u64) -> Result<()> {
    system::allocate(file, end).map_err(|error| no_space(path, "fallocate", end, error)).map(drop)
}

fn check(file: &File, path: &Path, bytes: u64) -> Result<()> {
    let found = file.metadata().map_err(|error| failed(path, "stat", error))?.len();
    if found != bytes {
        let reason = format!("the file has {found} bytes instead of {bytes}");
        return Err(failed(path, "writing zeros", reason));
    }
    match system::extents(file, bytes).map_err(|error| failed(path, "fiemap", error))? {
        Some(extents) if extents.unwritten_bytes + extents.missing_bytes > 0 => {
            let unwritten = extents.unwritten_bytes + extents.missing_bytes;
            let reason = format!(
                "the filesystem left {unwritten} of {bytes} bytes without a written extent; a filesystem that \
                 compresses or drops zeros cannot hold a data directory"
            );
            Err(failed(path, "writing zeros", reason))
        }
        Some(_) => Ok(()),
        None => {
            tracing::warn!(file = %path.display(), "the filesystem does not show its extents (FIEMAP)");
            Ok(())
        }
    }
}

/// The error of a call that takes space. If space ran out, the message has the figures: other
/// processes may have used it meanwhile.
fn no_space(path: &Path, operation: &'static str, needed: u64, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            let free = system::free_space(path)
                .map_or_else(|_| "unknown".to_owned(), |free| free.free_bytes.to_string());
            failed(
                path,
                operation,
                format!("{error}: the file needs {needed} bytes, {free} are still free"),
            )
        }
        _ => failed(path, operation, error),
    }
}
