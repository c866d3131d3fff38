//! The node's member state: its name for status, and a refusal for reads.

use super::Inner;
use crate::admission::refusal;
use cairn_engine::{Engine, MemberState};
use cairn_raft::Replica;
use tonic::Status;

/// `active`, `recovering`, `joining` or `removed`.
pub(super) fn name(replica: &Replica) -> &'static str {
    match replica.member_state() {
        _ if replica.removed_reason().is_some() => "removed",
        MemberState::Active if !replica.votes() => "joining",
        member_state => member_state.name(),
    }
}

/// The engine to read from. Refuses reads at a node that may have lost acknowledged writes, that has
/// not copied everything yet, or that is no member any more: nobody tells it what is written.
pub(super) fn readable(inner: &Inner) -> Result<&Engine, Status> {
    if let Some(reason) = inner.replica.removed_reason() {
        return Err(refusal::removed(&reason));
    }
    match inner.replica.member_state() {
        MemberState::Recovering => Err(refusal::recovering(inner.election_blocked())),
        MemberState::Active if !inner.replica.votes() => Err(refusal::joining(inner.no_service())),
        MemberState::Active => Ok(&inner.engine),
    }
}
