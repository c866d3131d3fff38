//! Who takes over leadership, and who gives it away.
//!
//! No election ends in these tests but the first one and those that a leader asks for.

use super::*;
use crate::storage::tests::engine_of;
use openraft::ChangeMembers;
use std::collections::BTreeSet;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

/// Three members of one cluster, in one process.
struct Members {
    replicas: Vec<Replica>,
    _folders: Vec<TempDir>,
}

impl Members {
    /// One of them leads, and has logged the first mode.
    async fn started() -> Members {
        let bind = |_| TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let incoming: Vec<TcpIncoming> = (1..=3).map(bind).collect();
        let peer = |one: &TcpIncoming| one.local_addr().unwrap().to_string();
        let address =
            |one: &TcpIncoming| MemberAddress { peer: peer(one), client: "client:1".into() };
        let addresses: BTreeMap<u16, MemberAddress> =
            (1..).zip(incoming.iter().map(address)).collect();
        let (mut replicas, mut folders) = (Vec::new(), Vec::new());
        for (slot, incoming) in (1..).zip(incoming) {
            let folder = tempfile::tempdir().unwrap();
            let mut config = ReplicaConfig::new(Mode::Device, addresses.clone());
            (config.election_min_ms, config.election_max_ms) = (60_000, 120_000);
            config.maintenance_ms = 20;
            let engine = engine_of(&folder, slot, |_| ()).await;
            let replica = Replica::start(config, engine).await.unwrap();
            let server = Server::builder().add_service(replica.peer_service());
            tokio::spawn(server.serve_with_incoming(incoming));
            replicas.push(replica);
            folders.push(folder);
        }
        let members = Members { replicas, _folders: folders };
        members
            .until("a leader", |one| (leads(one) && one.modes().cluster.is_some()).then_some(()))
            .await;
        members
    }

    /// What is so of a member, soon.
    async fn until<T: Send>(
        &self,
        what: &str,
        so: impl Fn(&Replica) -> Option<T> + Send + Sync,
    ) -> T {
        let wait = async {
            loop {
                if let Some(found) = self.replicas.iter().find_map(&so) {
                    return found;
                }
                runtime::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = runtime::timeout(Duration::from_secs(20), wait).await;
        waited.unwrap_or_else(|| panic!("never: {what}"))
    }

    fn leader(&self) -> &Replica {
        self.replicas.iter().find(|one| leads(one)).unwrap()
    }
}

fn leads(replica: &Replica) -> bool {
    with_metrics(&replica.inner.member.raft, |metrics| metrics.state == ServerState::Leader)
}

/// The story: an operator drained a member in the middle of its election. It won, and led although it
/// was drained.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_leads_although_it_is_drained_gives_leadership_away() {
    let members = Members::started().await;
    let drained = members.leader();
    *drained.inner.member.drained.lock() = Some(runtime::now() + Duration::from_secs(600));
    let others = |one: &Replica| one.node_id() != drained.node_id();
    members.until("another leads", |one| (others(one) && leads(one)).then_some(())).await;
}

/// The story: the voter with the most up-to-date log recovered, and refused to take over. openraft
/// takes no proposals on a leader that began to hand over, so the cluster stood still.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_goes_on_while_no_other_member_says_that_it_may_lead() {
    let members = Members::started().await;
    let leader = members.leader();
    for other in members.replicas.iter().filter(|one| one.node_id() != leader.node_id()) {
        other.drain(Duration::from_secs(600)).await.unwrap();
    }
    // All others hold everything, as far as the leader knows.
    let raft = &leader.inner.member.raft;
    members
        .until("the others have all", |_| {
            with_metrics(raft, |metrics| {
                let replication = metrics.replication.as_ref()?;
                let matched = |id: &Option<_>| id.as_ref() == metrics.last_applied.as_ref();
                replication.values().all(matched).then_some(())
            })
        })
        .await;
    let limit = Duration::from_millis(500);
    crate::durability::leadership::hand_over(&leader.inner.member, None, limit).await;
    let put = crate::core::command::Operation::Put {
        key: "k".into(),
        value: "v".into(),
        condition: crate::core::command::Condition::None,
    };
    let command = Command { synced: false, session: None, operations: vec![put] };
    let written = async {
        while leader.write(command.clone()).await.is_err() {
            runtime::sleep(Duration::from_millis(20)).await;
        }
    };
    runtime::timeout(Duration::from_secs(10), written).await.expect("it takes writes");
}

/// The story: a removal was begun by the leader after the one that leaves, and that one led again. It
/// finished its own removal, and the others, who refused its messages from then on, were without a
/// leader for an election timeout.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_leaves_gives_way_to_one_that_finishes_its_removal() {
    let members = Members::started().await;
    let leader = members.leader();
    let (own, raft) = (leader.node_id(), leader.inner.member.raft.clone());
    let term = with_metrics(&raft, |metrics| metrics.current_term);
    let change = ChangeMembers::RemoveVoters(BTreeSet::from([own]));
    // Whoever began it is gone before it is finished.
    let mut removal = Box::pin(raft.change_membership(change, false));
    let is_joint = || {
        with_metrics(&raft, |metrics| {
            metrics.membership_config.membership().get_joint_config().len() == 2
        })
    };
    while !is_joint() {
        let polled = futures::poll!(&mut removal);
        assert!(polled.is_pending(), "{polled:?}");
        tokio::task::yield_now().await;
    }
    drop(removal);
    let finished_in = members
        .until("the removal is finished", |one| {
            with_metrics(&one.inner.member.raft, |metrics| {
                let stored = &metrics.membership_config;
                let voters = stored.voter_ids().collect::<BTreeSet<_>>();
                let finished = voters.len() == 2 && !voters.contains(&own);
                let id = stored.log_id().as_ref().filter(|_| finished)?;
                Some(crate::core::types::engine_log_id(id).term)
            })
        })
        .await;
    assert!(finished_in > term, "the one that leaves finished it, in term {term}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_or_recovering_member_says_that_it_may_not_lead_and_takes_no_leadership() {
    let (_folder, replica, service) = replica().await;
    let may_lead = async || {
        let hello = HelloRequest { envelope: envelope(), receiver_slot: 1, ..Default::default() };
        service.hello(Request::new(hello)).await.unwrap().into_inner().may_lead
    };
    assert!(may_lead().await);
    replica.drain(Duration::from_secs(600)).await.unwrap();
    assert!(!may_lead().await);
    let transfer = TransferLeaderRequest {
        envelope: envelope(),
        from: Some(Vote { term: 1, node_id: other().as_u64(), committed: true }),
        to: NodeId::new(1, 1).as_u64(),
        last_log_id: None,
    };
    let refused = service.transfer_leader(Request::new(transfer)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("keeps this member from leading"), "{refused}");
    replica.drain(Duration::ZERO).await.unwrap();
    assert!(may_lead().await);
    replica.inner.member.gate.close();
    assert!(!may_lead().await);
}
