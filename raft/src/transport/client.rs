//! The client side of the peer protocol: openraft's network.

use super::addresses::Addresses;
use super::append::{self, InFlightAppends, Session};
use super::connection::rpc_error;
use super::identity::{Enveloped, PeerIdentity};
use super::link::{Link, suspended};
use super::peer::Peer;
use super::policy::SendPolicy;
use super::wire::{Message, Method, methods};
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
use openraft::{OptionalSend, RPCTypes, RaftNetworkFactory, RaftNetworkV2};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The pause between attempts to open an append stream.
const REOPEN_INTERVAL: Duration = Duration::from_millis(50);

/// Connections to the other members, made on first use and shared by all that call the same member.
pub(crate) struct Connections {
    identity: PeerIdentity,
    policy: Arc<dyn SendPolicy>,
    pinned: PinnedSnapshot,
    addresses: Addresses,
    /// The time limit for a follower's answer to an append.
    answer_timeout: Duration,
    /// The time limit for an answer to a heartbeat: the next one is due then.
    heartbeat: Duration,
    peers: BTreeMap<NodeId, Peer>,
}

impl Connections {
    pub(crate) fn new(
        identity: PeerIdentity,
        policy: Arc<dyn SendPolicy>,
        pinned: PinnedSnapshot,
        addresses: Addresses,
        [answer_timeout, heartbeat]: [Duration; 2],
    ) -> Connections {
        let peers = BTreeMap::new();
        Connections { identity, policy, pinned, addresses, answer_timeout, heartbeat, peers }
    }

    fn network(&mut self, target: NodeId, address: &MemberAddress, pipelined: bool) -> PeerNetwork {
        let new = || {
            let tls = self.identity.tls().cloned();
            Peer::new(target, tls, address.clone(), self.addresses.clone())
        };
        let peer = self.peers.entry(target).or_insert_with(new);
        peer.given(address);
        let link = Link {
            identity: self.identity.clone(),
            policy: self.policy.clone(),
            pinned: self.pinned.clone(),
            target,
            peer: peer.clone(),
            answer_timeout: self.answer_timeout,
            heartbeat: self.heartbeat,
        };
        PeerNetwork { link: Arc::new(link), pipelined, not_before: None }
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
    link: Arc<Link>,
    /// Appends go through a stream; a heartbeat is a separate call.
    pipelined: bool,
    /// After a failure the next stream is not opened before this time.
    not_before: Option<runtime::Instant>,
}

type Rpc<T> = Result<T, RPCError<TypeConfig>>;

impl PeerNetwork {
    /// This route does not reach the member. openraft itself retries with every entry.
    fn failed(&mut self, route: u64) {
        self.not_before = Some(runtime::now() + REOPEN_INTERVAL);
        self.link.peer.failed(route);
    }

    /// A unary call with a time limit; checks the identity of the member that answers.
    async fn call<Q: Message + Clone, A: Message + Enveloped>(
        &self,
        action: RPCTypes,
        option: RPCOption,
        method: Method<Q, A>,
        request: Q,
    ) -> Rpc<A> {
        let Link { identity, target, peer, .. } = &*self.link;
        let (route, client) = peer.client(|route| &route.control)?;
        let timeout = option.hard_ttl();
        let answer = runtime::timeout(timeout, self.link.ask(&client, method, request)).await;
        let late = || Timeout { action, id: identity.id(), target: *target, timeout }.into();
        let answer = answer.map_or_else(|| Err(late()), |answer| answer.map_err(rpc_error));
        if answer.is_err() {
            peer.failed(route);
        }
        answer
    }

    fn may_ask_for_votes(&self) -> Rpc<()> {
        let may = self.link.policy.may_ask_for_votes();
        may.map_err(|refusal| Unreachable::from_string(refusal).into())
    }

    /// In place of a heartbeat of a suspended leader: asks whether the member is there, which keeps
    /// it from no vote. What openraft gets is a failure.
    async fn ask_whether_there(&self, option: RPCOption) -> RPCError<TypeConfig> {
        let Link { target, policy, .. } = &*self.link;
        let request = proto::HelloRequest {
            envelope: self.link.envelope(),
            receiver_slot: target.slot().into(),
            ..Default::default()
        };
        match self.call(RPCTypes::AppendEntries, option, methods::HELLO, request).await {
            Ok(_) => {
                policy.is_there(*target);
                rpc_error(suspended())
            }
            Err(error) => error,
        }
    }

    async fn ask_for_vote(
        &self,
        rpc: VoteRequest<TypeConfig>,
        pre: bool,
        option: RPCOption,
    ) -> Rpc<VoteResponse<TypeConfig>> {
        self.may_ask_for_votes()?;
        let request = proto::VoteRequest {
            envelope: self.link.envelope(),
            vote: Some(messages::vote_to_proto(&rpc.vote)),
            last_log_id: rpc.last_log_id.as_ref().map(convert::log_id_to_proto),
            leadership_transfer: rpc.leadership_transfer,
        };
        let method = if pre { methods::PRE_VOTE } else { methods::VOTE };
        let asked = runtime::now();
        let answer = self.call(RPCTypes::Vote, option, method, request).await?;
        if pre {
            // Nothing is written before this answer.
            self.link.peer.answered_after(runtime::now() - asked, self.link.heartbeat);
        }
        // Check again: this member may recover meanwhile, and openraft counts the votes that it gets.
        self.may_ask_for_votes()?;
        Ok(VoteResponse::new(
            messages::vote_from_proto(answer.vote, self.link.votes())?,
            answer.last_log_id.map(convert::log_id_from_proto).transpose()?,
            answer.granted,
        ))
    }

    /// As [`PeerNetwork::try_open`], but waits after a failure, since openraft itself retries with
    /// every entry.
    async fn open<S>(&mut self, requests: S) -> Rpc<(u64, Session<S>)> {
        if let Some(at) = self.not_before.take() {
            let now = runtime::now();
            if at > now {
                runtime::sleep(at - now).await;
            }
        }
        if let Err(status) = self.link.check_leading() {
            self.not_before = Some(runtime::now() + REOPEN_INTERVAL);
            return Err(rpc_error(status));
        }
        let opened = self.try_open(requests).await;
        if opened.is_err() {
            self.not_before = Some(runtime::now() + REOPEN_INTERVAL);
        }
        let Link { identity, target, peer, .. } = &*self.link;
        let (before, node) =
            (peer.reachable.swap(opened.is_ok(), Ordering::Relaxed), identity.id());
        match &opened {
            Ok(_) if !before => tracing::info!(%node, %target, "a member is reachable again"),
            Err(error) if before => {
                tracing::warn!(%node, %target, %error, "a member is unreachable")
            }
            _ => {}
        }
        opened
    }

    async fn try_open<S>(&self, requests: S) -> Rpc<(u64, Session<S>)> {
        let (route, client) = self.link.peer.client(|route| &route.entries)?;
        let opened = client.append(append::WINDOW).await;
        let stream = opened.inspect_err(|_| self.link.peer.failed(route)).map_err(rpc_error)?;
        let session = Session {
            link: self.link.clone(),
            client,
            requests: Some(requests),
            stream,
            unanswered: InFlightAppends::default(),
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
        if self.link.policy.is_suspended() {
            return Err(self.ask_whether_there(option).await);
        }
        let last = rpc.entries.last().map(|entry| entry.log_id).or(rpc.prev_log_id);
        let request = self.link.append(rpc, false);
        let method = methods::APPEND_ONE;
        let answer = self.call(RPCTypes::AppendEntries, option, method, request).await?;
        Ok(match append::outcome(answer, self.link.votes())? {
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
            let state = (self, Some(session));
            let answers = futures::stream::unfold(state, move |(network, session)| async move {
                let mut session = session?;
                let answer = session.next().await?.map_err(rpc_error);
                if answer.is_err() && !session.first_answered {
                    // Another node may listen there.
                    network.failed(route);
                }
                // The stream ends with a conflict, a higher vote or a failure.
                let rest = matches!(&answer, Ok(Ok(_))).then_some(session);
                Some((answer, (network, rest)))
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
        self.link.check_leading().map_err(rpc_error)?;
        let (_, client) = self.link.peer.client(|route| &route.snapshots)?;
        let transfer = sender::Transfer { link: self.link.clone(), client, vote, outgoing };
        let _sending = self.link.peer.snapshots.begin();
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
        let request = proto::TransferLeaderRequest {
            envelope: self.link.envelope(),
            from: Some(messages::vote_to_proto(rpc.from_leader())),
            to: rpc.to_node_id().as_u64(),
            last_log_id: rpc.last_log_id().map(convert::log_id_to_proto),
        };
        let method = methods::TRANSFER_LEADER;
        let answer = self.call(RPCTypes::TransferLeader, option, method, request).await?;
        if let Some(actual) = answer.vote_changed {
            let actual = messages::vote_from_proto(Some(actual), self.link.votes())?;
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
