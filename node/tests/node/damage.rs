//! Bytes flipped in the files of running nodes, with real processes: clients read what was written,
//! `cairn scrub` finds the rest, and no damage is left when the nodes restart.
use crate::support::{Cluster, Ran, UNHURRIED_ELECTIONS, run};
use cairn_client::{Client, MemberState};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub const KEYS: usize = 60;

pub fn key(number: usize) -> String {
    format!("key{number}")
}

/// Different from all others, so that it can be found in a file.
pub fn value(number: usize) -> Vec<u8> {
    format!("<value {number} of the test>").repeat(10 + number * 20).into_bytes()
}

pub fn flip(path: &Path, offset: u64) {
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

pub fn scrubs(cluster: &Cluster, action: &str) -> Vec<Value> {
    let ran = cluster.cairn(&["-o", "json", "scrub", action]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let all: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    all.as_array().expect("a list").clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn flipped_bytes_in_every_file_of_a_running_cluster_are_read_right_and_gone_after_a_scrub() {
    let more = format!("{UNHURRIED_ELECTIONS}scrub.rate_bytes = \"1GiB\"");
    let mut cluster = Cluster::start(3, "64MiB", &more).await;
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
        assert_eq!(status.member_state, MemberState::Active);
        assert_eq!(status.storage.expect("storage").corrupt_values, 0);
    }
}

/// So small that the journal carries it.
fn small(number: usize) -> Vec<u8> {
    format!("<small value {number} of the test>").repeat(20).into_bytes()
}

const SMALL: usize = 40;

/// Flips a byte of this value where the journal carries it, or flips it back.
pub fn flip_in_journal(cluster: &Cluster, node: usize, number: usize) {
    let path = cluster.data(node).join("journal");
    let bytes = std::fs::read(&path).expect("the journal");
    let wanted = &small(number)[..20];
    let at = bytes.windows(wanted.len()).position(|window| window == wanted).expect("the value");
    flip(&path, at as u64 + 100);
}

/// Every byte of every file in a data directory.
fn all_bytes(cluster: &Cluster, node: usize) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(cluster.data(node)).expect("a directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.map(|path| (path.display().to_string(), std::fs::read(&path).expect("a file"))).collect()
}

pub async fn put_small(client: &Client) {
    for number in 0..SMALL {
        client.put(format!("small{number}"), small(number)).await.expect("written");
    }
}

/// The story: one member was away. The two others acknowledged writes, ended, and could not read a
/// block of their journals when they started. Each kept what it could verify and overwrote the rest,
/// and the writes were gone, though together the two still had everything.
#[tokio::test(flavor = "multi_thread")]
async fn a_majority_that_cannot_read_its_journal_for_a_while_loses_nothing() {
    let more = format!("{UNHURRIED_ELECTIONS}mode = \"sync\"");
    let mut cluster = Cluster::start(3, "64MiB", &more).await;
    cluster.kill_node(2);
    cluster.leader().await;
    put_small(&cluster.client()).await;
    cluster.kill_all();
    [0, 1].into_iter().for_each(|node| flip_in_journal(&cluster, node, 10 + node));
    let files = |cluster: &Cluster| {
        [0, 1].map(|node| {
            let mut bytes = all_bytes(cluster, node);
            bytes.retain(|name, _| !name.ends_with("superblock"));
            bytes
        })
    };
    let before = files(&cluster);
    (0..3).for_each(|node| cluster.start_node(node));
    let waiting = async || {
        let all = cluster.statuses().await;
        let recovering =
            all.iter().filter(|node| node.member_state == MemberState::Recovering).count();
        (all.len() == 3 && recovering == 2).then_some(())
    };
    cluster.until("two recover, and nobody can lead", waiting).await;
    assert!(files(&cluster) == before, "a damaged directory was overwritten without a leader");
    // The blocks can be read again. Each node notices that by itself.
    [0, 1].into_iter().for_each(|node| flip_in_journal(&cluster, node, 10 + node));
    cluster.wait_ready().await;
    let client = cluster.client();
    for number in 0..SMALL {
        let found = client.get(format!("small{number}")).await.expect("readable").expect("there");
        assert_eq!(found.value, small(number), "{number}");
    }
}

/// The story: the dry run of this command opened the directory like a start. It overwrote what it did
/// not understand, and said that the directory holds little or nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_the_damage_of_the_last_survivor_and_nothing_changes_until_it_is_accepted()
{
    let more = format!("{UNHURRIED_ELECTIONS}mode = \"sync\"");
    let mut cluster = Cluster::start(3, "64MiB", &more).await;
    put_small(&cluster.client()).await;
    let last = cluster.statuses().await.iter().map(|node| node.last_log_index).max();
    cluster.until_all("all have everything", |node| Some(node.last_log_index) >= last).await;
    cluster.kill_all();
    [1, 2].into_iter().for_each(|node| cluster.lose_disk(node));
    let recover = |cluster: &Cluster, more: &[&str]| -> Ran {
        let forced = ["recover", "--force-new-cluster", "--config", cluster.config(0)];
        run(cluster.folder.path(), &[&forced[..], more].concat())
    };
    let json_of = |ran: &Ran| -> Value {
        serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"))
    };
    let whole = json_of(&recover(&cluster, &["-o", "json"]));
    assert_eq!(whole["damage"], Value::Null, "{whole}");

    flip_in_journal(&cluster, 0, 10);
    let before = all_bytes(&cluster, 0);
    for _ in 0..2 {
        let shown = recover(&cluster, &[]);
        assert_eq!(shown.code, 6, "{shown:?}");
        for words in ["is damaged: corrupt JournalBlock", "nothing is lost by waiting"] {
            assert!(shown.stdout.contains(words), "{words} is not in {shown:?}");
        }
        let shown = json_of(&recover(&cluster, &["-o", "json"]));
        let left = shown["last_log_index"].as_u64();
        assert!(left > Some(5) && left < whole["last_log_index"].as_u64(), "{shown}");
        // Nobody is there to answer.
        assert_eq!(recover(&cluster, &["--accept-data-loss"]).code, 2);
        assert!(all_bytes(&cluster, 0) == before, "the command changed what it was asked about");
    }
    // The bad cable is exchanged: everything is there again.
    flip_in_journal(&cluster, 0, 10);
    assert_eq!(json_of(&recover(&cluster, &["-o", "json"])), whole);

    flip_in_journal(&cluster, 0, 10);
    let done = recover(&cluster, &["--accept-data-loss", "--yes", "-o", "json"]);
    assert_eq!(done.code, 0, "{done:?}");
    let done = json_of(&done);
    assert_eq!(done["done"], json!(true), "{done}");
    let copy = Path::new(done["copy"].as_str().expect("a copy"));
    for file in ["superblock", "journal", "checkpoint.0", "checkpoint.1"] {
        let name = cluster.data(0).join(file).display().to_string();
        assert!(std::fs::read(copy.join(file)).expect("a copy") == before[&name], "{file}");
    }
}

/// The story: a start that formats an empty directory was killed, and each later start refused what it
/// left.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_goes_on_where_a_format_was_interrupted() {
    let mut cluster = Cluster::format(1, "64MiB", "storage.format_empty = \"true\"");
    let path = cluster.data(0);
    for (name, bytes) in [("journal", 4096), ("data", 1 << 20)] {
        cluster.lose_disk(0);
        std::fs::create_dir(&path).expect("a directory");
        std::fs::write(path.join("data"), vec![0; 1 << 20]).expect("written");
        std::fs::write(path.join(name), vec![0; bytes]).expect("written");
        cluster.start_node(0);
        cluster.wait_ready().await;
        cluster.kill_node(0);
    }
    // Of a directory whose superblock is lost nothing is removed.
    std::fs::remove_file(path.join("superblock")).expect("removed");
    let before = all_bytes(&cluster, 0);
    cluster.start_node(0);
    assert_ne!(cluster.ended(0), 0);
    assert!(
        cluster.log(0).contains("holds more than an unfinished format leaves"),
        "{}",
        cluster.log(0)
    );
    assert!(all_bytes(&cluster, 0) == before);
}
