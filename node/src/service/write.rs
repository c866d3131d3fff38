//! Writes: validated, admitted, proposed, and answered with what is known at the deadline.
//!
//! What holds here: an outcome is called unknown only if the write may have been proposed; of the ranges to
//! delete, one at a time is.

use super::Inner;
use crate::access::Need;
use crate::admission::caller::Caller;
use crate::admission::{refusal, validate};
use cairn_client::proto;
use cairn_client::proto::operation::Kind;
use cairn_raft::{OperationResult, WriteOutcome};
use std::pin::pin;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tonic::Status;

/// Deletions of ranges that are under way at once.
pub(super) const RANGES: usize = 1;
/// How often a command that waits for its turn asks whether this member leads still.
const LEADS_STILL: Duration = Duration::from_millis(100);

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
        true => Some(Box::pin(turn(inner, budget)).await?),
        false => None,
    };
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

/// The right of a command to delete a range, until it is applied or abandoned. One range takes as long to
/// apply as thousands of deletes: many at once would keep all others waiting.
///
/// A member that does not lead refuses at once, and one that is cut off while the command waits soon:
/// nothing is proposed yet, and another one may lead.
async fn turn(inner: &Inner, budget: Duration) -> Result<OwnedSemaphorePermit, Status> {
    let end = Instant::now() + budget;
    let mut waiting = pin!(inner.ranges.clone().acquire_owned());
    loop {
        let refused = |error| refusal::of_write(inner.no_service(), error);
        inner.replica.check_leads().await.map_err(refused)?;
        let left = end.saturating_duration_since(Instant::now());
        match tokio::time::timeout(left.min(LEADS_STILL), &mut waiting).await {
            Ok(Ok(turn)) => return Ok(turn),
            // The semaphore is never closed.
            Ok(Err(closed)) => return Err(refusal::stopped(closed)),
            Err(_) if left.is_zero() => return Err(refusal::ranges_overloaded()),
            Err(_) => {}
        }
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
