//! Error statuses: a gRPC code, a sentence that names the input and what to do, and an
//! [`ErrorDetail`] in the trailing metadata for programs.

use crate::access::Denied;
use bytes::Bytes;
use cairn_client::PROTOCOL;
use cairn_client::proto::error_detail::Reason;
use cairn_client::proto::{ErrorDetail, GENERATION_KEY, Leader, generation_text};
use cairn_client::shown;
use cairn_raft::{ChangeError, MemberAddress, NodeId, ReadError, WriteError};
use std::borrow::Cow;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

/// Retry delay for a client that found the storage full.
const FULL_RETRY_MS: u64 = 1000;
/// Retry delay for a client that exceeded a bound on requests under way.
const OVERLOADED_RETRY_MS: u64 = 20;
/// Retry delay for a client that found too many scans open.
const SCANS_RETRY_MS: u64 = 100;
/// Retry delay for a client whose scan or backup kept too much space.
const SPACE_RETRY_MS: u64 = 1000;
/// The longest sentence of a refusal, in bytes.
const MESSAGE_BYTES: usize = 4 << 10;

fn detail(reason: Reason) -> ErrorDetail {
    ErrorDetail { reason: reason.into(), ..ErrorDetail::default() }
}

/// The same status with no longer a sentence than a person reads: it may quote what was asked for.
pub(crate) fn bounded(status: Status) -> Status {
    let Cow::Owned(message) = shown::excerpt(status.message(), MESSAGE_BYTES) else {
        return status;
    };
    let (code, details) = (status.code(), Bytes::copy_from_slice(status.details()));
    Status::with_details_and_metadata(code, message, details, status.metadata().clone())
}

/// Refuses a client that speaks another version of the protocol.
pub(crate) fn other_protocol(spoken: u32) -> Result<(), Status> {
    match spoken == PROTOCOL {
        true => Ok(()),
        false => Err(Status::failed_precondition(format!(
            "this server speaks version {PROTOCOL} of the client protocol, the client speaks {spoken}: `HelloRequest.protocol`"
        ))),
    }
}

/// Refuses a client that began with another generation of the cluster.
pub(crate) fn other_generation(metadata: &MetadataMap, own: u32) -> Result<(), Status> {
    let Some(meant) = metadata.get(GENERATION_KEY) else { return Ok(()) };
    match meant.as_encoded_bytes() == generation_text(own).as_bytes() {
        true => Ok(()),
        false => Err(not_of_generation(own)),
    }
}

/// The refusal of what means another generation of the cluster than the node's own.
pub(crate) fn not_of_generation(own: u32) -> Status {
    let message = match own {
        0 => "this node is not part of the cluster that an operator made anew of one member alone, and that the client \
              means: it has not joined it, or is left over from before"
            .into(),
        _ => format!(
            "this node belongs to generation {} of the cluster, the client began with another one: an operator made the \
             cluster anew of one member alone; start the client anew",
            generation_text(own)
        ),
    };
    detail(Reason::OtherGeneration).into_status(Code::FailedPrecondition, message)
}

/// The refusal of an input over a limit.
pub(crate) fn over_limit(reason: Reason, message: String, limit: usize, actual: usize) -> Status {
    let detail = ErrorDetail { limit: limit as u64, actual: actual as u64, ..detail(reason) };
    detail.into_status(Code::InvalidArgument, message)
}

/// The refusal of a value that a client's checksum does not fit.
pub(crate) fn value_damaged(message: std::fmt::Arguments<'_>) -> Status {
    detail(Reason::ValueDamaged).into_status(Code::DataLoss, message.to_string())
}

/// The refusal of a request that its caller may not make.
pub(crate) fn denied(denied: Denied) -> Status {
    let (reason, code) = match denied {
        Denied::Lacks { .. } => (Reason::PermissionDenied, Code::PermissionDenied),
        Denied::Nobody | Denied::Malformed | Denied::UnknownToken => {
            (Reason::Unauthenticated, Code::Unauthenticated)
        }
    };
    detail(reason).into_status(code, denied.to_string())
}

/// Too many requests under way; nothing was proposed.
pub(crate) fn overloaded(what: &str, under_way: usize, limit: usize) -> Status {
    let detail = ErrorDetail {
        limit: limit as u64,
        retry_after_ms: OVERLOADED_RETRY_MS,
        ..detail(Reason::Overloaded)
    };
    let message = format!(
        "overloaded: {under_way} of at most {limit} {what} of writes are under way, and a client may have as many as remain free; \
         nothing was proposed, retry after {OVERLOADED_RETRY_MS} ms"
    );
    detail.into_status(Code::ResourceExhausted, message)
}

/// The refusal of a read that got no memory.
pub(crate) fn reads_overloaded(why: &str) -> Status {
    let detail = ErrorDetail { retry_after_ms: OVERLOADED_RETRY_MS, ..detail(Reason::Overloaded) };
    let message = format!(
        "overloaded: {why} (`limits.max_read_bytes`); take answers as they come, or retry after {OVERLOADED_RETRY_MS} ms"
    );
    detail.into_status(Code::ResourceExhausted, message)
}

/// The refusal of a request for which there is no memory. Nothing was proposed.
pub(crate) fn requests_overloaded(why: &str) -> Status {
    let detail = ErrorDetail { retry_after_ms: OVERLOADED_RETRY_MS, ..detail(Reason::Overloaded) };
    let message = format!(
        "overloaded: {why} (`limits.max_in_flight_bytes`); nothing was proposed, retry after {OVERLOADED_RETRY_MS} ms"
    );
    detail.into_status(Code::ResourceExhausted, message)
}

/// The refusal of the deletion of a range, while those of others are under way.
pub(crate) fn ranges_overloaded() -> Status {
    let detail = ErrorDetail { retry_after_ms: OVERLOADED_RETRY_MS, ..detail(Reason::Overloaded) };
    let message = format!(
        "overloaded: one range is deleted at a time, and others were until the deadline; nothing was proposed, retry after \
         {OVERLOADED_RETRY_MS} ms"
    );
    detail.into_status(Code::ResourceExhausted, message)
}

/// The refusal of a scan. `who` has so many open.
pub(crate) fn scans_overloaded(who: &str, open: usize) -> Status {
    let detail = ErrorDetail { retry_after_ms: SCANS_RETRY_MS, ..detail(Reason::Overloaded) };
    let message = format!(
        "overloaded: {who} {open} scans of this node open, which is the most; end one, ask another member, or retry after \
         {SCANS_RETRY_MS} ms"
    );
    detail.into_status(Code::ResourceExhausted, message)
}

/// The end of a state that is sent where space is scarce: how many bytes all views keep, and how many are free.
pub(crate) fn keeps_too_much_space(kept: u64, free: u64, way_out: &str) -> Status {
    let detail = ErrorDetail { retry_after_ms: SPACE_RETRY_MS, ..detail(Reason::Overloaded) };
    let message = format!(
        "the state keeps {kept} bytes of the data area that were deleted or overwritten meanwhile, and only {free} are free: \
         {way_out}"
    );
    detail.into_status(Code::ResourceExhausted, message)
}

/// The refusal of a message by the length that its header declares.
pub(crate) fn message_too_long(declared: usize, most: usize) -> Status {
    let message = format!(
        "a message of {declared} bytes is declared, at most {most} are received (`limits.max_request_bytes` and what a request \
         takes beside its keys and values); send it in parts"
    );
    over_limit(Reason::RequestTooLarge, message, most, declared)
}

/// The refusal of a put for which there is no space.
pub(crate) fn full(message: impl std::fmt::Display) -> Status {
    let detail = ErrorDetail { retry_after_ms: FULL_RETRY_MS, ..detail(Reason::StorageFull) };
    let message = format!("storage full: {message}; reads and deletes go on");
    detail.into_status(Code::ResourceExhausted, message)
}

/// The error of a proposed write whose result is not known.
pub(crate) fn outcome_unknown(message: impl std::fmt::Display) -> Status {
    let message = format!(
        "the write was proposed and its result is not known: {message}; repeat it with the same session"
    );
    detail(Reason::OutcomeUnknown).into_status(Code::Unknown, message)
}

/// This node has stopped serving.
pub(crate) fn stopped(why: impl std::fmt::Display) -> Status {
    let message = format!("this node has stopped serving: {why}; ask another member");
    detail(Reason::Stopped).into_status(Code::Unavailable, message)
}

/// No member leads, and waiting alone elects none. The sentence says who decides.
fn election_blocked(sentence: String) -> Status {
    detail(Reason::ElectionBlocked).into_status(Code::Unavailable, sentence)
}

/// This node is recovering. `blocked`: the sentence about a blocked election, if it is blocked.
pub(crate) fn recovering(blocked: Option<String>) -> Status {
    if let Some(sentence) = blocked {
        return election_blocked(sentence);
    }
    let message = "this node is recovering from a power cut or from damage and serves once it has caught up with a leader; ask \
                   another member";
    detail(Reason::Stopped).into_status(Code::Unavailable, message)
}

/// This node does not vote. `no_service`: why nobody is served here, if waiting alone changes
/// nothing; else it has not copied everything yet.
pub(crate) fn joining(no_service: Option<String>) -> Status {
    if let Some(sentence) = no_service {
        return election_blocked(sentence);
    }
    let message = "this node is not a voter of the cluster yet and does not hold everything; ask another member";
    detail(Reason::Stopped).into_status(Code::Unavailable, message)
}

/// This node is no member any more.
pub(crate) fn removed(reason: &str) -> Status {
    let message =
        format!("this node is no member of the cluster any more; ask another one: {reason}");
    detail(Reason::Stopped).into_status(Code::Unavailable, message)
}

/// No leader is known.
pub(crate) fn no_leader() -> Status {
    let message = "the cluster has no leader at the moment; nothing was proposed, retry";
    detail(Reason::NoLeader).into_status(Code::Unavailable, message)
}

/// Nobody can tell which members may be stopped.
pub(crate) fn cannot_tell(why: String) -> Status {
    detail(Reason::NoLeader).into_status(Code::Unavailable, why)
}

/// A read that did not finish in time.
pub(crate) fn read_late(waited_ms: u128) -> Status {
    Status::deadline_exceeded(format!(
        "no quorum confirmed the leader within {waited_ms} ms; retry"
    ))
}

fn not_leader((id, address): (NodeId, MemberAddress)) -> Status {
    let message = format!("node {id} at {} is the leader; ask it", address.client);
    let leader = Some(leader_message((id, address)));
    let detail = ErrorDetail { leader, ..detail(Reason::NotLeader) };
    detail.into_status(Code::FailedPrecondition, message)
}

/// The leader, as clients see it.
pub(crate) fn leader_message((id, address): (NodeId, MemberAddress)) -> Leader {
    Leader { node_id: id.as_u64(), client_address: address.client }
}

/// The status for a failed write. `blocked`: the sentence about a blocked election, if it is
/// blocked.
pub(crate) fn of_write(blocked: Option<String>, error: WriteError) -> Status {
    match error {
        WriteError::NotLeader { leader } if blocked.is_none() => not_leader(leader),
        WriteError::NotLeader { .. } | WriteError::NoLeader => {
            blocked.map_or_else(no_leader, election_blocked)
        }
        WriteError::OutcomeUnknown(why) => outcome_unknown(why),
        WriteError::SessionExpired => {
            let message = "the session's results are no longer kept, and nothing was applied by this request; a write \
                           repeated with it may have been applied before. Begin a new session";
            detail(Reason::SessionExpired).into_status(Code::FailedPrecondition, message)
        }
        WriteError::Full(why) => full(why),
        WriteError::Invalid(why) => Status::invalid_argument(why),
        needs @ (WriteError::NeedsVersion { .. } | WriteError::NoVersionYet { .. }) => {
            refused(needs.to_string())
        }
        WriteError::Stopped(why) => stopped(why),
        other => Status::internal(other.to_string()),
    }
}

/// The refusal of an operator's call in the present state. `why` has the way out.
pub(crate) fn refused(why: String) -> Status {
    detail(Reason::Refused).into_status(Code::FailedPrecondition, why)
}

/// The status for a failed change of members, mode or leader; `blocked` as in [`of_write`].
pub(crate) fn of_change(blocked: Option<String>, error: ChangeError) -> Status {
    match error {
        ChangeError::NotLeader { leader: Some(leader) } if blocked.is_none() => not_leader(leader),
        ChangeError::NotLeader { .. } => blocked.map_or_else(no_leader, election_blocked),
        ChangeError::Refused(why) => refused(why),
        ChangeError::Stopped(why) => stopped(why),
        other => Status::internal(other.to_string()),
    }
}

/// The status for a failed barrier; `blocked` as in [`of_write`].
pub(crate) fn of_read(blocked: Option<String>, error: ReadError) -> Status {
    match error {
        ReadError::NotLeader { leader } if blocked.is_none() => not_leader(leader),
        ReadError::NotLeader { .. } | ReadError::NoLeader => {
            blocked.map_or_else(no_leader, election_blocked)
        }
        ReadError::Stopped(why) => stopped(why),
        other => Status::internal(other.to_string()),
    }
}

/// The status for a value that is there and cannot be read.
pub(crate) fn unreadable(message: String) -> Status {
    detail(Reason::ValueUnreadable).into_status(Code::DataLoss, message)
}

/// The status for a failed engine read: never "not found".
pub(crate) fn of_engine_read(key: &[u8], error: cairn_engine::Error) -> Status {
    match error {
        cairn_engine::Error::Corrupt(corruption) => {
            let message = format!(
                "the value of key `{}` exists and could not be read intact on this node, and no other member that answers \
                 has it: {corruption}; read it again when all members are up, or write it again",
                key.escape_ascii()
            );
            unreadable(message)
        }
        cairn_engine::Error::Closed => stopped("it is shutting down"),
        other => stopped(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: a mode of 100 kB was refused with a sentence of 100 kB.
    #[test]
    fn a_refusal_does_not_echo_an_input_of_any_length_and_keeps_its_detail() {
        let long = format!("`{}`: expected device", "x".repeat(100_000));
        let refused = detail(Reason::Refused).into_status(Code::FailedPrecondition, long);
        let bounded = bounded(refused);
        assert!(bounded.message().len() < MESSAGE_BYTES + 100, "{}", bounded.message().len());
        assert!(bounded.message().ends_with("expected device"), "{}", bounded.message());
        assert_eq!(bounded.code(), Code::FailedPrecondition);
        let kept = ErrorDetail::of(&bounded).map(|detail| detail.reason());
        assert_eq!(kept, Some(Reason::Refused));
    }
}
