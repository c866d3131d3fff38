//! A single replica: its answers to messages out of order, and what it withholds.

use super::*;
use crate::core::boot::Boot;
use crate::core::codec::{self, MAX_META_BYTES};
use crate::core::command::Command;
use crate::core::config::ReplicaConfig;
use crate::core::error::{ReadError, WriteError};
use crate::core::proto::{
    self, AppendRequest, Envelope, HelloRequest, TransferLeaderRequest, Vote, VoteRequest,
};
use crate::core::runtime;
use crate::core::types::{Entry, RaftLogId};
use crate::core::version::VERSION;
use crate::durability::{Event, UnsafeRecovery};
use crate::storage::tests::engine;
use crate::transport::PROTOCOL;
use cairn_engine::{MemberState, Mode};
use cairn_tls::Remote;
use futures::Stream;
use openraft::entry::RaftEntry;
use std::collections::{BTreeMap, BTreeSet};
use tempfile::TempDir;
use tonic::Code;

mod changes;
mod check_quorum;
mod damaged;
mod generation;
mod hand_over;
mod history;
mod members;
mod recovery;
mod slow_links;
mod surveys;
mod terms;
mod versions;

/// Longer than anything takes, even on a busy machine. It only turns a hang into a failure.
const WAIT_LIMIT: Duration = Duration::from_secs(180);

/// Member 1.1 of a cluster of two; this test plays the other member, 2.2.
pub(crate) async fn replica() -> (TempDir, Replica, PeerService) {
    let folder = tempfile::tempdir().unwrap();
    let (replica, service) = of_two(engine(&folder).await).await;
    (folder, replica, service)
}

async fn of_two(engine: Engine) -> (Replica, PeerService) {
    let address = |port| MemberAddress { peer: format!("127.0.0.1:{port}"), client: String::new() };
    let members = BTreeMap::from([(1, address(1)), (2, address(2))]);
    let replica = Replica::start(ReplicaConfig::new(Mode::Device, members), engine).await.unwrap();
    let service = replica.inner.service.clone();
    (replica, service)
}

/// The only member of its cluster, once it has logged its own boot. When a leader does that, the
/// state drops the boots of nodes that are no members.
async fn alone() -> (TempDir, Replica) {
    let folder = tempfile::tempdir().unwrap();
    let address = MemberAddress { peer: "127.0.0.1:1".into(), client: String::new() };
    let config = ReplicaConfig::new(Mode::Device, BTreeMap::from([(1, address)]));
    let replica = Replica::start(config, engine(&folder).await).await.unwrap();
    let progress = &replica.inner.member.progress;
    while !progress.has_epoch(replica.node_id(), replica.engine().boot_epoch()) {
        runtime::sleep(Duration::from_millis(5)).await;
    }
    (folder, replica)
}

pub(crate) fn other() -> NodeId {
    NodeId::new(2, 2)
}

fn envelope() -> Option<Envelope> {
    Some(Envelope {
        cluster: "suite".into(),
        sender: other().as_u64(),
        receiver: NodeId::new(1, 1).as_u64(),
        boot_epoch: 1,
        boot_nonce: 1,
        protocol: PROTOCOL,
        version: VERSION,
        ..Envelope::default()
    })
}

fn candidacy(term: u64) -> VoteRequest {
    VoteRequest {
        envelope: envelope(),
        vote: Some(Vote { term, node_id: other().as_u64(), committed: false }),
        last_log_id: None,
        leadership_transfer: false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_active_member_votes() {
    let (_folder, replica, service) = replica().await;
    assert!(service.pre_vote(Remote::default(), candidacy(1)).await.unwrap().granted);
    assert_eq!(replica.status().term, 0, "a pre-vote changes nothing");
    assert!(service.vote(Remote::default(), candidacy(1)).await.unwrap().granted);
    assert!(replica.engine().vote(GROUP).is_some(), "a vote is stored before it is answered");
}

/// The story: an operator discarded what a missing member still held, and it came back. The new
/// leader's entries at the same indexes were taken for known ones, since those were applied: two
/// histories were mixed.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_refuses_entries_that_contradict_what_it_has_applied() {
    let (_folder, replica, service) = replica().await;
    let blank =
        |term, index| proto::Entry { term, index, meta: vec![0].into(), ..Default::default() };
    let append = |term, previous: Option<(u64, u64)>, entries| {
        let id = |(term, index)| proto::LogId { term, index };
        AppendRequest {
            envelope: envelope(),
            vote: Some(Vote { term, node_id: other().as_u64(), committed: true }),
            previous: previous.map(id),
            committed: Some(proto::LogId { term, index: 1 }),
            entries,
            ..Default::default()
        }
    };
    service
        .append_one(Remote::default(), append(2, None, vec![blank(2, 0), blank(2, 1)]))
        .await
        .unwrap();
    while replica.status().applied.is_none_or(|applied| applied.index < 1) {
        tokio::task::yield_now().await;
    }
    let newest_round = &replica.inner.newest_round;
    for contradicting in [
        append(3, Some((2, 0)), vec![blank(3, 1), blank(3, 2)]),
        append(3, Some((3, 1)), vec![blank(3, 2)]),
    ] {
        keep_a_round(newest_round).await;
        let refused = service.append_one(Remote::default(), contradicting).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains("cairn unsafe-recovery"), "{refused}");
        assert!(!counts(newest_round), "a read within a bound relies on what was discarded");
    }
    keep_a_round(newest_round).await;
    let answer =
        service.append_one(Remote::default(), append(1, None, vec![blank(1, 0)])).await.unwrap();
    assert!(
        matches!(answer.kind, Some(proto::append_response::Kind::HigherVote(_))),
        "a deposed leader gets the higher vote"
    );
    service
        .append_one(Remote::default(), append(3, Some((2, 1)), vec![blank(3, 2)]))
        .await
        .unwrap();
    assert_eq!(replica.status().last_log, Some(LogId { term: 3, index: 2 }));
    assert!(counts(newest_round), "neither contradicts what is applied");
    let offset = |term, last: (u64, u64)| proto::SnapshotOffsetRequest {
        envelope: envelope(),
        vote: Some(Vote { term, node_id: other().as_u64(), committed: true }),
        meta: Some(proto::SnapshotMeta {
            last_log_id: Some(proto::LogId { term: last.0, index: last.1 }),
            ..Default::default()
        }),
    };
    service.snapshot_offset(Remote::default(), offset(3, (3, 90))).await.unwrap();
    assert!(counts(newest_round));
    let refused = service.snapshot_offset(Remote::default(), offset(3, (1, 9))).await.unwrap_err();
    assert!(refused.message().contains("entry 1-9 "), "{refused}");
    assert!(!counts(newest_round), "a snapshot tells it, too");
}

/// Until a round counts: not one that began when the last ones were forgotten.
async fn keep_a_round(newest: &NewestRound) {
    while !counts(newest) {
        newest.of(async { Ok(LogId::default()) }).await.unwrap();
    }
}

/// Whether reads within a bound rely on a round.
fn counts(newest: &NewestRound) -> bool {
    newest.within(Duration::MAX, runtime::now())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_lacks_what_it_acknowledged_to_this_leader_recovers() {
    let (_folder, replica, service) = replica().await;
    let append = |term, matched: Option<(u64, u64)>, entries: Vec<proto::Entry>| {
        let id = |(term, index)| proto::LogId { term, index };
        AppendRequest {
            envelope: envelope(),
            vote: Some(Vote { term, node_id: other().as_u64(), committed: true }),
            previous: None,
            entries,
            matched: matched.map(id),
            ..Default::default()
        }
    };
    let blank = |index| proto::Entry { term: 2, index, meta: vec![0].into(), ..Default::default() };
    service.append_one(Remote::default(), append(2, None, vec![blank(0), blank(1)])).await.unwrap();
    service.append_one(Remote::default(), append(2, Some((2, 1)), vec![])).await.unwrap();
    service.append_one(Remote::default(), append(1, Some((1, 5)), vec![])).await.unwrap();
    assert!(
        replica.holds_all(),
        "an ack to a leader of an earlier term says nothing about the present log"
    );
    replica.engine().purge(GROUP, LogId { term: 2, index: 0 }).await.unwrap();
    let purged = service.append_one(Remote::default(), append(2, Some((2, 0)), vec![])).await;
    purged.expect("it purged that entry itself");
    let refused =
        service.append_one(Remote::default(), append(2, Some((2, 2)), vec![])).await.unwrap_err();
    assert!(refused.message().contains("2-2"), "{}", refused.message());
    assert!(!replica.holds_all());
    assert!(service.vote(Remote::default(), candidacy(3)).await.is_err());
    while replica.engine().member_state() != MemberState::Recovering {
        tokio::task::yield_now().await;
    }
    assert!(service.append_one(Remote::default(), append(2, Some((2, 2)), vec![])).await.is_err());
    assert_eq!(replica.inner.member.standing().helper(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn votes_and_appends_in_the_name_of_another_member_are_refused() {
    let (_folder, replica, service) = replica().await;
    let mut vote = candidacy(1);
    vote.vote = Some(Vote { term: 1, node_id: NodeId::new(3, 3).as_u64(), committed: false });
    assert_eq!(
        service.vote(Remote::default(), vote).await.unwrap_err().code(),
        Code::InvalidArgument
    );
    let append = AppendRequest {
        envelope: envelope(),
        vote: Some(Vote { term: 1, node_id: NodeId::new(3, 3).as_u64(), committed: true }),
        ..Default::default()
    };
    assert_eq!(
        service.append_one(Remote::default(), append).await.unwrap_err().code(),
        Code::InvalidArgument
    );
    assert_eq!(replica.status().term, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_for_an_earlier_incarnation_is_refused() {
    let (_folder, replica, service) = replica().await;
    let mut vote = candidacy(1);
    vote.envelope.as_mut().unwrap().receiver = NodeId::new(1, 77).as_u64();
    assert_eq!(
        service.vote(Remote::default(), vote).await.unwrap_err().code(),
        Code::FailedPrecondition
    );
    assert_eq!(replica.status().term, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn hello_returns_the_identity_and_whether_the_member_is_uninitialized() {
    let (_folder, _replica, service) = replica().await;
    let hello = |slot| {
        let mut envelope = envelope();
        envelope.as_mut().unwrap().receiver = 0;
        HelloRequest { envelope, receiver_slot: slot, ..Default::default() }
    };
    let answer = service.hello(Remote::default(), hello(1)).await.unwrap();
    assert_eq!(answer.envelope.unwrap().sender, NodeId::new(1, 1).as_u64());
    assert!(answer.uninitialized);
    assert_eq!(
        service.hello(Remote::default(), hello(2)).await.unwrap_err().code(),
        Code::FailedPrecondition
    );
    service.vote(Remote::default(), candidacy(1)).await.unwrap();
    assert!(
        !service.hello(Remote::default(), hello(1)).await.unwrap().uninitialized,
        "it has voted"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_no_member_would_accept_from_its_leader_is_refused() {
    let (_folder, replica, _service) = replica().await;
    let empty = Command { synced: false, session: None, operations: vec![] };
    assert!(matches!(replica.write(empty).await, Err(WriteError::Invalid(_))));
    let key = bytes::Bytes::from(vec![7; MAX_META_BYTES]);
    let check = crate::core::command::Operation::Check {
        key,
        condition: crate::core::command::Condition::None,
    };
    let endless = Command { synced: false, session: None, operations: vec![check] };
    assert!(matches!(replica.write(endless).await, Err(WriteError::Invalid(_))));
    let range = |most| crate::core::command::Operation::DeleteRange {
        start: "a".into(),
        end: "b".into(),
        most,
        whole: false,
    };
    let delete = crate::core::command::Operation::Delete {
        key: "k".into(),
        condition: crate::core::command::Condition::None,
    };
    for operations in
        [vec![range(0)], vec![range(u32::MAX)], vec![range(1), range(1)], vec![delete, range(1)]]
    {
        let command = Command { synced: false, session: None, operations };
        let refused = replica.write(command.clone()).await;
        assert!(matches!(refused, Err(WriteError::Invalid(_))), "{command:?}: {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_shutdown_nothing_is_served_and_no_failure_is_reported() {
    use futures::FutureExt;
    let (_folder, replica, service) = replica().await;
    replica.shutdown().await.unwrap();
    let put = crate::core::command::Operation::Put {
        key: "k".into(),
        value: "v".into(),
        condition: crate::core::command::Condition::None,
    };
    let write =
        replica.write(Command { synced: false, session: None, operations: vec![put] }).await;
    assert!(matches!(write, Err(WriteError::Stopped(_))), "{write:?}");
    assert!(matches!(replica.read_barrier().await, Err(ReadError::Stopped(_))));
    assert_eq!(
        service.vote(Remote::default(), candidacy(1)).await.unwrap_err().code(),
        Code::Unavailable
    );
    assert_eq!(replica.status().role, crate::replica::status::Role::Stopped);
    assert_eq!(replica.wait_stopped().now_or_never(), None);
}

/// The story: a leader's stream was reset while openraft had its requests. Their reservation ended
/// with the stream, and the next stream's requests got the same capacity: the engine was full when
/// both were appended, and the member stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_in_openraft_keep_their_reservation_after_their_sender_is_gone() {
    let (_folder, replica, service) = replica().await;
    let data_bytes = replica.engine().status().data_bytes;
    let append = |index: u64, percent: u64| {
        let value = bytes::Bytes::from(vec![7; (data_bytes * percent / 100) as usize]);
        let put = crate::core::command::Operation::Put {
            key: "k".into(),
            value: value.into(),
            condition: crate::core::command::Condition::None,
        };
        let proposal = codec::encode_command(
            Command { synced: false, session: None, operations: vec![put] },
            1,
        );
        let payload = openraft::EntryPayload::Normal(proposal);
        let entry = Entry::new(RaftLogId::new_term_index(1, index), payload);
        let entry = crate::transport::messages::entry_to_proto(entry);
        AppendRequest {
            envelope: envelope(),
            vote: Some(Vote { term: 1, node_id: other().as_u64(), committed: true }),
            previous: index.checked_sub(1).map(|index| proto::LogId { term: 1, index }),
            entries: vec![entry],
            ..Default::default()
        }
    };
    let (busy, is_busy) = tokio::sync::oneshot::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    let raft = replica.inner.member.raft.clone();
    let stalled = tokio::spawn(async move {
        let stall = move |_: &_| {
            busy.send(()).ok();
            may_go_on.recv().ok();
        };
        raft.with_raft_state(stall).await
    });
    is_busy.await.unwrap();
    let mut abandoned = Box::pin(service.append_one(Remote::default(), append(0, 60)));
    assert!(futures::poll!(&mut abandoned).is_pending());
    drop(abandoned);
    let std::task::Poll::Ready(refused) =
        futures::poll!(Box::pin(service.append_one(Remote::default(), append(1, 60))))
    else {
        panic!("reserved capacity was reserved again");
    };
    assert_eq!(refused.unwrap_err().code(), Code::ResourceExhausted);
    drop(go_on);
    stalled.await.unwrap().unwrap();
    while replica.status().last_log.is_none() {
        assert_ne!(replica.status().role, crate::replica::status::Role::Stopped);
        tokio::task::yield_now().await;
    }
    assert!(
        service.append_one(Remote::default(), append(1, 60)).await.is_err(),
        "the first one has its extents"
    );
    // It ends a moment after the log has the entry.
    let until = runtime::now() + WAIT_LIMIT;
    while let Err(full) = service.append_one(Remote::default(), append(1, 25)).await {
        assert_eq!(full.code(), Code::ResourceExhausted, "{full}");
        assert!(runtime::now() < until, "the reservation has ended");
        tokio::task::yield_now().await;
    }
}
