//! How the node stands to its cluster: in one word for status, as a refusal for reads.

use super::Inner;
use crate::admission::refusal;
use cairn_engine::Standing;
use cairn_raft::Replica;
use tonic::Status;

/// `active`, `recovering`, `joining` or `retired`.
pub(super) fn name(replica: &Replica) -> &'static str {
    match replica.standing() {
        _ if replica.outcast().is_some() => "retired",
        Standing::Active if !replica.votes() => "joining",
        standing => standing.name(),
    }
}

/// A node that may have forgotten something is not read from, nor one that has not been given everything yet.
pub(super) fn readable(inner: &Inner) -> Result<(), Status> {
    match inner.replica.standing() {
        Standing::Recovering => Err(refusal::recovering(inner.waits_for())),
        Standing::Active if !inner.replica.votes() => Err(refusal::joining()),
        Standing::Active => Ok(()),
    }
}
