//! The server side of the peer protocol.
//!
//! What holds here: openraft gets no message whose envelope does not name this member, and none
//! that it would take for a broken invariant; votes and appends ask what it may do.

use super::append_capacity::AppendCapacity;
use super::read_barrier::ReadBarrier;
use crate::core::boot::Boot;
use crate::core::error::Malformed;
use crate::core::ids::{GROUP, MemberAddress, NodeId};
use crate::core::proto::append_response::Kind;
use crate::core::proto::peer_server::Peer;
use crate::core::raft_metrics::with_metrics;
use crate::core::types::{AppendRequest, TypeConfig, Vote, engine_log_id};
use crate::core::{codec, convert, hooks, proto};
use crate::durability::{AckModes, Act, LocalMember, Refusal};
use crate::membership::Reconciler;
use crate::transport::generation::is_uninitialized;
use crate::transport::identity;
use crate::transport::receiver;
use crate::transport::{PendingJoin, StopVerdict, is_storable, messages};
use cairn_engine::LogId;
use cairn_tls::Remote;
use futures::future::ready;
use futures::{Stream, StreamExt};
use openraft::ServerState;
use openraft::errors::Fatal;
use openraft::raft::{
    StreamAppendError, StreamAppendResult, TransferLeaderError, TransferLeaderRequest, VoteRequest,
};
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tonic::{Request, Response, Status, Streaming};

/// Answers the other members. Made by [`Replica::peer_service`](crate::Replica::peer_service).
#[derive(Clone)]
pub struct PeerService {
    pub(super) member: Arc<LocalMember>,
    pub(super) ack_modes: Arc<AckModes>,
    pub(super) reconciler: Arc<Reconciler>,
    pub(super) append_capacity: Arc<AppendCapacity>,
    pub(super) barrier: ReadBarrier,
    /// A leader sent entries that contradict what was applied here. Set once, so that one line is
    /// logged.
    pub(super) contradicted: Arc<AtomicBool>,
}

/// The tonic service that answers the other members; add it to the server on the peer address.
pub type PeerServer = hooks::Served<PeerService>;

type Answered<T> = Result<Response<T>, Status>;
type AppendResponses = Pin<Box<dyn Stream<Item = Result<proto::AppendResponse, Status>> + Send>>;

fn stopped(fatal: impl std::fmt::Display) -> Status {
    Status::unavailable(format!("this member has stopped: {fatal}"))
}

/// Who sends a request, as the socket knows it, and the request.
fn from_remote<T>(request: Request<T>) -> (Remote, T) {
    let remote = request.extensions().get::<Remote>().cloned().unwrap_or_default();
    (remote, request.into_inner())
}

impl PeerService {
    fn own_vote(&self) -> Vote {
        with_metrics(&self.member.raft, |metrics| metrics.vote)
    }

    /// Which members may be stopped now, once a quorum has confirmed that this member leads.
    ///
    /// # Errors
    /// Why this member cannot tell.
    pub(super) async fn stop_verdicts(&self) -> Result<Vec<StopVerdict>, String> {
        self.barrier.wait().await.map_err(|error| error.to_string())?;
        let verdicts = self.reconciler.stop_verdicts().await;
        verdicts.ok_or_else(|| "this member does not lead any more".into())
    }

    /// The answer to a snapshot message of a deposed leader: this member's higher vote.
    fn overtaken(&self, vote: &Vote) -> Option<Vote> {
        Some(self.own_vote()).filter(|own| own > vote)
    }

    /// Asked before a vote is given and again before it is answered, since it may recover in between.
    fn may(&self, act: Act) -> Result<(), Status> {
        self.member.may(act).map_err(refused)
    }

    /// A recovering member takes entries only from a leader that agreed to help it.
    fn takes_appends(&self, leader: NodeId, vote: &Vote) -> Result<(), Status> {
        self.member.takes_appends(leader, *vote).map_err(refused)
    }

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
                if !self.contradicted.swap(true, Ordering::SeqCst) {
                    tracing::error!(node = %self.member.identity.id(), reason);
                }
                return Err(Status::failed_precondition(reason));
            }
        }
        Ok(())
    }

    /// An append that openraft may take. A member may append only in its own term.
    pub(super) fn append_request(
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

    /// Answers a request for a vote, or for a pre-vote, which changes nothing here.
    async fn answer_vote(
        &self,
        request: Request<proto::VoteRequest>,
        pre: bool,
    ) -> Answered<proto::VoteResponse> {
        let (remote, request) = from_remote(request);
        let LocalMember { identity, raft, .. } = &*self.member;
        let _kept = identity.keep_generation()?;
        let sender = identity.sender_of_request(&remote, request.envelope.as_ref())?;
        let epoch = identity::epoch_of(request.envelope.as_ref());
        let act = Act::Vote { candidate: sender, epoch };
        self.may(act)?;
        let vote = messages::vote_from_proto(request.vote, identity.votes_of(sender))?;
        if vote.leader_id.voted_for != sender || vote.is_committed() {
            return Err(Malformed("a vote for a node other than its sender").into());
        }
        let last = request.last_log_id.map(convert::log_id_from_proto).transpose()?;
        let mut rpc = VoteRequest::new(vote, last);
        rpc.leadership_transfer = request.leadership_transfer;
        let answer = match pre {
            true => raft.pre_vote(rpc).await,
            false => raft.vote(rpc).await,
        };
        let answer = answer.map_err(stopped)?;
        self.may(act)?;
        Ok(Response::new(proto::VoteResponse {
            envelope: identity.to(sender),
            vote: Some(messages::vote_to_proto(&answer.vote)),
            granted: answer.vote_granted,
            last_log_id: answer.last_log_id.as_ref().map(convert::log_id_to_proto),
        }))
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
}

fn contact((member, peer_address): (NodeId, String)) -> proto::Contact {
    proto::Contact { node_id: member.as_u64(), peer_address }
}

fn append_response(
    result: Result<StreamAppendResult<TypeConfig>, Fatal<TypeConfig>>,
    envelope: Option<proto::Envelope>,
) -> Result<proto::AppendResponse, Status> {
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

fn refused(refusal: Refusal) -> Status {
    Status::failed_precondition(refusal.to_string())
}

#[tonic::async_trait]
impl Peer for PeerService {
    async fn hello(&self, request: Request<proto::HelloRequest>) -> Answered<proto::HelloResponse> {
        let (remote, request) = from_remote(request);
        let identity = &self.member.identity;
        let uninitialized = is_uninitialized(&self.member.engine) && self.may(Act::Vouch).is_ok();
        // Nothing of it is recorded.
        if let Some(envelope) = identity.told_other_generation(&remote, request.envelope.as_ref()) {
            let envelope = Some(envelope);
            let answer = proto::HelloResponse { envelope, uninitialized, ..Default::default() };
            return Ok(Response::new(answer));
        }
        let sender =
            identity.sender_of_hello(&remote, request.envelope.as_ref(), request.receiver_slot)?;
        let former = self.member.config.initial_members.keys().next().copied();
        identity.formation.heard(sender, former, &request.waiting_for);
        let epoch = identity::epoch_of(request.envelope.as_ref());
        let announced =
            MemberAddress { peer: request.peer_address, client: request.client_address };
        let addresses = &self.member.addresses;
        addresses.announced(sender, epoch, announced);
        let replaceable_voter = self.reconciler.replaceable_voter(sender).map_or(0, NodeId::as_u64);
        let last_log_id = self.member.engine.log_bounds(GROUP).last.map(proto::LogId::from);
        Ok(Response::new(proto::HelloResponse {
            envelope: identity.to(sender),
            uninitialized,
            replaceable_voter,
            last_log_id,
            peer_address: addresses.advertised().peer.clone(),
            client_address: addresses.advertised().client.clone(),
            contacts: addresses.others().into_iter().map(contact).collect(),
            mode: codec::mode_to_number(self.member.modes.binding()),
            unsynced_acks: self.member.engine.status().unsynced_acks,
            recovering: self.member.may(Act::Vouch).is_err(),
            stopping: self.member.standing().leaves(),
            // The last: a member that begins to recover meanwhile must not say that it may lead.
            may_lead: self.member.is_fit_to_lead().is_ok(),
        }))
    }

    type AppendStream = AppendResponses;

    async fn append(
        &self,
        request: Request<Streaming<proto::AppendRequest>>,
    ) -> Answered<AppendResponses> {
        let (remote, messages) = from_remote(request);
        // Why the stream of requests ended early, and who sends them. The requests set both, and
        // the answers read them.
        let refusal = Arc::new(Mutex::new(None::<Status>));
        let sender = Arc::new(Mutex::new(None::<NodeId>));
        // Until the first one is answered: then this member is not blank any more.
        let kept = Arc::new(Mutex::new(None));
        let requests = {
            let (service, refusal, sender) = (self.clone(), refusal.clone(), sender.clone());
            let kept = kept.clone();
            messages.scan((), move |_, message| {
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
        Ok(Response::new(Box::pin(answers.chain(ending))))
    }

    async fn append_one(
        &self,
        request: Request<proto::AppendRequest>,
    ) -> Answered<proto::AppendResponse> {
        let (remote, message) = from_remote(request);
        let _kept = self.member.identity.keep_generation()?;
        let sender = self.member.identity.sender_of_request(&remote, message.envelope.as_ref())?;
        let request = self.append_request(sender, message)?;
        let one = futures::stream::once(ready(request));
        let mut answers = Box::pin(self.member.raft.stream_append(one));
        let answer = answers.next().await.ok_or_else(|| stopped("no answer to an append"))?;
        append_response(answer, self.member.identity.to(sender)).map(Response::new)
    }

    async fn vote(&self, request: Request<proto::VoteRequest>) -> Answered<proto::VoteResponse> {
        self.answer_vote(request, false).await
    }

    async fn pre_vote(
        &self,
        request: Request<proto::VoteRequest>,
    ) -> Answered<proto::VoteResponse> {
        self.answer_vote(request, true).await
    }

    async fn snapshot_offset(
        &self,
        request: Request<proto::SnapshotOffsetRequest>,
    ) -> Answered<proto::SnapshotOffsetResponse> {
        let (remote, request) = from_remote(request);
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
                match self.member.receiver.offset(last).await? {
                    None => answer.already_applied = true,
                    Some(last_key) => answer.last_key = last_key,
                }
                answer.applied = self.member.engine.applied(GROUP).map(proto::LogId::from);
                vote
            }
        };
        answer.vote = Some(messages::vote_to_proto(&own));
        Ok(Response::new(answer))
    }

    async fn snapshot_chunk(
        &self,
        request: Request<proto::SnapshotChunkRequest>,
    ) -> Answered<proto::SnapshotChunkResponse> {
        let (remote, request) = from_remote(request);
        let (sender, vote) =
            self.snapshot_sender(&remote, request.envelope.as_ref(), request.vote)?;
        let last = request.last_log_id.ok_or(Malformed("no snapshot named"))?.into();
        let (own, (last_key, missing)) = match self.overtaken(&vote) {
            Some(higher) => (higher, Default::default()),
            None => (vote, self.member.receiver.chunk(last, request.after, request.items).await?),
        };
        Ok(Response::new(proto::SnapshotChunkResponse {
            envelope: self.member.identity.to(sender),
            vote: Some(messages::vote_to_proto(&own)),
            last_key,
            missing,
        }))
    }

    async fn snapshot_finish(
        &self,
        request: Request<proto::SnapshotFinishRequest>,
    ) -> Answered<proto::SnapshotFinishResponse> {
        let (remote, request) = from_remote(request);
        let _kept = self.member.identity.keep_generation()?;
        let (sender, vote) =
            self.snapshot_sender(&remote, request.envelope.as_ref(), request.vote)?;
        let (last, meta) = receiver::named(request.meta, &vote)?;
        let own = match self.overtaken(&vote) {
            Some(higher) => higher,
            None => {
                match self
                    .member
                    .receiver
                    .finish(last, meta, request.last_key, request.machine)
                    .await?
                {
                    None => vote,
                    Some(snapshot) => {
                        tracing::info!(node = %self.member.identity.id(), %last, from = %sender, "installing a snapshot");
                        let installed = self.member.raft.install_full_snapshot(vote, snapshot);
                        installed.await.map_err(stopped)?.vote
                    }
                }
            }
        };
        Ok(Response::new(proto::SnapshotFinishResponse {
            envelope: self.member.identity.to(sender),
            vote: Some(messages::vote_to_proto(&own)),
        }))
    }

    async fn transfer_leader(
        &self,
        request: Request<proto::TransferLeaderRequest>,
    ) -> Answered<proto::TransferLeaderResponse> {
        let (remote, request) = from_remote(request);
        let sender = self.member.identity.sender_of_request(&remote, request.envelope.as_ref())?;
        self.member.is_fit_to_lead().map_err(Status::failed_precondition)?;
        let from = messages::vote_from_proto(request.from, self.member.identity.votes_of(sender))?;
        if from.leader_id.voted_for != sender {
            return Err(Malformed("a transfer in the name of another member").into());
        }
        let last = request.last_log_id.map(convert::log_id_from_proto).transpose()?;
        let rpc = TransferLeaderRequest::new(from, NodeId::from_u64(request.to), last);
        let mut answer = proto::TransferLeaderResponse {
            envelope: self.member.identity.to(sender),
            ..Default::default()
        };
        match self.member.raft.handle_transfer_leader(rpc).await.map_err(stopped)? {
            Ok(()) => {}
            Err(TransferLeaderError::VoteChanged { actual, .. }) => {
                answer.vote_changed = Some(messages::vote_to_proto(&actual));
            }
            Err(TransferLeaderError::LogNotFlushed { actual, .. }) => {
                let log_id = actual.as_ref().map(convert::log_id_to_proto);
                answer.log_not_flushed = Some(proto::Matched { log_id });
            }
        }
        Ok(Response::new(answer))
    }

    /// Leader only: lets the sender's log revert, and proposes its boot-epoch record.
    async fn recover(
        &self,
        request: Request<proto::RecoverRequest>,
    ) -> Answered<proto::RecoverResponse> {
        let (remote, request) = from_remote(request);
        let sender = self.member.identity.sender_of_request(&remote, request.envelope.as_ref())?;
        let boot =
            request.envelope.as_ref().map(Boot::announced).ok_or(Malformed("no envelope"))?;
        let LocalMember { identity, raft, records, .. } = &*self.member;
        let (vote, leads) = with_metrics(raft, |metrics| {
            (metrics.vote, metrics.state == ServerState::Leader && metrics.vote.is_committed())
        });
        if !leads {
            return Err(Status::failed_precondition("this member does not lead"));
        }
        let allowed = raft.trigger().allow_next_revert(&sender, true).await.map_err(stopped)?;
        allowed.map_err(|error| Status::failed_precondition(error.to_string()))?;
        self.ack_modes.recovering(sender, boot.epoch);
        let loggable = identity.identities.loggable(&boot);
        records.propose(vote, sender, loggable, request.unsafe_recovery);
        tracing::info!(node = %identity.id(), member = %sender, "helping a member recover; its boot-epoch record will be proposed");
        Ok(Response::new(proto::RecoverResponse {
            envelope: identity.to(sender),
            vote: Some(messages::vote_to_proto(&vote)),
        }))
    }

    async fn safe_to_stop(
        &self,
        request: Request<proto::SafeToStopRequest>,
    ) -> Answered<proto::SafeToStopResponse> {
        let (remote, request) = from_remote(request);
        let sender = self.member.identity.sender_of_request(&remote, request.envelope.as_ref())?;
        let verdicts = self.stop_verdicts().await.map_err(Status::failed_precondition)?;
        let verdict = |verdict: StopVerdict| proto::StopVerdict {
            node_id: verdict.member.as_u64(),
            obstacles: verdict.obstacles,
        };
        Ok(Response::new(proto::SafeToStopResponse {
            envelope: self.member.identity.to(sender),
            verdicts: verdicts.into_iter().map(verdict).collect(),
        }))
    }

    async fn join(&self, request: Request<proto::JoinRequest>) -> Answered<proto::JoinResponse> {
        let (remote, request) = from_remote(request);
        let sender = self.member.identity.sender_of_request(&remote, request.envelope.as_ref())?;
        let address = MemberAddress { peer: request.peer_address, client: request.client_address };
        if !is_storable(&address) {
            return Err(Malformed("an address that is empty or too long").into());
        }
        let pending_join = PendingJoin { id: sender, address, active: request.active };
        let voter = self.reconciler.apply(pending_join).map_err(Status::failed_precondition)?;
        Ok(Response::new(proto::JoinResponse { envelope: self.member.identity.to(sender), voter }))
    }

    async fn fetch_value(
        &self,
        request: Request<proto::FetchValueRequest>,
    ) -> Answered<proto::FetchValueResponse> {
        let (remote, request) = from_remote(request);
        let sender = self.member.identity.sender_of_request(&remote, request.envelope.as_ref())?;
        let log_id = request.log_id.ok_or(Malformed("no entry named"))?.into();
        let hash: Option<[u8; 16]> = request.hash.as_ref().try_into().ok();
        let hash = hash.map(u128::from_le_bytes).ok_or(Malformed("not a hash"))?;
        let value =
            self.member.engine.find_value(GROUP, log_id, &request.key, request.length, hash).await;
        Ok(Response::new(proto::FetchValueResponse {
            envelope: self.member.identity.to(sender),
            found: value.is_some(),
            value: value.unwrap_or_default(),
        }))
    }
}
