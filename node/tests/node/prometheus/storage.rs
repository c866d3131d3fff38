//! Alerts of disks: damaged, full, and slow.

use super::walk::Walk;
use crate::damage::{self, flip, flip_in_journal, scrubs};
use crate::grow;
use crate::support::machine::can_have_machines;
use crate::support::{Cluster, Hosts, SLOW_ELECTIONS, UNHURRIED_ELECTIONS, run};
use std::time::Duration;

pub const DAMAGED: [&str; 1] = ["CairnDamaged"];
pub const SUSPECT: [&str; 3] = ["CairnScrubPaused", "CairnSuspectDisk", "CairnUnrepairable"];
pub const FULL: [&str; 3] = ["CairnDataNearlyFull", "CairnWritesRefused", "CairnFull"];
pub const KEYS: [&str; 1] = ["CairnKeysNearlyFull"];
pub const SLOW: [&str; 1] = ["CairnSlowSync"];

/// An average, far above the threshold of the alert. The longest is twice as long.
const SLOW_SYNC: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Prometheus: ./test prometheus"]
async fn a_damaged_directory_fires_until_its_journal_can_be_read_again() {
    let more = format!("{UNHURRIED_ELECTIONS}mode = \"sync\"");
    let mut cluster = Cluster::start(3, "64MiB", &more).await;
    let walk = Walk::start(&cluster, &DAMAGED).await;
    // Two alone have the writes, so nobody can repair them.
    cluster.kill_node(2);
    cluster.leader().await;
    damage::put_small(&cluster.client()).await;
    cluster.kill_all();
    let flip_both = |cluster: &Cluster| {
        [0, 1].into_iter().for_each(|node| flip_in_journal(cluster, node, 10 + node));
    };
    flip_both(&cluster);
    for node in 0..3 {
        cluster.start_node(node);
    }
    walk.fires("CairnDamaged").await;
    flip_both(&cluster);
    cluster.wait_ready().await;
    walk.is_gone("CairnDamaged").await;
    walk.done();
}

/// Where a byte of this value is in a node's data file.
fn place(cluster: &Cluster, node: usize, number: usize) -> u64 {
    let bytes = std::fs::read(cluster.data(node).join("data")).expect("the data file");
    let used = bytes.iter().rposition(|byte| *byte != 0).expect("values") + 1;
    let mut wanted = damage::value(number);
    wanted.truncate(4096);
    let at = bytes[..used].windows(wanted.len()).position(|window| window == wanted);
    at.expect("the value") as u64 + 40
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Prometheus: ./test prometheus"]
async fn a_damaged_value_fires_once_it_is_found_and_again_if_no_member_has_it() {
    let more = format!("{UNHURRIED_ELECTIONS}scrub.rate_bytes = \"1GiB\"");
    let mut cluster = Cluster::start(3, "64MiB", &more).await;
    let client = cluster.client();
    for number in 0..damage::KEYS {
        client.put(damage::key(number), damage::value(number)).await.expect("written");
    }
    let last = cluster.statuses().await.iter().map(|node| node.last_log_index).max();
    cluster.until_all("all have everything", |node| Some(node.applied_index) >= last).await;
    // Processes that have just started have no values in memory.
    cluster.kill_all();
    for node in 0..3 {
        cluster.start_node(node);
    }
    cluster.wait_ready().await;
    let last = cluster.statuses().await.iter().map(|node| node.last_log_index).max();
    cluster.until_all("all have everything", |node| Some(node.applied_index) >= last).await;

    let walk = Walk::start(&cluster, &SUSPECT).await;
    let prometheus = walk.prometheus();
    // What is counted grows only between two scrapes.
    let counted = async || prometheus.query("cairn_scrub_damaged_total").len() == 3;
    prometheus.until("nothing is counted yet", counted).await;
    scrubs(&cluster, "pause");
    walk.fires("CairnScrubPaused").await;

    // Nobody reads, and the scrubber is paused: all copies of one value are damaged before any is found.
    flip(&cluster.data(0).join("data"), place(&cluster, 0, 40));
    let lost: Vec<u64> = (0..3).map(|node| place(&cluster, node, 50)).collect();
    let flip_all = || {
        for (node, at) in lost.iter().enumerate() {
            flip(&cluster.data(node).join("data"), *at);
        }
    };
    flip_all();
    scrubs(&cluster, "resume");
    walk.is_gone("CairnScrubPaused").await;
    scrubs(&cluster, "start");
    walk.fires("CairnSuspectDisk").await;
    walk.fires("CairnUnrepairable").await;
    // The cable is exchanged: every copy reads as before.
    flip_all();
    let found = async || {
        let read = client.get(damage::key(50)).await.ok().flatten();
        read.filter(|item| item.value == damage::value(50)).map(drop)
    };
    cluster.until("the value is read", found).await;
    walk.is_gone("CairnUnrepairable").await;
    walk.is_gone("CairnSuspectDisk").await;
    walk.done();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Prometheus: ./test prometheus"]
async fn a_full_data_area_and_refused_writes_fire_until_the_directories_grow() {
    let mut cluster = Cluster::start(3, "16MiB", SLOW_ELECTIONS).await;
    let walk = Walk::start(&cluster, &FULL).await;
    let client = cluster.client();
    let mut number = 0;
    // Some are refused, and what becomes free is filled again.
    let mut fill = async || {
        for _ in 0..20 {
            drop(client.put(format!("key{number:08}"), vec![7_u8; 32 << 10]).await);
            number += 1;
        }
    };
    walk.fires_while("CairnDataNearlyFull", &mut fill).await;
    walk.fires_while("CairnWritesRefused", &mut fill).await;
    walk.fires_while("CairnFull", &mut fill).await;
    for node in 0..cluster.len() {
        assert_eq!(cluster.stop_node(node), 0, "node {node} stops cleanly");
        let grown = grow::grow(&cluster, node, "64MiB");
        assert_eq!(grown.code, 0, "{}", grown.stderr);
    }
    for node in 0..cluster.len() {
        cluster.start_node(node);
    }
    cluster.wait_ready().await;
    for alert in FULL {
        walk.is_gone(alert).await;
    }
    walk.done();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Prometheus: ./test prometheus"]
async fn full_checkpoint_areas_fire_until_the_directories_grow_for_small_values() {
    let mut cluster = Cluster::start(3, "16MiB", SLOW_ELECTIONS).await;
    let walk = Walk::start(&cluster, &KEYS).await;
    let mut kept = 0;
    // A checkpoint may make room, so it is filled again.
    let fill = async || {
        let (full_at, _) = grow::put_small(&cluster, kept).await;
        kept = full_at + 1;
    };
    walk.fires_while("CairnKeysNearlyFull", fill).await;
    for node in 0..cluster.len() {
        assert_eq!(cluster.stop_node(node), 0, "node {node} stops cleanly");
        let sizes = ["--size", "24MiB", "--value-size", "256"];
        let config = cluster.config(node).to_owned();
        let grown =
            run(cluster.folder.path(), &[&["grow", "--config", &config], &sizes[..]].concat());
        assert_eq!(grown.code, 0, "{}", grown.stderr);
        cluster.configure(node, "storage.value_size = \"256\"");
        cluster.start_node(node);
        cluster.wait_ready().await;
    }
    walk.is_gone("CairnKeysNearlyFull").await;
    walk.done();
}

/// Not a test of tokio: the runtime's threads must see the machines' disks.
#[test]
#[ignore = "needs Prometheus, root and /dev/fuse: ./test prometheus"]
fn a_disk_that_syncs_slowly_fires_until_it_is_as_fast_as_before() {
    if can_have_machines() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(slow_disk());
    }
}

async fn slow_disk() {
    // A sync that lasts is no failed one here.
    let more = format!("{SLOW_ELECTIONS}mode = \"sync\"\nstorage.io_timeout = \"10m\"\n");
    let mut cluster = Cluster::growing(Hosts::Machines, 3, "64MiB", &more);
    cluster.start_node(0);
    cluster.wait_ready().await;
    for (node, slot) in [(1, "2"), (2, "3")] {
        cluster.start_node(node);
        let added = cluster.cairn(&["members", "add", slot]);
        assert_eq!(added.code, 0, "{added:?}\n{}", cluster.logs());
    }
    cluster.wait_ready().await;
    let walk = Walk::start(&cluster, &SLOW).await;
    // The two others are a majority, so writes go on.
    let slow = (cluster.leader().await + 1) % 3;
    cluster.sync_takes(slow, Some(SLOW_SYNC));
    let client = cluster.client();
    let mut number = 0_u32;
    let writes = async || {
        client.put(format!("key{}", number % 100), format!("{number}")).await.expect("written");
        number += 1;
    };
    walk.fires_while("CairnSlowSync", writes).await;
    cluster.sync_takes(slow, None);
    walk.is_gone("CairnSlowSync").await;
    walk.done();
}
