//! Bytes flipped in the files of running nodes, with real processes: clients read what was written,
//! `cairn scrub` finds the rest, and no damage is left when the nodes restart.
use crate::support::Cluster;
use cairn_client::Client;
use serde_json::Value;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

const KEYS: usize = 60;

fn key(number: usize) -> String {
    format!("key{number}")
}

/// Different from all others, so that it can be found in a file.
fn value(number: usize) -> Vec<u8> {
    format!("<value {number} of the test>").repeat(10 + number * 20).into_bytes()
}

fn flip(path: &Path, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("a file of the node");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("read");
    file.write_all_at(&[byte[0] ^ 0x10], offset).expect("written");
    file.sync_all().expect("synced");
}

/// Flips a byte of each of these keys' values in a node's data file. Returns how many there were.
fn damage_values(cluster: &Cluster, node: usize, numbers: impl Iterator<Item = usize>) -> u64 {
    let path = cluster.data(node).join("data");
    let bytes = std::fs::read(&path).expect("the data file");
    let used = bytes.iter().rposition(|byte| *byte != 0).expect("values") + 1;
    let mut found = 0;
    for number in numbers {
        // The tail may lie elsewhere.
        let mut wanted = value(number);
        wanted.truncate(4096);
        let at = bytes[..used]
            .windows(wanted.len())
            .position(|window| window == wanted)
            .expect("the value");
        flip(&path, at as u64 + 40);
        found += 1;
    }
    found
}

async fn check(client: &Client) {
    for number in 0..KEYS {
        let found = client.get(key(number)).await.expect("readable").expect("there");
        assert_eq!(found.value, value(number), "{number}");
    }
}

fn scrubs(cluster: &Cluster, action: &str) -> Vec<Value> {
    let ran = cluster.cairn(&["-o", "json", "scrub", action]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let all: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    all.as_array().expect("a list").clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn flipped_bytes_in_every_file_of_a_running_cluster_are_read_right_and_gone_after_a_scrub() {
    let mut cluster = Cluster::start(3, "64MiB", "scrub.rate_bytes = \"1GiB\"").await;
    let client = cluster.client();
    for number in 0..KEYS {
        client.put(key(number), value(number)).await.expect("written");
    }
    // Processes that have just started have no values in memory.
    cluster.kill_all();
    for node in 0..3 {
        cluster.start_node(node);
    }
    cluster.wait_ready().await;
    check(&client).await;
    let last = cluster.statuses().await.iter().map(|node| node.last_log_index).max();
    cluster.until_all("all have everything", |node| Some(node.applied_index) >= last).await;

    let mut damaged = 0;
    for node in 0..3 {
        damaged += damage_values(&cluster, node, (0..KEYS).filter(|number| number % 3 == node));
        flip(&cluster.data(node).join("journal"), 5 * 4096 + 150);
        flip(&cluster.data(node).join("checkpoint.0"), 4096 + 40);
        flip(&cluster.data(node).join("checkpoint.1"), 4096 + 40);
        flip(&cluster.data(node).join("superblock"), 32 * 1024 + 50);
    }
    check(&client).await;

    // Each node starts a scrub a minute after its start, so it may have counted a cycle by now.
    let cycles = |all: &[Value]| all.iter().map(|node| node["cycles"].as_u64()).collect::<Vec<_>>();
    let before = cycles(&scrubs(&cluster, "status"));
    assert_eq!(scrubs(&cluster, "start").len(), 3);
    let done = |all: &Vec<Value>| {
        cycles(all).iter().zip(&before).all(|(now, before)| now > before)
            && all.iter().all(|node| node["running"] == false)
    };
    let ended = cluster
        .until("the scrubs end", async || Some(scrubs(&cluster, "status")).filter(done))
        .await;
    let sum =
        |name: &str| ended.iter().map(|node| node[name].as_u64().expect("a number")).sum::<u64>();
    assert!(sum("repaired") >= damaged, "{damaged} values damaged: {ended:?}");
    assert_eq!(sum("unrepairable"), 0, "{ended:?}");
    assert!(sum("values_checked") >= 3 * KEYS as u64, "{ended:?}");
    let paused = scrubs(&cluster, "pause");
    assert!(paused.iter().all(|node| node["paused"] == true), "{paused:?}");

    cluster.kill_all();
    for node in 0..3 {
        cluster.start_node(node);
    }
    cluster.wait_ready().await;
    check(&client).await;
    for status in cluster.statuses().await {
        assert_eq!(status.member_state, "active");
        assert_eq!(status.storage.expect("storage").corrupt_values, 0);
    }
}
