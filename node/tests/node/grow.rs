//! `cairn grow` on the data directories of real nodes: one after another under load, all of them after
//! they were full, and full ones in the order of the page.

use crate::support::load::{History, Load};
use crate::support::{Cluster, Ran, SLOW_ELECTIONS, WAIT_LIMIT, run};
use cairn_client::{Client, Error, NodeStatus};
use cairn_engine::Geometry;
use serde_json::Value;

fn data_bytes(size: u64) -> u64 {
    Geometry::for_total(size).expect("a size").data_bytes
}

/// Blocks for as long as the zeros take.
pub fn grow(cluster: &Cluster, node: usize, size: &str) -> Ran {
    let arguments = ["grow", "--config", cluster.config(node), "--size", size, "-o", "json"];
    tokio::task::block_in_place(|| run(cluster.folder.path(), &arguments))
}

async fn until_size(cluster: &Cluster, data_bytes: u64) {
    let has_it = |status: &NodeStatus| {
        status.storage.as_ref().is_some_and(|storage| storage.data_bytes == data_bytes)
    };
    cluster.until_all("the new size everywhere", has_it).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_grow_one_after_another_under_load_lose_nothing() {
    tokio::time::timeout(WAIT_LIMIT * 2, under_load()).await.expect("the scenario ends in time");
}

async fn under_load() {
    let mut cluster = Cluster::start(3, "256MiB", "").await;
    let mut history = History::default();
    let load = Load::start(&cluster.client(), &history);
    load.wait_for_acknowledgements(200).await;
    let running = grow(&cluster, 0, "384MiB");
    assert_eq!(running.code, 1, "{}", running.stdout);
    assert!(running.stderr.contains("in use by another process"), "{}", running.stderr);
    for node in 0..cluster.len() {
        assert_eq!(cluster.stop_node(node), 0, "node {node} stops cleanly");
        let grown = grow(&cluster, node, "384MiB");
        assert_eq!(grown.code, 0, "{}", grown.stderr);
        let grown: Value = serde_json::from_str(&grown.stdout).expect("JSON");
        assert_eq!(grown["grown"], true, "{grown}");
        assert_eq!(grown["to"]["data_bytes"], data_bytes(384 << 20), "{grown}");
        cluster.start_node(node);
        cluster.wait_ready().await;
        load.wait_for_acknowledgements(100).await;
    }
    history.merge(load.stop().await);
    let (checked, _) = history.check(&cluster.client()).await;
    assert!(checked > 400, "{checked}");
    let larger = data_bytes(384 << 20);
    until_size(&cluster, larger).await;

    assert_eq!(cluster.stop_node(0), 0);
    let again = grow(&cluster, 0, "384MiB");
    let again: Value = serde_json::from_str(&again.stdout).expect("JSON");
    assert_eq!(again["grown"], false, "{again}");
    let smaller = grow(&cluster, 0, "256MiB");
    assert_eq!(smaller.code, 1, "{}", smaller.stdout);
    for words in ["never shrinks", &larger.to_string(), &(256u64 << 20).to_string()] {
        assert!(smaller.stderr.contains(words), "{words} is not in {}", smaller.stderr);
    }

    // The directory of a growth that fails is the one that it was.
    let endless = grow(&cluster, 0, "8TiB");
    assert_eq!(endless.code, 1, "{}", endless.stdout);
    assert!(endless.stderr.contains("not enough space"), "{}", endless.stderr);
    cluster.start_node(0);
    cluster.wait_ready().await;
    until_size(&cluster, larger).await;
}

fn value(number: usize) -> Vec<u8> {
    vec![number as u8; 200 << 10]
}

/// Puts the keys from `kept` on until one is refused, and counts those that are there.
async fn fill(client: &Client, kept: &mut usize) -> Error {
    loop {
        match client.put(format!("key{kept}"), value(*kept)).await {
            Ok(_) => *kept += 1,
            Err(error) => return error,
        }
        assert!(*kept < 1000, "it never becomes full");
    }
}

/// The story: of three full members one grew and led. It took puts, the others could not store them, and no client
/// was told how its put had ended.
#[tokio::test(flavor = "multi_thread")]
async fn full_members_that_grow_before_the_one_that_leads_leave_no_put_unknown() {
    let mut cluster = Cluster::start(3, "16MiB", SLOW_ELECTIONS).await;
    let client = cluster.client();
    let mut kept = 0;
    let full = fill(&client, &mut kept).await;
    assert!(matches!(full, Error::StorageFull { .. }), "{full}");
    let leader = cluster.leader().await;
    let [first, second] = [1, 2].map(|others| (leader + others) % 3);
    for node in [first, second, leader] {
        let slot = (node + 1).to_string();
        let may = cluster.cairn(&["health", "--safe-to-stop", "--slot", &slot, "--wait", "10m"]);
        assert_eq!(may.code, 0, "{may:?}");
        assert_eq!(cluster.stop_node(node), 0, "node {node} stops cleanly");
        let grown = grow(&cluster, node, "64MiB");
        assert_eq!(grown.code, 0, "{}", grown.stderr);
        cluster.start_node(node);
        cluster.wait_ready().await;
        if node == first {
            assert_eq!(cluster.leader().await, leader, "one that has not grown leads");
            let full = fill(&client, &mut kept).await;
            assert!(matches!(full, Error::StorageFull { .. }), "{full}");
        }
        if node == second {
            let to = (first + 1).to_string();
            let moved = async || {
                let moved = cluster.cairn(&["leader", "move", &to]);
                (moved.code == 0).then_some(())
            };
            cluster.until("one that has grown leads", moved).await;
            for _ in 0..5 {
                client.put(format!("key{kept}"), value(kept)).await.expect("space for more");
                kept += 1;
            }
        }
    }
    until_size(&cluster, data_bytes(64 << 20)).await;
    for number in 0..kept {
        let found = client.get(format!("key{number}")).await.expect("a read").expect("the key");
        assert_eq!(found.value, value(number), "{number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_cluster_reads_and_deletes_and_takes_writes_again_after_it_grew() {
    let mut cluster = Cluster::start(3, "16MiB", SLOW_ELECTIONS).await;
    let client = cluster.client();
    let mut kept = 0;
    let full = fill(&client, &mut kept).await;
    assert!(matches!(full, Error::StorageFull { .. }), "{full}");
    // What became free meanwhile is used up first.
    let says_so = async || {
        fill(&client, &mut kept).await;
        let told = cluster.cairn(&["health"]);
        let is_critical =
            |line: &str| line.starts_with("critical: ") && line.contains("refuses puts");
        (told.code == 4 && told.stdout.lines().any(is_critical)).then_some(())
    };
    cluster.until("cairn health says that puts are refused", says_so).await;
    let found = client.get("key1").await.expect("a read").expect("the key");
    assert_eq!(found.value, value(1));
    client.delete("key0").await.expect("a full cluster deletes");
    assert!(client.get("key0").await.expect("a read").is_none());

    for node in 0..cluster.len() {
        assert_eq!(cluster.stop_node(node), 0, "node {node} stops cleanly");
        let grown = grow(&cluster, node, "64MiB");
        assert_eq!(grown.code, 0, "{}", grown.stderr);
    }
    for node in 0..cluster.len() {
        cluster.start_node(node);
    }
    cluster.wait_ready().await;
    let larger = data_bytes(64 << 20);
    until_size(&cluster, larger).await;
    for number in kept..kept + 20 {
        client.put(format!("key{number}"), value(number)).await.expect("space for more");
    }
    for number in 1..kept + 20 {
        let found = client.get(format!("key{number}")).await.expect("a read").expect("the key");
        assert_eq!(found.value, value(number), "{number}");
    }
}

/// Puts keys with values of 256 bytes from `first` on until the cluster refuses them. Returns how many
/// there are then, and why.
pub async fn put_small(cluster: &Cluster, first: usize) -> (usize, Error) {
    const BATCH: usize = 100;
    let client = cluster.client();
    let mut from = first;
    while from < 1_000_000 {
        let mut batch = client.batch();
        for number in from..from + BATCH {
            batch = batch.put(format!("{number:016}"), small(number));
        }
        let Err(error) = batch.commit().await else {
            from += BATCH;
            continue;
        };
        assert!(matches!(error, Error::StorageFull { .. }), "{error}");
        // What is too much for a batch may still take a few keys. If it takes all of them, a
        // checkpoint has made room, and the batch is due again.
        for number in 0..10 * BATCH {
            if let Err(error) = client.put(format!("last-{from}-{number}"), small(from)).await {
                return (from, error);
            }
        }
    }
    panic!("it never becomes full");
}

fn small(number: usize) -> Vec<u8> {
    vec![number as u8; 256]
}

/// The story: "storage is full" was all that was said, while the status showed that half of the data
/// area was free. What was full were the checkpoint areas, which hold the keys.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_full_of_keys_says_so_and_takes_more_after_it_grew_for_small_values() {
    let mut cluster = Cluster::start(3, "16MiB", SLOW_ELECTIONS).await;
    let (mut kept, mut full) = put_small(&cluster, 0).await;
    // Nothing shorter than what was refused: that may still fit. And a checkpoint may make room.
    let one_more = |round| cluster.cairn(&["put", &format!("{round:0200}"), "value"]);
    let mut ran = one_more(0);
    for round in 1..10 {
        if ran.code != 0 {
            break;
        }
        (kept, full) = put_small(&cluster, kept).await;
        ran = one_more(round);
    }
    assert!(matches!(full, Error::StorageFull { .. }), "{full}");
    for words in ["the checkpoint areas are full", "--value-size 256", "reads and deletes go on"] {
        assert!(full.to_string().contains(words), "{full}");
    }
    assert!(ran.code == 7 && ran.stderr.contains("the checkpoint areas are full"), "{ran:?}");
    let ran = cluster.cairn(&["status", "-o", "json"]);
    let status: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let storage = &status[0]["storage"];
    let number = |of: &str| storage[of].as_u64().expect("a number");
    assert!(number("free_bytes") > number("data_bytes") / 4, "{storage}");
    assert!(number("index_bytes") > number("index_limit_bytes") / 100 * 95, "{storage}");
    let table = cluster.cairn(&["status"]).stdout;
    assert!(table.contains("KEYS FREE"), "{table}");

    for node in 0..cluster.len() {
        assert_eq!(cluster.stop_node(node), 0, "node {node} stops cleanly");
        let config = cluster.config(node).to_owned();
        let sizes = ["--size", "24MiB", "--value-size", "256", "-o", "json"];
        let ran =
            run(cluster.folder.path(), &[&["grow", "--config", &config], &sizes[..]].concat());
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let grown: Value = serde_json::from_str(&ran.stdout).expect("JSON");
        let of = |when: &str| grown[when]["checkpoint_bytes"].as_u64().expect("a number");
        assert!(of("to") > 2 * of("from"), "most of what it grew is for keys: {grown}");
        cluster.configure(node, "storage.value_size = \"256\"");
        cluster.start_node(node);
        cluster.wait_ready().await;
    }
    let (more, _) = put_small(&cluster, kept).await;
    assert!(more > kept * 3 / 2, "{more} keys instead of {kept}");
    let client = cluster.client();
    for number in (0..more).step_by(997) {
        let found = client.get(format!("{number:016}")).await.expect("a read").expect("the key");
        assert_eq!(found.value, small(number), "{number}");
    }
}
