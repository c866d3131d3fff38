//! What waits for the writer.

use crate::error::Result;
use crate::group::LogEntry;
use crate::types::{GroupId, LogId};
use bytes::Bytes;
use std::sync::Arc;

/// Called once when an operation's promise holds, or with the error that ended the engine.
pub(crate) type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// A step waiting to be written.
pub(crate) enum Op {
    Append {
        group: GroupId,
        entries: Vec<Pending>,
    },
    Truncate {
        group: GroupId,
        last: Option<u64>,
    },
    Purge {
        group: GroupId,
        through: LogId,
    },
    /// Changes nothing; it is done when everything before it is.
    Barrier,
}

/// An appended entry with the bytes that go to the data area.
pub(crate) struct Pending {
    pub entry: Arc<LogEntry>,
    pub values: Arc<[Bytes]>,
    /// The body, if it goes to an extent of its own.
    pub body: Option<Bytes>,
}

/// A step, how it is promised, and who waits for it.
pub(crate) struct Queued {
    pub op: Op,
    pub synced: bool,
    pub done: Option<Done>,
}
