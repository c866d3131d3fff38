//! The client side of the peer protocol: openraft's network.

use super::append::{self, InFlightAppends, Session};
use super::connection::{Client, rpc_error};
use super::duplicate::deliver_duplicate;
use super::identity::PeerIdentity;
use super::peer::{Peer, addresses};
use super::policy::SendPolicy;
use super::terms::Sender;
use super::{messages, sender};
use crate::core::ids::{MemberAddress, NodeId};
use crate::core::types::{AppendRequest, TypeConfig, Vote};
use crate::core::{convert, proto, runtime};
use crate::storage::state_machine::{PinnedSnapshot, Snapshot, SnapshotData};
use futures::Stream;
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{
    NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable,
};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesResponse, SnapshotResponse, StreamAppendError, StreamAppendResult,
    TransferLeaderError, TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{OptionalSend, RaftNetworkFactory, RaftNetworkV2};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tonic::Status;

/// The pause between attempts to open an append stream.
const REOPEN_INTERVAL: Duration = Duration::from_millis(50);

/// Connections to the other members, made on first use and shared by all that call the same member.
#[derive(Clone)]
pub(crate) struct Connections {
    identity: PeerIdentity,
    policy: Arc<dyn SendPolicy>,
    pinned: PinnedSnapshot,
    /// The configured address of each slot's member.
    configured: Arc<BTreeMap<u16, MemberAddress>>,
    /// The time limit for a follower's answer to an append.
    answer_timeout: Duration,
    peers: Arc<Mutex<BTreeMap<NodeId, (MemberAddress, Peer)>>>,
}

impl Connections {
    pub(crate) fn new(
        identity: PeerIdentity,
        policy: Arc<dyn SendPolicy>,
        pinned: PinnedSnapshot,
        configured: Arc<BTreeMap<u16, MemberAddress>>,
        answer_timeout: Duration,
    ) -> Connections {
        Connections { identity, policy, pinned, configured, answer_timeout, peers: Arc::default() }
    }

    fn network(&self, target: NodeId, address: &MemberAddress, pipelined: bool) -> PeerNetwork {
        let connect = || Peer::at(&addresses(&self.configured, target, address));
        let mut peers = self.peers.lock();
        let (known, peer) = peers.entry(target).or_insert_with(|| (address.clone(), connect()));
        if known != address {
            (*known, *peer) = (address.clone(), connect());
        }
        PeerNetwork {
            identity: self.identity.clone(),
            policy: self.policy.clone(),
            target,
            peer: peer.clone(),
            pipelined,
            not_before: None,
            answer_timeout: self.answer_timeout,
            pinned: self.pinned.clone(),
        }
    }
}

impl RaftNetworkFactory<TypeConfig> for Connections {
    type Network = PeerNetwork;

    async fn new_client(&mut self, target: NodeId, address: &MemberAddress) -> PeerNetwork {
        self.network(target, address, true)
    }

    async fn new_heartbeat_client(
        &mut self,
        target: NodeId,
        address: &MemberAddress,
    ) -> PeerNetwork {
        self.network(target, address, false)
    }
}

/// One user's connection to one member.
pub(crate) struct PeerNetwork {
    identity: PeerIdentity,
    policy: Arc<dyn SendPolicy>,
    target: NodeId,
    peer: Peer,
    /// Appends go through a stream; a heartbeat is a separate call.
    pipelined: bool,
    /// After a failure the next stream is not opened before this time.
    not_before: Option<runtime::Instant>,
    answer_timeout: Duration,
    pinned: PinnedSnapshot,
}

type Rpc<T> = Result<T, RPCError<TypeConfig>>;

impl PeerNetwork {
    fn votes(&self) -> Sender<'_> {
        self.identity.votes_of(self.target)
    }

    fn control(&self) -> Rpc<(usize, Client)> {
        self.peer.client(|route| &route.control)
    }

    fn bulk(&self) -> Rpc<(usize, Client)> {
        self.peer.client(|route| &route.bulk)
    }

    /// A unary call with a time limit; checks the identity of the member that answers.
    async fn call<T>(
        &self,
        action: openraft::RPCTypes,
        within: Duration,
        route: usize,
        call: impl Future<Output = Result<tonic::Response<T>, Status>> + Send,
        envelope: impl Fn(&T) -> Option<&proto::Envelope>,
    ) -> Rpc<T> {
        let answer = self.answer(action, within, call, envelope).await;
        if answer.is_err() {
            self.peer.failed(route);
        }
        answer
    }

    async fn answer<T>(
        &self,
        action: openraft::RPCTypes,
        within: Duration,
        call: impl Future<Output = Result<tonic::Response<T>, Status>> + Send,
        envelope: impl Fn(&T) -> Option<&proto::Envelope>,
    ) -> Rpc<T> {
        let Some(answer) = runtime::timeout(within, call).await else {
            let (id, target) = (self.identity.id(), self.target);
            return Err(Timeout { action, id, target, timeout: within }.into());
        };
        let answer = answer.map_err(|status| rpc_error(&status))?.into_inner();
        self.identity
            .check_answer(envelope(&answer), self.target)
            .map_err(|status| rpc_error(&status))?;
        Ok(answer)
    }

    /// A recovering member asks for no votes, except by an unsafe-recovery grant.
    fn may_campaign(&self) -> Rpc<()> {
        match self.policy.may_campaign(self.identity.id()) {
            true => Ok(()),
            false => {
                Err(Unreachable::from_string("this member is recovering, and asks for no votes")
                    .into())
            }
        }
    }

    async fn ask_for_vote(
        &self,
        rpc: VoteRequest<TypeConfig>,
        pre: bool,
        option: RPCOption,
    ) -> Rpc<VoteResponse<TypeConfig>> {
        self.may_campaign()?;
        let (route, mut client) = self.control()?;
        let request = proto::VoteRequest {
            envelope: self.identity.to(self.target),
            vote: Some(messages::vote_to_proto(&rpc.vote)),
            last_log_id: rpc.last_log_id.as_ref().map(convert::log_id_to_proto),
            leadership_transfer: rpc.leadership_transfer,
        };
        deliver_duplicate(
            &client,
            || request.clone(),
            move |mut client, request| async move {
                match pre {
                    true => client.pre_vote(request).await,
                    false => client.vote(request).await,
                }
            },
        );
        let call = async {
            match pre {
                true => client.pre_vote(request).await,
                false => client.vote(request).await,
            }
        };
        let answer = self
            .call(
                openraft::RPCTypes::Vote,
                option.hard_ttl(),
                route,
                call,
                |answer: &proto::VoteResponse| answer.envelope.as_ref(),
            )
            .await?;
        // Check again: the gate may have closed meanwhile, and openraft counts the votes that it
        // gets.
        self.may_campaign()?;
        Ok(VoteResponse::new(
            messages::vote_from_proto(answer.vote, self.votes())?,
            answer.last_log_id.map(convert::log_id_from_proto).transpose()?,
            answer.granted,
        ))
    }

    /// As [`PeerNetwork::try_open`], but waits after a failure, since openraft itself retries with
    /// every entry.
    async fn open<S>(&mut self, requests: S) -> Rpc<(usize, Session<S>)> {
        if let Some(at) = self.not_before.take() {
            let now = runtime::now();
            if at > now {
                runtime::sleep(at - now).await;
            }
        }
        let opened = self.try_open(requests).await;
        if opened.is_err() {
            self.not_before = Some(runtime::now() + REOPEN_INTERVAL);
        }
        let (before, node, target) = (
            self.peer.reachable.swap(opened.is_ok(), Ordering::Relaxed),
            self.identity.id(),
            self.target,
        );
        match &opened {
            Ok(_) if !before => tracing::info!(%node, %target, "a member is reachable again"),
            Err(error) if before => {
                tracing::warn!(%node, %target, %error, "a member is unreachable")
            }
            _ => {}
        }
        opened
    }

    async fn try_open<S>(&self, requests: S) -> Rpc<(usize, Session<S>)> {
        let (route, mut client) = self.bulk()?;
        let (outlet, stream) = append::outlet();
        let opened = runtime::timeout(self.answer_timeout, client.append(stream)).await;
        let answers = opened
            .unwrap_or_else(|| Err(Status::deadline_exceeded("the follower does not answer")))
            .inspect_err(|_| self.peer.failed(route))
            .map_err(|status| rpc_error(&status))?
            .into_inner();
        let session = Session {
            client,
            identity: self.identity.clone(),
            policy: self.policy.clone(),
            target: self.target,
            timeout: self.answer_timeout,
            requests: Some(requests),
            outlet: Some(outlet),
            answers,
            unanswered: InFlightAppends::default(),
            snapshots: self.peer.snapshots.clone(),
            empty: 0,
            first_sent: false,
            first_answered: false,
            since: runtime::now(),
        };
        Ok((route, session))
    }
}

impl RaftNetworkV2<TypeConfig> for PeerNetwork {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        rpc: AppendRequest,
        option: RPCOption,
    ) -> Rpc<AppendEntriesResponse<TypeConfig>> {
        let last = rpc.entries.last().map(|entry| entry.log_id).or(rpc.prev_log_id);
        let (route, mut client) = self.control()?;
        let ack_mode = self.policy.ack_mode(&rpc.vote);
        let matched = self.policy.acknowledged(self.target, &rpc.vote);
        let message = messages::append_to_proto(rpc, self.identity.to(self.target), ack_mode);
        let matched = matched.as_ref().map(convert::log_id_to_proto);
        let request = proto::AppendRequest { matched, ..message };
        deliver_duplicate(
            &client,
            || request.clone(),
            |mut client, request| async move { client.append_one(request).await },
        );
        let call = client.append_one(request);
        let answer = self
            .call(
                openraft::RPCTypes::AppendEntries,
                option.hard_ttl(),
                route,
                call,
                |answer: &proto::AppendResponse| answer.envelope.as_ref(),
            )
            .await?;
        Ok(match append::outcome(answer, self.votes())? {
            Ok(matched) if matched == last => AppendEntriesResponse::Success,
            Ok(matched) => AppendEntriesResponse::PartialSuccess(matched),
            // This answer may come after the follower has got more on its stream, and openraft
            // would take it for a reverted log. The stream detects a real conflict as well.
            Err(StreamAppendError::Conflict(_)) => {
                return Err(Unreachable::from_string(
                    "the follower lacks entries that it acknowledged",
                )
                .into());
            }
            Err(StreamAppendError::HigherVote(vote)) => AppendEntriesResponse::HigherVote(vote),
        })
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Rpc<BoxStream<'s, Rpc<StreamAppendResult<TypeConfig>>>>>
    where
        S: Stream<Item = AppendRequest> + OptionalSend + Unpin + 'static,
    {
        if !self.pipelined {
            return openraft::network::stream_append_sequential(self, input, option);
        }
        Box::pin(async move {
            let (route, session) = self.open(input).await?;
            let peer = &self.peer;
            let answers = futures::stream::unfold(Some(session), move |session| async move {
                let mut session = session?;
                let answer = session.next().await?.map_err(|status| rpc_error(&status));
                if answer.is_err() && !session.first_answered {
                    // Another node may listen there.
                    peer.failed(route);
                }
                // The stream ends with a conflict, a higher vote or a failure.
                let rest = matches!(&answer, Ok(Ok(_))).then_some(session);
                Some((answer, rest))
            });
            Ok(Box::pin(answers) as BoxStream<'s, _>)
        })
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Rpc<VoteResponse<TypeConfig>> {
        self.ask_for_vote(rpc, false, option).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Rpc<VoteResponse<TypeConfig>> {
        self.ask_for_vote(rpc, true, option).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let SnapshotData::Outgoing(outgoing) = snapshot.snapshot else {
            return Err(
                NetworkError::from_string("only a snapshot of this member can be sent").into()
            );
        };
        let transfer = sender::Transfer {
            client: self.bulk()?.1,
            identity: self.identity.clone(),
            target: self.target,
            vote,
            pinned: self.pinned.clone(),
            outgoing,
        };
        let _sending = self.peer.snapshots.begin();
        let (sent, cancelled) = (std::pin::pin!(transfer.run()), std::pin::pin!(cancel));
        match futures::future::select(sent, cancelled).await {
            futures::future::Either::Left((sent, _)) => sent,
            futures::future::Either::Right((closed, _)) => Err(closed.into()),
        }
    }

    async fn transfer_leader(
        &mut self,
        rpc: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Rpc<TransferLeaderResponse<TypeConfig>> {
        let (route, mut client) = self.control()?;
        let request = proto::TransferLeaderRequest {
            envelope: self.identity.to(self.target),
            from: Some(messages::vote_to_proto(rpc.from_leader())),
            to: rpc.to_node_id().as_u64(),
            last_log_id: rpc.last_log_id().map(convert::log_id_to_proto),
        };
        deliver_duplicate(
            &client,
            || request.clone(),
            |mut client, request| async move { client.transfer_leader(request).await },
        );
        let call = client.transfer_leader(request);
        let answer = self
            .call(
                openraft::RPCTypes::TransferLeader,
                option.hard_ttl(),
                route,
                call,
                |answer: &proto::TransferLeaderResponse| answer.envelope.as_ref(),
            )
            .await?;
        if let Some(actual) = answer.vote_changed {
            let actual = messages::vote_from_proto(Some(actual), self.votes())?;
            return Ok(Err(TransferLeaderError::VoteChanged {
                expected: *rpc.from_leader(),
                actual,
            }));
        }
        if let Some(actual) = answer.log_not_flushed {
            let actual = actual.log_id.map(convert::log_id_from_proto).transpose()?;
            return Ok(Err(TransferLeaderError::LogNotFlushed {
                expected: rpc.last_log_id().copied(),
                actual,
            }));
        }
        Ok(Ok(()))
    }
}
