//! Opening the files of a directory and checking their sizes.
//!
//! What holds here: a file is at least as long as the superblock says, and nothing behind that
//! length is read or written. It is longer only if a growth did not end.

use crate::error::{Error, Result};
use crate::io::{Directory, FileKind, OpenFile};
use crate::state::Files;
use crate::types::Geometry;
use std::io;

pub(super) fn open_file(directory: &dyn Directory, kind: FileKind) -> Result<OpenFile> {
    let (location, name) = (directory.location(), kind.name());
    match directory.open(kind) {
        Ok(device) => {
            let bytes = device.size();
            Ok(OpenFile { kind, location: location.into(), device, bytes })
        }
        Err(e) => Err(match e.kind() {
            io::ErrorKind::NotFound => {
                Error::NotFormatted { location, reason: format!("file `{name}` is missing") }
            }
            io::ErrorKind::WouldBlock => Error::InUse { location },
            _ => Error::Io {
                location: format!("{location}: file `{name}`"),
                operation: "open",
                reason: e.to_string(),
            },
        }),
    }
}

pub(super) fn open_sized(
    directory: &dyn Directory,
    kind: FileKind,
    expected: u64,
) -> Result<OpenFile> {
    let mut file = open_file(directory, kind)?;
    let found = file.size();
    if found < expected {
        let location = directory.location();
        return Err(Error::TooShort { location, file: kind, found, expected });
    }
    file.bytes = expected;
    Ok(file)
}

pub(super) fn open_files(directory: &dyn Directory, geometry: &Geometry) -> Result<Files> {
    let sized = |kind| open_sized(directory, kind, geometry.bytes_of(kind));
    Ok(Files {
        data: sized(FileKind::Data)?,
        journal: sized(FileKind::Journal)?,
        checkpoints: [sized(FileKind::Checkpoint0)?, sized(FileKind::Checkpoint1)?],
    })
}
