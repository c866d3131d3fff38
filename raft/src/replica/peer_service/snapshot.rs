//! Snapshots: where a copy goes on, its pieces, and its end.
//!
//! What holds here: a deposed leader installs nothing; it is told this member's higher vote. Once a
//! snapshot contradicts what is applied here, no read relies on an earlier round.

use super::{Answered, PeerService, stopped};
use crate::core::error::Malformed;
use crate::core::ids::{GROUP, NodeId};
use crate::core::proto;
use crate::core::types::Vote;
use crate::transport::{messages, receiver};
use cairn_tls::Remote;
use tonic::Status;

impl PeerService {
    /// The answer to a snapshot message of a deposed leader: this member's higher vote.
    fn overtaken(&self, vote: &Vote) -> Option<Vote> {
        Some(self.own_vote()).filter(|own| own > vote)
    }

    /// What the receiver says to a snapshot message.
    fn received<T>(&self, received: Result<T, Status>) -> Result<T, Status> {
        if received.is_err() && self.member.receiver.is_contradicted() {
            self.newest_round.forget();
        }
        received
    }

    /// The sender and vote of a snapshot message.
    fn snapshot_sender(
        &self,
        remote: &Remote,
        envelope: Option<&proto::Envelope>,
        vote: Option<proto::Vote>,
    ) -> Result<(NodeId, Vote), Status> {
        let sender = self.member.identity.sender_of_request(remote, envelope)?;
        let vote =
            messages::vote_from_proto(vote, self.member.identity.votes_of(sender).leading())?;
        if vote.leader_id.voted_for != sender {
            return Err(Malformed("a snapshot from a node other than its sender").into());
        }
        self.takes_appends(sender, &vote)?;
        Ok((sender, vote))
    }

    pub(in crate::replica) async fn snapshot_offset(
        &self,
        remote: Remote,
        request: proto::SnapshotOffsetRequest,
    ) -> Answered<proto::SnapshotOffsetResponse> {
        let (sender, vote) =
            self.snapshot_sender(&remote, request.envelope.as_ref(), request.vote)?;
        let (last, _) = receiver::named(request.meta, &vote)?;
        let mut answer = proto::SnapshotOffsetResponse {
            envelope: self.member.identity.to(sender),
            ..Default::default()
        };
        let own = match self.overtaken(&vote) {
            Some(higher) => higher,
            None => {
                let leads = || self.overtaken(&vote).is_none();
                match self.received(self.member.receiver.offset(last, leads).await)? {
                    None => answer.already_applied = true,
                    Some(last_key) => answer.last_key = last_key,
                }
                answer.applied = self.member.engine.applied(GROUP).map(proto::LogId::from);
                vote
            }
        };
        answer.vote = Some(messages::vote_to_proto(&own));
        Ok(answer)
    }

    pub(in crate::replica) async fn snapshot_chunk(
        &self,
        remote: Remote,
        request: proto::SnapshotChunkRequest,
    ) -> Answered<proto::SnapshotChunkResponse> {
        let (sender, vote) =
            self.snapshot_sender(&remote, request.envelope.as_ref(), request.vote)?;
        let last = request.last_log_id.ok_or(Malformed("no snapshot named"))?.into();
        let (own, (last_key, missing)) = match self.overtaken(&vote) {
            Some(higher) => (higher, Default::default()),
            None => {
                let leads = || self.overtaken(&vote).is_none();
                let receiver = &self.member.receiver;
                let taken = receiver.chunk(last, request.after, request.items, leads).await;
                (vote, self.received(taken)?)
            }
        };
        Ok(proto::SnapshotChunkResponse {
            envelope: self.member.identity.to(sender),
            vote: Some(messages::vote_to_proto(&own)),
            last_key,
            missing,
        })
    }

    pub(in crate::replica) async fn snapshot_finish(
        &self,
        remote: Remote,
        request: proto::SnapshotFinishRequest,
    ) -> Answered<proto::SnapshotFinishResponse> {
        let _kept = self.member.identity.keep_generation()?;
        let (sender, vote) =
            self.snapshot_sender(&remote, request.envelope.as_ref(), request.vote)?;
        let (last, meta) = receiver::named(request.meta, &vote)?;
        let own = match self.overtaken(&vote) {
            Some(higher) => higher,
            None => {
                let leads = || self.overtaken(&vote).is_none();
                let receiver = &self.member.receiver;
                let (last_key, machine) = (request.last_key, request.machine);
                let finished = receiver.finish(last, meta, last_key, machine, leads).await;
                match self.received(finished)? {
                    None => vote,
                    Some(snapshot) => {
                        tracing::info!(node = %self.member.identity.id(), %last, from = %sender, "installing a snapshot");
                        let installed = self.member.raft.install_full_snapshot(vote, snapshot);
                        installed.await.map_err(stopped)?.vote
                    }
                }
            }
        };
        Ok(proto::SnapshotFinishResponse {
            envelope: self.member.identity.to(sender),
            vote: Some(messages::vote_to_proto(&own)),
        })
    }
}
