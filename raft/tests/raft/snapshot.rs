//! A member that lags so far that the log no longer reaches back to it.

use crate::support::proxy::Proxy;
use crate::support::{Cluster, quick, until, value};
use cairn_raft::{Command, Condition, GROUP, Operation, ReplicaConfig, Session};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

const VALUE_BYTES: usize = 20_000;
const KEYS: usize = 300;

fn keep_little(config: &mut ReplicaConfig) {
    config.log_retain_entries = 20;
}

/// Writes while the follower is down, until the log no longer holds what it needs.
async fn write_past(cluster: &Cluster, last: u64) {
    write_keys_past(cluster, KEYS, last).await;
}

/// As [`write_past`], only the first `keys`.
async fn write_keys_past(cluster: &Cluster, keys: usize, last: u64) {
    for from in (0..keys).step_by(50) {
        let writes = (from..from + 50).map(|number| async move {
            let value = vec![number as u8; VALUE_BYTES];
            cluster.overwrite(&format!("key{number:03}"), value).await;
        });
        futures::future::join_all(writes).await;
    }
    let leader = cluster.leader().await;
    until("the log to be purged", || leader.status().purged.filter(|purged| purged.index > last))
        .await;
}

async fn away(cluster: &mut Cluster) -> (u16, u64) {
    cluster.put("first", "1").await;
    cluster.converge().await;
    let leader = cluster.leader().await.node_id().slot();
    let follower = (1..=3).find(|slot| *slot != leader).unwrap();
    let last = cluster.replica(follower).status().last_log.unwrap().index;
    cluster.kill(follower).await;
    (follower, last)
}

async fn check(cluster: &Cluster, follower: u16) {
    cluster.converge().await;
    let replica = cluster.replica(follower);
    assert_eq!(value(replica, "first").await.unwrap(), "1");
    for number in 0..KEYS {
        let value = value(replica, &format!("key{number:03}")).await.unwrap();
        assert_eq!(value, vec![number as u8; VALUE_BYTES]);
    }
    assert!(replica.status().purged.is_some(), "it came by snapshot");
}

/// A cluster, and a follower of it that got a snapshot.
async fn caught_up_by_a_snapshot() -> (Cluster, u16) {
    let mut cluster = Cluster::started(3, keep_little).await;
    let (follower, last) = away(&mut cluster).await;
    write_past(&cluster, last).await;
    cluster.start(follower).await;
    check(&cluster, follower).await;
    (cluster, follower)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_far_behind_catches_up_by_a_snapshot() {
    let (cluster, follower) = caught_up_by_a_snapshot().await;
    cluster.put("after", "2").await;
    cluster.converge().await;
    assert_eq!(value(cluster.replica(follower), "after").await.unwrap(), "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_keeps_a_snapshot_over_a_crash_after_it() {
    let (mut cluster, follower) = caught_up_by_a_snapshot().await;
    cluster.kill(follower).await;
    cluster.start(follower).await;
    check(&cluster, follower).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_come_with_the_snapshot() {
    fn keep_little_and_be_quick(config: &mut ReplicaConfig) {
        keep_little(config);
        quick(config);
    }
    let mut cluster = Cluster::started(3, keep_little_and_be_quick).await;
    let (follower, last) = away(&mut cluster).await;
    let session = Session { client_id: 5, sequence: 1, lowest_pending: 1, base_index: 0 };
    let operation =
        Operation::Put { key: "once".into(), value: "1".into(), condition: Condition::Absent };
    let command = Command { synced: false, session: Some(session), operations: vec![operation] };
    let first = cluster.write(command.clone()).await;
    write_past(&cluster, last).await;
    cluster.start(follower).await;
    check(&cluster, follower).await;
    // Only two members are left, which know the session by snapshot and by log: either may lead.
    let other = (1..=3).find(|slot| *slot != follower).unwrap();
    cluster.kill(other).await;
    assert_eq!(cluster.write(command).await, first);
    cluster.converge().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_transfer_resumes_where_it_broke() {
    // The others reach member 3 through a connection that can be cut.
    let mut cluster = Cluster::new(3, keep_little).await;
    let proxy = Proxy::to(cluster.members[2].listen).await;
    cluster.addresses.get_mut(&3).unwrap().peer = proxy.address.to_string();
    for slot in 1..=3 {
        cluster.start(slot).await;
    }
    cluster.put("first", "1").await;
    cluster.converge().await;
    let last = cluster.replica(3).status().last_log.unwrap().index;
    cluster.kill(3).await;
    write_past(&cluster, last).await;

    let snapshot_bytes = (KEYS * VALUE_BYTES) as u64;
    let before = proxy.passed.load(Ordering::SeqCst);
    proxy.cut_after(snapshot_bytes * 2 / 3);
    cluster.start(3).await;
    check(&cluster, 3).await;
    assert_eq!(proxy.cuts.load(Ordering::SeqCst), 1, "the transfer was never cut");
    let sent = proxy.passed.load(Ordering::SeqCst) - before;
    assert!(sent >= snapshot_bytes, "{sent} bytes for a snapshot of {snapshot_bytes}");
    assert!(
        sent < snapshot_bytes * 3 / 2,
        "{sent} bytes for a snapshot of {snapshot_bytes}: begun again"
    );
}

/// The story: a member that had been paused came back more slowly than one that had been wiped. It
/// held most keys already. But the leader read and sent each value, and the member then read its
/// own copy to find that it was there already.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_was_down_gets_only_what_changed_and_repairs_its_own_damaged_values() {
    // A log of up to half as many entries as there are keys waits for no checkpoint, and without one
    // it is not purged.
    const CHANGED: usize = 200;
    const { assert!(CHANGED > KEYS / 2) };
    let mut cluster = Cluster::new(3, keep_little).await;
    let proxy = Proxy::to(cluster.members[2].listen).await;
    cluster.addresses.get_mut(&3).unwrap().peer = proxy.address.to_string();
    for slot in 1..=3 {
        cluster.start(slot).await;
    }
    cluster.put("first", "1").await;
    write_past(&cluster, 0).await;
    cluster.converge().await;
    let away = cluster.replica(3);
    let last = away.status().last_log.unwrap().index;
    let damaged = away.engine().lookup(GROUP, b"key200").unwrap().value;
    // The start does not read what a checkpoint covers; else it would find the damage.
    away.engine().checkpoint().await.unwrap();
    cluster.kill(3).await;
    let data = cluster.members[2].folder.path().join("data");
    let file = std::fs::File::options().read(true).write(true).open(data).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, damaged.offset() + 5).unwrap();
    file.write_all_at(&[!byte[0]], damaged.offset() + 5).unwrap();
    file.sync_all().unwrap();
    write_keys_past(&cluster, CHANGED, last).await;

    let before = proxy.passed.load(Ordering::SeqCst);
    cluster.start(3).await;
    cluster.converge().await;
    let sent = proxy.passed.load(Ordering::SeqCst) - before;
    let back = cluster.replica(3);
    assert_eq!(
        back.engine().lookup(GROUP, b"key200").unwrap().value,
        damaged,
        "it is where it was"
    );
    assert_eq!(back.get(b"key200").await.unwrap().unwrap().1, vec![200; VALUE_BYTES]);
    check(&cluster, 3).await;
    let needed = (CHANGED * VALUE_BYTES) as u64;
    assert!(sent >= needed, "{sent} bytes for {needed}");
    assert!(sent <= needed * 12 / 10, "{sent} bytes for {needed}");
}
