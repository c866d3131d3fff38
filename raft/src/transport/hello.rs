//! Asking a node for its identity, before it is known.

use super::connection::connect;
use super::identity::PeerIdentity;
use crate::core::ids::NodeId;
use crate::core::{proto, runtime};
use cairn_engine::LogId;
use std::time::Duration;
use tonic::Status;

const TIMEOUT: Duration = Duration::from_secs(1);

/// The node that answered.
pub(crate) struct Answer {
    pub(crate) id: NodeId,
    /// Whether it was never part of a cluster.
    pub(crate) uninitialized: bool,
    /// If it leads: the voter without contact that the asking node may replace.
    pub(crate) replaceable_voter: Option<NodeId>,
    /// The last entry of its log.
    pub(crate) last_log_id: Option<LogId>,
}

/// Asks the member of `slot`, expected at `address`.
///
/// # Errors
/// The refusal, in the words of the member that was asked.
pub(crate) async fn hello(
    identity: &PeerIdentity,
    slot: u16,
    address: &str,
) -> Result<Answer, Status> {
    let mut client = connect(address).map_err(Status::invalid_argument)?;
    let request =
        proto::HelloRequest { envelope: identity.to_anyone(), receiver_slot: u32::from(slot) };
    let answer = runtime::timeout(TIMEOUT, client.hello(request)).await;
    let answer = answer.ok_or_else(|| Status::deadline_exceeded("no answer"))??.into_inner();
    // The answering node may be a removed one. That says nothing about this one, so do not pass on
    // the code `REFUSED_IDENTITY`.
    let id = identity.sender_in_cluster(answer.envelope.as_ref()).map_err(wrong_node)?;
    identity.check_answer(answer.envelope.as_ref(), id).map_err(wrong_node)?;
    let replaceable_voter = Some(NodeId::from_u64(answer.replaceable_voter))
        .filter(|replaceable_voter| replaceable_voter.as_u64() != 0);
    let last_log_id = answer.last_log_id.map(|last| LogId { term: last.term, index: last.index });
    match id.slot() == slot {
        true => {
            Ok(Answer { id, uninitialized: answer.uninitialized, replaceable_voter, last_log_id })
        }
        false => Err(Status::failed_precondition(format!("member {id} answered"))),
    }
}

/// The answer came from another node than the one that was asked.
pub(super) fn wrong_node(status: Status) -> Status {
    Status::failed_precondition(status.message())
}
