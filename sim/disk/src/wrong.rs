//! Operations that a device reports as complete though it did not do what was asked: a write that
//! is not stored or lands elsewhere, a read of another block.
//!
//! Each is arranged and happens once.

use crate::image::FileImage;
use cairn_engine::io::{BLOCK, FileKind};
use std::collections::BTreeMap;

/// How often each happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wrongs {
    /// Writes that were not stored.
    pub lost_writes: u64,
    /// Writes that landed elsewhere.
    pub stray_writes: u64,
    /// Reads that returned another block.
    pub stray_reads: u64,
}

impl Wrongs {
    /// Adds another disk's counts.
    pub fn add(&mut self, other: Wrongs) {
        self.lost_writes += other.lost_writes;
        self.stray_writes += other.stray_writes;
        self.stray_reads += other.stray_reads;
    }
}

/// The arranged wrong operations, and the writes in flight that will go wrong.
#[derive(Debug, Default)]
pub(crate) struct Arranged {
    /// The next write to a file is lost, or lands this many blocks further on.
    write: Option<(FileKind, Option<u64>)>,
    /// The next read of a file has one wrong block; the number chooses which, and its content.
    read: Option<(FileKind, u64)>,
    in_flight: BTreeMap<u64, Option<u64>>,
}

impl Arranged {
    pub(crate) fn write(&mut self, kind: FileKind, astray: Option<u64>) {
        self.write = Some((kind, astray));
    }

    pub(crate) fn read(&mut self, kind: FileKind, choice: u64) {
        self.read = Some((kind, choice));
    }

    /// Cancels what has not happened yet.
    pub(crate) fn disarm(&mut self) {
        (self.write, self.read) = (None, None);
    }

    /// The process ended, and with it its writes in flight.
    pub(crate) fn forget_in_flight(&mut self) {
        self.in_flight.clear();
    }

    /// Notes whether the write that begins now will go wrong.
    pub(crate) fn begin_write(&mut self, kind: FileKind, id: u64) {
        if let Some((_, astray)) = self.write.take_if(|(only, _)| *only == kind) {
            self.in_flight.insert(id, astray);
        }
    }

    /// Completes a write wrongly, if that was arranged.
    pub(crate) fn complete_write(
        &mut self,
        id: u64,
        file: &mut FileImage,
        counts: &mut Wrongs,
    ) -> bool {
        let Some(astray) = self.in_flight.remove(&id) else { return false };
        match astray {
            Some(_) => counts.stray_writes += 1,
            None => counts.lost_writes += 1,
        }
        file.complete_wrongly(id, astray)
    }

    /// Replaces a block of a read by another block of the file, if that was arranged and makes a
    /// difference.
    pub(crate) fn complete_read(
        &mut self,
        kind: FileKind,
        file: &FileImage,
        offset: u64,
        target: &mut [u8],
        counts: &mut Wrongs,
    ) {
        let Some((_, choice)) = self.read.filter(|(only, _)| *only == kind) else { return };
        let block = BLOCK as u64;
        let wrong = choice % (target.len() as u64 / block).max(1);
        let from = (offset / block + wrong + 1 + choice % 7) % (file.size() / block);
        let mut other = [0; BLOCK];
        file.read(from * block, &mut other);
        if let Some(held) =
            target.chunks_mut(BLOCK).nth(wrong as usize).filter(|held| **held != other[..])
        {
            held.copy_from_slice(&other);
            self.read = None;
            counts.stray_reads += 1;
        }
    }
}
