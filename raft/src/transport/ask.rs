//! Asking a node outside of openraft: for its identity before it is known, to add this node, to
//! help a member recover that may have lost the tail of its log.

use super::connection::{call, call_at};
use super::identity::PeerIdentity;
use super::messages;
use crate::core::ids::{MemberAddress, NodeId};
use crate::core::proto;
use crate::core::types::Vote;
use cairn_engine::LogId;
use tonic::Status;

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

/// Asks the member of `slot`, expected at `address`, for its identity.
///
/// # Errors
/// The refusal, in the words of the member that was asked.
pub(crate) async fn hello(
    identity: &PeerIdentity,
    slot: u16,
    address: &str,
) -> Result<Answer, Status> {
    // The receiver's identity is not known yet.
    let envelope = identity.to(NodeId::from_u64(0));
    let request = proto::HelloRequest { envelope, receiver_slot: u32::from(slot) };
    let hello =
        call_at(
            identity.tls(),
            slot,
            address,
            |mut client| async move { client.hello(request).await },
        );
    let answer = hello.await?;
    // The answering node may be a removed one. That says nothing about this one, so do not pass on
    // the code `REFUSED_IDENTITY`.
    let id = identity.sender_of_hello_answer(&answer, slot).map_err(wrong_node)?;
    Ok(Answer {
        id,
        uninitialized: answer.uninitialized,
        replaceable_voter: Some(answer.replaceable_voter)
            .filter(|voter| *voter != 0)
            .map(NodeId::from_u64),
        last_log_id: answer.last_log_id.map(LogId::from),
    })
}

/// The answer came from another node than the one that was asked.
fn wrong_node(status: Status) -> Status {
    Status::failed_precondition(status.message())
}

/// A node that asks to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingJoin {
    pub(crate) id: NodeId,
    pub(crate) address: MemberAddress,
    /// Its state is active: it holds everything that it acknowledged.
    pub(crate) active: bool,
}

/// Asks `leader`, expected at `address`, to add this node. Returns whether it votes already.
///
/// # Errors
/// The refusal, in the words of the member that was asked.
pub(crate) async fn ask_to_join(
    identity: &PeerIdentity,
    leader: NodeId,
    address: &str,
    pending_join: PendingJoin,
) -> Result<bool, Status> {
    let request = proto::JoinRequest {
        envelope: identity.to(leader),
        peer_address: pending_join.address.peer,
        client_address: pending_join.address.client,
        active: pending_join.active,
    };
    let answer = call_at(identity.tls(), leader.slot(), address, |client| {
        call(client, request, |mut client, request| async move { client.join(request).await })
    });
    let answer = answer.await?;
    identity.check_answer(&answer, leader).map_err(wrong_node)?;
    Ok(answer.voter)
}

/// Asks `leader`, expected at `address`, to help this member recover. `unsafe_recovery`: also asks
/// it to log an unsafe-recovery record. Returns the leadership in which the leader agreed.
pub(crate) async fn ask_to_recover(
    identity: &PeerIdentity,
    leader: NodeId,
    address: &str,
    unsafe_recovery: bool,
) -> Result<Vote, String> {
    let request = proto::RecoverRequest { envelope: identity.to(leader), unsafe_recovery };
    let answer = call_at(identity.tls(), leader.slot(), address, |client| {
        call(client, request, |mut client, request| async move { client.recover(request).await })
    });
    let answer = answer.await.and_then(|answer| {
        identity.check_answer(&answer, leader)?;
        Ok(answer)
    });
    let answer = answer.map_err(|status| status.message().to_string())?;
    messages::vote_from_proto(answer.vote, identity.votes_of(leader))
        .map_err(|error| error.to_string())
}
