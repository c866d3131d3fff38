//! Everything that can go wrong, one variant for each thing that a caller can do about it.
//!
//! No text here needs to be parsed: what a program needs is in the fields.

use std::time::Duration;

use bytes::Bytes;

use crate::types::{FailedCondition, Version};

/// Why a request did not succeed.
///
/// Only [`Error::OutcomeUnknown`] leaves open whether a write was applied. After any other error the write was
/// not applied and will not be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The write was sent, and the deadline passed (or its session was forgotten) before its result was seen: it may
    /// have been applied, may be applied yet, or never. It is applied at most once.
    #[error("the outcome of the write is unknown: it may or may not have been applied ({last_error})")]
    OutcomeUnknown {
        /// What kept the result from being seen, the last time.
        last_error: String,
    },

    /// A condition of the write did not hold; nothing was changed.
    #[error("condition failed: {}", describe_conditions(failed))]
    ConditionFailed {
        /// The conditions that did not hold, at least one, with the versions found.
        failed: Vec<FailedCondition>,
        /// The log index at which the conditions were evaluated.
        at: Version,
    },

    /// The deadline passed without an answer. A write with this error was never sent.
    #[error("deadline exceeded ({last_error})")]
    DeadlineExceeded {
        /// What was being waited for.
        last_error: String,
    },

    /// No endpoint could serve the request.
    #[error("unavailable: {last_error} (tried {})", tried.join(", "))]
    Unavailable {
        /// The endpoints that were tried.
        tried: Vec<String>,
        /// The last failure.
        last_error: String,
    },

    /// Endpoints answered, but the cluster had no leader until the deadline.
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

    /// The leader's storage is full. Reads and deletes go on.
    #[error("the cluster's storage is full; reads and deletes go on")]
    StorageFull {
        /// When the server suggests to try again.
        retry_after: Duration,
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

    /// The batch has more operations, or more bytes of keys and values, than the limit.
    #[error("request too large: {actual} {unit}, the limit is {limit} {unit}")]
    RequestTooLarge {
        /// What is counted: `operations` or `bytes`.
        unit: &'static str,
        /// The limit.
        limit: u64,
        /// The size of the request.
        actual: u64,
    },

    /// The key exists, and its value could not be read intact where it was asked for.
    #[error("the value of key {key:?} exists but cannot be read intact: {message}")]
    ValueUnreadable {
        /// The key; empty if the request was a list.
        key: Bytes,
        /// What the server said.
        message: String,
    },

    /// Endpoints belong to different clusters, or to another than the one asked for.
    #[error("endpoint {endpoint} belongs to cluster {found:?}, not to {expected:?}")]
    ClusterMismatch {
        /// The endpoint that does not belong.
        endpoint: String,
        /// The cluster that the client is connected to.
        expected: String,
        /// The cluster of the endpoint.
        found: String,
    },

    /// The endpoint and this client speak different versions of the protocol.
    #[error(
        "endpoint {endpoint} cannot be talked to: {message}; use a client and a server of releases that fit"
    )]
    ProtocolMismatch {
        /// The endpoint.
        endpoint: String,
        /// Which version each speaks.
        message: String,
    },

    /// The request makes no sense (an empty batch), or the server refused it as invalid.
    #[error("invalid request: {0}")]
    InvalidRequest(String),

    /// The client's options make no sense: no endpoint, or one that is not `host:port`.
    #[error("invalid client options: {0}")]
    InvalidOptions(String),
}

impl Error {
    /// One endpoint could not serve the request.
    pub(crate) fn unavailable(endpoint: &str, last_error: String) -> Error {
        Error::Unavailable { tried: vec![endpoint.to_owned()], last_error }
    }

    /// Whether a write that failed with this error may have been applied, now or later.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Error::OutcomeUnknown { .. })
    }

    /// Whether a condition of the write did not hold.
    pub fn is_condition_failed(&self) -> bool {
        matches!(self, Error::ConditionFailed { .. })
    }

    /// Whether the same request may well succeed later, unchanged. Of a write this says nothing about safety: see
    /// [`Error::OutcomeUnknown`].
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Error::OutcomeUnknown { .. }
                | Error::DeadlineExceeded { .. }
                | Error::Unavailable { .. }
                | Error::NoLeader { .. }
                | Error::Overloaded { .. }
                | Error::StorageFull { .. }
        )
    }
}

fn describe_conditions(failed: &[FailedCondition]) -> String {
    let one = |f: &FailedCondition| match f.version {
        Some(version) => format!("key {:?} has version {version}", f.key),
        None => format!("key {:?} does not exist", f.key),
    };
    failed.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn describe_key(limit: u64, actual: u64) -> String {
    match (limit, actual) {
        (_, 0) => "invalid key: it is empty".to_owned(),
        (0, _) => format!("key too long: {actual} bytes"),
        _ => format!("key too long: {actual} bytes, the limit is {limit} bytes"),
    }
}
