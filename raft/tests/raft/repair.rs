//! Damage at rest on the members of a real cluster: each member repairs it from the others.

use crate::support::proxy::{MARK, Proxy};
use crate::support::{Cluster, put, quick, until, value, write};
use bytes::Bytes;
use cairn_engine::io::FileKind;
use cairn_engine::{Error, Extent, Owner, ValueRef};
use cairn_raft::{GROUP, Replica, ReplicaConfig, Role, ScrubStatus};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

const KEYS: usize = 120;

fn usual(config: &mut ReplicaConfig) {
    config.scrub_rate_bytes = 1 << 30;
}

fn usual_and_quick(config: &mut ReplicaConfig) {
    usual(config);
    quick(config);
}

fn keep_little(config: &mut ReplicaConfig) {
    usual(config);
    config.log_retain_entries = 20;
}

fn key(number: usize) -> String {
    format!("key{number:03}")
}

fn bytes(number: usize) -> Bytes {
    let len = if number.is_multiple_of(7) { 40_000 } else { 300 + number };
    Bytes::from((0..len).map(|at| (number * 31 + at) as u8).collect::<Vec<_>>())
}

/// A cluster that keeps no values in memory, so that a damaged value is damaged.
async fn cluster(configure: fn(&mut ReplicaConfig)) -> Cluster {
    let mut cluster = Cluster::new(3, configure).await;
    cluster.log_cache_bytes = 0;
    for slot in 1..=3 {
        cluster.start(slot).await;
    }
    cluster
}

async fn fill(cluster: &Cluster, range: std::ops::Range<usize>) {
    for number in range {
        cluster.overwrite(&key(number), bytes(number)).await;
    }
    // The last one stays in memory.
    cluster.overwrite("last", "1").await;
    cluster.converge().await;
}

fn file(cluster: &Cluster, slot: u16, kind: FileKind) -> File {
    let path = cluster.members[usize::from(slot) - 1].folder.path().join(kind.name());
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Flips bits of a range of a file at rest.
fn damage(cluster: &Cluster, slot: u16, kind: FileKind, offset: u64, len: usize) {
    let file = file(cluster, slot, kind);
    let mut buffer = vec![0; len];
    file.read_exact_at(&mut buffer, offset).unwrap();
    buffer.iter_mut().for_each(|byte| *byte ^= 0x55);
    file.write_all_at(&buffer, offset).unwrap();
    file.sync_all().unwrap();
}

fn damage_all(cluster: &Cluster, slot: u16, kind: FileKind) {
    let len = file(cluster, slot, kind).metadata().unwrap().len();
    damage(cluster, slot, kind, 0, len as usize);
}

fn value_ref(replica: &Replica, number: usize) -> ValueRef {
    replica.engine().lookup(GROUP, key(number).as_bytes()).unwrap().value
}

/// Damages the value of a key on one member, wherever that member stores it.
fn damage_value(cluster: &Cluster, slot: u16, number: usize) {
    let at = value_ref(cluster.replica(slot), number);
    damage(cluster, slot, FileKind::Data, at.offset() + 5, 3);
}

/// Whether the device holds the right value. Does not repair it.
async fn is_intact(replica: &Replica, number: usize) -> bool {
    let entry = replica.engine().lookup(GROUP, key(number).as_bytes()).unwrap();
    let extent = Extent::of_key(key(number).into(), &entry);
    replica.engine().read_extent(GROUP, &extent).await.is_ok()
}

async fn check_all(replica: &Replica) {
    for number in 0..KEYS {
        let (_, found) = replica.get(key(number).as_bytes()).await.unwrap().unwrap();
        assert_eq!(found, bytes(number), "{number}");
    }
}

async fn follower(cluster: &Cluster) -> u16 {
    let leader = cluster.leader().await.node_id().slot();
    (1..=3).find(|slot| *slot != leader).unwrap()
}

async fn comes_back(cluster: &mut Cluster, slot: u16) {
    cluster.start(slot).await;
    until("the member to be active again", || cluster.replica(slot).holds_all().then_some(()))
        .await;
    cluster.put("after", "1").await;
    cluster.converge().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_with_a_damaged_journal_or_damaged_checkpoints_or_nothing_but_its_superblock_comes_back()
 {
    let mut cluster = cluster(usual_and_quick).await;
    fill(&cluster, 0..KEYS).await;
    let all = [FileKind::Journal, FileKind::Checkpoint0, FileKind::Checkpoint1, FileKind::Data];
    for (files, leads) in
        [(&all[..1], false), (&all[1..3], false), (&all[..], false), (&all[..], true)]
    {
        let slot = match leads {
            true => cluster.leader().await.node_id().slot(),
            false => follower(&cluster).await,
        };
        cluster.kill(slot).await;
        for kind in files {
            damage_all(&cluster, slot, *kind);
        }
        let meanwhile = format!("meanwhile {files:?} {leads}");
        cluster.put(&meanwhile, "1").await;
        comes_back(&mut cluster, slot).await;
        check_all(cluster.replica(slot)).await;
        assert_eq!(value(cluster.replica(slot), &meanwhile).await.unwrap(), "1");
        // What it recovered survives another restart.
        cluster.kill(slot).await;
        cluster.start(slot).await;
        assert!(cluster.replica(slot).holds_all());
        cluster.leader().await;
        cluster.converge().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_lost_everything_but_its_superblock_comes_back_by_a_snapshot_where_the_log_is_purged()
 {
    let mut cluster = cluster(keep_little).await;
    fill(&cluster, 0..KEYS).await;
    until("the log to be purged", || {
        cluster.replicas().all(|r| r.status().purged.is_some()).then_some(())
    })
    .await;
    let slot = follower(&cluster).await;
    cluster.kill(slot).await;
    for kind in [FileKind::Journal, FileKind::Checkpoint0, FileKind::Checkpoint1, FileKind::Data] {
        damage_all(&cluster, slot, kind);
    }
    comes_back(&mut cluster, slot).await;
    check_all(cluster.replica(slot)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_value_is_read_right_on_any_member_and_is_repaired_on_the_device() {
    let cluster = cluster(usual).await;
    fill(&cluster, 0..KEYS).await;
    // Disjoint damage: each key on one member.
    for number in 0..KEYS {
        damage_value(&cluster, number as u16 % 3 + 1, number);
    }
    for number in 0..KEYS {
        assert!(!is_intact(cluster.replica(number as u16 % 3 + 1), number).await);
    }
    for replica in cluster.replicas() {
        check_all(replica).await;
        for number in 0..KEYS {
            assert!(is_intact(replica, number).await, "{number}");
        }
        assert_eq!(replica.scrub_status().repaired, KEYS as u64 / 3);
        assert_eq!(replica.engine().status().repaired_values, KEYS as u64 / 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_no_member_has_is_an_error_and_never_absent_and_can_be_overwritten() {
    let cluster = cluster(usual).await;
    fill(&cluster, 0..20).await;
    for slot in 1..=3 {
        damage_value(&cluster, slot, 8);
    }
    for replica in cluster.replicas() {
        assert!(matches!(replica.get(key(8).as_bytes()).await, Err(Error::Corrupt(_))));
        assert_eq!(replica.get(key(9).as_bytes()).await.unwrap().unwrap().1, bytes(9));
        assert_eq!(replica.scrub_status().unrepairable, 1);
    }
    write(cluster.leader().await, put(&key(8), "again")).await;
    cluster.converge().await;
    for replica in cluster.replicas() {
        assert_eq!(replica.get(key(8).as_bytes()).await.unwrap().unwrap().1, "again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_that_are_damaged_on_the_leader_are_repaired_before_they_are_sent() {
    let mut cluster = cluster(usual).await;
    fill(&cluster, 0..10).await;
    let slot = follower(&cluster).await;
    cluster.kill(slot).await;
    fill(&cluster, 10..KEYS).await;
    let leader = cluster.leader().await.node_id().slot();
    for number in 10..KEYS {
        damage_value(&cluster, leader, number);
    }
    cluster.start(slot).await;
    cluster.converge().await;
    check_all(cluster.replica(slot)).await;
    let repaired: Vec<u64> =
        cluster.replicas().map(|replica| replica.scrub_status().repaired).collect();
    assert!(repaired.iter().sum::<u64>() > 0, "{repaired:?}, {leader} led");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_with_entries_that_no_reachable_member_has_continues_and_repairs_them_when_one_returns()
 {
    let mut cluster = cluster(usual).await;
    fill(&cluster, 0..10).await;
    let away = follower(&cluster).await;
    cluster.kill(away).await;
    fill(&cluster, 10..20).await;
    let leader = cluster.leader().await.node_id().slot();
    let other = (1..=3).find(|slot| ![away, leader].contains(slot)).unwrap();
    damage_value(&cluster, leader, 12);
    cluster.kill(other).await;
    cluster.start(away).await;
    until("an attempt that finds no member with the value", || {
        (cluster.replica(leader).scrub_status().unrepairable > 0).then_some(())
    })
    .await;
    assert_ne!(cluster.replica(leader).status().role, Role::Stopped);
    cluster.start(other).await;
    cluster.leader().await;
    cluster.converge().await;
    for number in 0..20 {
        assert_eq!(
            cluster.replica(away).get(key(number).as_bytes()).await.unwrap().unwrap().1,
            bytes(number)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_complete_even_if_values_are_damaged_on_the_leader() {
    let mut cluster = cluster(keep_little).await;
    fill(&cluster, 0..2).await;
    let slot = follower(&cluster).await;
    let last = cluster.replica(slot).status().last_log.unwrap().index;
    cluster.kill(slot).await;
    fill(&cluster, 2..KEYS).await;
    let leader = cluster.leader().await;
    until("the log to be purged", || leader.status().purged.filter(|purged| purged.index > last))
        .await;
    let leader = leader.node_id().slot();
    for number in 0..KEYS / 2 {
        damage_value(&cluster, leader, number);
    }
    cluster.start(slot).await;
    cluster.converge().await;
    check_all(cluster.replica(slot)).await;
}

async fn scrubbed(replica: &Replica) -> ScrubStatus {
    let before = replica.scrub_status().cycles;
    replica.start_scrub();
    until("the scrub to end", || {
        Some(replica.scrub_status()).filter(|status| status.cycles > before && !status.running)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrub_finds_damage_in_every_file_and_repairs_it() {
    let mut cluster = cluster(usual).await;
    fill(&cluster, 0..KEYS).await;
    let slot = follower(&cluster).await;
    let replica = cluster.replica(slot);
    let clean = scrubbed(replica).await;
    assert_eq!((clean.damaged, clean.repaired, clean.unrepairable), (0, 0, 0));
    assert!(clean.values_checked > KEYS as u64 && clean.blocks_checked > 10, "{clean:?}");

    fill(&cluster, 0..10).await;
    // Values that the journal carries go to their places.
    replica.engine().checkpoint().await.unwrap();
    let data = || {
        let file = file(&cluster, slot, FileKind::Data);
        let mut bytes = vec![0; 16 << 20];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    let before = data();
    for number in 0..KEYS {
        damage_value(&cluster, slot, number);
    }
    let status = replica.engine().status();
    let blocks = status.journal_blocks;
    damage(&cluster, slot, FileKind::Journal, status.written_sequence % blocks * 4096 + 99, 1);
    for kind in [FileKind::Checkpoint0, FileKind::Checkpoint1] {
        damage(&cluster, slot, kind, 2 * 4096 + 8, 4);
    }
    damage(&cluster, slot, FileKind::Superblock, 16 * 1024 + 60, 1);
    let found = scrubbed(replica).await;
    assert_eq!(
        (found.damaged, found.repaired, found.unrepairable),
        (KEYS as u64 + 4, KEYS as u64 + 4, 0)
    );
    assert!(data() == before, "the data area is as it was");
    let again = scrubbed(replica).await;
    assert_eq!(
        (again.damaged, again.cycles),
        (found.damaged, found.cycles + 1),
        "nothing is left to find"
    );

    cluster.kill(slot).await;
    cluster.start(slot).await;
    assert!(cluster.replica(slot).holds_all(), "nothing was lost");
    cluster.leader().await;
    cluster.converge().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_scrub_stays_paused_over_a_restart_and_ends_when_it_is_started() {
    fn slow(config: &mut ReplicaConfig) {
        config.scrub_rate_bytes = 100 << 10;
        quick(config);
    }
    let mut cluster = cluster(slow).await;
    fill(&cluster, 0..KEYS).await;
    let replica = cluster.replica(1);
    replica.start_scrub();
    until("the scrub to get somewhere", || (replica.scrub_status().position > 0).then_some(()))
        .await;
    replica.pause_scrub(true);
    let at = until("the scrub to pause", || {
        Some(replica.scrub_status()).filter(|status| status.paused && !status.running)
    })
    .await;
    assert!(at.position > 0 && at.cycles == 0);
    cluster.kill(1).await;
    cluster.configure = usual;
    cluster.start(1).await;
    let replica = cluster.replica(1);
    let kept = until("the scrubber to read its stored position", || {
        Some(replica.scrub_status()).filter(|status| status.paused)
    })
    .await;
    assert!(!kept.running && kept.position > 0);
    assert!(!scrubbed(replica).await.paused);
}

/// The story: bits flipped on one member hit entries that the others had purged long ago. No scrub
/// could repair them, each scrub counted them again, and a follower that needed them would have
/// waited for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_entry_that_no_member_has_and_no_key_refers_to_is_purged() {
    let cluster = cluster(usual).await;
    fill(&cluster, 0..KEYS).await;
    let index =
        cluster.replica(1).engine().lookup(GROUP, key(60).as_bytes()).unwrap().version.index;
    let values: Vec<ValueRef> = cluster.replicas().map(|replica| value_ref(replica, 60)).collect();
    write(cluster.leader().await, put(&key(60), "another")).await;
    cluster.converge().await;
    for (slot, at) in (1..).zip(&values) {
        damage(&cluster, slot, FileKind::Data, at.offset() + 5, 3);
    }
    let replica = cluster.replica(follower(&cluster).await);
    let first = scrubbed(replica).await;
    assert_eq!((first.damaged, first.unrepairable), (1, 0), "{first:?}");
    until("the log to be purged through the entry", || {
        replica.engine().log_bounds(GROUP).purged.filter(|purged| purged.index >= index)
    })
    .await;
    let second = scrubbed(replica).await;
    assert_eq!((second.damaged, second.unrepairable), (1, 0), "nothing of it is left: {second:?}");
    assert_eq!(value(replica, &key(60)).await.unwrap(), "another");
}

/// The story: a bit of a value changed in a buffer between two members. The follower took the hash of
/// what had arrived, and kept the wrong value as good.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_is_damaged_on_its_way_to_a_member_is_refused_and_sent_again() {
    let mut cluster = Cluster::new(3, usual).await;
    let mut proxies = Vec::new();
    for slot in 1..=3 {
        let proxy = Proxy::to(cluster.members[usize::from(slot) - 1].listen).await;
        cluster.addresses.get_mut(&slot).unwrap().peer = proxy.address.to_string();
        proxies.push(proxy);
    }
    for slot in 1..=3 {
        cluster.start(slot).await;
    }
    cluster.put("first", "1").await;
    for number in 0..5 {
        proxies.iter().for_each(|proxy| proxy.flips.store(2, Ordering::SeqCst));
        let marked = Bytes::from(vec![MARK; 3000 + number]);
        cluster.put(&key(number), marked.clone()).await;
        cluster.converge().await;
        let left: Vec<_> = proxies.iter().map(|proxy| proxy.flips.load(Ordering::SeqCst)).collect();
        assert_eq!(left.iter().sum::<u64>(), 2, "each follower was sent damaged bytes twice");
        for replica in cluster.replicas() {
            let (_, found) = replica.get(key(number).as_bytes()).await.unwrap().unwrap();
            assert!(found == marked, "member {}", replica.node_id());
        }
    }
}

/// Nobody gets it by its key any more: the key was put again.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_value_of_an_earlier_change_is_repaired_from_another_member() {
    let cluster = cluster(usual).await;
    let first = write(cluster.leader().await, put("key", bytes(7))).await.log_id;
    cluster.overwrite("key", "2").await;
    fill(&cluster, 0..3).await;
    let slot = follower(&cluster).await;
    let replica = cluster.replica(slot);
    let at = replica.engine().values_of(GROUP, first.index).unwrap()[0].clone();
    damage(&cluster, slot, FileKind::Data, at.offset() + 5, 3);
    assert_eq!(replica.logged_value(first, 0).await.unwrap(), Some(bytes(7)));
    let extent = Extent { at, log_id: first, owner: Owner::Entry };
    let on_device = replica.engine().read_extent(GROUP, &extent).await;
    assert_eq!(on_device.expect("it was written back"), Some(bytes(7)));
}
