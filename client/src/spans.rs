//! Spans of requests and of their attempts, for an application that traces its own.
//!
//! What holds here: no key, no value and no error's text is in a span. Nor is it in an event of this crate: an exporter
//! puts those into the span in which they happen, and what a node says of a refusal may name the key. Where nobody wants
//! spans of level DEBUG, one costs a comparison. One whose request is abandoned ends without an outcome.

use tracing::field::Empty;
use tracing::{Instrument, Span, debug_span};

use crate::Error;

/// A write of so many operations.
pub(crate) fn write(operations: usize, synced: bool) -> Span {
    debug_span!(
        "cairn.write",
        otel.kind = "client",
        operations,
        synced,
        version = Empty,
        outcome = Empty,
        otel.status_code = Empty,
    )
}

/// A read of one key.
pub(crate) fn get(stale: bool) -> Span {
    debug_span!(
        "cairn.get",
        otel.kind = "client",
        stale,
        version = Empty,
        outcome = Empty,
        otel.status_code = Empty,
    )
}

/// A read of several keys.
pub(crate) fn get_many() -> Span {
    debug_span!(
        "cairn.get_many",
        otel.kind = "client",
        version = Empty,
        outcome = Empty,
        otel.status_code = Empty,
    )
}

/// One page of a list.
pub(crate) fn list(stale: bool) -> Span {
    debug_span!(
        "cairn.list",
        otel.kind = "client",
        stale,
        outcome = Empty,
        otel.status_code = Empty,
    )
}

/// The beginning of a scan, or a count.
pub(crate) fn scan() -> Span {
    debug_span!(
        "cairn.scan",
        otel.kind = "client",
        version = Empty,
        outcome = Empty,
        otel.status_code = Empty,
    )
}

/// The begin of a watch. What it is told later belongs to no request.
pub(crate) fn watch(keys_only: bool) -> Span {
    debug_span!(
        "cairn.watch",
        otel.kind = "client",
        keys_only,
        version = Empty,
        outcome = Empty,
        otel.status_code = Empty,
    )
}

/// One attempt of a request, at this node.
pub(crate) fn attempt(endpoint: &str) -> Span {
    debug_span!("cairn.attempt", endpoint)
}

/// Does the work within the span, which then says how it ended, and at which version if there is one.
pub(crate) async fn within<T>(
    span: Span,
    work: impl Future<Output = Result<T, Error>>,
    version: impl FnOnce(&T) -> Option<u64>,
) -> Result<T, Error> {
    let result = work.instrument(span.clone()).await;
    match &result {
        Ok(answer) => {
            if let Some(version) = version(answer) {
                span.record("version", version);
            }
            span.record("outcome", "done");
        }
        Err(error) => {
            span.record("outcome", outcome(error));
            if !matches!(error, Error::ConditionFailed { .. }) {
                span.record("otel.status_code", "ERROR");
            }
        }
    }
    result
}

fn outcome(error: &Error) -> &'static str {
    match error {
        // The cluster did what it was asked to.
        Error::ConditionFailed { .. } => "condition_failed",
        Error::OutcomeUnknown { .. } => "unknown",
        _ => "failed",
    }
}
