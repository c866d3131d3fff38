//! A member that openraft calls: what every message to it needs.

use super::connection::call;
use super::identity::{Enveloped, PeerIdentity};
use super::messages;
use super::peer::Peer;
use super::policy::SendPolicy;
use super::terms::Sender;
use super::wire::client::Client;
use super::wire::{Message, Method};
use crate::core::ids::NodeId;
use crate::core::proto;
use crate::core::types::AppendRequest;
use crate::storage::state_machine::PinnedSnapshot;
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;

/// Why a leader that no quorum answers sends nothing as leader.
pub(super) fn suspended() -> Status {
    Status::unavailable(
        "no quorum answers this leader: it only asks the others whether they are there",
    )
}

/// The way to one member. Shared by openraft's connection to it, its append stream and a snapshot
/// on its way.
pub(super) struct Link {
    pub(super) identity: PeerIdentity,
    pub(super) policy: Arc<dyn SendPolicy>,
    pub(super) pinned: PinnedSnapshot,
    pub(super) target: NodeId,
    pub(super) peer: Peer,
    /// The time limit for a follower's answer to an append.
    pub(super) answer_timeout: Duration,
    /// The time limit for its answer to a heartbeat.
    pub(super) heartbeat: Duration,
}

impl Link {
    pub(super) fn envelope(&self) -> Option<proto::Envelope> {
        self.identity.to(self.target)
    }

    /// For checking the votes that the member sends.
    pub(super) fn votes(&self) -> Sender<'_> {
        self.identity.votes_of(self.target)
    }

    /// Refuses what would keep a follower from voting, while no quorum answers this leader.
    pub(super) fn check_leading(&self) -> Result<(), Status> {
        if self.policy.is_suspended() { Err(suspended()) } else { Ok(()) }
    }

    /// An append as a message. In a stream only the first one introduces itself.
    pub(super) fn append(&self, request: AppendRequest, introduced: bool) -> proto::AppendRequest {
        let (envelope, matched) = match introduced {
            true => (None, None),
            false => (self.envelope(), self.policy.acknowledged(self.target, &request.vote)),
        };
        let ack_mode = self.policy.ack_mode(&request.vote);
        messages::append_to_proto(request, envelope, matched, ack_mode)
    }

    /// Sends a request, and checks that the answer comes from the member.
    pub(super) async fn ask<Q: Message + Clone, A: Message + Enveloped>(
        &self,
        client: &Client,
        method: Method<Q, A>,
        request: Q,
    ) -> Result<A, Status> {
        let answer = call(client, method, request).await?;
        self.identity.check_answer(&answer, self.target)?;
        Ok(answer)
    }
}
