//! The replicated log: groups, positions, entries and their values.

use crate::codec::hash;
use bytes::Bytes;
use std::fmt;

/// A replicated log and its key space. One journal can carry many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u32);

/// The position of an entry in a replicated log: the leader's term, then the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogId {
    /// The term of the leader that proposed the entry.
    pub term: u64,
    /// The position in the log; openraft's first entry has index 0.
    pub index: u64,
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.term, self.index)
    }
}

/// When an append counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// When it is written, or synced where the mode says so.
    Mode,
    /// When it is synced, in every mode: votes, membership, a leader's first append.
    Synced,
}

/// A value and its hash, which is taken once: when the value arrives at its first member. Whoever
/// receives the two, or reads them from a disk, hashes the bytes again and compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    bytes: Bytes,
    hash: u128,
}

impl<T: Into<Bytes>> From<T> for Value {
    /// Takes the hash of these bytes.
    fn from(bytes: T) -> Value {
        let bytes = bytes.into();
        Value { hash: hash(&bytes), bytes }
    }
}

impl Value {
    /// The value that had this hash where it came from; `None` if it is damaged since.
    pub fn received(bytes: Bytes, hash: u128) -> Option<Value> {
        Some(Value::from(bytes)).filter(|value| value.hash == hash)
    }

    /// A value of the engine's own, which was compared when it was read, or never left memory.
    pub(crate) fn kept(bytes: Bytes, hash: u128) -> Value {
        Value { bytes, hash }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// XXH3-128 of the bytes.
    pub fn hash(&self) -> u128 {
        self.hash
    }

    /// Its bytes and their hash.
    pub fn into_parts(self) -> (Bytes, u128) {
        (self.bytes, self.hash)
    }
}

/// An entry to append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEntry {
    /// Its position.
    pub id: LogId,
    /// Bytes the engine keeps but does not read; at most 1 MiB.
    pub meta: Bytes,
    /// Values that [`Change::Put`](crate::Change::Put) can link to keys.
    pub values: Vec<Value>,
}

impl NewEntry {
    /// An entry of these values, which it hashes.
    pub fn new(
        id: LogId,
        meta: impl Into<Bytes>,
        values: impl IntoIterator<Item = Bytes>,
    ) -> NewEntry {
        NewEntry { id, meta: meta.into(), values: values.into_iter().map(Value::from).collect() }
    }
}

/// An entry read back, with each value checked against its hash.
pub type Entry = NewEntry;

/// The first and last position of a group's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogBounds {
    /// The last purged entry.
    pub purged: Option<LogId>,
    /// The last entry, or the last purged one where the log is empty.
    pub last: Option<LogId>,
}
