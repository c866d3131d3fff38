//! The server side of the peer protocol.
//!
//! What holds here: openraft gets no message whose envelope does not name this member, and none
//! that it would take for a broken invariant; votes and appends ask what it may do.

use super::append_capacity::AppendCapacity;
use super::read_barrier::ReadBarrier;
use super::surveys::Surveys;
use crate::core::boot::Boot;
use crate::core::error::{Malformed, ReadError};
use crate::core::ids::{GROUP, MemberAddress, NodeId};
use crate::core::proto::append_response::Kind;
use crate::core::raft_metrics::with_metrics;
use crate::core::types::{AppendRequest, TypeConfig, Vote, engine_log_id};
use crate::core::{codec, convert, proto};
use crate::durability::{AckModes, Act, LocalMember, Refusal};
use crate::membership::Reconciler;
use crate::transport::generation::is_uninitialized;
use crate::transport::identity;
use crate::transport::receiver;
use crate::transport::wire::server::{self, Answers, Requests, Served, served};
use crate::transport::wire::{PREFACE, Packed, methods};
use crate::transport::{PendingJoin, StopVerdict, Throttle, is_storable, messages};
use cairn_engine::LogId;
use cairn_tls::Remote;
use futures::future::{Either, ready, select};
use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt};
use openraft::ServerState;
use openraft::errors::Fatal;
use openraft::raft::{
    StreamAppendError, StreamAppendResult, TransferLeaderError, TransferLeaderRequest, VoteRequest,
};
use parking_lot::Mutex;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::Status;

/// Answers the other members. Made by [`Replica::peer_service`](crate::Replica::peer_service).
#[derive(Clone)]
pub struct PeerService {
    pub(super) member: Arc<LocalMember>,
    pub(super) ack_modes: Arc<AckModes>,
    pub(super) reconciler: Arc<Reconciler>,
    pub(super) append_capacity: Arc<AppendCapacity>,
    pub(super) barrier: ReadBarrier,
    /// Leader only, for callers here and at the other members.
    pub(super) surveys: Surveys,
    /// A leader sent entries that contradict what was applied here. Set once, so that one line is
    /// logged.
    pub(super) contradicted: Arc<AtomicBool>,
    /// Requests by method, in the order of [`methods::NAMES`].
    pub(super) requests: Arc<[AtomicU64; methods::NAMES.len()]>,
}

type Answered<T> = Result<T, Status>;

fn stopped(fatal: impl std::fmt::Display) -> Status {
    Status::unavailable(format!("this member has stopped: {fatal}"))
}

impl PeerService {
    fn own_vote(&self) -> Vote {
        with_metrics(&self.member.raft, |metrics| metrics.vote)
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
        remote: Remote,
        request: proto::VoteRequest,
        pre: bool,
    ) -> Answered<proto::VoteResponse> {
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
        Ok(proto::VoteResponse {
            envelope: identity.to(sender),
            vote: Some(messages::vote_to_proto(&answer.vote)),
            granted: answer.vote_granted,
            last_log_id: answer.last_log_id.as_ref().map(convert::log_id_to_proto),
        })
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

fn refused(refusal: Refusal) -> Status {
    Status::failed_precondition(refusal.to_string())
}

impl PeerService {
    pub(super) async fn hello(
        &self,
        remote: Remote,
        request: proto::HelloRequest,
    ) -> Answered<proto::HelloResponse> {
        let identity = &self.member.identity;
        let uninitialized = is_uninitialized(&self.member.engine) && self.may(Act::Vouch).is_ok();
        // Nothing of it is recorded, but that a blank member forms no cluster beside that one.
        if let Some(envelope) = identity.told_other_generation(&remote, request.envelope.as_ref()) {
            if uninitialized && identity.is_of_formed(&remote, request.envelope.as_ref()) {
                let sender = request.envelope.map_or(0, |envelope| envelope.sender);
                identity
                    .formation
                    .heard_of_formed(NodeId::from_u64(sender), "looks for members here");
            }
            let envelope = Some(envelope);
            let answer = proto::HelloResponse { envelope, uninitialized, ..Default::default() };
            return Ok(answer);
        }
        let sender =
            identity.sender_of_hello(&remote, request.envelope.as_ref(), request.receiver_slot)?;
        if uninitialized {
            let former = self.member.config.initial_members.keys().next().copied();
            let heard = identity.formation.heard(sender, former, &request.waiting_for);
            heard.map_err(Status::failed_precondition)?;
        }
        let epoch = identity::epoch_of(request.envelope.as_ref());
        let announced =
            MemberAddress { peer: request.peer_address, client: request.client_address };
        let addresses = &self.member.addresses;
        addresses.announced(sender, epoch, announced);
        let replaceable_voter = self.reconciler.replaceable_voter(sender).map_or(0, NodeId::as_u64);
        let last_log_id = self.member.engine.log_bounds(GROUP).last.map(proto::LogId::from);
        Ok(proto::HelloResponse {
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
        })
    }

    /// Serves an append stream. The answers end at the first one that is not a match.
    fn append_stream(&self, remote: Remote, requests: Requests) -> Answers {
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

    pub(super) async fn append_one(
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

    pub(super) async fn vote(
        &self,
        remote: Remote,
        request: proto::VoteRequest,
    ) -> Answered<proto::VoteResponse> {
        self.answer_vote(remote, request, false).await
    }

    pub(super) async fn pre_vote(
        &self,
        remote: Remote,
        request: proto::VoteRequest,
    ) -> Answered<proto::VoteResponse> {
        self.answer_vote(remote, request, true).await
    }

    pub(super) async fn snapshot_offset(
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
                match self.member.receiver.offset(last).await? {
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

    pub(super) async fn snapshot_chunk(
        &self,
        remote: Remote,
        request: proto::SnapshotChunkRequest,
    ) -> Answered<proto::SnapshotChunkResponse> {
        let (sender, vote) =
            self.snapshot_sender(&remote, request.envelope.as_ref(), request.vote)?;
        let last = request.last_log_id.ok_or(Malformed("no snapshot named"))?.into();
        let (own, (last_key, missing)) = match self.overtaken(&vote) {
            Some(higher) => (higher, Default::default()),
            None => (vote, self.member.receiver.chunk(last, request.after, request.items).await?),
        };
        Ok(proto::SnapshotChunkResponse {
            envelope: self.member.identity.to(sender),
            vote: Some(messages::vote_to_proto(&own)),
            last_key,
            missing,
        })
    }

    pub(super) async fn snapshot_finish(
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
        Ok(proto::SnapshotFinishResponse {
            envelope: self.member.identity.to(sender),
            vote: Some(messages::vote_to_proto(&own)),
        })
    }

    pub(super) async fn transfer_leader(
        &self,
        remote: Remote,
        request: proto::TransferLeaderRequest,
    ) -> Answered<proto::TransferLeaderResponse> {
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
        Ok(answer)
    }

    /// Leader only: lets the sender's log revert, and proposes its boot-epoch record.
    pub(super) async fn recover(
        &self,
        remote: Remote,
        request: proto::RecoverRequest,
    ) -> Answered<proto::RecoverResponse> {
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
        Ok(proto::RecoverResponse {
            envelope: identity.to(sender),
            vote: Some(messages::vote_to_proto(&vote)),
        })
    }

    pub(super) async fn safe_to_stop(
        &self,
        remote: Remote,
        request: proto::SafeToStopRequest,
    ) -> Answered<proto::SafeToStopResponse> {
        let sender = self.member.identity.sender_of_request(&remote, request.envelope.as_ref())?;
        let verdicts = self.surveys.answer().await.map_err(Status::failed_precondition)?;
        let verdict = |verdict: StopVerdict| proto::StopVerdict {
            node_id: verdict.member.as_u64(),
            obstacles: verdict.obstacles,
        };
        Ok(proto::SafeToStopResponse {
            envelope: self.member.identity.to(sender),
            verdicts: verdicts.into_iter().map(verdict).collect(),
        })
    }

    /// Leader only: the barrier of a member that does not lead fails.
    pub(super) async fn read_index(
        &self,
        remote: Remote,
        request: proto::ReadIndexRequest,
    ) -> Answered<proto::ReadIndexResponse> {
        let sender = self.member.identity.sender_of_request(&remote, request.envelope.as_ref())?;
        let suspended = pin!(self.member.check_quorum.until_suspended());
        let read = match select(suspended, pin!(self.barrier.wait())).await {
            Either::Left(_) => Err(ReadError::NoLeader),
            Either::Right((read, _)) => read,
        };
        let read = read.map_err(|error| Status::failed_precondition(error.to_string()))?;
        let log_id = Some(read.into());
        Ok(proto::ReadIndexResponse { envelope: self.member.identity.to(sender), log_id })
    }

    pub(super) async fn join(
        &self,
        remote: Remote,
        request: proto::JoinRequest,
    ) -> Answered<proto::JoinResponse> {
        let sender = self.member.identity.sender_of_request(&remote, request.envelope.as_ref())?;
        let address = MemberAddress { peer: request.peer_address, client: request.client_address };
        if !is_storable(&address) {
            return Err(Malformed("an address that is empty or too long").into());
        }
        let pending_join = PendingJoin { id: sender, address, active: request.active };
        let voter = self.reconciler.apply(pending_join).map_err(Status::failed_precondition)?;
        Ok(proto::JoinResponse { envelope: self.member.identity.to(sender), voter })
    }

    pub(super) async fn fetch_value(
        &self,
        remote: Remote,
        request: proto::FetchValueRequest,
    ) -> Answered<proto::FetchValueResponse> {
        let sender = self.member.identity.sender_of_request(&remote, request.envelope.as_ref())?;
        let log_id = request.log_id.ok_or(Malformed("no entry named"))?.into();
        let hash: Option<[u8; 16]> = request.hash.as_ref().try_into().ok();
        let hash = hash.map(u128::from_le_bytes).ok_or(Malformed("not a hash"))?;
        let value =
            self.member.engine.find_value(GROUP, log_id, &request.key, request.length, hash).await;
        Ok(proto::FetchValueResponse {
            envelope: self.member.identity.to(sender),
            found: value.is_some(),
            value: value.unwrap_or_default(),
        })
    }
}

/// The service on one connection.
struct Connected {
    service: PeerService,
    remote: Remote,
}

impl PeerService {
    /// Whoever connects sends so many bytes at once, before it waits for anything.
    pub const FIRST_BYTES: usize = PREFACE.len();

    /// Answers the members that connect. Dropping it ends their connections, and what is being served.
    pub async fn serve<S>(self, connections: impl Stream<Item = (S, Remote)>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let mut connections = pin!(connections);
        let (mut serving, protocol) = (FuturesUnordered::new(), Throttle::default());
        let room = server::Room::default();
        loop {
            let next = match serving.is_empty() {
                true => Either::Left(connections.next().await),
                false => match select(connections.next(), serving.next()).await {
                    Either::Left((connection, _)) => Either::Left(connection),
                    Either::Right((ended, _)) => Either::Right(ended),
                },
            };
            match next {
                Either::Left(Some((stream, remote))) => {
                    let connected = Connected { service: self.clone(), remote: remote.clone() };
                    let served = server::serve(stream, connected, room.clone());
                    let serve = async move { (served.await, remote) };
                    serving.push(Box::pin(serve));
                }
                Either::Left(None) => return,
                Either::Right(Some((Err(error), remote))) => {
                    let from = remote.address.map(|address| address.to_string());
                    if error.kind() == std::io::ErrorKind::InvalidData && protocol.is_due() {
                        tracing::warn!(from, %error, "a connection to the peer address is closed");
                    } else {
                        tracing::debug!(from, %error, "a connection to the peer address ended");
                    }
                }
                Either::Right(_) => {}
            }
        }
    }

    /// How many requests of each method this member was asked.
    pub fn requests(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counted = methods::NAMES.iter().zip(&*self.requests);
        counted.map(|((_, name), count)| (*name, count.load(Ordering::Relaxed)))
    }

    fn count(&self, method: u8) {
        let place = methods::NAMES.iter().position(|(number, _)| *number == method);
        if let Some(count) = place.and_then(|place| self.requests.get(place)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

macro_rules! calls {
    ($connected:ident, $method:ident, $request:ident: $($name:ident => $serve:ident,)+) => {
        $(if $method == methods::$name.number() {
            let (service, remote) = ($connected.service.clone(), $connected.remote.clone());
            let serve = |request| async move { service.$serve(remote, request).await };
            return Ok(served(methods::$name, $request, serve));
        })+
    };
}

impl server::Service for Connected {
    fn call(&self, method: u8, request: Packed) -> Result<Served, Status> {
        self.service.count(method);
        calls! {
            self, method, request:
            HELLO => hello,
            APPEND_ONE => append_one,
            VOTE => vote,
            PRE_VOTE => pre_vote,
            SNAPSHOT_OFFSET => snapshot_offset,
            SNAPSHOT_CHUNK => snapshot_chunk,
            SNAPSHOT_FINISH => snapshot_finish,
            TRANSFER_LEADER => transfer_leader,
            RECOVER => recover,
            JOIN => join,
            FETCH_VALUE => fetch_value,
            SAFE_TO_STOP => safe_to_stop,
            READ_INDEX => read_index,
        }
        Err(Status::unimplemented(format!("this member knows no method {method}")))
    }

    fn append(&self, requests: Requests) -> Answers {
        self.service.count(methods::APPEND.number());
        self.service.append_stream(self.remote.clone(), requests)
    }
}
