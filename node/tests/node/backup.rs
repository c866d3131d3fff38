//! Backups of real clusters by the command line: saved under load, restored into a new cluster, killed at
//! any moment, and while machines lose power.

mod bucket;
mod damaged;
mod kills;
mod machines;
mod since;

use crate::support::{Cluster, Ran, SLOW_ELECTIONS, json_of};
use cairn_client::{Client, Error, HeldValues, ListOptions, Role, Version};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const WRITERS: usize = 4;
/// The keys of age's own tests.
pub(crate) const RECIPIENT: &str = "age1t7rxyev2z3rw82stdlrrepyc39nvn86l5078zqkf5uasdy86jp6svpy7pa";
pub(crate) const SECRET: &str =
    "AGE-SECRET-KEY-1GQ9778VQXMMJVE8SK7J6VT8UJ4HDQAJUVSFCWCM02D8GEWQ72PVQ2Y5J33";

/// What was acknowledged of one key: each version, with the value, or `None` where it was deleted.
type Writes = BTreeMap<String, BTreeMap<Version, Option<String>>>;

/// Puts and deletes keys of its own until it is told to stop, and counts what is acknowledged.
async fn writes(
    client: Client,
    number: usize,
    (stop, acknowledged): (Arc<AtomicBool>, Arc<AtomicUsize>),
) -> Writes {
    let mut random = StdRng::seed_from_u64(number as u64);
    let mut writes = Writes::default();
    while !stop.load(Ordering::SeqCst) {
        let key = format!("writer {number} key {}", random.random_range(0..50));
        let deletes = random.random_range(0..5) == 0;
        let value = (!deletes).then(|| format!("{}", random.random::<u64>()).repeat(20));
        let written = match &value {
            Some(value) => client.put(key.clone(), value.clone()).await,
            None => client.delete(key.clone()).await,
        };
        let version = written.expect("nothing fails here").version;
        writes.entry(key).or_default().insert(version, value);
        acknowledged.fetch_add(1, Ordering::SeqCst);
    }
    writes
}

/// What the keys were at this index.
fn at(writes: &Writes, index: Version) -> BTreeMap<String, (Version, String)> {
    let last = |(key, versions): (&String, &BTreeMap<Version, Option<String>>)| {
        let (version, value) = versions.range(..=index).next_back()?;
        Some((key.clone(), (*version, value.clone()?)))
    };
    writes.iter().filter_map(last).collect()
}

async fn all_of(client: &Client) -> BTreeMap<String, (Version, String)> {
    let mut pages = client.pages(ListOptions::prefix("writer "));
    let mut found = BTreeMap::new();
    while let Some(page) = pages.next().await.expect("a page") {
        for item in page.items {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
            found.insert(text(&item.key), (item.version, text(&item.value)));
        }
    }
    found
}

/// The first folder in this one.
fn folder_in(folder: &Path) -> PathBuf {
    let first = std::fs::read_dir(folder).expect("a folder").next().expect("a backup");
    first.expect("an entry").path()
}

/// The folder for backups, as an argument.
fn target(cluster: &Cluster) -> String {
    cluster.folder.path().join("backups").to_str().expect("text").to_owned()
}

/// Every backup has exactly what was acknowledged up to its index: the log's order is the order of the
/// versions, so a write that is left out, or one too many, is seen.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_under_load_is_the_state_of_one_index_and_a_new_cluster_begins_with_it() {
    let mut cluster = Cluster::start(3, "64MiB", SLOW_ELECTIONS).await;
    let target = target(&cluster);
    let stop = Arc::new(AtomicBool::new(false));
    let acknowledged = Arc::new(AtomicUsize::new(0));
    let writers: Vec<_> = (0..WRITERS)
        .map(|number| {
            let told = (stop.clone(), acknowledged.clone());
            tokio::spawn(writes(cluster.client(), number, told))
        })
        .collect();
    let mut saved = Vec::new();
    for number in 0..6 {
        let before = acknowledged.load(Ordering::SeqCst);
        let more = async || (acknowledged.load(Ordering::SeqCst) > before + 200).then_some(());
        cluster.until("more writes", more).await;
        let mut save = vec!["backup", "save", &target, "-o", "json"];
        if number % 3 > 0 {
            save.extend(["--since", "latest"]);
        }
        let before = cluster.client().put("marker", "").await.expect("a put").version;
        let saving = json_of(&cluster.cairn(&save));
        assert!(saving["index"].as_u64() >= Some(before.0), "{saving} behind {before}");
        let name = saving["name"].as_str().expect("a name").to_owned();
        saved.push((name, Version(saving["index"].as_u64().expect("an index"))));
    }
    stop.store(true, Ordering::SeqCst);
    let mut all = Writes::default();
    for writer in writers {
        all.extend(writer.await.expect("it ends"));
    }
    for (name, _) in &saved {
        let verified =
            json_of(&cluster.cairn_alone(&["backup", "verify", &target, name, "-o", "json"]));
        assert_eq!(verified["verifies"], true);
    }
    let listed = json_of(&cluster.cairn_alone(&["backup", "list", &target, "-o", "json"]));
    assert_eq!(listed.as_array().map(Vec::len), Some(saved.len()));

    let old = cluster.client();
    let before = at(&all, Version(u64::MAX));
    assert!(all_of(&old).await == before, "the cluster has what was acknowledged");
    for (name, index) in [&saved[2], &saved[5]] {
        restore_all(&mut cluster, &target, name).await;
        let client = cluster.client();
        let expected = at(&all, *index);
        assert!(!expected.is_empty() && all_of(&client).await == expected, "{name}");
        let refused = old.get("writer 0 key 1").await.expect_err("it belongs to the old cluster");
        assert!(matches!(refused, Error::ClusterMismatch { .. }), "{refused}");
        let put = client.put("new", "value").await.expect("the new cluster takes writes");
        assert!(put.version.0 > index.0 + (1 << 30), "{} behind {index}", put.version);
        // Versions of the old cluster are still those of its keys.
        let (key, (version, _)) = expected.iter().next().expect("a key");
        client.put_if_version(key.clone(), "next", *version).await.expect("the same version");
        let members = json_of(&cluster.cairn(&["members", "list", "-o", "json"]));
        let voters = members.as_array().expect("members").iter();
        assert_eq!(voters.filter(|member| member["voter"] == true).count(), 3);
        for node in 0..3 {
            assert_eq!(cluster.stop_node(node), 0);
            cluster.start_node(node);
            cluster.wait_ready().await;
        }
        assert_eq!(client.get("new").await.expect("it serves").expect("there").value, "value");
    }
}

/// Loses all disks, and makes new ones of the backup.
async fn restore_all(cluster: &mut Cluster, target: &str, name: &str) {
    cluster.kill_all();
    let mut key: Option<String> = None;
    for node in 0..cluster.len() {
        cluster.lose_disk(node);
        let mut restore = vec!["backup", "restore", target, name, "-o", "json"];
        restore.extend(["--config", cluster.config(node)]);
        if let Some(key) = &key {
            restore.extend(["--restore-key", key]);
        }
        let restored = json_of(&cluster.cairn_alone(&restore));
        let own = restored["restore_key"].as_str().expect("a key").to_owned();
        assert_eq!(*key.get_or_insert(own.clone()), own);
        assert_eq!(restored["voters"].as_array().map(Vec::len), Some(3));
    }
    cluster.start_all().await;
}

/// A cluster with some thousand keys, and a backup of it.
async fn saved() -> (Cluster, String) {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let client = cluster.client();
    for batch in 0..40 {
        let mut puts = client.batch();
        for number in 0..100 {
            puts = puts.put(format!("key {batch} {number}"), vec![batch as u8; 3000]);
        }
        puts.commit().await.expect("a put");
    }
    let target = target(&cluster);
    json_of(&cluster.cairn(&["backup", "save", &target, "-o", "json"]));
    (cluster, target)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_done_says_why_and_changes_nothing() {
    let (cluster, target) = saved().await;
    let data = cluster.config(0);
    let refusals: [(&[&str], i32, &str); 7] = [
        (&["backup", "save", "s4://bucket", "--endpoints", "127.0.0.1:1"], 2, "`s4` is not served"),
        (&["backup", "list", "no folder"], 2, "expected a folder"),
        (&["backup", "verify", &target, "nothing"], 3, "there is no backup `nothing`"),
        (&["backup", "verify", &target, "../up"], 3, "there is no backup `../up`"),
        (&["backup", "restore", &target, "--config", data], 1, "already is a Cairn data directory"),
        (&["backup", "restore", &target, "--config", data, "--restore-key", "x"], 2, "is no key"),
        (&["backup", "prune", &target, "--keep", "0"], 2, "--yes"),
    ];
    for (arguments, exit, what) in refusals {
        let ran = cluster.cairn_alone(arguments);
        assert!(ran.code == exit && ran.stderr.contains(what), "{arguments:?}: {ran:?}");
    }
    let pruned =
        cluster.cairn_alone(&["backup", "prune", &target, "--keep", "1", "--yes", "-o", "json"]);
    assert_eq!(json_of(&pruned)["objects"], 0);
    // A backup has every value: it is its owner's alone.
    let folders = [target.clone().into(), folder_in(Path::new(&target))];
    for folder in folders {
        for path in std::fs::read_dir(&folder).expect("a folder").map(|e| e.expect("an entry")) {
            let mode = path.metadata().expect("its mode").permissions().mode();
            assert_eq!(mode & 0o077, 0, "{}", path.path().display());
        }
    }
    json_of(&cluster.cairn_alone(&["backup", "verify", &target, "-o", "json"]));
}

/// The story: a value was left out by an entry of a history that an unsafe recovery had discarded.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_leaves_nothing_out_by_an_entry_that_its_log_does_not_have() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let client = cluster.client();
    client.put("key", "value").await.expect("a put");
    let endpoint = cluster.endpoints()[0].clone();
    let taken = async |held: Vec<HeldValues>| {
        // The stream before may not have ended at the member.
        let asked = async || client.operator().state(&endpoint, &held).await.ok();
        let mut state = cluster.until("a state", asked).await;
        let last = (state.head().term, state.head().index);
        let (mut items, mut sent) = (0, 0);
        while let Some(more) = state.next().await.expect("keys") {
            items += more.len();
            sent += more.iter().filter(|item| item.value.is_some()).count();
        }
        assert_eq!(items, 1);
        (last, sent)
    };
    let ((term, index), sent) = taken(Vec::new()).await;
    assert_eq!(sent, 1);
    for (through, expected) in [
        ((term, index), 0),
        ((term + 1, index), 1),
        ((term + 1, index - 1), 1),
        // What is behind the log says nothing: `cairn export` leaves out a part of the keys so.
        ((u64::MAX, u64::MAX), 0),
    ] {
        let held = HeldValues { through, through_key: None };
        assert_eq!(taken(vec![held]).await.1, expected, "{through:?}");
    }
}

/// The story: the follower that was asked sent its state to two others already, and nobody asked another
/// member.
#[tokio::test(flavor = "multi_thread")]
async fn a_save_asks_another_member_if_the_first_one_does_not_send_its_state() {
    let cluster = Cluster::start(3, "128MiB", SLOW_ELECTIONS).await;
    let (target, client) = (target(&cluster), cluster.client());
    // More than a connection has under way: a stream that nobody reads stays open.
    for number in 0..40 {
        client.put(format!("key {number}"), vec![number; 512 << 10]).await.expect("a put");
    }
    let (mut unread, mut leader) = (Vec::new(), None);
    for endpoint in cluster.endpoints() {
        if client.status(&endpoint).await.expect("a status").role == Role::Leader {
            leader = Some(endpoint);
            continue;
        }
        for _ in 0..2 {
            unread.push(client.operator().state(&endpoint, &[]).await.expect("a state"));
        }
    }
    let ran = cluster.cairn(&["backup", "save", &target, "-o", "json"]);
    let saved = json_of(&ran);
    assert_eq!(saved["from"].as_str(), leader.as_deref(), "{ran:?}");
    assert_eq!(
        (&saved["keys"], ran.stderr.matches("\"asking\"").count()),
        (&40.into(), 2),
        "{ran:?}"
    );
    drop(unread);
}

/// A timer saves with the recipient alone. Who has the secret key saves what changed, verifies and restores.
#[tokio::test(flavor = "multi_thread")]
async fn an_encrypted_backup_is_saved_without_the_secret_key_and_restored_with_it() {
    let (mut cluster, target) = saved().await;
    std::fs::remove_dir_all(&target).expect("the backup that is not encrypted");
    let key = cluster.folder.path().join("key.txt");
    std::fs::write(&key, format!("# of the office\n{SECRET}\n")).expect("a file");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).expect("its mode");
    let key = key.to_str().expect("text");
    let save = ["backup", "save", &target, "--encrypt-to", RECIPIENT];
    let first = json_of(&cluster.cairn(&[&save[..], &["-o", "json"]].concat()));
    assert_eq!(first["encrypted_to"], serde_json::json!([RECIPIENT]));
    let first = first["name"].as_str().expect("a name").to_owned();

    let client = cluster.client();
    client.put("key 0 0", "changed").await.expect("a put");
    let since = [&save[..], &["--since", "latest"]].concat();
    let refused = |ran: Ran, what: &[&str]| {
        assert!(ran.code == 2 && what.iter().all(|what| ran.stderr.contains(what)), "{ran:?}");
        assert!(!ran.stderr.contains(SECRET), "{ran:?}");
    };
    refused(cluster.cairn(&since), &["save without --since", "--identity FILE"]);
    let plain = ["backup", "save", &target, "--since", "latest"];
    refused(cluster.cairn(&plain), &[first.as_str(), "the new one would be not encrypted"]);
    refused(cluster.cairn(&["backup", "save", &target, "--encrypt-to", SECRET]), &["a secret key"]);
    let ran = cluster.cairn(&[&since[..], &["--identity", key]].concat());
    assert!(ran.code == 0 && ran.stdout.contains("encrypted to one recipient"), "{ran:?}");
    assert!(ran.stderr.contains("chmod 600"), "{ran:?}");

    refused(cluster.cairn_alone(&["backup", "verify", &target]), &["--identity FILE", RECIPIENT]);
    let stored = ["backup", "verify", &target, "--stored", "-o", "json"];
    assert_eq!(json_of(&cluster.cairn_alone(&stored))["checksums_match"], true);
    let verify = ["backup", "verify", &target, "--identity", key, "-o", "json"];
    assert_eq!(json_of(&cluster.cairn_alone(&verify))["keys"], 4000);
    let shown = cluster.cairn_alone(&["backup", "show", &target]);
    assert!(shown.stdout.contains(&format!("encrypted to {RECIPIENT}")), "{shown:?}");
    let prune = ["backup", "prune", &target, "--keep", "1", "--yes", "-o", "json"];
    assert_eq!(json_of(&cluster.cairn_alone(&prune))["backups"][0], first.as_str());

    cluster.kill_all();
    cluster.lose_disk(0);
    let restore = ["backup", "restore", &target, "--config", cluster.config(0)];
    refused(cluster.cairn_alone(&restore), &["--identity FILE"]);
    assert!(!cluster.data(0).exists(), "nothing is begun");
    let restored = cluster.cairn_alone(&[&restore[..], &["--identity", key]].concat());
    assert_eq!(restored.code, 0, "{restored:?}");
    cluster.start_all().await;
    let client = cluster.client();
    assert_eq!(client.get("key 0 0").await.expect("it serves").expect("there").value, "changed");
    assert_eq!(
        client.get("key 7 7").await.expect("it serves").expect("there").value,
        vec![7; 3000]
    );
}
