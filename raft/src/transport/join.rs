//! Asking a leader to add this node.

use super::connection::connect;
use super::duplicate::deliver_duplicate;
use super::hello::wrong_node;
use super::identity::PeerIdentity;
use crate::core::ids::{MemberAddress, NodeId};
use crate::core::{proto, runtime};
use std::time::Duration;
use tonic::Status;

const TIMEOUT: Duration = Duration::from_secs(1);

/// A node that asks to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingJoin {
    pub(crate) id: NodeId,
    pub(crate) address: MemberAddress,
    /// Its state is active: it holds everything that it acknowledged.
    pub(crate) active: bool,
}

/// Asks `leader`, expected at `address`. Returns whether this node votes already.
///
/// # Errors
/// The refusal, in the words of the member that was asked.
pub(crate) async fn ask_to_join(
    identity: &PeerIdentity,
    leader: NodeId,
    address: &str,
    pending_join: &PendingJoin,
) -> Result<bool, Status> {
    let mut client = connect(address).map_err(Status::invalid_argument)?;
    let request = proto::JoinRequest {
        envelope: identity.to(leader),
        peer_address: pending_join.address.peer.clone(),
        client_address: pending_join.address.client.clone(),
        active: pending_join.active,
    };
    deliver_duplicate(
        &client,
        || request.clone(),
        |mut client, request| async move { client.join(request).await },
    );
    let answer = runtime::timeout(TIMEOUT, client.join(request)).await;
    let answer = answer.ok_or_else(|| Status::deadline_exceeded("no answer"))??.into_inner();
    identity.check_answer(answer.envelope.as_ref(), leader).map_err(wrong_node)?;
    Ok(answer.voter)
}
