//! One append stream to a follower, pipelined.
//!
//! What holds here: answers come in the order of the requests; at most [`WINDOW`] requests are unanswered; a follower
//! that answers nothing for as long as it was given ends the stream with an error. One future drives both directions,
//! so when openraft drops it, its source of requests is dropped in the same moment: the next stream needs it.
//!
//! Which answers openraft may see is told at [`Unanswered`].

use super::connection::Client;
use super::identity::PeerIdentity;
use super::messages;
use super::peer::Snapshots;
use super::policy::SendPolicy;
use super::repeat::again;
use super::terms::Sender;
use crate::core::error::Malformed;
use crate::core::ids::NodeId;
use crate::core::proto::append_response::Kind;
use crate::core::types::{AppendRequest, TypeConfig};
use crate::core::{convert, proto, runtime};
use futures::future::{Either, ready, select};
use futures::{Stream, StreamExt};
use openraft::raft::{StreamAppendError, StreamAppendResult};
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

/// Unanswered requests, at most.
pub(super) const WINDOW: usize = 32;

/// What openraft learns from an answer.
pub(super) fn outcome(
    answer: proto::AppendResponse,
    from: Sender<'_>,
) -> Result<StreamAppendResult<TypeConfig>, Malformed> {
    Ok(match answer.kind.ok_or(Malformed("an empty answer"))? {
        Kind::Matched(matched) => Ok(matched.log_id.map(convert::log_id_from_proto).transpose()?),
        Kind::Conflict(previous) => Err(StreamAppendError::Conflict(convert::log_id_from_proto(previous)?)),
        Kind::HigherVote(vote) => {
            Err(StreamAppendError::HigherVote(messages::vote_from_proto(Some(vote), from)?))
        }
    })
}

/// The requests' way to tonic.
pub(super) fn outlet()
-> (mpsc::Sender<proto::AppendRequest>, impl Stream<Item = proto::AppendRequest> + Send + 'static) {
    let (sender, mut receiver) = mpsc::channel(WINDOW);
    // A message that is too large ends the stream, as it does on a real network.
    let messages = futures::stream::poll_fn(move |context| receiver.poll_recv(context));
    (
        sender,
        messages.map(runtime::on_its_way).take_while(|message| ready(message.is_some())).filter_map(ready),
    )
}

/// The unanswered requests, the oldest first: whether each is without an entry.
///
/// openraft takes an answer for one to every request that ends at the entry it names, and the follower for somebody who
/// followed when the last of those was sent. So an answer is not passed on while a request without an entry, which ends where
/// the one before it does, is unanswered behind it: an answer given long ago would confirm a leadership of now, and a read.
///
/// And openraft takes it for a log that was reverted, and stops the leader, when a request without an entry turns out not to
/// fit the follower's log below what the follower has. That is so where the request was sent before a snapshot that the follower has
/// now: such an answer is void.
#[derive(Default)]
pub(super) struct Unanswered(VecDeque<Sent>);

/// A request on its way.
#[derive(Clone, Copy)]
struct Sent {
    without_entry: bool,
    /// Snapshots that the follower had been sent by then.
    snapshots: u64,
}

/// What an answer is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Worth {
    /// It may confirm that the follower follows.
    counts: bool,
    /// If it says that the request does not fit the follower's log: that is so no more.
    void: bool,
}

impl Unanswered {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn sent(&mut self, without_entry: bool, snapshots: &Snapshots) {
        self.0.push_back(Sent { without_entry, snapshots: snapshots.ended() });
    }

    /// The oldest request is answered. What that is worth; `None` if there was no request.
    fn answered(&mut self, snapshots: &Snapshots) -> Option<Worth> {
        let sent = self.0.pop_front()?;
        // The next one's answer says the same, and is given later.
        let counts = self.0.front().is_none_or(|next| !next.without_entry);
        Some(Worth { counts, void: sent.without_entry && snapshots.overtook(sent.snapshots) })
    }
}

/// A running stream.
pub(super) struct Session<S> {
    pub(super) identity: PeerIdentity,
    pub(super) client: Client,
    pub(super) policy: Arc<dyn SendPolicy>,
    pub(super) target: NodeId,
    pub(super) patience: Duration,
    /// Requests from openraft; `None` when it has no more.
    pub(super) requests: Option<S>,
    /// Where they go; `None` when there are no more.
    pub(super) outlet: Option<mpsc::Sender<proto::AppendRequest>>,
    pub(super) answers: Streaming<proto::AppendResponse>,
    pub(super) unanswered: Unanswered,
    pub(super) snapshots: Snapshots,
    pub(super) first_sent: bool,
    pub(super) first_answered: bool,
    /// When the oldest unanswered request was sent, or the last answer came.
    pub(super) since: runtime::Instant,
    /// Requests without an entry, one after another.
    pub(super) empty: u32,
}

/// So many requests without an entry in a row are no signs of life: those are sent apart.
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
                Step::Request(None) => {
                    self.requests = None;
                    self.outlet = None;
                }
                Step::Request(Some(request)) => {
                    self.empty = if request.entries.is_empty() { self.empty + 1 } else { 0 };
                    if self.empty > EMPTY_MAX {
                        // openraft goes on reading where the log was purged meanwhile, and hears of nothing else.
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
        let answer = self.answers.next();
        let request = match &mut self.requests {
            Some(requests) if self.unanswered.len() < WINDOW => requests.next(),
            _ => return waited(self.patience, self.since, answer).await.map(Step::Answer),
        };
        let either = async {
            match select(answer, request).await {
                Either::Left((answer, _)) => Step::Answer(answer),
                Either::Right((request, _)) => Step::Request(request),
            }
        };
        match self.unanswered.is_empty() {
            true => Ok(either.await),
            false => waited(self.patience, self.since, either).await,
        }
    }

    fn send(&mut self, request: AppendRequest) {
        let (envelope, matched) = match self.first_sent {
            true => (None, None),
            false => (self.identity.to(self.target), self.policy.acknowledged(self.target, &request.vote)),
        };
        let matched = matched.as_ref().map(convert::log_id_to_proto);
        self.first_sent = true;
        if self.unanswered.is_empty() {
            self.since = runtime::now();
        }
        self.unanswered.sent(request.entries.is_empty(), &self.snapshots);
        // The window is as large as the channel; a closed one shows itself as the end of the answers.
        if let Some(outlet) = &self.outlet {
            let regime = self.policy.ack_mode(&request.vote);
            let message = messages::append_to_proto(request, envelope, regime);
            let alone = || proto::AppendRequest {
                envelope: self.identity.to(self.target),
                matched,
                ..message.clone()
            };
            again(&self.client, alone, |mut client, message| async move { client.append_one(message).await });
            outlet.try_send(proto::AppendRequest { matched, ..message }).ok();
        }
    }

    /// What it says, and whether openraft may take it for an answer.
    fn answered(
        &mut self,
        answer: Option<Result<proto::AppendResponse, Status>>,
    ) -> Result<(StreamAppendResult<TypeConfig>, bool), Status> {
        let answer = answer.unwrap_or_else(|| Err(Status::unavailable("the follower ended the stream")))?;
        if !self.first_answered {
            self.identity.check_answer(answer.envelope.as_ref(), self.target)?;
            self.first_answered = true;
        }
        let worth = self.unanswered.answered(&self.snapshots);
        let worth = worth.ok_or_else(|| Status::internal("an answer to nothing"))?;
        self.since = runtime::now();
        // It will not answer otherwise at once.
        let outcome = outcome(answer, self.identity.votes_of(self.target));
        let outcome = outcome.map_err(|error| Status::failed_precondition(error.to_string()))?;
        if worth.void && matches!(outcome, Err(StreamAppendError::Conflict(_))) {
            return Err(Status::unavailable("a snapshot overtook the request"));
        }
        Ok((outcome, worth.counts))
    }
}

async fn waited<F: Future + Send>(
    patience: Duration,
    since: runtime::Instant,
    future: F,
) -> Result<F::Output, Status> {
    let rest = patience.saturating_sub(runtime::now() - since);
    let future = pin!(future);
    runtime::timeout(rest, future)
        .await
        .ok_or_else(|| Status::deadline_exceeded(format!("no answer for {} ms", patience.as_millis())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: E1 is answered when the follower still followed this leader. Meanwhile the follower has voted for another one,
    /// and the leader asks, without an entry, whether it is still followed. E1's old answer names the same entry.
    #[test]
    fn an_answer_does_not_stand_for_a_later_request_that_ends_at_the_same_entry() {
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
            let mut unanswered = Unanswered::default();
            requests.iter().for_each(|without_entry| unanswered.sent(*without_entry, &snapshots));
            let counts: Vec<bool> =
                std::iter::from_fn(|| unanswered.answered(&snapshots)).map(|worth| worth.counts).collect();
            assert_eq!(counts, expected, "{requests:?}");
        }
        let mut unanswered = Unanswered::default();
        unanswered.sent(ENTRIES, &snapshots);
        let worth = unanswered.answered(&snapshots);
        assert!(
            worth.is_some_and(|worth| worth.counts),
            "nothing behind it yet: it was given after all that was sent"
        );
        assert_eq!(unanswered.answered(&snapshots), None);
    }

    /// The story: a leader told a follower that had lost its log how far it may apply, and then sent it a snapshot. The answer, that
    /// the follower's log did not reach so far, came last, and the leader stopped.
    #[test]
    fn a_conflict_with_what_a_snapshot_has_replaced_is_void() {
        let snapshots = Snapshots::default();
        let void = |unanswered: &mut Unanswered| unanswered.answered(&snapshots).map(|worth| worth.void);
        let mut unanswered = Unanswered::default();
        for without_entry in [true, true, false, true] {
            unanswered.sent(without_entry, &snapshots);
        }
        assert_eq!(void(&mut unanswered), Some(false));
        let sending = snapshots.begin();
        assert_eq!(void(&mut unanswered), Some(true), "it is on its way");
        drop(sending);
        assert_eq!(
            void(&mut unanswered),
            Some(false),
            "openraft knows of requests with entries which are the latest"
        );
        assert_eq!(void(&mut unanswered), Some(true), "sent before the snapshot");
        unanswered.sent(true, &snapshots);
        assert_eq!(void(&mut unanswered), Some(false), "sent after it");
    }
}
