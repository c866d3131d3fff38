//! Changes of the members beside others: of the members, of the leader, and of the mode.

use super::members::Members;
use super::*;
use crate::core::codec;
use crate::core::types::{Payload, Proposal};
use crate::membership::Step;
use openraft::RaftMetrics;

fn metrics(replica: &Replica) -> RaftMetrics<crate::core::types::TypeConfig> {
    with_metrics(&replica.inner.member.raft, Clone::clone)
}

/// A change is judged by what its leader saw. If that is not so any more, it is not made.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_was_judged_before_another_one_or_in_another_term_is_not_made() {
    let (_folder, replica) = alone().await;
    let reconciler = &replica.inner.service.reconciler;
    // The leader makes no change of its own: it would drop a node that nobody hears.
    let _turn = reconciler.changing.lock().await;
    let slots = || -> Vec<u16> {
        metrics(&replica).membership_config.nodes().map(|(id, _)| id.slot()).collect()
    };
    let learner = |slot| {
        let address = MemberAddress { peer: "127.0.0.1:1".into(), client: String::new() };
        Step::Add(NodeId::new(slot, 1), address)
    };
    let before = metrics(&replica);
    reconciler.take(learner(2), &before).await;
    assert!(slots().contains(&2));
    reconciler.take(learner(3), &before).await;
    assert!(!slots().contains(&3), "another change came before it");
    let mut earlier = metrics(&replica);
    earlier.vote.leader_id.term -= 1;
    reconciler.take(learner(3), &earlier).await;
    assert!(!slots().contains(&3), "this member leads another term now");
    let made = async {
        while !slots().contains(&3) {
            reconciler.take(learner(3), &metrics(&replica)).await;
        }
    };
    runtime::timeout(WAIT_LIMIT, made).await.expect("it is made");
}

/// By its last request to join, and by what it acknowledged, it is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_has_just_gone_does_not_become_a_voter() {
    let (_folder, replica) = alone().await;
    let reconciler = &replica.inner.service.reconciler;
    let _turn = reconciler.changing.lock().await;
    let (gone, slot) = (NodeId::new(2, 1), 2);
    let address = MemberAddress { peer: "127.0.0.1:1".into(), client: String::new() };
    reconciler.take(Step::Add(gone, address), &metrics(&replica)).await;
    assert!(metrics(&replica).membership_config.nodes().any(|(id, _)| id.slot() == slot));
    let present = metrics(&replica);
    let promoted = reconciler.take(Step::Promote(gone), &present);
    runtime::timeout(WAIT_LIMIT, promoted).await.expect("it does not wait for it");
    let voters: Vec<_> = metrics(&replica).membership_config.voter_ids().collect();
    assert_eq!(voters, [replica.node_id()]);
}

/// The story: a call of `mode set` had run out of time, and its record was on its way. A removal that
/// left two voters began, and the record made two voters `replicated`.
#[tokio::test(flavor = "multi_thread")]
async fn a_removal_that_leaves_fewer_than_three_waits_for_a_mode_that_is_on_its_way() {
    let members = Members::started().await;
    let leader = members.leader();
    let another = members.replicas.iter().find(|one| one.node_id() != leader.node_id()).unwrap();
    let slot = another.node_id().slot();
    let remove = || leader.inner.service.reconciler.change(crate::MemberChange::Remove(slot));
    let Proposal { meta, values } = codec::encode_mode(Mode::Replicated);
    let record = Payload::Normal(Proposal { meta, values });
    let modes = &leader.inner.member.modes;
    modes.appended(u64::MAX, &record);
    // A leader of this moment has not heard of all others.
    let until = runtime::now() + WAIT_LIMIT;
    let waits_for = loop {
        match remove().await {
            Ok(waits_for) => break waits_for,
            Err(error) => assert!(runtime::now() < until, "{error}"),
        }
        runtime::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(waits_for.as_deref(), Some("a change of the mode is under way"));
    modes.truncated(None);
    loop {
        let waits_for = match remove().await {
            Ok(None) => break,
            Ok(Some(waits_for)) => waits_for,
            // Nor of one that is late.
            Err(error) => error.to_string(),
        };
        assert!(runtime::now() < until, "{waits_for}");
        runtime::sleep(Duration::from_millis(20)).await;
    }
}

/// The story: a change waited for a majority that was not there. Its leader waited with it, and
/// meanwhile logged no boots and took no other change, for as long as it led.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_does_not_wait_for_ever_for_a_change_that_no_majority_takes() {
    let members = Members::started().await;
    let leader = members.leader();
    let others: Vec<_> =
        members.replicas.iter().filter(|one| one.node_id() != leader.node_id()).collect();
    for other in &others {
        other.shutdown().await.unwrap();
    }
    let moved = MemberAddress { peer: "127.0.0.1:1".into(), client: "client:1".into() };
    let member = &leader.inner.member;
    member.addresses.answered(others[0].node_id(), others[0].engine().boot_epoch(), moved);
    let changing = &leader.inner.service.reconciler.changing;
    let waits = |one: &Replica| {
        let proposed = metrics(one).membership_config.log_id()
            != metrics(one).committed_membership_config.log_id();
        (proposed && changing.try_lock().is_none()).then_some(())
    };
    members.until("the change waits", waits).await;
    members.until("another one may begin", |_| changing.try_lock().map(drop)).await;
}
