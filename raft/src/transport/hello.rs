//! Asking who is there, before anybody knows.

use super::connection::connect;
use super::identity::PeerIdentity;
use crate::core::ids::NodeId;
use crate::core::{proto, runtime};
use cairn_engine::LogId;
use std::time::Duration;
use tonic::Status;

const TIMEOUT: Duration = Duration::from_secs(1);

/// Who answered.
pub(crate) struct Answer {
    pub(crate) id: NodeId,
    /// Whether it was never part of a cluster.
    pub(crate) blank: bool,
    /// It leads, and nobody hears of this voter, whose place the one who asked may take.
    pub(crate) vacant: Option<NodeId>,
    /// The last entry of its log.
    pub(crate) last_log_id: Option<LogId>,
}

/// Asks the member of `slot`, expected at `address`.
///
/// # Errors
/// The refusal, as the member that was asked put it.
pub(crate) async fn hello(identity: &PeerIdentity, slot: u16, address: &str) -> Result<Answer, Status> {
    let mut client = connect(address).map_err(Status::invalid_argument)?;
    let request = proto::HelloRequest { envelope: identity.to_anyone(), receiver_slot: u32::from(slot) };
    let answer = runtime::timeout(TIMEOUT, client.hello(request)).await;
    let answer = answer.ok_or_else(|| Status::deadline_exceeded("no answer"))??.into_inner();
    // Whoever answers may be an outcast: that says nothing of the one who asked.
    let id = identity.sender_in_cluster(answer.envelope.as_ref()).map_err(not_the_one)?;
    identity.check_answer(answer.envelope.as_ref(), id).map_err(not_the_one)?;
    let vacant = Some(NodeId::from_u64(answer.vacant)).filter(|vacant| vacant.as_u64() != 0);
    let last_log_id = answer.last_log_id.map(|last| LogId { term: last.term, index: last.index });
    match id.slot() == slot {
        true => Ok(Answer { id, blank: answer.blank, vacant, last_log_id }),
        false => Err(Status::failed_precondition(format!("member {id} answered"))),
    }
}

/// The answer came from somebody else than was asked for.
pub(super) fn not_the_one(status: Status) -> Status {
    Status::failed_precondition(status.message())
}
