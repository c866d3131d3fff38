//! A replica in a cluster whose version rises.

use super::*;
use crate::core::command::{Condition, Operation};
use crate::membership::{ChangeError, MemberChange};
use crate::transport::PendingJoin;

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_finds_a_higher_version_of_the_cluster_than_its_own_stops_and_says_so() {
    let (_folder, replica) = alone().await;
    let LocalMember { identity, raft, .. } = &*replica.inner.member;
    let later = Boot { version: VERSION + 1, ..identity.boot() };
    let stops = async {
        loop {
            // In between it logs what it really speaks: then the version does not rise.
            let boot = codec::encode_boot(identity.id(), &later);
            for record in [boot, codec::encode_version(VERSION + 1)] {
                raft.client_write_ff(record, None).await.ok();
            }
            if let Some(reason) = replica.stopped() {
                return reason;
            }
            runtime::sleep(Duration::from_millis(5)).await;
        }
    };
    let reason = runtime::timeout(WAIT_LIMIT, stops).await.expect("it stops");
    for part in [
        format!("the cluster's version is {}", VERSION + 1),
        format!("speaks version {VERSION}"),
        format!("start a release of version {}", VERSION + 1),
    ] {
        assert!(reason.contains(&part), "{reason}");
    }
    assert!(replica.versions().cluster <= VERSION, "nothing of it was used");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_cluster_begins_at_the_version_that_its_members_speak() {
    let (_folder, replica) = alone().await;
    let began = async {
        // The mode is logged behind it: from then on the cluster is not new.
        while replica.modes().cluster.is_none() {
            runtime::sleep(Duration::from_millis(5)).await;
        }
    };
    runtime::timeout(WAIT_LIMIT, began).await.expect("it begins");
    assert_eq!(replica.versions().cluster, VERSION);
}

/// openraft does nothing from here on, until this is dropped.
async fn stall(replica: &Replica) -> std::sync::mpsc::Sender<()> {
    let raft = replica.inner.member.raft.clone();
    let (busy, is_busy) = tokio::sync::oneshot::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    tokio::spawn(async move {
        let stall = move |_: &_| {
            busy.send(()).ok();
            may_go_on.recv().ok();
        };
        raft.with_raft_state(stall).await
    });
    is_busy.await.unwrap();
    go_on
}

fn delete_all() -> Command {
    let (start, end) = (bytes::Bytes::new(), bytes::Bytes::new());
    let range = Operation::DeleteRange { start, end, most: 10, whole: false };
    Command { synced: false, session: None, operations: vec![range] }
}

/// A build of version 2 could not read the entry.
#[tokio::test(flavor = "multi_thread")]
async fn a_range_is_deleted_only_in_a_cluster_whose_every_member_can_read_that() {
    let (_folder, replica) = alone().await;
    while replica.modes().cluster.is_none() {
        runtime::sleep(Duration::from_millis(5)).await;
    }
    let (key, value, condition) = ("a".into(), "v".into(), Condition::None);
    let operations = vec![Operation::Put { key, value, condition }];
    replica.write(Command { synced: false, session: None, operations }).await.unwrap();
    let is_there = || replica.engine().lookup(crate::core::ids::GROUP, b"a").is_some();
    let identities = &replica.inner.member.identity.identities;
    identities.set_logged(&identities.logged(), &Arc::default(), 2);
    let refused = replica.write(delete_all()).await.unwrap_err().to_string();
    let named = "the cluster's version is 2, and the deletion of a range needs 3";
    assert!(refused.contains(named) && refused.contains("`cairn upgrade finish`"), "{refused}");
    assert!(is_there());
    identities.set_logged(&identities.logged(), &Arc::default(), VERSION);
    let done = replica.write(delete_all()).await.unwrap();
    assert_eq!((done.applied, done.results[0].deleted), (true, 1));
    assert!(!is_there());
}

/// The story: a new leader had not applied the version's record yet. It refused a range, and no client asks again
/// after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_refuses_a_range_for_the_version_only_behind_a_read_barrier() {
    let (_folder, replica) = alone().await;
    while replica.modes().cluster.is_none() {
        runtime::sleep(Duration::from_millis(5)).await;
    }
    let identities = &replica.inner.member.identity.identities;
    let go_on = stall(&replica).await;
    identities.set_logged(&identities.logged(), &Arc::default(), 2);
    let mut deleting = Box::pin(replica.write(delete_all()));
    assert!(futures::poll!(&mut deleting).is_pending(), "no quorum has answered");
    identities.set_logged(&identities.logged(), &Arc::default(), VERSION);
    drop(go_on);
    assert!(deleting.await.unwrap().applied);
}

#[test]
fn a_new_cluster_is_told_to_wait_and_not_to_finish_an_upgrade() {
    let what = "the deletion of a range";
    let told = WriteError::NoVersionYet { what, needed: 3 }.to_string();
    assert!(told.contains("the deletion of a range needs version 3: try again"), "{told}");
    assert!(!told.contains("upgrade"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_is_finished_to_what_the_members_run_and_to_nothing_later() {
    let (_folder, replica) = alone().await;
    replica.finish_upgrade(VERSION).await.unwrap();
    assert_eq!(replica.versions().cluster, VERSION);
    let refused = replica.finish_upgrade(VERSION + 1).await;
    let named = format!("member {} is not known to run", replica.node_id());
    assert!(
        matches!(&refused, Err(ChangeError::Refused(reason)) if reason.contains(&named)),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_join_from_before_the_version_rose_does_not_count() {
    let (_folder, replica) = alone().await;
    let identities = &replica.inner.member.identity.identities;
    let epoch = BootEpoch { number: 1, nonce: 1 };
    let boot = Boot { epoch, version: VERSION, release: Arc::default() };
    identities.observe(other(), &boot, &[]).unwrap();
    let address = MemberAddress { peer: "127.0.0.1:2".into(), client: "127.0.0.1:3".into() };
    let joins = PendingJoin { id: other(), address, active: true };
    let reconciler = &replica.inner.service.reconciler;
    reconciler.apply(joins).expect_err("an operator has to add it");
    assert!(reconciler.fresh_joins().contains_key(&2));
    identities.set_logged(&identities.logged(), &Arc::default(), VERSION + 1);
    assert!(reconciler.fresh_joins().is_empty());
}

/// The story: a node of an older release was let in while the record was on its way. Its membership
/// followed the record, so that the check at the record's apply did not see it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_member_is_changed_while_a_version_record_is_under_way() {
    let (_folder, replica) = alone().await;
    replica.finish_upgrade(VERSION).await.unwrap();
    while replica.modes().cluster.is_none() {
        runtime::sleep(Duration::from_millis(5)).await;
    }
    let identity = &replica.inner.member.identity;
    let reconciler = &replica.inner.service.reconciler;
    let go_on = stall(&replica).await;
    // As far as this member knows, it runs the next release.
    let BootEpoch { number, nonce } = identity.boot().epoch;
    let epoch = BootEpoch { number: number + 1, nonce };
    let boot = Boot { epoch, version: VERSION + 1, release: Arc::default() };
    let boots = Arc::new(BTreeMap::from([(identity.id(), boot)]));
    identity.identities.set_logged(&boots, &Arc::default(), VERSION);
    let change = || reconciler.change(MemberChange::Remove(1));
    assert!(matches!(change().await, Err(ChangeError::Refused(_))), "the last voter");
    let mut finish = Box::pin(replica.finish_upgrade(VERSION + 1));
    for _ in 0..20 {
        let polled = futures::poll!(&mut finish);
        assert!(polled.is_pending(), "{polled:?}");
        runtime::sleep(Duration::from_millis(5)).await;
    }
    // The caller is gone, and the record is not.
    drop(finish);
    let mut beside = Box::pin(change());
    for _ in 0..20 {
        let polled = futures::poll!(&mut beside);
        assert!(polled.is_pending(), "{polled:?}");
        runtime::sleep(Duration::from_millis(5)).await;
    }
    drop(go_on);
    assert!(matches!(beside.await, Err(ChangeError::Refused(_))), "it is the last voter still");
}
