//! Opening the files of a directory and checking their sizes.

use crate::error::{Error, Result};
use crate::io::{Device, Directory, FileKind, SUPERBLOCK_BYTES};
use crate::state::Devices;
use crate::types::Geometry;
use std::io;
use std::sync::Arc;

pub(super) fn open_file(directory: &dyn Directory, kind: FileKind) -> Result<Arc<dyn Device>> {
    directory.open(kind).map_err(|e| {
        let location = directory.location();
        match e.kind() {
            io::ErrorKind::NotFound => Error::NotFormatted {
                location,
                reason: format!("file `{}` is missing", kind.name()),
            },
            io::ErrorKind::WouldBlock => Error::InUse { location },
            _ => Error::Io {
                location: format!("{location}: file `{}`", kind.name()),
                operation: "open",
                reason: e.to_string(),
            },
        }
    })
}

fn open_sized(directory: &dyn Directory, kind: FileKind, expected: u64) -> Result<Arc<dyn Device>> {
    let device = open_file(directory, kind)?;
    if device.size() != expected {
        let (location, found) = (directory.location(), device.size());
        return Err(Error::WrongSize { location, file: kind, found, expected });
    }
    Ok(device)
}

pub(super) fn open_superblock(directory: &dyn Directory) -> Result<Arc<dyn Device>> {
    open_sized(directory, FileKind::Superblock, SUPERBLOCK_BYTES)
}

pub(super) fn open_devices(directory: &dyn Directory, geometry: &Geometry) -> Result<Devices> {
    let sized = |kind, expected| open_sized(directory, kind, expected);
    Ok(Devices {
        data: sized(FileKind::Data, geometry.data_bytes)?,
        journal: sized(FileKind::Journal, geometry.journal_bytes)?,
        checkpoints: [
            sized(FileKind::Checkpoint0, geometry.checkpoint_bytes)?,
            sized(FileKind::Checkpoint1, geometry.checkpoint_bytes)?,
        ],
    })
}
