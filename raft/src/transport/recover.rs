//! Asking a leader to help a member recover that may have lost the tail of its log.

use super::connection::connect;
use super::duplicate::deliver_duplicate;
use super::identity::PeerIdentity;
use super::messages;
use crate::core::ids::NodeId;
use crate::core::types::Vote;
use crate::core::{proto, runtime};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(1);

/// Asks `leader`, expected at `address`. `unsafe_recovery`: also asks it to log an unsafe-recovery
/// record. Returns the leadership in which the leader agreed.
pub(crate) async fn ask_to_recover(
    identity: &PeerIdentity,
    leader: NodeId,
    address: &str,
    unsafe_recovery: bool,
) -> Result<Vote, String> {
    let mut client = connect(address)?;
    let request = proto::RecoverRequest { envelope: identity.to(leader), unsafe_recovery };
    deliver_duplicate(
        &client,
        || request.clone(),
        |mut client, request| async move { client.recover(request).await },
    );
    let answer = runtime::timeout(TIMEOUT, client.recover(request)).await.ok_or("no answer")?;
    let answer = answer.map_err(|status| status.message().to_string())?.into_inner();
    identity
        .check_answer(answer.envelope.as_ref(), leader)
        .map_err(|status| status.message().to_string())?;
    messages::vote_from_proto(answer.vote, identity.votes_of(leader))
        .map_err(|error| error.to_string())
}
