//! The values in requests and answers: versions, items, outcomes, conditions, limits.

use std::fmt;

use bytes::Bytes;

/// The version of a key: the log index of the write that put its value. Greater is later, across
/// all keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Version> for u64 {
    fn from(version: Version) -> u64 {
        version.0
    }
}

/// An entry of the cluster's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Position {
    /// The term of the leader that proposed it.
    pub term: u64,
    /// Its index: the version of the keys that it put.
    pub index: u64,
}

/// What one operation of an entry changed, as a [`Watch`](crate::Watch) tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// The key.
    pub key: Bytes,
    /// The index of the entry: the version of the key if it was put.
    pub version: Version,
    /// The term of the leader that proposed the entry.
    pub term: u64,
    /// The key was deleted.
    pub deleted: bool,
    /// The value that was put; `None` if the key was deleted, and in a watch of keys only.
    pub value: Option<Bytes>,
    /// The key's version before, `None` if it did not exist.
    pub previous: Option<Version>,
    /// No further change of this entry follows. All changes up to it are a state that the cluster had.
    pub last_of_version: bool,
}

/// A key, its value and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// The value; empty if a request asked for keys or versions only.
    pub value: Bytes,
    /// The version of the value.
    pub version: Version,
}

/// What must hold of a key for a write to be applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Condition {
    /// No condition.
    #[default]
    None,
    /// The key must not exist.
    Absent,
    /// The key must exist, at any version.
    Exists,
    /// The key must exist with exactly this version.
    Version(Version),
}

/// A write of one key that was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteInfo {
    /// The log index of the write; the version of the key if it was a put.
    pub version: Version,
    /// The term of the leader that proposed the write; with `version`, the write's log id.
    pub term: u64,
    /// The key's version before the write, `None` if the key did not exist.
    pub previous: Option<Version>,
}

/// A batch that was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchInfo {
    /// The log index of the batch; the version of every key that it put.
    pub version: Version,
    /// The term of the leader that proposed the batch.
    pub term: u64,
    /// For each operation of the batch, its key's version before the batch, `None` if the key did
    /// not exist.
    pub previous: Vec<Option<Version>>,
}

/// The deletion of keys of a range that was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RangeDeleted {
    /// The log index of the write.
    pub version: Version,
    /// The term of the leader that proposed the write.
    pub term: u64,
    /// How many keys it deleted.
    pub deleted: u32,
    /// Whether keys of the range are left.
    pub more: bool,
}

/// A condition that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedCondition {
    /// The position of the operation in the batch; 0 for a write of one key.
    pub operation: usize,
    /// The key whose condition did not hold.
    pub key: Bytes,
    /// The version that the key had, `None` if it did not exist.
    pub version: Option<Version>,
}

/// The sizes that the servers accept. The client refuses larger ones before it sends anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The longest key, in bytes.
    pub max_key_bytes: u32,
    /// The longest value, in bytes.
    pub max_value_bytes: u32,
    /// The most operations in one batch.
    pub max_batch_operations: u32,
    /// The most bytes of keys and values in one request.
    pub max_request_bytes: u32,
}

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Member {
    /// The node's identity: slot in the high 16 bits, incarnation in the others.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::json::node_id"))]
    pub node_id: u64,
    /// The node's slot.
    pub slot: u16,
    /// `host:port` for clients.
    pub client_address: String,
    /// `host:port` for peers.
    pub peer_address: String,
    /// Whether the member votes; a learner does not.
    pub voter: bool,
}
