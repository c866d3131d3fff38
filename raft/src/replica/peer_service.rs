//! The server side of the peer protocol.
//!
//! What holds here: openraft gets no message whose envelope does not name this member, and none
//! that it would take for a broken invariant; votes and appends ask what it may do.
//!
//! Messages come in over [`connections`]. Appends are in [`append`], a leader's snapshots in
//! [`snapshot`], all others here.

mod append;
mod connections;
mod snapshot;

use super::append_capacity::AppendCapacity;
use super::read_barrier::{NewestRound, ReadBarrier};
use super::surveys::Surveys;
use crate::core::boot::Boot;
use crate::core::error::{Malformed, ReadError};
use crate::core::ids::{GROUP, MemberAddress, NodeId};
use crate::core::raft_metrics::with_metrics;
use crate::core::types::Vote;
use crate::core::{codec, convert, proto};
use crate::durability::{AckModes, Act, LocalMember, Refusal};
use crate::membership::Reconciler;
use crate::storage::log_store::stored_vote;
use crate::transport::generation::is_uninitialized;
use crate::transport::wire::methods;
use crate::transport::{PendingJoin, StopVerdict, identity, is_storable, messages};
use cairn_tls::Remote;
use futures::future::{Either, select};
use openraft::ServerState;
use openraft::raft::{TransferLeaderError, TransferLeaderRequest, VoteRequest};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use tonic::Status;

/// Answers the other members. Made by [`Replica::peer_service`](crate::Replica::peer_service).
#[derive(Clone)]
pub struct PeerService {
    pub(super) member: Arc<LocalMember>,
    pub(super) ack_modes: Arc<AckModes>,
    pub(super) reconciler: Arc<Reconciler>,
    pub(super) append_capacity: Arc<AppendCapacity>,
    pub(super) barrier: ReadBarrier,
    /// Of both barriers. Forgotten where a leader contradicts what was applied here.
    pub(super) newest_round: NewestRound,
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
    /// The later one of what openraft says and of what is stored: openraft says nothing of it until its
    /// loop has begun.
    fn own_vote(&self) -> Vote {
        let said = with_metrics(&self.member.raft, |metrics| metrics.vote);
        let stored = stored_vote(&self.member.engine).ok().flatten();
        stored.filter(|stored| *stored > said).unwrap_or(said)
    }

    /// Asked before a vote is given and again before it is answered, since it may recover in between.
    fn may(&self, act: Act) -> Result<(), Status> {
        self.member.may(act).map_err(refused)
    }

    /// A recovering member takes entries only from a leader that agreed to help it.
    fn takes_appends(&self, leader: NodeId, vote: &Vote) -> Result<(), Status> {
        self.member.takes_appends(leader, *vote).map_err(refused)
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

fn contact((member, peer_address): (NodeId, String)) -> proto::Contact {
    proto::Contact { node_id: member.as_u64(), peer_address }
}

fn refused(refusal: Refusal) -> Status {
    Status::failed_precondition(refusal.to_string())
}
