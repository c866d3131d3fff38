//! Writes: validated, admitted, proposed, and answered with what is known at the deadline.
//!
//! What holds here: an outcome is called unknown only if the write may have been proposed; of the ranges to
//! delete, one at a time is, in the order of [`crate::admission::turns`].

use super::Inner;
use crate::access::Need;
use crate::admission::caller::Caller;
use crate::admission::{refusal, validate};
use cairn_client::proto;
use cairn_client::proto::operation::Kind;
use cairn_raft::{OperationResult, WriteOutcome};
use std::pin::pin;
use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;

pub(super) async fn write(
    inner: &Inner,
    caller: &Caller,
    request: proto::WriteRequest,
    budget: Duration,
) -> Result<proto::WriteResponse, Status> {
    allowed(caller, &request)?;
    let checked = validate::write(&inner.limits(), request)?;
    let began = Instant::now();
    let turn = match checked.command.has_range() {
        // Boxed, since few of the many writes under way need it.
        true => {
            Box::pin(takes_ranges(inner, budget)).await?;
            let leads = || async move {
                let refused = |error| refusal::of_write(inner.no_service(), error);
                inner.replica.check_leads().await.map_err(refused)
            };
            Some(Box::new(
                Box::pin(inner.ranges.wait(
                    caller.owner(),
                    budget.saturating_sub(began.elapsed()),
                    leads,
                ))
                .await?,
            ))
        }
        false => None,
    };
    // Whether the cluster deletes ranges is known by now, and asks nobody again.
    let left = budget.saturating_sub(began.elapsed());
    let writing = async {
        let refused = |error| refusal::of_write(inner.no_service(), error);
        inner.replica.check_leads().await.map_err(refused)?;
        let permit = inner.admission.enter(caller.owner(), checked.bytes)?;
        inner.replica.write_holding(checked.command, (permit, turn)).await.map_err(refused)
    };
    match tokio::time::timeout(left, pin!(writing)).await {
        Ok(written) => written.map(|outcome| {
            for range in outcome.results.iter().filter(|result| result.deleted > 0) {
                inner.metrics.deleted_of_range(range.deleted);
            }
            response(outcome)
        }),
        Err(_) => Err(refusal::outcome_unknown(format_args!(
            "no quorum within {} ms",
            budget.as_millis()
        ))),
    }
}

/// Refuses a range where the cluster deletes none, before it waits for its turn. Nothing is proposed meanwhile.
async fn takes_ranges(inner: &Inner, budget: Duration) -> Result<(), Status> {
    match tokio::time::timeout(budget, inner.replica.check_ranges()).await {
        Ok(checked) => checked.map_err(|error| refusal::of_write(inner.no_service(), error)),
        Err(_) => Err(refusal::no_leader()),
    }
}

/// Refuses the request if the caller may not do one of its operations.
fn allowed(caller: &Caller, request: &proto::WriteRequest) -> Result<(), Status> {
    caller.may(Need::Propose)?;
    request.operations.iter().filter_map(|operation| operation.kind.as_ref()).try_for_each(|kind| {
        caller.may(match kind {
            Kind::Put(put) => Need::Write(&put.key),
            Kind::Delete(delete) => Need::Write(&delete.key),
            Kind::Check(check) => Need::Read(&check.key),
            // Without a range it is refused as such, whoever asks.
            Kind::DeleteRange(delete) => match &delete.range {
                Some(range) => Need::WriteRange {
                    start: &range.start,
                    end: Some(&range.end[..]).filter(|end| !end.is_empty()),
                },
                None => Need::Propose,
            },
        })
    })
}

fn response(outcome: WriteOutcome) -> proto::WriteResponse {
    let result = |result: OperationResult| proto::OperationResult {
        condition_held: result.condition_held,
        existed: result.existed,
        version: result.version,
        deleted: result.deleted,
        more: result.more,
    };
    proto::WriteResponse {
        term: outcome.log_id.term,
        index: outcome.log_id.index,
        applied: outcome.applied,
        results: outcome.results.into_iter().map(result).collect(),
    }
}
