//! Asking a leader to be taken in.

use super::connection::connect;
use super::hello::not_the_one;
use super::identity::PeerIdentity;
use super::repeat::again;
use crate::core::ids::{MemberAddress, NodeId};
use crate::core::{proto, runtime};
use std::time::Duration;
use tonic::Status;

const TIMEOUT: Duration = Duration::from_secs(1);

/// Who asks to be taken in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Applicant {
    pub(crate) id: NodeId,
    pub(crate) address: MemberAddress,
    /// It remembers everything that it acknowledged.
    pub(crate) active: bool,
}

/// Asks `leader`, expected at `address`. Whether the asker votes already.
///
/// # Errors
/// The refusal, as the member that was asked put it.
pub(crate) async fn ask_to_join(
    identity: &PeerIdentity,
    leader: NodeId,
    address: &str,
    applicant: &Applicant,
) -> Result<bool, Status> {
    let mut client = connect(address).map_err(Status::invalid_argument)?;
    let request = proto::JoinRequest {
        envelope: identity.to(leader),
        peer_address: applicant.address.peer.clone(),
        client_address: applicant.address.client.clone(),
        active: applicant.active,
    };
    again(&client, || request.clone(), |mut client, request| async move { client.join(request).await });
    let answer = runtime::timeout(TIMEOUT, client.join(request)).await;
    let answer = answer.ok_or_else(|| Status::deadline_exceeded("no answer"))??.into_inner();
    identity.check_answer(answer.envelope.as_ref(), leader).map_err(not_the_one)?;
    Ok(answer.voter)
}
