//! Sending a snapshot: pieces in key order, from the receiver's position on.
//!
//! What holds here: if the receiver has applied the entry that wrote a value, the value is sent
//! only after the receiver reports that it lacks it; every other value is sent at once. While one
//! range of keys is sent, piece by piece, the next range is read, and no more.

use super::connection::{Client, rpc_error};
use super::duplicate::deliver_duplicate;
use super::identity::PeerIdentity;
use super::messages;
use crate::core::ids::NodeId;
use crate::core::types::{TypeConfig, Vote};
use crate::core::{proto, runtime};
use crate::storage::state_machine::{Item, KeyRange, Outgoing, PinnedSnapshot};
use bytes::Bytes;
use cairn_engine::LogId;
use openraft::errors::{NetworkError, StreamingError, Unreachable};
use openraft::raft::SnapshotResponse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Code, Response, Status};

/// The time limit for one piece.
const PIECE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit for the last step, in which the receiver writes a checkpoint.
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
    /// Sends the snapshot and has it installed. The answer carries the receiver's vote; openraft
    /// checks whether it is higher.
    pub(super) async fn run(mut self) -> Sent<SnapshotResponse<TypeConfig>> {
        let vote = self.send().await?;
        self.pinned.release(&self.outgoing);
        Ok(SnapshotResponse::new(vote))
    }

    async fn send(&mut self) -> Sent<Vote> {
        let meta = messages::snapshot_meta_to_proto(self.outgoing.meta());
        let offset = proto::SnapshotOffsetRequest {
            envelope: self.identity.to(self.target),
            vote: Some(messages::vote_to_proto(&self.vote)),
            meta: Some(meta.clone()),
        };
        deliver_duplicate(
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
        if offset.already_applied || vote > self.vote {
            return Ok(vote);
        }
        self.pinned.pin(&self.outgoing);
        let held = offset.applied.map(|id| LogId { term: id.term, index: id.index });
        let after = Some(offset.last_key).filter(|key| !key.is_empty());
        let mut chunk = offset.next_chunk;
        tracing::info!(target = %self.target, snapshot = ?self.outgoing.applied(), chunk, "sending a snapshot");
        let mut next = Some(self.outgoing.next_keys(after, held).await);
        while let Some(range) = next {
            let range = range.map_err(|error| self.unreadable(error))?;
            let Some(last_key) = range.items.last().map(|item| item.key.clone()) else { break };
            let following = async {
                match range.last {
                    true => None,
                    false => Some(self.outgoing.next_keys(Some(last_key), held).await),
                }
            };
            let sending = self.send_range(meta.last_log_id, &mut chunk, &range);
            let (higher, following) = futures::join!(sending, following);
            if let Some(vote) = higher? {
                return Ok(vote);
            }
            next = following;
        }
        self.finish(meta, chunk).await
    }

    /// A value that cannot be read here must not stop this member.
    fn unreadable(&self, error: cairn_engine::Error) -> StreamingError<TypeConfig> {
        tracing::warn!(target = %self.target, %error, "cannot read the snapshot; retrying");
        // A later snapshot may no longer need the unreadable value.
        self.pinned.forget(&self.outgoing);
        Unreachable::from_string(error).into()
    }

    /// Sends the pieces of a range as chunks from `chunk` on. `Some`: the receiver's higher vote.
    async fn send_range(
        &self,
        last: Option<proto::LogId>,
        chunk: &mut u64,
        range: &KeyRange,
    ) -> Sent<Option<Vote>> {
        for piece in range.pieces() {
            if let Some(vote) = self.send_piece(last, *chunk, piece).await? {
                return Ok(Some(vote));
            }
            *chunk += 1;
        }
        Ok(None)
    }

    /// Sends a piece, and once more with the values that the receiver lacks. `Some`: the receiver's
    /// higher vote.
    async fn send_piece(
        &self,
        last: Option<proto::LogId>,
        chunk: u64,
        piece: &[Item],
    ) -> Sent<Option<Vote>> {
        let mut values: Vec<Option<Bytes>> = piece.iter().map(|item| item.value.clone()).collect();
        for _ in 0..2 {
            let answer = self.send_chunk(last, chunk, piece, values).await?;
            let vote = self.receivers_vote(answer.vote)?;
            if vote > self.vote {
                return Ok(Some(vote));
            }
            self.pinned.pin(&self.outgoing);
            if answer.next_chunk == chunk + 1 {
                return Ok(None);
            }
            if answer.next_chunk != chunk {
                let reason =
                    format!("the receiver expects chunk {} after {chunk}", answer.next_chunk);
                return Err(NetworkError::from_string(reason).into());
            }
            let missing: BTreeSet<Bytes> = answer.missing.into_iter().collect();
            let missing = self.outgoing.values(piece, |item| missing.contains(&item.key)).await;
            values = missing.map_err(|error| self.unreadable(error))?;
        }
        Err(NetworkError::from_string(format!("the receiver does not take chunk {chunk}")).into())
    }

    async fn send_chunk(
        &self,
        last_log_id: Option<proto::LogId>,
        chunk: u64,
        piece: &[Item],
        values: Vec<Option<Bytes>>,
    ) -> Sent<proto::SnapshotChunkResponse> {
        let items = piece.iter().zip(values).map(|(item, value)| proto::SnapshotItem {
            key: item.key.clone(),
            term: item.entry.version.term,
            index: item.entry.version.index,
            value,
            hash: Bytes::copy_from_slice(&item.entry.value.hash.to_le_bytes()),
            length: item.entry.value.len,
        });
        let request = proto::SnapshotChunkRequest {
            envelope: self.identity.to(self.target),
            vote: Some(messages::vote_to_proto(&self.vote)),
            last_log_id,
            chunk,
            items: items.collect(),
        };
        deliver_duplicate(
            &self.client,
            || request.clone(),
            |mut client, request| async move { client.snapshot_chunk(request).await },
        );
        let mut client = self.client.clone();
        let call = client.snapshot_chunk(request);
        // A newer snapshot may need less space.
        let out_of_space = || self.pinned.forget(&self.outgoing);
        checked(
            &self.identity,
            self.target,
            PIECE_TIMEOUT,
            call,
            |answer| answer.envelope.as_ref(),
            out_of_space,
        )
        .await
    }

    async fn finish(&mut self, meta: proto::SnapshotMeta, chunks: u64) -> Sent<Vote> {
        let request = proto::SnapshotFinishRequest {
            envelope: self.identity.to(self.target),
            vote: Some(messages::vote_to_proto(&self.vote)),
            meta: Some(meta),
            chunks,
            machine: self.outgoing.machine().into(),
        };
        deliver_duplicate(
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
        messages::vote_from_proto(vote, from)
            .map_err(|error| Unreachable::from_string(error).into())
    }
}

async fn checked<T>(
    identity: &PeerIdentity,
    target: NodeId,
    within: Duration,
    call: impl Future<Output = Result<Response<T>, Status>> + Send,
    envelope: impl Fn(&T) -> Option<&proto::Envelope>,
    out_of_space: impl FnOnce(),
) -> Sent<T> {
    let late =
        || Err(Status::deadline_exceeded(format!("no answer for {} ms", within.as_millis())));
    let answer = runtime::timeout(within, call).await.unwrap_or_else(late);
    let answer = match answer {
        Ok(answer) => answer.into_inner(),
        Err(status) => {
            if status.code() == Code::ResourceExhausted {
                out_of_space();
            }
            return Err(rpc_error(&status).into());
        }
    };
    identity.check_answer(envelope(&answer), target).map_err(|status| rpc_error(&status))?;
    Ok(answer)
}
