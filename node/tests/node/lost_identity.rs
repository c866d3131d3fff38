//! Nodes whose identity is unreadable, with real processes. One such node of three begins empty and
//! takes its slot again. Two of three wait and overwrite nothing.
use crate::support::{Cluster, UNHURRIED_ELECTIONS};
use cairn_client::NodeStatus;
use std::path::PathBuf;
use std::time::Instant;

const KEYS: usize = 300;
const COPY_BYTES: usize = 16 << 10;

fn value(number: usize) -> Vec<u8> {
    format!("value {number} ").repeat(1 + number % 300).into_bytes()
}

async fn filled() -> Cluster {
    let cluster = Cluster::start(3, "64MiB", UNHURRIED_ELECTIONS).await;
    let client = cluster.client();
    for number in 0..KEYS {
        client.put(format!("key{number}"), value(number)).await.expect("written");
    }
    cluster
}

async fn check(cluster: &Cluster) {
    let client = cluster.client();
    for number in 0..KEYS {
        let found = client.get(format!("key{number}")).await.expect("readable").expect("there");
        assert_eq!(found.value, value(number), "{number}");
    }
}

fn superblock(cluster: &Cluster, node: usize) -> PathBuf {
    cluster.data(node).join("superblock")
}

/// Flips a bit in each of these copies of the identity. Returns the file as it was before.
fn lose_identity(cluster: &Cluster, node: usize, copies: &[usize]) -> Vec<u8> {
    let path = superblock(cluster, node);
    let before = std::fs::read(&path).expect("the superblock");
    let mut bytes = before.clone();
    copies.iter().for_each(|copy| bytes[copy * COPY_BYTES + 777] ^= 4);
    std::fs::write(&path, bytes).expect("written");
    before
}

async fn status_of(cluster: &Cluster, slot: u16) -> NodeStatus {
    cluster.statuses().await.into_iter().find(|status| status.slot == slot).expect("it runs")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_identity_is_unreadable_begins_empty_and_takes_its_slot_again() {
    let mut cluster = filled().await;
    for copies in [vec![0, 1, 3], vec![0, 1, 2, 3]] {
        let before = status_of(&cluster, 2).await;
        cluster.kill_node(1);
        lose_identity(&cluster, 1, &copies);
        let began = Instant::now();
        cluster.start_node(1);
        let after = cluster.wait_replaced(&before).await;
        println!("{} copies gone: a voter again after {:?}", copies.len(), began.elapsed());
        assert_eq!(after.members.iter().filter(|member| member.voter).count(), 3);
        assert_eq!(after.boot_epoch.0, 1, "the first boot of the new identity");
        // With one of the others down, what was acknowledged before needs the new member.
        let leader = cluster.leader().await;
        let spared = if leader == 1 { 0 } else { leader };
        cluster.kill_node(spared);
        check(&cluster).await;
        cluster.client().put("after", "1").await.expect("two of three serve");
        cluster.start_node(spared);
        cluster.wait_ready().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_leader_nothing_of_an_unreadable_identity_is_overwritten() {
    let mut cluster = filled().await;
    let identities =
        |all: Vec<NodeStatus>| all.into_iter().map(|status| status.node_id).collect::<Vec<_>>();
    let before = identities(cluster.statuses().await);
    let mut saved = Vec::new();
    for node in [0, 1] {
        cluster.kill_node(node);
        saved.push(lose_identity(&cluster, node, &[0, 1, 2, 3]));
    }
    let files = |cluster: &Cluster, node: usize| {
        ["superblock", "journal", "checkpoint.0", "checkpoint.1", "data"]
            .map(|name| std::fs::read(cluster.data(node).join(name)).expect("a file of the node"))
    };
    let left = [files(&cluster, 0), files(&cluster, 1)];
    for node in [0, 1] {
        cluster.start_node(node);
    }
    // The simulation shows that they keep waiting for longer than an election takes:
    // `two-identities-unreadable`.
    let waiting = || cluster.logs().matches("until then nothing is overwritten").count() == 2;
    cluster.until("both wait", async || waiting().then_some(())).await;
    assert_eq!(cluster.stop_node(0), 0, "asked to stop while it waits: {}", cluster.logs());
    for node in [0, 1] {
        assert!(files(&cluster, node) == left[node], "node {node} overwrote something");
    }

    // The operator restores the copies, one of them while the node waits: the node reads it again.
    for (node, bytes) in saved.into_iter().enumerate() {
        std::fs::write(superblock(&cluster, node), bytes).expect("written");
    }
    cluster.start_node(0);
    cluster.wait_ready().await;
    check(&cluster).await;
    assert_eq!(identities(cluster.statuses().await), before);
}
