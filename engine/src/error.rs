//! The engine's errors. A caller can act on them without parsing text.

use crate::types::{FileKind, LogId};
use std::ops::RangeInclusive;

/// The engine's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Every error of the engine.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The directory was never formatted, or formatting did not finish.
    #[error(
        "{location} is not a Cairn data directory: {reason}; run `cairn format` on an empty directory"
    )]
    NotFormatted {
        /// The directory.
        location: String,
        /// What was missing.
        reason: String,
    },
    /// A formatted directory lacks a file.
    #[error("{location}: file `{}` of this data directory is missing. Restore the file, or move the directory away, format it \
             again and let the node rejoin", file.name())]
    MissingFile {
        /// The directory.
        location: String,
        /// The file.
        file: FileKind,
    },
    /// The directory belongs to another cluster or slot than the caller expects.
    #[error(
        "{location} belongs to {found}, but {expected} was asked for; nothing was changed. Correct the \
             cluster, the slot or the directory in the configuration"
    )]
    Foreign {
        /// The directory.
        location: String,
        /// Cluster and slot found.
        found: String,
        /// Cluster and slot expected.
        expected: String,
    },
    /// The directory has another format than this program reads.
    #[error(
        "{location} has format version {found}; this program reads versions {} to {}. {}",
        supported.start(), supported.end(), other_format(*found, supported)
    )]
    OtherFormat {
        /// The directory.
        location: String,
        /// Version found.
        found: u32,
        /// The versions that this program reads.
        supported: RangeInclusive<u32>,
    },
    /// Another process uses the directory.
    #[error("{location} is in use by another process; stop that one, or use another directory")]
    InUse {
        /// The directory.
        location: String,
    },
    /// A file is shorter than the geometry in the superblock says: it was truncated or replaced.
    #[error("{location}: file `{}` has {found} bytes, and should have {expected}; it was truncated or replaced. \
             Restore the file, or format the directory again and let the node rejoin", file.name())]
    TooShort {
        /// The directory.
        location: String,
        /// The file.
        file: FileKind,
        /// Bytes found.
        found: u64,
        /// Bytes expected.
        expected: u64,
    },
    /// The directory already has more than a directory of the asked size would have.
    #[error(
        "{location}: its {area} has {present} bytes, and that of a directory of {asked} bytes would have \
             {smaller}; a data directory never shrinks. Choose a larger size; or move the directory away, \
             format a smaller one and let the node rejoin"
    )]
    CannotShrink {
        /// The directory.
        location: String,
        /// What would become smaller: data area or checkpoint area.
        area: &'static str,
        /// Its bytes.
        present: u64,
        /// The size of the whole directory that was asked for, in bytes.
        asked: u64,
        /// The bytes that this part would have.
        smaller: u64,
    },
    /// Bytes that do not match their checksum, or that contradict what is known to have been
    /// written.
    #[error("{0}")]
    Corrupt(#[from] Corruption),
    /// No free space is left for the write. Reads, deletes and compaction continue.
    #[error(
        "the data area is full: {needed} bytes needed, {free} free of {capacity}; delete keys or enlarge the \
             data directory (`cairn grow`)"
    )]
    Full {
        /// Bytes the write needs.
        needed: u64,
        /// Bytes free now.
        free: u64,
        /// Bytes of the data area.
        capacity: u64,
    },
    /// The keys, the log's records and the clients' sessions would not fit into a checkpoint.
    #[error(
        "the checkpoint areas are full, whatever the data area has free: {needed} bytes needed, {used} used of {capacity} in \
             each, for the log and {keys} keys with values of about {mean_value} bytes; delete keys, or enlarge the data \
             directory of every node (`cairn grow --size SIZE --value-size {mean_value}`)"
    )]
    IndexFull {
        /// Bytes the write needs.
        needed: u64,
        /// Bytes in use.
        used: u64,
        /// Bytes of a checkpoint area.
        capacity: u64,
        /// Keys held.
        keys: u64,
        /// Mean bytes of their values.
        mean_value: u64,
    },
    /// A write or sync failed, or a device operation did not return in time. Final: the engine
    /// refuses all further writes.
    #[error("{location}: {operation} failed on file `{}`: {reason}. The engine has stopped because what reached the \
             device is unknown", file.name())]
    Failed {
        /// The directory.
        location: String,
        /// The file.
        file: FileKind,
        /// `write` or `sync`; `read` for a read that did not return in time.
        operation: &'static str,
        /// The system's message.
        reason: String,
    },
    /// A read, open or other call to the system failed.
    #[error("{location}: {operation} failed: {reason}")]
    Io {
        /// The directory, or directory and file.
        location: String,
        /// What was tried.
        operation: &'static str,
        /// The system's message.
        reason: String,
    },
    /// The caller broke a rule of the interface: a hole in the log, an unknown group, a value out
    /// of bounds.
    #[error("invalid request to the engine: {0}")]
    Invalid(String),
    /// The engine was closed.
    #[error("the engine is closed")]
    Closed,
}

impl Error {
    /// The error for a failed operation of a device.
    pub(crate) fn failed(
        location: &str,
        file: FileKind,
        operation: &'static str,
        reason: impl ToString,
    ) -> Error {
        Error::Failed { location: location.to_owned(), file, operation, reason: reason.to_string() }
    }

    /// Whether the directory's identity, and with it its votes, cannot be read. The member can then
    /// only come back under a new identity: damage of the superblock's file means nothing else.
    pub fn is_identity_lost(&self) -> bool {
        matches!(self, Error::Corrupt(Corruption { file: FileKind::Superblock, .. }))
    }

    /// Whether a sync failed.
    pub(crate) fn is_failed_sync(&self) -> bool {
        matches!(self, Error::Failed { operation: "sync", .. })
    }

    /// Whether a write or a sync failed: writes that completed before may be lost.
    pub(crate) fn is_failed_io(&self) -> bool {
        matches!(self, Error::Failed { operation: "write" | "sync", .. })
    }
}

/// Bytes that are not what was written there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("corrupt {} in file `{}` at offset {offset}, {length} bytes: expected {expected}, found {found}", unit(*file), file.name())]
pub struct Corruption {
    /// The file.
    pub file: FileKind,
    /// Byte offset in the file.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// What was expected there: a hash, a sequence number.
    pub expected: String,
    /// What was found.
    pub found: String,
    /// The log entries that the bytes belong to; repair needs them.
    pub log_ids: Vec<LogId>,
}

impl Corruption {
    /// Damage that belongs to no log entry.
    pub(crate) fn new(
        file: FileKind,
        offset: u64,
        length: u64,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Corruption {
        let (expected, found) = (expected.into(), found.into());
        Corruption { file, offset, length, expected, found, log_ids: Vec::new() }
    }
}

/// The way out of a directory of another format.
fn other_format(found: u32, supported: &RangeInclusive<u32>) -> &'static str {
    match found > *supported.end() {
        true => "Use a newer cairn",
        false => {
            "Copy the keys out with the cairn that wrote them, and put them into a new cluster"
        }
    }
}

/// What each range of a file should have been.
fn unit(file: FileKind) -> &'static str {
    match file {
        FileKind::Superblock => "Superblock",
        FileKind::Journal => "JournalBlock",
        FileKind::Checkpoint0 | FileKind::Checkpoint1 => "Checkpoint",
        FileKind::Data => "Value",
    }
}
