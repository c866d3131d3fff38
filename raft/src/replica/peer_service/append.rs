//! Appends: what an append must pass before openraft gets it, one request or a stream of them.
//!
//! What holds here: a member appends only in its own term, and entries that contradict what is applied
//! here are refused. From then on no read relies on an earlier round.

use super::{Answered, PeerService, stopped};
use crate::core::error::Malformed;
use crate::core::ids::{GROUP, NodeId};
use crate::core::proto::append_response::Kind;
use crate::core::types::{AppendRequest, TypeConfig, Vote, engine_log_id};
use crate::core::{convert, proto};
use crate::durability::Act;
use crate::transport::messages;
use crate::transport::wire::server::{Answers, Requests};
use cairn_engine::LogId;
use cairn_tls::Remote;
use futures::StreamExt;
use futures::future::ready;
use openraft::errors::Fatal;
use openraft::raft::{StreamAppendError, StreamAppendResult};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tonic::Status;

impl PeerService {
    /// Checks the entry that this member acknowledged to the leader, as the leader sends it: if the
    /// entry is missing here, this member recovers.
    fn check_acked_entry(
        &self,
        leader: NodeId,
        vote: &Vote,
        matched: Option<LogId>,
    ) -> Result<(), Status> {
        match matched.filter(|matched| {
            self.member.may(Act::Vouch).is_ok() && self.member.lost_acked_entry(vote, *matched)
        }) {
            None => Ok(()),
            Some(matched) => {
                self.member.begin_recovery(leader, matched);
                Err(Status::failed_precondition(format!(
                    "this member lacks entry {matched}, which it acknowledged; it recovers"
                )))
            }
        }
    }

    /// A leader's log normally holds everything that was ever applied on any member. It does not if
    /// an operator made it leader and discarded what this member still holds. Entries of such a
    /// leader would contradict what this member has applied.
    fn refuse_contradiction(&self, request: &AppendRequest) -> Result<(), Status> {
        let Some(applied) = self.member.engine.applied(GROUP) else { return Ok(()) };
        let sent =
            request.prev_log_id.iter().chain(request.entries.iter().map(|entry| &entry.log_id));
        let known = |id: &LogId| id.index <= applied.index;
        for id in sent.map(engine_log_id).take_while(known) {
            let held = self.member.engine.log_id_at(GROUP, id.index);
            let purged = || {
                let purged = self.member.engine.log_bounds(GROUP).purged;
                purged.filter(|purged| purged.index == id.index)
            };
            // Terms never fall along a log: no entry before an applied one has a later term, purged
            // or not.
            let later = || Some(applied).filter(|applied| id.term > applied.term);
            let contradicted = held.or_else(purged).or_else(later).filter(|held| *held != id);
            // openraft itself refuses a deposed leader's entries.
            if let Some(held) = contradicted.filter(|_| request.vote >= self.own_vote()) {
                let reason = format!(
                    "a leader sends entry {id} where this member has applied {held}: what it holds was discarded with \
                     `cairn unsafe-recovery`; keep its data directory if that matters, and give it an empty one"
                );
                self.newest_round.forget();
                if !self.contradicted.swap(true, Ordering::SeqCst) {
                    tracing::error!(node = %self.member.identity.id(), reason);
                }
                return Err(Status::failed_precondition(reason));
            }
        }
        Ok(())
    }

    /// An append that openraft may take. A member may append only in its own term.
    pub(in crate::replica) fn append_request(
        &self,
        sender: NodeId,
        message: proto::AppendRequest,
    ) -> Result<AppendRequest, Status> {
        let ack_mode = messages::ack_mode_from_proto(&message);
        let matched = message.matched.map(LogId::from);
        let held = self.append_capacity.reserve_append(&message)?;
        let mut request =
            messages::append_from_proto(message, self.member.identity.votes_of(sender))?;
        if request.vote.leader_id.voted_for != sender {
            return Err(Malformed("an append in the name of another member").into());
        }
        self.takes_appends(sender, &request.vote)?;
        self.check_acked_entry(sender, &request.vote, matched)?;
        self.refuse_contradiction(&request)?;
        self.ack_modes.follow(ack_mode);
        for entry in &mut request.entries {
            entry.held.clone_from(&held);
        }
        Ok(request)
    }

    /// Serves an append stream. The answers end at the first one that is not a match.
    pub(super) fn append_stream(&self, remote: Remote, requests: Requests) -> Answers {
        // Why the stream of requests ended early, and who sends them. The requests set both, and
        // the answers read them.
        let refusal = Arc::new(Mutex::new(None::<Status>));
        let sender = Arc::new(Mutex::new(None::<NodeId>));
        // Until the first one is answered: then this member is not blank any more.
        let kept = Arc::new(Mutex::new(None));
        let requests = {
            let (service, refusal, sender) = (self.clone(), refusal.clone(), sender.clone());
            let kept = kept.clone();
            requests.scan((), move |_, message| {
                let taken = message.and_then(|message| {
                    let known = *sender.lock();
                    let from = match known {
                        Some(from) => from,
                        None => {
                            let identity = &service.member.identity;
                            *kept.lock() = Some(identity.keep_generation()?);
                            identity.sender_of_request(&remote, message.envelope.as_ref())?
                        }
                    };
                    let request = service.append_request(from, message)?;
                    *sender.lock() = Some(from);
                    Ok(request)
                });
                ready(taken.map_err(|status| *refusal.lock() = Some(status)).ok())
            })
        };
        let service = self.clone();
        let answers =
            self.member.raft.stream_append(requests).enumerate().map(move |(number, result)| {
                let receiver = if number == 0 { *sender.lock() } else { None };
                if number == 0 {
                    kept.lock().take();
                }
                append_response(
                    result,
                    receiver.and_then(|receiver| service.member.identity.to(receiver)),
                )
            });
        let ending = futures::stream::once(async move { refusal.lock().take() });
        let ending = ending.filter_map(|status| ready(status.map(Err)));
        answers.chain(ending).boxed()
    }

    pub(in crate::replica) async fn append_one(
        &self,
        remote: Remote,
        message: proto::AppendRequest,
    ) -> Answered<proto::AppendResponse> {
        let _kept = self.member.identity.keep_generation()?;
        let sender = self.member.identity.sender_of_request(&remote, message.envelope.as_ref())?;
        let request = self.append_request(sender, message)?;
        let one = futures::stream::once(ready(request));
        let mut answers = Box::pin(self.member.raft.stream_append(one));
        let answer = answers.next().await.ok_or_else(|| stopped("no answer to an append"))?;
        append_response(answer, self.member.identity.to(sender))
    }
}

fn append_response(
    result: Result<StreamAppendResult<TypeConfig>, Fatal<TypeConfig>>,
    envelope: Option<proto::Envelope>,
) -> Answered<proto::AppendResponse> {
    let kind = match result.map_err(stopped)? {
        Ok(matched) => {
            Kind::Matched(proto::Matched { log_id: matched.as_ref().map(convert::log_id_to_proto) })
        }
        Err(StreamAppendError::Conflict(previous)) => {
            Kind::Conflict(convert::log_id_to_proto(&previous))
        }
        Err(StreamAppendError::HigherVote(vote)) => {
            Kind::HigherVote(messages::vote_to_proto(&vote))
        }
    };
    Ok(proto::AppendResponse { envelope, kind: Some(kind) })
}
