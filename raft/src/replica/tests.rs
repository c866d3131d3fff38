//! What a single replica answers to messages that are not in order, and what the gate withholds.

use super::*;
use crate::core::config::ReplicaConfig;
use crate::core::proto::peer_server::Peer;
use crate::core::proto::{
    self, AppendRequest, Envelope, HelloRequest, TransferLeaderRequest, Vote, VoteRequest,
};
use crate::storage::tests::engine;
use crate::transport::PROTOCOL;
use crate::transport::terms;
use cairn_engine::Mode;
use std::collections::BTreeMap;
use tempfile::TempDir;
use tonic::{Code, Request};

/// Member 1.1 of a cluster of two, whose other member, 2.2, is this test.
pub(crate) async fn replica() -> (TempDir, Replica, PeerService) {
    let folder = tempfile::tempdir().unwrap();
    let address = |port| MemberAddress { peer: format!("127.0.0.1:{port}"), client: String::new() };
    let members = BTreeMap::from([(1, address(1)), (2, address(2))]);
    let config = ReplicaConfig::new(Mode::Device, members);
    let replica = Replica::start(config, engine(&folder).await).await.unwrap();
    let service = replica.inner.service.clone();
    (folder, replica, service)
}

pub(crate) fn other() -> NodeId {
    NodeId::new(2, 2)
}

fn envelope() -> Option<Envelope> {
    Some(Envelope {
        cluster: "suite".into(),
        sender: other().as_u64(),
        receiver: NodeId::new(1, 1).as_u64(),
        start: 1,
        run: 1,
        lineage: vec![],
        protocol: PROTOCOL,
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
async fn an_open_gate_lets_votes_through() {
    let (_folder, replica, service) = replica().await;
    assert!(service.pre_vote(Request::new(candidacy(1))).await.unwrap().into_inner().granted);
    assert_eq!(replica.status().term, 0, "a pre-vote changes nothing");
    assert!(service.vote(Request::new(candidacy(1))).await.unwrap().into_inner().granted);
    assert!(replica.engine().vote(GROUP).is_some(), "a vote is stored before it is answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_gate_withholds_votes_pre_votes_and_leadership() {
    let (_folder, replica, service) = replica().await;
    replica.inner.member.gate.close();
    let refused = |status: tonic::Status| {
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains("recovering"), "{}", status.message());
    };
    refused(service.pre_vote(Request::new(candidacy(1))).await.unwrap_err());
    refused(service.vote(Request::new(candidacy(1))).await.unwrap_err());
    let transfer = TransferLeaderRequest {
        envelope: envelope(),
        from: Some(Vote { term: 1, node_id: other().as_u64(), committed: true }),
        to: NodeId::new(1, 1).as_u64(),
        last_log_id: None,
    };
    refused(service.transfer_leader(Request::new(transfer)).await.unwrap_err());
    assert!(replica.engine().vote(GROUP).is_none(), "nothing was promised");
}

fn mandate() -> Mandate {
    Mandate { candidate: other(), run: Run { start: 1, nonce: 1 } }
}

/// The story: an operator's decision led to no leader, and stood. The member that was missing came back, and the others
/// elected without what it held.
#[tokio::test(flavor = "multi_thread")]
async fn a_mandate_lets_votes_through_for_whom_it_names_until_it_ends() {
    let (_folder, replica, service) = replica().await;
    replica.inner.member.gate.close();
    replica.mandate(Mandate { run: Run { start: 1, nonce: 2 }, ..mandate() }).await.unwrap();
    assert!(
        service.vote(Request::new(candidacy(1))).await.is_err(),
        "another run than the one that was named"
    );
    replica.mandate(mandate()).await.unwrap();
    assert!(service.pre_vote(Request::new(candidacy(1))).await.unwrap().into_inner().granted);
    assert!(service.vote(Request::new(candidacy(1))).await.unwrap().into_inner().granted);
    replica.inner.member.gate.end_mandate();
    assert!(service.pre_vote(Request::new(candidacy(2))).await.is_err());
    assert!(service.vote(Request::new(candidacy(2))).await.is_err());
    replica.mandate(mandate()).await.unwrap();
    assert!(
        service.vote(Request::new(candidacy(2))).await.unwrap().into_inner().granted,
        "it is given again"
    );
}

/// The story: one member led, two came back by its mandate, and the second after others had elected a leader by
/// themselves: one decision was counted as two losses.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_is_told_to_the_leadership_that_a_mandate_made_and_to_no_other() {
    let (_folder, replica, service) = replica().await;
    let member = &replica.inner.member;
    member.gate.close();
    let told = |leader: NodeId, term| {
        let vote = Vote { term, node_id: leader.as_u64(), committed: true };
        member.by_mandate(
            leader,
            &crate::transport::messages::vote_from_proto(Some(vote), member.identity.votes_of(leader))
                .unwrap(),
        )
    };
    assert!(!told(other(), 1));
    replica.mandate(mandate()).await.unwrap();
    assert!(told(other(), 1), "whether this member's own vote was needed or not");
    assert!(!told(NodeId::new(3, 3), 1), "somebody else leads");
    service.vote(Request::new(candidacy(1))).await.unwrap();
    member.gate.end_mandate();
    assert!(told(other(), 1), "what it was elected by stays true");
    assert!(!told(other(), 2), "elected again, by others");
    assert!(!told(NodeId::new(3, 3), 1));
}

/// The story: a member that was to be behind a loss asked once more after it had restarted, and not for the loss that time. And the
/// request of its earlier run, which came late, took the place of the later one's.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_requests_for_a_record_neither_takes_back_what_the_other_asks_for() {
    let folder = tempfile::tempdir().unwrap();
    let address = MemberAddress { peer: "127.0.0.1:1".into(), client: String::new() };
    let config = ReplicaConfig::new(Mode::Device, BTreeMap::from([(1, address)]));
    let replica = Replica::start(config, engine(&folder).await).await.unwrap();
    let LocalMember { records, progress, raft, .. } = &*replica.inner.member;
    // With its own record, which a leader puts into the log, what the log says of others than members is forgotten.
    while !progress.has_start(replica.node_id(), replica.engine().run()) {
        runtime::sleep(Duration::from_millis(5)).await;
    }
    let vote = look_at(raft, |seen| seen.vote);
    let run = |start| Run { start, nonce: start };
    let losses = progress.losses().count;
    for (start, loss) in [(5, true), (6, false), (5, false)] {
        records.propose(vote, other(), run(start), loss);
    }
    let logged = async {
        while !progress.has_start(other(), run(6)) {
            runtime::sleep(Duration::from_millis(5)).await;
        }
    };
    runtime::timeout(Duration::from_secs(20), logged).await.expect("the record of the later run");
    assert!(progress.lost_since(vote.leader_id.term), "the loss is told before the record that waits for it");
    assert!(progress.losses().count > losses);
}

/// Elected in the last moment of its mandate, it is brought back under its own leadership.
#[tokio::test(flavor = "multi_thread")]
async fn whom_a_mandate_names_campaigns_while_it_stands_and_leads_on_after_it() {
    let (_folder, replica, _service) = replica().await;
    let gate = &replica.inner.member.gate;
    gate.close();
    let own = replica.node_id();
    assert!(!gate.may_campaign(own) && !gate.named(own));
    replica.mandate(Mandate { candidate: own, run: replica.engine().run() }).await.unwrap();
    assert!(gate.may_campaign(own) && gate.named(own));
    gate.end_mandate();
    assert!(!gate.may_campaign(own) && gate.named(own));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_gate_lets_entries_through_from_the_leadership_that_admitted_the_member_alone() {
    let (_folder, replica, service) = replica().await;
    replica.inner.member.gate.close();
    let append = AppendRequest {
        envelope: envelope(),
        vote: Some(Vote { term: 1, node_id: other().as_u64(), committed: true }),
        previous: None,
        entries: vec![],
        committed: None,
        regime: 0,
        lazy: false,
        matched: None,
    };
    let refused = service.append_one(Request::new(append.clone())).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let gate = &replica.inner.member.gate;
    let (leader, vote) = gate.knocked().unwrap();
    assert_eq!((leader, gate.admitted()), (other(), None));
    gate.admit(vote);
    let mut later = append.clone();
    later.vote.as_mut().unwrap().term = 2;
    assert!(service.append_one(Request::new(later)).await.is_err(), "another term has not admitted it");
    assert!(gate.knocked().is_some_and(|(_, vote)| vote.leader_id.term == 2));
    let mut earlier = append.clone();
    earlier.vote.as_mut().unwrap().term = 0;
    assert!(service.append_one(Request::new(earlier)).await.is_err());
    assert_eq!(gate.knocked(), None, "a late message of an earlier leader is not asked about");
    assert!(service.append_one(Request::new(append)).await.is_ok());
    // The status follows a moment later.
    while replica.status().term != 1 {
        tokio::task::yield_now().await;
    }
}

/// The story: an operator gave up what a missing member still held, and it came back. The new leader's entries at the same
/// positions were taken for known, since they were applied: two histories stood behind each other.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_takes_nothing_beside_what_it_has_applied_otherwise() {
    let (_folder, replica, service) = replica().await;
    let blank = |term, index| proto::Entry { term, index, meta: vec![0].into(), values: vec![] };
    let append = |term, previous: Option<(u64, u64)>, entries| {
        let id = |(term, index)| proto::LogId { term, index };
        Request::new(AppendRequest {
            envelope: envelope(),
            vote: Some(Vote { term, node_id: other().as_u64(), committed: true }),
            previous: previous.map(id),
            committed: Some(proto::LogId { term, index: 1 }),
            entries,
            ..Default::default()
        })
    };
    service.append_one(append(2, None, vec![blank(2, 0), blank(2, 1)])).await.unwrap();
    while replica.status().applied.is_none_or(|applied| applied.index < 1) {
        tokio::task::yield_now().await;
    }
    for contradicting in
        [append(3, Some((2, 0)), vec![blank(3, 1), blank(3, 2)]), append(3, Some((3, 1)), vec![blank(3, 2)])]
    {
        let refused = service.append_one(contradicting).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains("cairn recover"), "{refused}");
    }
    let answer = service.append_one(append(1, None, vec![blank(1, 0)])).await.unwrap().into_inner();
    assert!(
        matches!(answer.kind, Some(proto::append_response::Kind::HigherVote(_))),
        "a deposed leader hears why"
    );
    service.append_one(append(3, Some((2, 1)), vec![blank(3, 2)])).await.unwrap();
    assert_eq!(replica.status().last_log, Some(LogId { term: 3, index: 2 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_lacks_what_it_acknowledged_to_this_leader_recovers() {
    let (_folder, replica, service) = replica().await;
    let append = |term, matched: Option<(u64, u64)>, entries: Vec<proto::Entry>| {
        let id = |(term, index)| proto::LogId { term, index };
        Request::new(AppendRequest {
            envelope: envelope(),
            vote: Some(Vote { term, node_id: other().as_u64(), committed: true }),
            previous: None,
            entries,
            matched: matched.map(id),
            ..Default::default()
        })
    };
    let blank = |index| proto::Entry { term: 2, index, meta: vec![0].into(), values: vec![] };
    service.append_one(append(2, None, vec![blank(0), blank(1)])).await.unwrap();
    service.append_one(append(2, Some((2, 1)), vec![])).await.unwrap();
    service.append_one(append(1, Some((1, 5)), vec![])).await.unwrap();
    assert_eq!(
        replica.standing(),
        Standing::Active,
        "a leader of an earlier term says nothing of what is held now"
    );
    let refused = service.append_one(append(2, Some((2, 2)), vec![])).await.unwrap_err();
    assert!(refused.message().contains("2-2"), "{}", refused.message());
    assert_eq!(replica.standing(), Standing::Recovering);
    assert!(service.vote(Request::new(candidacy(3))).await.is_err());
    while replica.engine().standing() != Standing::Recovering {
        tokio::task::yield_now().await;
    }
    let gate = &replica.inner.member.gate;
    assert!(service.append_one(append(2, Some((2, 2)), vec![])).await.is_err());
    assert_eq!(gate.admitted(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_asks_for_votes_or_appends_in_the_name_of_another() {
    let (_folder, replica, service) = replica().await;
    let mut vote = candidacy(1);
    vote.vote = Some(Vote { term: 1, node_id: NodeId::new(3, 3).as_u64(), committed: false });
    assert_eq!(service.vote(Request::new(vote)).await.unwrap_err().code(), Code::InvalidArgument);
    let append = AppendRequest {
        envelope: envelope(),
        vote: Some(Vote { term: 1, node_id: NodeId::new(3, 3).as_u64(), committed: true }),
        ..Default::default()
    };
    assert_eq!(service.append_one(Request::new(append)).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(replica.status().term, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_for_an_earlier_incarnation_is_refused() {
    let (_folder, replica, service) = replica().await;
    let mut vote = candidacy(1);
    vote.envelope.as_mut().unwrap().receiver = NodeId::new(1, 77).as_u64();
    assert_eq!(service.vote(Request::new(vote)).await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(replica.status().term, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn hello_tells_who_is_here_and_whether_it_is_blank() {
    let (_folder, _replica, service) = replica().await;
    let hello = |slot| {
        let mut envelope = envelope();
        envelope.as_mut().unwrap().receiver = 0;
        Request::new(HelloRequest { envelope, receiver_slot: slot })
    };
    let answer = service.hello(hello(1)).await.unwrap().into_inner();
    assert_eq!(answer.envelope.unwrap().sender, NodeId::new(1, 1).as_u64());
    assert!(answer.blank);
    assert_eq!(service.hello(hello(2)).await.unwrap_err().code(), Code::FailedPrecondition);
    service.vote(Request::new(candidacy(1))).await.unwrap();
    assert!(!service.hello(hello(1)).await.unwrap().into_inner().blank, "it has voted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_without_operations_or_with_endless_keys_is_refused() {
    let (_folder, replica, _service) = replica().await;
    let empty = Command { synced: false, session: None, operations: vec![] };
    assert!(matches!(replica.write(empty).await, Err(WriteError::Invalid(_))));
    let key = bytes::Bytes::from(vec![7; MAX_META_BYTES]);
    let check =
        crate::core::command::Operation::Check { key, condition: crate::core::command::Condition::None };
    let endless = Command { synced: false, session: None, operations: vec![check] };
    assert!(matches!(replica.write(endless).await, Err(WriteError::Invalid(_))));
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
    let write = replica.write(Command { synced: false, session: None, operations: vec![put] }).await;
    assert!(matches!(write, Err(WriteError::Stopped(_))), "{write:?}");
    assert!(matches!(replica.read_barrier().await, Err(ReadError::Stopped(_))));
    assert_eq!(service.vote(Request::new(candidacy(1))).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(replica.status().role, crate::replica::status::Role::Stopped);
    assert_eq!(replica.wait_stopped().now_or_never(), None);
}

/// The story: a leader's stream was reset while openraft had its requests in hand. Their room was given back with the stream,
/// and the next stream's requests were promised the same: the engine was full when both were appended, and the member stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_openraft_has_in_hand_keeps_its_room_though_its_sender_is_gone() {
    let (_folder, replica, service) = replica().await;
    let data_bytes = replica.engine().status().data_bytes;
    let append = |index: u64, percent: u64| {
        let value = bytes::Bytes::from(vec![7; (data_bytes * percent / 100) as usize]);
        let put = crate::core::command::Operation::Put {
            key: "k".into(),
            value,
            condition: crate::core::command::Condition::None,
        };
        let proposal =
            codec::encode_command(Command { synced: false, session: None, operations: vec![put] }, 1);
        let entry = proto::Entry { term: 1, index, meta: proposal.meta, values: proposal.values };
        Request::new(AppendRequest {
            envelope: envelope(),
            vote: Some(Vote { term: 1, node_id: other().as_u64(), committed: true }),
            previous: index.checked_sub(1).map(|index| proto::LogId { term: 1, index }),
            entries: vec![entry],
            ..Default::default()
        })
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
    let mut given_up = service.append_one(append(0, 60));
    assert!(futures::poll!(&mut given_up).is_pending());
    drop(given_up);
    let std::task::Poll::Ready(refused) = futures::poll!(&mut service.append_one(append(1, 60))) else {
        panic!("what is promised already was promised again");
    };
    assert_eq!(refused.unwrap_err().code(), Code::ResourceExhausted);
    drop(go_on);
    stalled.await.unwrap().unwrap();
    while replica.status().last_log.is_none() {
        assert_ne!(replica.status().role, crate::replica::status::Role::Stopped);
        tokio::task::yield_now().await;
    }
    assert!(service.append_one(append(1, 60)).await.is_err(), "the first one has its place");
    service.append_one(append(1, 25)).await.expect("the promise has ended with it");
}

/// The story: one message with the greatest term that was taken ended the cluster: no next term was left to elect anybody in,
/// not even after all members were started again.
#[tokio::test(flavor = "multi_thread")]
async fn a_term_that_no_election_can_have_led_to_is_refused_in_every_message() {
    let (_folder, replica, service) = replica().await;
    let far = (1 << 32) + 2;
    assert!(service.vote(Request::new(candidacy(far))).await.is_err(), "not even by one that never voted");
    assert!(service.vote(Request::new(candidacy(1))).await.unwrap().into_inner().granted);
    for term in [far, (1 << 62) - 1, 1 << 62, u64::MAX] {
        let leads = || Some(Vote { term, node_id: other().as_u64(), committed: true });
        let snapshot = proto::SnapshotMeta {
            last_log_id: Some(proto::LogId { term: 1, index: 5 }),
            ..Default::default()
        };
        let append = AppendRequest { envelope: envelope(), vote: leads(), ..Default::default() };
        let offset = proto::SnapshotOffsetRequest {
            envelope: envelope(),
            vote: leads(),
            meta: Some(snapshot.clone()),
        };
        let chunk = proto::SnapshotChunkRequest {
            envelope: envelope(),
            vote: leads(),
            last_log_id: snapshot.last_log_id,
            ..Default::default()
        };
        let finish = proto::SnapshotFinishRequest {
            envelope: envelope(),
            vote: leads(),
            meta: Some(snapshot),
            ..Default::default()
        };
        let transfer = TransferLeaderRequest {
            envelope: envelope(),
            from: leads(),
            to: NodeId::new(1, 1).as_u64(),
            last_log_id: None,
        };
        let refused = [
            ("vote", service.vote(Request::new(candidacy(term))).await.err()),
            ("pre-vote", service.pre_vote(Request::new(candidacy(term))).await.err()),
            ("append", service.append_one(Request::new(append)).await.err()),
            ("offset", service.snapshot_offset(Request::new(offset)).await.err()),
            ("chunk", service.snapshot_chunk(Request::new(chunk)).await.err()),
            ("finish", service.snapshot_finish(Request::new(finish)).await.err()),
            ("transfer", service.transfer_leader(Request::new(transfer)).await.err()),
        ];
        for (message, status) in refused {
            let status = status.unwrap_or_else(|| panic!("{message} of term {term}"));
            assert_eq!(status.code(), Code::InvalidArgument, "{message} of term {term}: {status}");
        }
    }
    let answer = service.vote(Request::new(candidacy(2))).await.unwrap().into_inner();
    assert!(answer.granted, "the cluster goes on: {answer:?}");
    assert_eq!(replica.engine().vote(GROUP).unwrap()[1..9], 2u64.to_le_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_joiner_takes_its_first_term_from_its_leader_and_the_next_ones_within_a_leap() {
    let (_folder, _replica, service) = replica().await;
    let append = |term| {
        let vote = Some(Vote { term, node_id: other().as_u64(), committed: true });
        Request::new(AppendRequest { envelope: envelope(), vote, ..Default::default() })
    };
    let first = 1 << 40;
    service.append_one(append(first)).await.unwrap();
    service.append_one(append(first + (1 << 32))).await.unwrap();
    assert!(service.append_one(append(first + (2 << 32) + 1)).await.is_err());
}

/// What a follower or a voter answers is looked at as what it asks.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_with_a_term_that_no_election_can_have_led_to_is_refused() {
    let (_folder, replica, service) = replica().await;
    service.vote(Request::new(candidacy(1))).await.unwrap();
    let identity = &replica.inner.member.identity;
    let vote = |term| {
        crate::transport::messages::vote_from_proto(
            Some(Vote { term, node_id: other().as_u64(), committed: true }),
            identity.votes_of(other()),
        )
    };
    assert!(vote(1 + (1 << 32)).is_ok());
    assert!(vote(2 + (1 << 32)).is_err(), "though it says that it leads");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_was_misled_is_told_how_it_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(&folder).await;
    let said = |engine: &Engine| {
        let log = Log::default();
        let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
        tracing::subscriber::with_default(subscriber, || terms::warn_if_misled(engine, other()));
        String::from_utf8(std::mem::take(&mut *log.0.lock())).unwrap()
    };
    assert_eq!(said(&engine), "");
    let vote = |term: u64| [&[1][..], &term.to_le_bytes(), &other().as_u64().to_le_bytes(), &[0]].concat();
    engine.save_vote(GROUP, &vote(1 << 32)).await.unwrap();
    assert_eq!(said(&engine), "");
    engine.save_vote(GROUP, &vote((1 << 62) - 1)).await.unwrap();
    let said = said(&engine);
    assert!(said.contains("ERROR") && said.contains("cairn format"), "{said}");
}

/// What is logged.
#[derive(Clone, Default)]
struct Log(Arc<parking_lot::Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> tracing_subscriber::fmt::MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}
