//! Sending a snapshot: pieces in key order, from the receiver's position on.
//!
//! What holds here: if the receiver has applied the entry that wrote a value, the value is sent
//! only after the receiver reports that it lacks it; every other value is sent at once. While one
//! range of keys is sent, piece by piece, the next range is read, and no more.

use super::connection::rpc_error;
use super::identity::Enveloped;
use super::link::Link;
use super::messages;
use super::wire::client::Client;
use super::wire::methods::{SNAPSHOT_CHUNK, SNAPSHOT_FINISH, SNAPSHOT_OFFSET};
use super::wire::{Message, Method};
use crate::core::types::{TypeConfig, Vote};
use crate::core::{proto, runtime};
use crate::storage::state_machine::{Item, Outgoing};
use bytes::Bytes;
use cairn_engine::LogId;
use openraft::errors::{NetworkError, StreamingError, Unreachable};
use openraft::raft::SnapshotResponse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Code, Status};

/// The time limit for one piece.
const PIECE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit for the last step, in which the receiver writes a checkpoint.
const FINISH_TIMEOUT: Duration = Duration::from_secs(120);

pub(super) struct Transfer {
    pub(super) link: Arc<Link>,
    pub(super) client: Client,
    pub(super) vote: Vote,
    pub(super) outgoing: Arc<Outgoing>,
}

type Sent<T> = Result<T, StreamingError<TypeConfig>>;

impl Transfer {
    /// Sends the snapshot and has it installed. The answer carries the receiver's vote; openraft
    /// checks whether it is higher.
    pub(super) async fn run(self) -> Sent<SnapshotResponse<TypeConfig>> {
        let vote = self.send().await?;
        self.link.pinned.release(&self.outgoing);
        Ok(SnapshotResponse::new(vote))
    }

    async fn send(&self) -> Sent<Vote> {
        let meta = messages::snapshot_meta_to_proto(self.outgoing.meta());
        let offset = proto::SnapshotOffsetRequest {
            envelope: self.link.envelope(),
            vote: Some(messages::vote_to_proto(&self.vote)),
            meta: Some(meta.clone()),
        };
        let offset = self.ask(PIECE_TIMEOUT, SNAPSHOT_OFFSET, offset).await.map_err(rpc_error)?;
        let vote = self.receivers_vote(offset.vote)?;
        if offset.already_applied || vote > self.vote {
            return Ok(vote);
        }
        self.link.pinned.pin(&self.outgoing);
        let held = offset.applied.map(LogId::from);
        let mut after = offset.last_key;
        let snapshot = self.outgoing.applied().map(|id| id.to_string()).unwrap_or_default();
        let resumed = !after.is_empty();
        tracing::info!(target = %self.link.target, snapshot, resumed, "sending a snapshot");
        let begin = Some(after.clone()).filter(|_| resumed);
        let mut next = Some(self.outgoing.next_keys(begin, held).await);
        while let Some(range) = next {
            let range = range.map_err(|error| self.unreadable(error))?;
            let Some(last_key) = range.items.last().map(|item| item.key.clone()) else { break };
            let following = async {
                match range.last {
                    true => None,
                    false => Some(self.outgoing.next_keys(Some(last_key), held).await),
                }
            };
            let sending = async {
                for piece in range.pieces() {
                    if let Some(vote) = self.send_piece(&mut after, piece).await? {
                        return Sent::Ok(Some(vote));
                    }
                }
                Ok(None)
            };
            let (higher, following) = futures::join!(sending, following);
            if let Some(vote) = higher? {
                return Ok(vote);
            }
            next = following;
        }
        self.finish(meta, after).await
    }

    /// A value that cannot be read here must not stop this member.
    fn unreadable(&self, error: cairn_engine::Error) -> StreamingError<TypeConfig> {
        tracing::warn!(target = %self.link.target, %error, "cannot read the snapshot; retrying");
        // A later snapshot may no longer need the unreadable value.
        self.link.pinned.forget(&self.outgoing);
        Unreachable::from_string(error).into()
    }

    /// Sends a piece, and once more with the values that the receiver lacks. Sets `after` to its last
    /// key. `Some`: the receiver's higher vote.
    async fn send_piece(&self, after: &mut Bytes, piece: &[Item]) -> Sent<Option<Vote>> {
        let last_key = piece.last().map_or_else(Bytes::new, |item| item.key.clone());
        let mut values: Vec<Option<Bytes>> = piece.iter().map(|item| item.value.clone()).collect();
        for _ in 0..2 {
            let answer = self.send_chunk(after.clone(), piece, values).await?;
            let vote = self.receivers_vote(answer.vote)?;
            if vote > self.vote {
                return Ok(Some(vote));
            }
            self.link.pinned.pin(&self.outgoing);
            if answer.last_key == last_key {
                *after = last_key;
                return Ok(None);
            }
            if answer.last_key != *after {
                let reason = "another attempt to send the snapshot got further or less far";
                return Err(NetworkError::from_string(reason).into());
            }
            let missing: BTreeSet<Bytes> = answer.missing.into_iter().collect();
            let missing = self.outgoing.values(piece, |item| missing.contains(&item.key)).await;
            values = missing.map_err(|error| self.unreadable(error))?;
        }
        Err(NetworkError::from_string("the receiver lacks values again that it was sent").into())
    }

    async fn send_chunk(
        &self,
        after: Bytes,
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
            envelope: self.link.envelope(),
            vote: Some(messages::vote_to_proto(&self.vote)),
            last_log_id: self.outgoing.applied().map(Into::into),
            after,
            items: items.collect(),
        };
        self.ask(PIECE_TIMEOUT, SNAPSHOT_CHUNK, request)
            .await
            .map_err(|status| self.refused(status))
    }

    async fn finish(&self, meta: proto::SnapshotMeta, last_key: Bytes) -> Sent<Vote> {
        let request = proto::SnapshotFinishRequest {
            envelope: self.link.envelope(),
            vote: Some(messages::vote_to_proto(&self.vote)),
            meta: Some(meta),
            last_key,
            machine: self.outgoing.machine().into(),
        };
        let answer = self.ask(FINISH_TIMEOUT, SNAPSHOT_FINISH, request).await;
        let answer = answer.map_err(|status| self.refused(status))?;
        self.receivers_vote(answer.vote)
    }

    fn receivers_vote(&self, vote: Option<proto::Vote>) -> Sent<Vote> {
        messages::vote_from_proto(vote, self.link.votes())
            .map_err(|error| Unreachable::from_string(error).into())
    }

    async fn ask<Q: Message + Clone, A: Message + Enveloped>(
        &self,
        within: Duration,
        method: Method<Q, A>,
        request: Q,
    ) -> Result<A, Status> {
        self.link.check_leading()?;
        let late =
            || Err(Status::deadline_exceeded(format!("no answer for {} ms", within.as_millis())));
        let asked = self.link.ask(&self.client, method, request);
        runtime::timeout(within, asked).await.unwrap_or_else(late)
    }

    /// If the receiver lacks space, a retry sends another snapshot: a newer one may need less.
    fn refused(&self, status: Status) -> StreamingError<TypeConfig> {
        if status.code() == Code::ResourceExhausted {
            self.link.pinned.forget(&self.outgoing);
        }
        rpc_error(status).into()
    }
}
