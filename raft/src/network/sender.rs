//! Sending a snapshot: pieces in key order, from where the receiver stands.

use super::client::{Client, rpc_error};
use super::identity::PeerIdentity;
use super::proto;
use super::repeat::again;
use crate::convert;
use crate::ids::NodeId;
use crate::runtime;
use crate::state_machine::{Outgoing, PinnedSnapshot};
use crate::types::{TypeConfig, Vote};
use bytes::Bytes;
use openraft::errors::{NetworkError, StreamingError, Unreachable};
use openraft::raft::SnapshotResponse;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Code, Response, Status};

/// The longest that one piece may take.
const PIECE_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest that the last step may take: the receiver writes a checkpoint.
const FINISH_TIMEOUT: Duration = Duration::from_secs(120);

pub(super) struct Transfer {
    pub(super) client: Client,
    pub(super) identity: PeerIdentity,
    pub(super) target: NodeId,
    pub(super) vote: Vote,
    pub(super) pinned: PinnedSnapshot,
    pub(super) outgoing: Arc<Outgoing>,
}

type Sent<T> = Result<T, StreamingError<TypeConfig>>;

impl Transfer {
    /// Sends the snapshot and has it installed. The answer carries the receiver's vote: openraft sees whether it is
    /// higher.
    pub(super) async fn run(mut self) -> Sent<SnapshotResponse<TypeConfig>> {
        let vote = self.send().await?;
        self.pinned.release(&self.outgoing);
        Ok(SnapshotResponse::new(vote))
    }

    async fn send(&mut self) -> Sent<Vote> {
        let meta = convert::snapshot_meta_to_proto(self.outgoing.meta());
        let offset = proto::SnapshotOffsetRequest {
            envelope: self.identity.to(self.target),
            vote: Some(convert::vote_to_proto(&self.vote)),
            meta: Some(meta.clone()),
        };
        again(
            &self.client,
            || offset.clone(),
            |mut client, offset| async move { client.snapshot_offset(offset).await },
        );
        let call = self.client.snapshot_offset(offset);
        let offset = checked(
            &self.identity,
            self.target,
            PIECE_TIMEOUT,
            call,
            |answer| answer.envelope.as_ref(),
            || {},
        )
        .await?;
        let vote = self.receivers_vote(offset.vote)?;
        if offset.needless || vote > self.vote {
            return Ok(vote);
        }
        self.pinned.pin(&self.outgoing);
        let mut after = Some(offset.last_key).filter(|key| !key.is_empty());
        let mut chunk = offset.next_chunk;
        tracing::info!(target = %self.target, snapshot = ?self.outgoing.applied(), chunk, "sending a snapshot");
        loop {
            let piece = self.outgoing.piece(after.take()).await.map_err(|error| {
                // A value that cannot be read here is no reason for this member to stop.
                tracing::warn!(target = %self.target, %error, "the snapshot cannot be read; it is tried again");
                // A later picture may no longer need what cannot be read.
                self.pinned.forget(&self.outgoing);
                StreamingError::Unreachable(Unreachable::from_string(error))
            })?;
            let last = piece.last;
            let mut items = Vec::with_capacity(piece.items.len());
            for (key, entry, value) in piece.items {
                after = Some(key.clone());
                items.push(proto::SnapshotItem {
                    key,
                    term: entry.version.term,
                    index: entry.version.index,
                    value,
                    hash: Bytes::copy_from_slice(&entry.value.hash.to_le_bytes()),
                });
            }
            if !items.is_empty() {
                let request = proto::SnapshotChunkRequest {
                    envelope: self.identity.to(self.target),
                    vote: Some(convert::vote_to_proto(&self.vote)),
                    last_log_id: meta.last_log_id,
                    chunk,
                    items,
                };
                again(
                    &self.client,
                    || request.clone(),
                    |mut client, request| async move { client.snapshot_chunk(request).await },
                );
                let call = self.client.snapshot_chunk(request);
                // What is newer may need less room.
                let no_room = || self.pinned.forget(&self.outgoing);
                let answer = checked(
                    &self.identity,
                    self.target,
                    PIECE_TIMEOUT,
                    call,
                    |answer| answer.envelope.as_ref(),
                    no_room,
                )
                .await?;
                let vote = self.receivers_vote(answer.vote)?;
                if vote > self.vote {
                    return Ok(vote);
                }
                chunk += 1;
                if answer.next_chunk != chunk {
                    let reason =
                        format!("the receiver expects chunk {} after {}", answer.next_chunk, chunk - 1);
                    return Err(NetworkError::from_string(reason).into());
                }
                self.pinned.pin(&self.outgoing);
            }
            if last {
                break;
            }
        }
        self.finish(meta, chunk).await
    }

    async fn finish(&mut self, meta: proto::SnapshotMeta, chunks: u64) -> Sent<Vote> {
        let request = proto::SnapshotFinishRequest {
            envelope: self.identity.to(self.target),
            vote: Some(convert::vote_to_proto(&self.vote)),
            meta: Some(meta),
            chunks,
            machine: self.outgoing.machine().into(),
        };
        again(
            &self.client,
            || request.clone(),
            |mut client, request| async move { client.snapshot_finish(request).await },
        );
        let call = self.client.snapshot_finish(request);
        let answer = checked(
            &self.identity,
            self.target,
            FINISH_TIMEOUT,
            call,
            |answer| answer.envelope.as_ref(),
            || {
                self.pinned.forget(&self.outgoing);
            },
        )
        .await?;
        self.receivers_vote(answer.vote)
    }

    fn receivers_vote(&self, vote: Option<proto::Vote>) -> Sent<Vote> {
        let from = self.identity.votes_of(self.target);
        convert::vote_from_proto(vote, from).map_err(|error| Unreachable::from_string(error).into())
    }
}

async fn checked<T>(
    identity: &PeerIdentity,
    target: NodeId,
    within: Duration,
    call: impl Future<Output = Result<Response<T>, Status>> + Send,
    envelope: impl Fn(&T) -> Option<&proto::Envelope>,
    no_room: impl FnOnce(),
) -> Sent<T> {
    let late = || Err(Status::deadline_exceeded(format!("no answer for {} ms", within.as_millis())));
    let answer = runtime::timeout(within, call).await.unwrap_or_else(late);
    let answer = match answer {
        Ok(answer) => answer.into_inner(),
        Err(status) => {
            if status.code() == Code::ResourceExhausted {
                no_room();
            }
            return Err(rpc_error(&status).into());
        }
    };
    identity.check_answer(envelope(&answer), target).map_err(|status| rpc_error(&status))?;
    Ok(answer)
}
