//! Who takes over leadership, and who gives it away.
//!
//! No election ends in these tests but the first one and those that a leader asks for.

use super::members::{Members, leads};
use super::*;
use crate::durability::leadership::To;
use crate::durability::{Act, Drain, Event};
use crate::storage::tests::engine_to_hold;
use openraft::ChangeMembers;
use std::collections::BTreeSet;

/// The story: an operator drained a member in the middle of its election. It won, and led although it
/// was drained.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_leads_although_it_is_drained_gives_leadership_away() {
    let members = Members::started().await;
    let drained = members.leader();
    drained.inner.member.change(Event::Drained(drain_since(Duration::ZERO)));
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
    leadership::hand_over(&leader.inner.member, To::Best, limit).await;
    takes_a_write(leader).await;
}

/// The story: three of five voters had lost power, and the leader was asked to give leadership away. It
/// was given up with the first vote for the transferee. The three recovered, for which they needed a
/// leader, and the two could not elect one.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_leads_on_while_no_majority_says_that_it_may_vote() {
    let members = Members::of(5, |_| 60_000).await;
    let leader = members.leader();
    let term = leader.status().term;
    let others = || members.replicas.iter().filter(|one| one.node_id() != leader.node_id());
    let recover: Vec<&Replica> = others().take(3).collect();
    recover.iter().for_each(|one| assert!(one.inner.member.change(Event::Lost)));
    let limit = Duration::from_millis(700);
    leadership::hand_over(&leader.inner.member, To::Best, limit).await;
    assert!(leads(leader) && leader.status().term == term, "{:?}", leader.status());
    recover.iter().for_each(|one| assert!(one.inner.member.change(Event::Recovered)));
    leadership::hand_over(&leader.inner.member, To::Best, WAIT_LIMIT).await;
    let other = |one: &Replica| (one.node_id() != leader.node_id() && leads(one)).then_some(());
    members.until("another leads", other).await;
}

fn put() -> Command {
    let put = crate::core::command::Operation::Put {
        key: "k".into(),
        value: "v".into(),
        condition: crate::core::command::Condition::None,
    };
    Command { synced: false, session: None, operations: vec![put] }
}

/// The story: a leader that was asked to stop named the member that was to take over before that one
/// led. Clients asked there, were refused, and asked again later and later.
#[tokio::test(flavor = "multi_thread")]
async fn while_leadership_is_handed_over_a_write_is_answered_with_the_leader_that_is_there() {
    let members = Members::started().await;
    let old = members.leader();
    let term = old.status().term;
    let leaving = old.leave();
    let writing = async {
        loop {
            match old.write(put()).await {
                Ok(_) => runtime::sleep(Duration::from_millis(1)).await,
                Err(WriteError::NotLeader { leader }) => return leader.0,
                Err(error) => panic!("{error}"),
            }
        }
    };
    let ((), named) = futures::join!(leaving, writing);
    let next = members.replicas.iter().find(|one| one.node_id() == named).unwrap();
    // Its metrics say so a moment later.
    let elected = next.inner.member.raft.with_raft_state(move |state| {
        let vote = state.vote_ref();
        vote.committed && vote.leader_id.term > term
    });
    assert!(elected.await.unwrap(), "{named} does not lead yet");
}

pub(super) async fn takes_a_write(leader: &Replica) {
    let command = put();
    let written = async {
        while leader.write(command.clone()).await.is_err() {
            runtime::sleep(Duration::from_millis(20)).await;
        }
    };
    runtime::timeout(WAIT_LIMIT, written).await.expect("it takes writes");
}

/// The story: a member said that it may lead, and lost power before it did. openraft takes no
/// proposals on a leader that began to hand over, and the leader kept leading.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_goes_on_after_nobody_took_over_what_it_handed_over() {
    let members = Members::with_elections(|slot| if slot == 1 { 300 } else { 60_000 }).await;
    let [leader, silent, _] = &members.replicas[..] else { panic!() };
    assert!(leads(leader), "the others campaign much later");
    silent.drain(Duration::from_secs(600)).await.unwrap();
    let limit = Duration::from_secs(3);
    let member = &leader.inner.member;
    let turn = member.handing_over.clone().lock_owned().await;
    let to = silent.node_id();
    // The call that asked for it is gone before its end: the first poll begins it.
    let mut hand_over = Box::pin(leadership::hand_over_to(member, to, limit, turn));
    assert!(futures::poll!(&mut hand_over).is_pending());
    drop(hand_over);
    assert!(member.handing_over.try_lock().is_none(), "nobody names another transferee meanwhile");
    takes_a_write(leader).await;
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
    // The first poll proposes the first step. Another one may propose the second step, too.
    let polled = futures::poll!(&mut removal);
    assert!(polled.is_pending(), "{polled:?}");
    members.until("the removal is begun", |_| is_joint().then_some(())).await;
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

/// The story: a leader that was asked to stop kept leading for as long as it waited for its clients.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_being_stopped_leads_no_more_and_still_acknowledges() {
    let members = Members::started().await;
    let stopped = members.leader();
    stopped.leave().await;
    let next = members.leader_now().await;
    assert!(next.node_id() != stopped.node_id() && stopped.inner.member.may(Act::Stand).is_err());
    let refused = stopped.write(put()).await.unwrap_err();
    let named = matches!(&refused, WriteError::NotLeader { leader } if leader.0 == next.node_id());
    assert!(named, "where to send clients: {refused}");
    // The next leader has not heard of all others yet.
    let others = |one: &NodeId| *one != stopped.node_id();
    let told = async {
        loop {
            let verdicts = next.stop_verdicts().await.unwrap_or_default();
            let against = verdicts.iter().filter(|verdict| others(&verdict.member));
            let why: Vec<String> = against.flat_map(|one| one.obstacles.clone()).collect();
            if why.iter().filter(|why| why.contains("is being stopped")).count() == 2 {
                return;
            }
            runtime::sleep(Duration::from_millis(5)).await;
        }
    };
    runtime::timeout(WAIT_LIMIT, told).await.expect("no other one may be stopped");
    let third = members.replicas.iter().find(|one| others(&one.node_id()) && !leads(one)).unwrap();
    third.shutdown().await.unwrap();
    takes_a_write(next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_or_recovering_member_says_that_it_may_not_lead_and_takes_no_leadership() {
    let (_folder, replica, service) = replica().await;
    let may_lead = async || {
        let hello = HelloRequest { envelope: envelope(), receiver_slot: 1, ..Default::default() };
        service.hello(Remote::default(), hello).await.unwrap().may_lead
    };
    assert!(may_lead().await);
    replica.drain(Duration::from_secs(600)).await.unwrap();
    assert!(!may_lead().await && replica.inner.member.may(Act::Stand).is_err());
    let refused = service.transfer_leader(Remote::default(), transfer()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("keeps this member from leading"), "{refused}");
    replica.drain(Duration::ZERO).await.unwrap();
    assert!(may_lead().await);
    replica.inner.member.change(Event::Lost);
    assert!(!may_lead().await);
}

/// A leader gives leadership away when its disk stalls: so nobody hands it to such a member.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_whose_disk_stalls_says_that_it_may_not_lead_and_takes_no_leadership() {
    let folder = tempfile::tempdir().unwrap();
    // It stalls after a third of this time, and is asked before the rest is over.
    let limit = Duration::from_secs(9);
    let (engine, hold) = engine_to_hold(&folder, |options| options.io_timeout = limit).await;
    let (replica, service) = of_two(engine).await;
    let hello = || HelloRequest { envelope: envelope(), receiver_slot: 1, ..Default::default() };
    let answer = service.hello(Remote::default(), hello()).await.unwrap();
    assert!(answer.may_lead);
    hold.begin();
    let vote = tokio::spawn({
        let engine = replica.engine().clone();
        async move { engine.save_vote(GROUP, b"late").await }
    });
    while !replica.engine().status().stalled {
        runtime::sleep(Duration::from_millis(5)).await;
    }
    let answer = service.hello(Remote::default(), hello()).await.unwrap();
    assert!(!answer.may_lead && !answer.recovering);
    let refused = service.transfer_leader(Remote::default(), transfer()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("of this member"), "it stalls, or has failed: {refused}");
    hold.end();
    vote.await.unwrap().ok();
}

fn transfer() -> TransferLeaderRequest {
    TransferLeaderRequest {
        envelope: envelope(),
        from: Some(Vote { term: 1, node_id: other().as_u64(), committed: true }),
        to: NodeId::new(1, 1).as_u64(),
        last_log_id: None,
    }
}

/// A drain of ten minutes that began so long ago.
fn drain_since(time: Duration) -> Drain {
    let from = runtime::now() - time;
    Drain { from, until: from + Duration::from_secs(600) }
}

/// The story: the leader died, and only a drained member had its newest entries. Nobody led for as
/// long as the drain lasted.
#[tokio::test(flavor = "multi_thread")]
async fn a_drained_member_stands_for_election_when_no_leader_was_heard_for_long() {
    let (_folder, replica, _service) = replica().await;
    let member = &replica.inner.member;
    let begins = || member.may(Act::Stand).is_ok();
    assert!(begins());
    member.change(Event::Drained(drain_since(Duration::ZERO)));
    assert!(!begins(), "it is drained");
    let patience = Duration::from_secs(60);
    member.change(Event::Drained(drain_since(patience)));
    assert!(begins(), "nobody was heard for long");
    assert!(member.kept_from_leading().is_some(), "it gives leadership away again");
    let appends = crate::core::types::Vote::new(1, other());
    member.takes_appends(other(), appends).unwrap();
    assert!(!begins(), "a leader was heard");
    member.change(Event::Drained(drain_since(Duration::from_secs(600))));
    assert!(begins(), "its drain has ended");
    member.change(Event::Leaves);
    assert!(!begins(), "it is being stopped");
}

/// A cluster of one, whose leader asks nobody for a vote: openraft's flag alone decides. Nothing sets
/// it later here.
#[tokio::test(flavor = "multi_thread")]
async fn openraft_is_told_at_once_whether_to_begin_elections() {
    let folder = tempfile::tempdir().unwrap();
    let address = MemberAddress { peer: "127.0.0.1:1".into(), client: String::new() };
    let config = ReplicaConfig {
        maintenance_ms: 600_000,
        ..ReplicaConfig::new(Mode::Device, BTreeMap::from([(1, address)]))
    };
    let election = Duration::from_millis(config.election_max_ms);
    let replica = Replica::start(config, engine(&folder).await).await.unwrap();
    let member = &replica.inner.member;
    let leads_within = async |time| {
        let led = async {
            while !leads(&replica) {
                runtime::sleep(Duration::from_millis(5)).await;
            }
        };
        runtime::timeout(time, led).await.is_some()
    };
    let limit = WAIT_LIMIT;
    assert!(leads_within(limit).await);
    let stops_leading = async || {
        while leads(&replica) {
            leadership::give_up(&member.raft, replica.status().term).await;
            runtime::sleep(Duration::from_millis(5)).await;
        }
        !leads_within(election * 2).await
    };
    member.change(Event::Drained(drain_since(Duration::ZERO)));
    assert!(stops_leading().await, "it is drained");
    member.change(Event::Drained(drain_since(Duration::from_secs(1200))));
    assert!(leads_within(limit).await, "its drain has ended");
    member.change(Event::Lost);
    assert!(stops_leading().await, "it recovers");
    let epoch = replica.engine().boot_epoch();
    member.take_grant(UnsafeRecovery { candidate: replica.node_id(), epoch }).unwrap();
    assert!(leads_within(limit).await, "an operator chose it");
}
