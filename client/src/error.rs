//! Every error of the client, with one variant for each way in which a caller can react.
//!
//! No program needs to parse these texts: the fields hold everything. [`ErrorKind`] says in one word what
//! an error means.

mod cause;
mod kind;

use std::time::Duration;

use bytes::Bytes;

use crate::types::{FailedCondition, Position, Version};

pub use cause::SystemError;
pub(crate) use cause::{Why, io_error};
pub use kind::ErrorKind;

/// Why a request did not succeed. [`Error::kind`] says in one word what that means.
///
/// Only [`Error::OutcomeUnknown`] leaves open whether a write was applied. After any other error
/// the write was not applied and will not be.
///
/// Its text says all that is known. Where an I/O error of the system is below, `source` returns that, as a
/// [`std::io::Error`], for programs. Its words are in the text, too: print an error with `{}`, since `{:#}` of anyhow
/// adds them again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The write was sent, but the deadline passed (or the servers forgot its session) before its
    /// result was known. It may have been applied, may still be applied, or never. It is applied at
    /// most once.
    #[error(
        "the outcome of the write is unknown: it may or may not have been applied ({last_error})"
    )]
    OutcomeUnknown {
        /// Why the result of the last attempt is not known.
        last_error: String,
        /// The system's error below, if there is one.
        source: Option<SystemError>,
    },

    /// A condition of the write did not hold; nothing was changed.
    #[error("condition failed: {}", describe_conditions(failed))]
    ConditionFailed {
        /// The conditions that did not hold, at least one, with the versions found.
        failed: Vec<FailedCondition>,
        /// The log index at which the conditions were evaluated.
        at: Version,
    },

    /// A range that was to be deleted in one entry or not at all has more keys than that; nothing was changed.
    #[error("the range has more keys than are deleted at once; nothing was deleted")]
    RangeTooLarge {
        /// The log index at which its keys were counted.
        at: Version,
    },

    /// The deadline passed without an answer. A write with this error was never sent.
    #[error("deadline exceeded ({last_error})")]
    DeadlineExceeded {
        /// What the client was waiting for.
        last_error: String,
        /// The system's error below, if there is one.
        source: Option<SystemError>,
    },

    /// No endpoint could serve the request. Some may have answered, and named a leader that cannot be
    /// reached from here.
    #[error("unavailable: {last_error} (tried {})", tried.join(", "))]
    Unavailable {
        /// The endpoints that were tried.
        tried: Vec<String>,
        /// The last failure.
        last_error: String,
        /// The system's error below, if there is one.
        source: Option<SystemError>,
    },

    /// Endpoints answered, but the cluster had no leader until the deadline, or they did not agree on one.
    #[error("the cluster has no leader (asked {})", tried.join(", "))]
    NoLeader {
        /// The endpoints that were asked.
        tried: Vec<String>,
    },

    /// The servers asked for fewer requests, until the deadline.
    #[error("the cluster is overloaded; retry after {} ms", retry_after.as_millis())]
    Overloaded {
        /// When the server suggests to try again.
        retry_after: Duration,
    },

    /// The leader's storage is full. Reads and deletes still work.
    #[error("{why}")]
    StorageFull {
        /// When the server suggests to try again.
        retry_after: Duration,
        /// Which part is full, and the way out, in the server's words.
        why: String,
    },

    /// The key is empty or longer than the limit.
    #[error("{}", describe_key(*limit, *actual))]
    InvalidKey {
        /// The longest key, in bytes; 0 if not known yet.
        limit: u64,
        /// The length of the key, in bytes.
        actual: u64,
    },

    /// The value is longer than the limit.
    #[error("value too large: {actual} bytes, the limit is {limit} bytes")]
    ValueTooLarge {
        /// The longest value, in bytes.
        limit: u64,
        /// The length of the value, in bytes.
        actual: u64,
    },

    /// The request has more operations or keys, or more bytes of keys and values, than the limit; or its
    /// answer would have.
    #[error("{}", describe_request(*actual, *limit, unit, message))]
    RequestTooLarge {
        /// What is counted: `operations`, `keys` or `bytes`.
        unit: &'static str,
        /// The limit.
        limit: u64,
        /// The size of the request, or of its answer.
        actual: u64,
        /// The server's message: what is too large, and the way out. Empty if the request was not sent.
        message: String,
    },

    /// A scan ended before all of its keys had arrived. What it returned is no whole range: take it from the start.
    #[error(
        "the scan ended after {received} keys, and more may follow: {last_error}; take it from the start"
    )]
    ScanBroken {
        /// How many keys had arrived.
        received: u64,
        /// Whether the node sent what is no scan of the range: a key twice, keys out of order, or another number of keys
        /// than it counted. That is an error in the node, or it is none of Cairn: report it.
        breach: bool,
        /// Why it ended.
        last_error: String,
        /// The system's error below, if there is one.
        source: Option<SystemError>,
    },

    /// The key exists, but the node that was asked could not read its value intact.
    #[error("{} exists but cannot be read intact: {message}", describe_value(key))]
    ValueUnreadable {
        /// The key; empty if the request was for several.
        key: Bytes,
        /// The server's message.
        message: String,
    },

    /// Endpoints belong to different clusters, or to another cluster than the options name.
    #[error("endpoint {endpoint} belongs to cluster `{found}`, not to `{expected}`")]
    ClusterMismatch {
        /// The endpoint of the other cluster.
        endpoint: String,
        /// The cluster that the client is connected to.
        expected: String,
        /// The cluster of the endpoint.
        found: String,
    },

    /// The endpoint and this client speak different versions of the protocol.
    #[error(
        "endpoint {endpoint} speaks another version of the protocol: {message}; use compatible releases of client and server"
    )]
    ProtocolMismatch {
        /// The endpoint.
        endpoint: String,
        /// Which version each speaks.
        message: String,
    },

    /// The servers do not know this client: it has no certificate and no token, or a token that
    /// they do not know. Nothing was done.
    #[error("{message}")]
    Unauthenticated {
        /// The server's message.
        message: String,
    },

    /// No role of this client allows the request. Nothing was done.
    #[error("{message}")]
    PermissionDenied {
        /// The server's message: who asked, what is not allowed, and what would allow it.
        message: String,
    },

    /// An operator's call that the present state of the cluster, or of the node that was asked, does
    /// not allow.
    #[error("{message}")]
    Refused {
        /// The server's message: why, and the way out.
        message: String,
    },

    /// No node that answers knows the call: all run a release that is older than this client's. A request
    /// with this error had no effect.
    #[error("the nodes do not know this call; they run an earlier release: {message}")]
    Unsupported {
        /// What the last of them said.
        message: String,
    },

    /// A watch cannot go on: no node that was reached keeps what was changed behind its position any more. Begin a watch from
    /// `now`, then list the keys: no later change is missed, and some may be told that the list has already.
    #[error(
        "the changes that the watch comes to are no longer kept: those behind {oldest} are; watch from {now}, then list the keys"
    )]
    Compacted {
        /// What was changed behind this entry is kept at one node: no other one that was reached reaches back further.
        oldest: Position,
        /// The last entry that this node had applied.
        now: Position,
    },

    /// A watch cannot go on: its position is not in the cluster's history, as after an unsafe recovery that discarded
    /// it. Begin a new watch, then list the keys.
    #[error(
        "the position of the watch is not in the cluster's history any more: begin a new watch, then list the keys"
    )]
    HistoryDiscarded,

    /// The request is invalid: an empty batch, or the server refused it.
    #[error("invalid request: {0}")]
    InvalidRequest(String),

    /// The client's options are invalid: no endpoint, or one that is not `host:port`.
    #[error("invalid client options: {0}")]
    InvalidOptions(String),
}

impl Error {
    /// The same, told by a server of a request with `count` of `unit`: its answer has numbers without a unit, and
    /// a size that is not this count is one of bytes.
    pub(crate) fn of_counted(self, unit: &'static str, count: usize) -> Error {
        match self {
            Error::RequestTooLarge { limit, actual, message, .. } if actual == count as u64 => {
                Error::RequestTooLarge { unit, limit, actual, message }
            }
            error => error,
        }
    }

    /// The error of one endpoint that could not serve the request.
    pub(crate) fn unavailable(endpoint: &str, why: impl Into<Why>) -> Error {
        Error::unavailable_at(vec![endpoint.to_owned()], why)
    }

    /// The error of several endpoints that could not.
    pub(crate) fn unavailable_at(tried: Vec<String>, why: impl Into<Why>) -> Error {
        let Why { text: last_error, source } = why.into();
        Error::Unavailable { tried, last_error, source }
    }

    pub(crate) fn deadline_exceeded(why: impl Into<Why>) -> Error {
        let Why { text: last_error, source } = why.into();
        Error::DeadlineExceeded { last_error, source }
    }

    pub(crate) fn outcome_unknown(why: impl Into<Why>) -> Error {
        let Why { text: last_error, source } = why.into();
        Error::OutcomeUnknown { last_error, source }
    }

    /// Whether a write that failed with this error may have been applied, now or later.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Error::OutcomeUnknown { .. })
    }

    /// Whether a condition of the write did not hold.
    pub fn is_condition_failed(&self) -> bool {
        matches!(self, Error::ConditionFailed { .. })
    }

    /// Whether the servers do not know this client, or do not allow it the request.
    pub fn is_denied(&self) -> bool {
        matches!(self, Error::Unauthenticated { .. } | Error::PermissionDenied { .. })
    }

    /// Whether the same request may succeed later, unchanged. This does not say that it is safe to
    /// retry a write: see [`Error::OutcomeUnknown`].
    pub fn is_transient(&self) -> bool {
        self.is_outcome_unknown() || self.kind().may_be_repeated()
    }
}

impl From<Error> for Why {
    /// Why a node could not be used. The address that the error names besides is left out.
    fn from(error: Error) -> Why {
        match error {
            Error::Unavailable { last_error: text, source, .. } => Why { text, source },
            error => Why::from(error.to_string()),
        }
    }
}

fn describe_conditions(failed: &[FailedCondition]) -> String {
    let one = |f: &FailedCondition| match f.version {
        Some(version) => format!("key `{}` has version {version}", f.key.escape_ascii()),
        None => format!("key `{}` does not exist", f.key.escape_ascii()),
    };
    failed.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn describe_value(key: &Bytes) -> String {
    if key.is_empty() {
        return "a value".to_owned();
    }
    format!("the value of key `{}`", key.escape_ascii())
}

fn describe_request(actual: u64, limit: u64, unit: &str, message: &str) -> String {
    match message {
        "" => format!("request too large: {actual} {unit}, the limit is {limit} {unit}"),
        said => format!("request too large: {said}"),
    }
}

fn describe_key(limit: u64, actual: u64) -> String {
    match (limit, actual) {
        (_, 0) => "invalid key: it is empty".to_owned(),
        (0, _) => format!("key too long: {actual} bytes"),
        _ => format!("key too long: {actual} bytes, the limit is {limit} bytes"),
    }
}
