//! One append stream to a follower, pipelined.
//!
//! What holds here: answers come in the order of the requests; at most [`WINDOW`] requests are
//! unanswered; a follower that does not answer within its time limit ends the stream with an error.
//! One future drives both directions, so when openraft drops it, its source of requests is dropped
//! at the same moment: the next stream needs it.
//!
//! [`InFlightAppends`] decides which answers openraft may see.

use super::connection::deliver_duplicate;
use super::link::Link;
use super::messages;
use super::peer::Snapshots;
use super::terms::Sender;
use super::wire::client::{AppendStream, Client};
use super::wire::{Packed, methods, transfer_time};
use crate::core::error::Malformed;
use crate::core::proto::append_response::Kind;
use crate::core::types::{AppendRequest, TypeConfig};
use crate::core::{convert, hooks, proto, runtime};
use cairn_engine::io::yield_once;
use futures::future::{Either, select};
use futures::{Stream, StreamExt};
use openraft::raft::{StreamAppendError, StreamAppendResult};
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;

/// At most this many requests are unanswered.
pub(super) const WINDOW: usize = 32;

/// The result for openraft in an answer.
pub(super) fn outcome(
    answer: proto::AppendResponse,
    from: Sender<'_>,
) -> Result<StreamAppendResult<TypeConfig>, Malformed> {
    Ok(match answer.kind.ok_or(Malformed("an empty answer"))? {
        Kind::Matched(matched) => Ok(matched.log_id.map(convert::log_id_from_proto).transpose()?),
        Kind::Conflict(previous) => {
            Err(StreamAppendError::Conflict(convert::log_id_from_proto(previous)?))
        }
        Kind::HigherVote(vote) => {
            Err(StreamAppendError::HigherVote(messages::vote_from_proto(Some(vote), from)?))
        }
    })
}

/// The unanswered requests, the oldest first, and whether each is without an entry.
///
/// openraft treats an ack of X as acking every request that ends at X, and as proof that the
/// follower still followed when the last of them was sent. A request without an entry ends where
/// the one before it does. So an answer is not passed on while such a request is unanswered behind
/// it: an answer given long ago would confirm a present leadership, and a read.
///
/// If the follower's log conflicts with a request without an entry, below what the follower has
/// acknowledged, openraft takes the log for reverted: it replicates nothing more to the follower, and
/// with its debug assertions it panics. This happens if the request was sent before a snapshot that
/// the follower has now. Such an answer is void.
#[derive(Default)]
pub(super) struct InFlightAppends(VecDeque<InFlightAppend>);

/// An unanswered request.
#[derive(Clone, Copy)]
struct InFlightAppend {
    without_entry: bool,
    /// How many snapshot transfers to the follower had ended when it was sent.
    snapshots: u64,
    bytes: usize,
}

/// What openraft may conclude from an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AckMeaning {
    /// It may confirm that the follower still follows.
    counts: bool,
    /// If it reports a conflict, that conflict is outdated.
    void: bool,
}

impl InFlightAppends {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn sent(&mut self, without_entry: bool, bytes: usize, snapshots: &Snapshots) {
        self.0.push_back(InFlightAppend { without_entry, snapshots: snapshots.ended(), bytes });
    }

    /// How long the answer to the oldest request may take, beside the usual time: a large one is on its
    /// way for longer.
    fn transfer_time(&self) -> Duration {
        transfer_time(self.0.front().map_or(0, |oldest| oldest.bytes as u64))
    }

    /// The oldest request is answered. Returns what the answer means; `None` if no request is in
    /// flight.
    fn answered(&mut self, snapshots: &Snapshots) -> Option<AckMeaning> {
        let sent = self.0.pop_front()?;
        // The answer to the next request, if it is without an entry, says the same, and was given
        // later.
        let counts = self.0.front().is_none_or(|next| !next.without_entry);
        Some(AckMeaning { counts, void: sent.without_entry && snapshots.overtook(sent.snapshots) })
    }
}

/// A running stream.
pub(super) struct Session<S> {
    pub(super) link: Arc<Link>,
    pub(super) client: Client,
    /// Requests from openraft; `None` when there are no more.
    pub(super) requests: Option<S>,
    pub(super) stream: AppendStream,
    pub(super) unanswered: InFlightAppends,
    pub(super) first_sent: bool,
    pub(super) first_answered: bool,
    /// When the oldest unanswered request was sent, or the last answer came.
    pub(super) since: runtime::Instant,
    /// How many requests without an entry came in a row.
    pub(super) empty: u32,
}

/// Heartbeats use their own calls, so more requests without an entry in a row than this are not
/// heartbeats.
const EMPTY_MAX: u32 = 50;

enum Step {
    Request(Option<AppendRequest>),
    Answer(Option<Result<proto::AppendResponse, Status>>),
}

impl<S: Stream<Item = AppendRequest> + Send + Unpin> Session<S> {
    /// The next answer; `None` when every request is answered and there are no more.
    pub(super) async fn next(&mut self) -> Option<Result<StreamAppendResult<TypeConfig>, Status>> {
        loop {
            if self.unanswered.is_empty() && self.requests.is_none() {
                return None;
            }
            let step = match self.step().await {
                Ok(step) => step,
                Err(status) => return Some(Err(status)),
            };
            match step {
                Step::Request(None) => (self.requests, self.stream.requests) = (None, None),
                Step::Request(Some(request)) => {
                    if request.entries.is_empty() && self.first_sent {
                        // It only tells the commit index. Who waits for the entry that was committed is
                        // answered first.
                        yield_once().await;
                    }
                    if let Err(status) = self.link.check_leading() {
                        return Some(Err(status));
                    }
                    self.empty = if request.entries.is_empty() { self.empty + 1 } else { 0 };
                    if self.empty > EMPTY_MAX {
                        // openraft continues to read where the log was purged meanwhile, and learns
                        // that only from an error.
                        let reason = "the entries that the follower needs are purged here";
                        return Some(Err(Status::unavailable(reason)));
                    }
                    self.send(request);
                }
                Step::Answer(answer) => match self.answered(answer) {
                    Ok((Ok(_), false)) => {}
                    answered => return Some(answered.map(|(outcome, _)| outcome)),
                },
            }
        }
    }

    async fn step(&mut self) -> Result<Step, Status> {
        let limit = self.link.answer_timeout + self.unanswered.transfer_time();
        let answer = self.stream.answers.recv();
        let request = match &mut self.requests {
            Some(requests) if self.unanswered.len() < WINDOW => requests.next(),
            _ => {
                return waited(limit, self.since, answer).await.map(Step::Answer);
            }
        };
        let either = async {
            match select(pin!(answer), request).await {
                Either::Left((answer, _)) => Step::Answer(answer),
                Either::Right((request, _)) => Step::Request(request),
            }
        };
        match self.unanswered.is_empty() {
            true => Ok(either.await),
            false => waited(limit, self.since, either).await,
        }
    }

    fn send(&mut self, request: AppendRequest) {
        if self.unanswered.is_empty() {
            self.since = runtime::now();
        }
        let without_entry = request.entries.is_empty();
        let message = self.link.append(request, self.first_sent);
        let alone = || proto::AppendRequest { envelope: self.link.envelope(), ..message.clone() };
        let lost = hooks::loses_appends(self.link.identity.id().slot());
        if !lost {
            deliver_duplicate(&self.client, methods::APPEND_ONE, alone);
        }
        let packed = Packed::of(message);
        self.unanswered.sent(without_entry, packed.bytes(), &self.link.peer.snapshots);
        self.first_sent = true;
        if lost {
            return;
        }
        // The window is as large as the channel; if it is closed, the answers end.
        if let Some(requests) = &self.stream.requests {
            requests.try_send(packed).ok();
        }
    }

    /// The result in an answer, and whether openraft may see it.
    fn answered(
        &mut self,
        answer: Option<Result<proto::AppendResponse, Status>>,
    ) -> Result<(StreamAppendResult<TypeConfig>, bool), Status> {
        let answer =
            answer.unwrap_or_else(|| Err(Status::unavailable("the follower ended the stream")))?;
        if !self.first_answered {
            self.link.identity.check_answer(&answer, self.link.target)?;
            self.first_answered = true;
        }
        let meaning = self.unanswered.answered(&self.link.peer.snapshots);
        let meaning = meaning.ok_or_else(|| Status::internal("an answer without a request"))?;
        self.since = runtime::now();
        // A retry would get the same answer, so let openraft back off.
        let outcome = outcome(answer, self.link.votes());
        let outcome = outcome.map_err(|error| Status::failed_precondition(error.to_string()))?;
        if meaning.void && matches!(outcome, Err(StreamAppendError::Conflict(_))) {
            return Err(Status::unavailable("a snapshot overtook the request"));
        }
        Ok((outcome, meaning.counts))
    }
}

async fn waited<F: Future + Send>(
    limit: Duration,
    since: runtime::Instant,
    future: F,
) -> Result<F::Output, Status> {
    let rest = limit.saturating_sub(runtime::now() - since);
    let future = pin!(future);
    runtime::timeout(rest, future)
        .await
        .ok_or_else(|| Status::deadline_exceeded(format!("no answer for {} ms", limit.as_millis())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ids::NodeId;
    use crate::core::types::RaftLogId;
    use crate::transport::terms::Terms;
    use prost::Message;

    /// The story: request E1 is answered while the follower still follows this leader. Then the
    /// follower votes for another candidate, and the leader asks, without an entry, whether the
    /// follower still follows. E1's old answer names the same entry.
    #[test]
    fn an_answer_does_not_confirm_a_later_request_that_ends_at_the_same_entry() {
        const ENTRIES: bool = false;
        const EMPTY: bool = true;
        // (requests, which of their answers count)
        let table = [
            (vec![ENTRIES, ENTRIES], vec![true, true]),
            (vec![ENTRIES, EMPTY], vec![false, true]),
            (vec![EMPTY, EMPTY, EMPTY], vec![false, false, true]),
            (vec![ENTRIES, EMPTY, ENTRIES, EMPTY], vec![false, true, false, true]),
            (vec![EMPTY, ENTRIES], vec![true, true]),
        ];
        let snapshots = Snapshots::default();
        for (requests, expected) in table {
            let mut unanswered = InFlightAppends::default();
            requests
                .iter()
                .for_each(|without_entry| unanswered.sent(*without_entry, 0, &snapshots));
            let counts: Vec<bool> = std::iter::from_fn(|| unanswered.answered(&snapshots))
                .map(|meaning| meaning.counts)
                .collect();
            assert_eq!(counts, expected, "{requests:?}");
        }
        let mut unanswered = InFlightAppends::default();
        unanswered.sent(ENTRIES, 0, &snapshots);
        let meaning = unanswered.answered(&snapshots);
        assert!(
            meaning.is_some_and(|meaning| meaning.counts),
            "no later request: the answer was given after all that was sent"
        );
        assert_eq!(unanswered.answered(&snapshots), None);
    }

    /// The story: a leader sent a follower that had lost its log a commit index, and then a
    /// snapshot. The answer to the first, a conflict because the follower's log did not reach so
    /// far, came last, and the leader stopped.
    #[test]
    fn a_conflict_with_what_a_snapshot_has_replaced_is_void() {
        let snapshots = Snapshots::default();
        let void = |unanswered: &mut InFlightAppends| {
            unanswered.answered(&snapshots).map(|meaning| meaning.void)
        };
        let mut unanswered = InFlightAppends::default();
        for without_entry in [true, true, false, true] {
            unanswered.sent(without_entry, 0, &snapshots);
        }
        assert_eq!(void(&mut unanswered), Some(false));
        let sending = snapshots.begin();
        assert_eq!(void(&mut unanswered), Some(true), "a transfer is under way");
        drop(sending);
        assert_eq!(
            void(&mut unanswered),
            Some(false),
            "openraft itself knows which requests with entries are outdated"
        );
        assert_eq!(void(&mut unanswered), Some(true), "sent before the snapshot");
        unanswered.sent(true, 0, &snapshots);
        assert_eq!(void(&mut unanswered), Some(false), "sent after it");
    }

    #[test]
    fn any_bytes_decode_to_an_answer_or_to_an_error() {
        let log_id = proto::LogId { term: 3, index: 9 };
        let vote = proto::Vote { term: 5, node_id: NodeId::new(2, 2).as_u64(), committed: false };
        let seed =
            |kind| proto::AppendResponse { envelope: None, kind: Some(kind) }.encode_to_vec();
        cairn_fuzz::target!(
            "matched" => seed(Kind::Matched(proto::Matched { log_id: Some(log_id) })),
            "conflict" => seed(Kind::Conflict(log_id)),
            "higher_vote" => seed(Kind::HigherVote(vote)),
        )
        .for_each(|bytes| {
            let most = 64 * bytes.len() + 4096;
            let decode = || proto::AppendResponse::decode(bytes);
            let Ok(answer) = cairn_fuzz::within(most, decode) else { return };
            let terms = Terms::default();
            let from = terms.votes_from(NodeId::new(2, 2));
            let Ok(outcome) = outcome(answer, from) else { return };
            let bounded = |id: &RaftLogId| {
                id.committed_leader_id().term < convert::BOUND && id.index() < convert::BOUND
            };
            assert!(match &outcome {
                Ok(matched) => matched.as_ref().is_none_or(bounded),
                Err(StreamAppendError::Conflict(previous)) => bounded(previous),
                Err(StreamAppendError::HigherVote(vote)) => vote.leader_id.term < convert::BOUND,
            });
        });
    }
}
