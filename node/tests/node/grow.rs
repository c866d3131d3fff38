//! `cairn grow` on the data directories of real nodes: one after another under load, and all of them
//! after they were full.

use crate::support::load::{History, Load};
use crate::support::{Cluster, Ran, WAIT_LIMIT, run};
use cairn_client::{Error, NodeStatus};
use cairn_engine::Geometry;
use serde_json::Value;

fn data_bytes(size: u64) -> u64 {
    Geometry::for_total(size).expect("a size").data_bytes
}

/// Blocks for as long as the zeros take.
fn grow(cluster: &Cluster, node: usize, size: &str) -> Ran {
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

#[tokio::test(flavor = "multi_thread")]
async fn a_full_cluster_reads_and_deletes_and_takes_writes_again_after_it_grew() {
    let mut cluster = Cluster::start(3, "16MiB", "").await;
    let client = cluster.client();
    let mut kept = 0;
    let full = loop {
        match client.put(format!("key{kept}"), value(kept)).await {
            Ok(_) => kept += 1,
            Err(error) => break error,
        }
        assert!(kept < 1000, "it never becomes full");
    };
    assert!(matches!(full, Error::StorageFull { .. }), "{full}");
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
