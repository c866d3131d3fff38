//! What a client can ask the state machine to do, and what it answers.
//!
//! What holds here: conditions, `existed` and `version` see the state before the command, and so does a
//! range: it names keys of that state; if every condition holds, the changes are applied in order, all of
//! them, with the entry's index as version; else none. What a range deletes at most is a part of the
//! command: members with other settings delete the same keys.

pub use super::proto::OperationResult;
use bytes::Bytes;
use cairn_engine::{LogId, Value};

/// The version of a key: the index of the entry that last put it.
pub type Version = u64;

/// The most keys of a range that one command deletes: an entry is applied in one piece, while nobody else
/// is served.
pub const RANGE_KEYS_MAX: u32 = 4096;

/// An atomic write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// If set, the command and everything before it are synced on a majority before it is
    /// acknowledged, whatever the mode.
    pub synced: bool,
    /// Makes the command safe to retry.
    pub session: Option<Session>,
    /// In order. The same key may occur more than once: the last one wins.
    pub operations: Vec<Operation>,
}

impl Command {
    /// Bytes of keys and values.
    pub fn bytes(&self) -> u64 {
        self.operations
            .iter()
            .map(|operation| {
                let value = operation.value().map_or(0, |value| value.bytes().len());
                (operation.key().len() + operation.end().map_or(0, Bytes::len) + value) as u64
            })
            .sum()
    }

    /// Whether it deletes a range.
    pub fn has_range(&self) -> bool {
        self.operations.iter().any(|operation| matches!(operation, Operation::DeleteRange { .. }))
    }
}

/// Names a write of a client. The state machine keeps the results of a client's sequence numbers
/// from `lowest_pending` on, and answers a retry with the first result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Random; one per client process.
    pub client_id: u128,
    /// From 1, one per write.
    pub sequence: u64,
    /// The client will not ask again for results below this.
    pub lowest_pending: u64,
    /// An applied index that the client saw when the session began: each of its writes has a
    /// greater index.
    pub base_index: u64,
}

/// A change, or a condition on its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Sets a key.
    Put {
        /// The key.
        key: Bytes,
        /// Its new value.
        value: Value,
        /// What must hold before.
        condition: Condition,
    },
    /// Removes a key, if it exists.
    Delete {
        /// The key.
        key: Bytes,
        /// What must hold before.
        condition: Condition,
    },
    /// Changes nothing.
    Check {
        /// The key.
        key: Bytes,
        /// What must hold before.
        condition: Condition,
    },
    /// Removes the first keys of a range. Beside it there are only checks, and there is one at most: so
    /// what a command does is bounded.
    DeleteRange {
        /// The first key that may be in it; may be empty.
        start: Bytes,
        /// The first key behind it; empty: it has the last key.
        end: Bytes,
        /// At most so many keys are removed, 1 to [`RANGE_KEYS_MAX`].
        most: u32,
        /// If the range has more keys than that, the operation does not hold, and nothing is changed.
        whole: bool,
    },
}

impl Operation {
    /// The key that it is about, or where its range begins.
    pub fn key(&self) -> &Bytes {
        match self {
            Operation::Put { key, .. }
            | Operation::Delete { key, .. }
            | Operation::Check { key, .. } => key,
            Operation::DeleteRange { start, .. } => start,
        }
    }

    /// Where its range ends.
    pub fn end(&self) -> Option<&Bytes> {
        match self {
            Operation::DeleteRange { end, .. } => Some(end),
            _ => None,
        }
    }

    /// The value of a put.
    pub fn value(&self) -> Option<&Value> {
        match self {
            Operation::Put { value, .. } => Some(value),
            _ => None,
        }
    }
}

/// What must hold of a key before a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    #[default]
    None,
    /// The key does not exist.
    Absent,
    /// The key exists.
    Exists,
    /// The key exists with exactly this version.
    Version(Version),
}

impl Condition {
    /// Whether it holds of a key with this version, `None` if the key does not exist.
    pub fn holds(self, current: Option<Version>) -> bool {
        match self {
            Condition::None => true,
            Condition::Absent => current.is_none(),
            Condition::Exists => current.is_some(),
            Condition::Version(version) => current == Some(version),
        }
    }
}

/// What became of a command when it was first applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteOutcome {
    /// Where the command is in the log; its index is the version of every key that it put.
    pub log_id: LogId,
    /// Whether every condition held and the changes were made.
    pub applied: bool,
    /// One per operation.
    pub results: Vec<OperationResult>,
}
