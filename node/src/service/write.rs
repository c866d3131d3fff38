//! Writes: validated, admitted, proposed, and answered with what is known at the deadline.

use super::Inner;
use crate::admission::{refusal, validate};
use cairn_client::proto;
use cairn_raft::{OperationResult, WriteOutcome};
use std::time::Duration;
use tonic::Status;

pub(super) async fn write(
    inner: &Inner,
    request: proto::WriteRequest,
    budget: Duration,
) -> Result<proto::WriteResponse, Status> {
    let checked = validate::write(&inner.config.limits, request)?;
    let permit = inner.admission.enter(checked.bytes)?;
    match tokio::time::timeout(budget, inner.replica.write_holding(checked.command, permit)).await {
        Ok(Ok(outcome)) => Ok(response(outcome)),
        Ok(Err(error)) => Err(refusal::of_write(inner.election_blocked(), error)),
        Err(_) => Err(refusal::outcome_unknown(format_args!(
            "no quorum within {} ms",
            budget.as_millis()
        ))),
    }
}

fn response(outcome: WriteOutcome) -> proto::WriteResponse {
    let result = |result: OperationResult| proto::OperationResult {
        condition_held: result.condition_held,
        existed: result.existed,
        version: result.version,
    };
    proto::WriteResponse {
        term: outcome.log_id.term,
        index: outcome.log_id.index,
        applied: outcome.applied,
        results: outcome.results.into_iter().map(result).collect(),
    }
}
