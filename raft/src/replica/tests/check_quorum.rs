//! A leader that no quorum answers.

use super::members::{Members, accepted, bind, leads};
use super::*;
use crate::core::types::{AppendRequest as RaftAppend, RaftLogId};
use crate::storage::state_machine::PinnedSnapshot;
use crate::storage::state_machine::identities::Identities;
use crate::storage::tests::engine_of;
use crate::transport::{AckMode, Addresses, Connections, PeerIdentity, SendPolicy};
use openraft::network::RPCOption;
use openraft::{RaftNetworkFactory, RaftNetworkV2};
use parking_lot::Mutex;
use std::sync::atomic::AtomicBool;

type RaftVote = crate::core::types::Vote;

/// What the network asks of a leader that this test plays.
#[derive(Default)]
struct Policy {
    suspended: AtomicBool,
    there: Mutex<Vec<NodeId>>,
}

impl SendPolicy for Policy {
    fn may_ask_for_votes(&self) -> Result<(), String> {
        Ok(())
    }

    fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::SeqCst)
    }

    fn is_there(&self, follower: NodeId) {
        self.there.lock().push(follower);
    }

    fn ack_mode(&self, leadership: &RaftVote) -> AckMode {
        AckMode { term: leadership.leader_id.term, number: 0, fast: false }
    }

    fn acknowledged(&self, _follower: NodeId, _leadership: &RaftVote) -> Option<RaftLogId> {
        None
    }
}

/// The story: the network left a leader of five one neighbour, whom its heartbeats kept from voting
/// for the others. They could not do without him, and nobody served a write.
#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_leader_asks_whether_a_follower_is_there_and_keeps_it_from_no_vote() {
    let (_folder, follower, service) = replica().await;
    let incoming = bind();
    let peer = incoming.local_addr().unwrap().to_string();
    tokio::spawn(follower.peer_service().serve(accepted(incoming)));
    let folder = tempfile::tempdir().unwrap();
    let engine = engine_of(&folder, 2, |_| ()).await;
    let (own, policy) = (other(), Arc::new(Policy::default()));
    let addresses = Addresses::new(own, Default::default(), Default::default(), Default::default());
    let limit = WAIT_LIMIT;
    let mut connections = Connections::new(
        PeerIdentity::of(&engine, Identities::default()),
        policy.clone(),
        PinnedSnapshot::default(),
        addresses,
        [limit; 2],
    );
    let (target, at) = (follower.node_id(), MemberAddress { peer, client: String::new() });
    let mut heartbeats = connections.new_heartbeat_client(target, &at).await;
    let mut appends = connections.new_client(target, &at).await;
    let heartbeat = || RaftAppend {
        vote: RaftVote::new_committed(1, own),
        prev_log_id: None,
        leader_commit: None,
        entries: vec![],
    };
    let option = || RPCOption::new(limit);
    let grants = async |term| {
        let asked = service.pre_vote(Remote::default(), candidacy(term)).await;
        asked.unwrap().granted
    };

    policy.suspended.store(true, Ordering::SeqCst);
    assert!(heartbeats.append_entries(heartbeat(), option()).await.is_err());
    let one = futures::stream::iter([heartbeat()]);
    assert!(appends.stream_append(one, option()).await.is_err());
    assert_eq!(*policy.there.lock(), [target], "asked once");
    assert_eq!(follower.status().term, 0, "nothing was appended");
    assert!(grants(1).await, "it may vote for another one");

    policy.suspended.store(false, Ordering::SeqCst);
    let until = runtime::now() + WAIT_LIMIT;
    loop {
        heartbeats.append_entries(heartbeat(), option()).await.unwrap();
        // On a busy machine the lease may have run out until it is asked.
        if !grants(2).await {
            break;
        }
        assert!(runtime::now() < until, "a leader that leads keeps it from voting");
    }
}

/// The other members' power came back after the leader had stopped leading. They recover, and elect
/// nobody: only that leader can help them.
#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_leader_leads_on_in_its_term_once_a_quorum_answers() {
    let members = Members::started().await;
    let leader = members.leader();
    let (check_quorum, term) = (&leader.inner.member.check_quorum, leader.status().term);
    check_quorum.suspend();
    let status = leader.status();
    if check_quorum.is_suspended() {
        assert!(status.role == Role::Follower && status.leader.is_none(), "{status:?}");
    }
    let leads_on = |one: &Replica| (one.status().role == Role::Leader).then_some(());
    members.until("it leads on", leads_on).await;
    assert!(leads(leader));
    leader.write(put()).await.expect("it takes writes");
    assert_eq!(leader.status().term, term);
}

fn put() -> Command {
    let put = crate::core::command::Operation::Put {
        key: "k".into(),
        value: "v".into(),
        condition: crate::core::command::Condition::None,
    };
    Command { synced: false, session: None, operations: vec![put] }
}

/// A client that waits for a write may wait for as long as its deadline says, so a leader that is cut
/// off tells it.
#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_leader_ends_the_writes_that_wait_for_it() {
    let members = Members::started().await;
    let leader = members.leader();
    // What is logged next is the write.
    members.settled().await;
    for other in members.replicas.iter().filter(|one| one.node_id() != leader.node_id()) {
        other.shutdown().await.unwrap();
    }
    let before = leader.status().last_log;
    let suspended = async {
        members.until("it is proposed", |one| (one.status().last_log > before).then_some(())).await;
        leader.inner.member.check_quorum.suspend();
    };
    let written = async { tokio::join!(leader.write(put()), suspended).0 };
    let answer = runtime::timeout(WAIT_LIMIT, written).await.expect("an answer");
    assert!(matches!(answer, Err(crate::WriteError::OutcomeUnknown(_))), "{answer:?}");
}
