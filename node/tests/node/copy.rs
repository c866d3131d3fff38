//! Keys of a real cluster into another one, by the command line.

use crate::support::held::{Held, all, put_all, values};
use crate::support::{Cluster, Ran, WAIT_LIMIT, command, finish, finish_within, json_of, refused};
use cairn_client::{Client, Version};
use serde_json::json;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::JoinHandle;

/// Keys with values of all lengths, and bytes that are no text.
fn some_keys() -> Held {
    let mut held: Held = (0..1500_usize)
        .map(|number| (format!("many/{number:05}").into_bytes(), vec![b'v'; number % 50]))
        .collect();
    held.insert(b"\xff\xfe".to_vec(), b"\xff\x00\x80".to_vec());
    held.insert(vec![b'k'; 1024], vec![0; 1 << 20]);
    held
}

/// The command, which finds both clusters by its own options.
fn copy(from: &Cluster, to: &Cluster, more: &[&str]) -> Ran {
    let (source, target) = (from.endpoints().join(","), to.endpoints().join(","));
    let always = ["copy", "--from", &source, "--to", &target, "--timeout", "120s", "-o", "json"];
    to.cairn_alone(&[&always[..], more].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_copied_once_and_a_second_run_writes_what_changed_alone() {
    let from = Cluster::start(3, "128MiB", "").await;
    let to = Cluster::start(1, "128MiB", "").await;
    let (mut held, source, target) = (some_keys(), from.client(), to.client());
    put_all(&source, &held).await;
    // It says what it would do, and does nothing.
    let would = json_of(&copy(&from, &to, &["--dry-run"]));
    assert_eq!((&would["keys"], &would["same"]), (&json!(held.len()), &json!(0)), "{would}");
    assert_eq!(values(&target).await, Held::new());

    let copied = json_of(&copy(&from, &to, &[]));
    assert_eq!(copied["total"]["written"], json!(held.len()), "{copied}");
    assert_eq!(copied["caught_up"], true, "{copied}");
    assert_eq!(values(&target).await, held);

    let first = all(&target).await;
    let again = json_of(&copy(&from, &to, &[]));
    assert_eq!(again["total"]["same"], json!(held.len()), "{again}");
    assert_eq!(all(&target).await, first, "not even a version changed");

    source.put("many/00001", "another").await.expect("a put");
    held.insert(b"many/00001".to_vec(), b"another".to_vec());
    let other = copy(&from, &to, &[]);
    refused(&other, 4, &["1 of 1502 keys exist", "`many/00001`", "--replace"]);
    let kept = json_of(&copy(&from, &to, &["--keep"]));
    assert_eq!((&kept["total"]["kept"], &kept["total"]["replaced"]), (&json!(1), &json!(0)));
    assert_ne!(values(&target).await, held);
    let replaced = json_of(&copy(&from, &to, &["--replace"]));
    assert_eq!(replaced["total"]["replaced"], 1, "{replaced}");
    assert_eq!(values(&target).await, held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_the_keys_is_copied_and_what_the_target_does_not_take_is_named_before() {
    let from = Cluster::start(1, "128MiB", "").await;
    let to = Cluster::start(1, "128MiB", "limits.max_value_bytes = \"64KiB\"\n").await;
    let (held, target) = (some_keys(), to.client());
    put_all(&from.client(), &held).await;
    let long = copy(&from, &to, &[]);
    refused(
        &long,
        2,
        &["does not take 1 of 1502 keys", "`kkkk", "1048576 bytes, the limit is 65536"],
    );
    assert_eq!(values(&target).await, Held::new(), "nothing was written");
    let part = json_of(&copy(&from, &to, &["--prefix", "many/", "--passes", "1"]));
    assert_eq!(part["total"]["written"], 1500, "{part}");
    let expected: Held = held.into_iter().filter(|(key, _)| key.starts_with(b"many/")).collect();
    assert_eq!(values(&target).await, expected);
    refused(&copy(&from, &from, &[]), 2, &["a cluster is not copied onto itself"]);
}

/// A page of the target's keys has 1000 of them.
#[tokio::test(flavor = "multi_thread")]
async fn keys_are_compared_with_those_of_a_target_that_has_many_between_them() {
    let from = Cluster::start(1, "128MiB", "").await;
    let to = Cluster::start(1, "128MiB", "").await;
    let (source, target) = (from.client(), to.client());
    for some in 0..25_u32 {
        let mut batch = target.batch();
        for number in some * 100..(some + 1) * 100 {
            batch = batch.put(format!("k/{number:05}"), "value");
        }
        batch.commit().await.expect("a batch");
    }
    let of_source = [
        ("a", "not there"),
        ("k/", "not there"),
        ("k/00000", "value"),
        ("k/00007", "another"),
        ("k/01500", "value"),
        ("k/01500\0", "not there"),
        ("k/02499", "value"),
        ("z", "not there"),
    ];
    for (key, value) in of_source {
        source.put(key, value).await.expect("a put");
    }
    let would = json_of(&copy(&from, &to, &["--dry-run", "--keep"]));
    let counts = (&would["keys"], &would["same"], &would["other"]);
    assert_eq!(counts, (&json!(8), &json!(3), &json!(1)), "{would}");
}

/// Keys that a writer put and deleted, each with the version of its write.
#[derive(Default)]
struct Written {
    put: Vec<(Vec<u8>, Version)>,
    deleted: Vec<(Vec<u8>, Version)>,
}

/// Puts new keys and deletes old ones until it is stopped, each once.
fn writer(source: Client, prefix: String, stop: Arc<AtomicBool>) -> JoinHandle<Written> {
    tokio::spawn(async move {
        let mut written = Written::default();
        for number in 0..u64::MAX {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let new = format!("{prefix}new/{number:08}").into_bytes();
            let put = source.put(new.clone(), "value").await.expect("a put");
            written.put.push((new, put.version));
            let gone = format!("{prefix}old/{number:04}").into_bytes();
            let deleted = source.delete(gone.clone()).await.expect("a delete");
            if deleted.previous.is_some() {
                written.deleted.push((gone, deleted.version));
            }
        }
        written
    })
}

/// The command with as many passes as it takes, on a thread of its own.
fn copying(from: &Cluster, to: &Cluster, prefix: &str) -> JoinHandle<Ran> {
    let (source_at, target_at) = (from.endpoints().join(","), to.endpoints().join(","));
    let arguments = ["copy", "--from", &source_at, "--to", &target_at, "--prefix", prefix];
    let more = ["--passes", "1000000", "--timeout", "120s", "-o", "json"];
    let mut copying = command(&std::env::temp_dir(), &[&arguments[..], &more].concat());
    let copying = copying.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let copying = copying.expect("cairn starts");
    tokio::task::spawn_blocking(|| finish_within(WAIT_LIMIT * 5, copying))
}

/// One copy of keys of its own, which change meanwhile. Returns how many keys it deleted.
///
/// It may end before the writers are stopped, if these wrote nothing between two of its looks.
async fn copied_meanwhile(from: &Cluster, to: &Cluster, prefix: &str) -> u64 {
    let (source, target) = (from.client(), to.client());
    for number in 0..500 {
        source.put(format!("{prefix}old/{number:04}"), "old").await.expect("a put");
    }
    let witness = format!("{prefix}witness");
    source.put(witness.clone(), "it goes later").await.expect("a put");
    let stop = Arc::new(AtomicBool::new(false));
    let writer = writer(source.clone(), prefix.to_owned(), Arc::clone(&stop));
    let copying = copying(from, to, prefix);
    let until = async |is_there: bool| {
        let so = async || {
            let found = target.get(witness.clone()).await.expect("a get");
            (copying.is_finished() || found.is_some() == is_there).then_some(())
        };
        to.until("the witness is copied, and then deleted", so).await;
    };
    until(true).await;
    source.delete(witness.clone()).await.expect("a delete");
    until(false).await;
    stop.store(true, Ordering::Relaxed);
    let written = writer.await.expect("every write was acknowledged");
    let copied = json_of(&copying.await.expect("the command ended"));
    assert_eq!(copied["caught_up"], true, "{}", copied["total"]);
    let index = Version(copied["index"].as_u64().expect("an index"));
    let there = values(&target).await;
    for (key, version) in &written.deleted {
        let is_gone = !there.contains_key(key);
        assert!(is_gone || *version > index, "{} at {index}", key.escape_ascii());
    }
    for (key, version) in &written.put {
        let is_there = there.contains_key(key);
        assert_eq!(is_there, *version <= index, "{} at {index}", key.escape_ascii());
    }
    copied["total"]["deleted"].as_u64().expect("a number")
}

/// Writers of the source go on while the command runs, and delete too. They are stopped while it runs, as its
/// page says of a move.
#[tokio::test(flavor = "multi_thread")]
async fn what_changes_meanwhile_is_copied_by_a_later_pass_and_what_is_gone_is_deleted() {
    let from = Cluster::start(1, "128MiB", "").await;
    let to = Cluster::start(1, "128MiB", "").await;
    for attempt in 0..100 {
        if copied_meanwhile(&from, &to, &format!("{attempt}/")).await > 0 {
            return;
        }
    }
    panic!("no pass deleted anything");
}

/// One copy of a key that another client of the target writes, and that then goes at the source. Returns whether the copy
/// ran until a pass had met that.
async fn copied_beside_another_client(from: &Cluster, to: &Cluster, prefix: &str) -> bool {
    let (source, target) = (from.client(), to.client());
    let key = format!("{prefix}key");
    source.put(key.clone(), "of the source").await.expect("a put");
    let stop = Arc::new(AtomicBool::new(false));
    let writer = writer(source.clone(), prefix.to_owned(), Arc::clone(&stop));
    let copying = copying(from, to, prefix);
    let copied = async |key: &str| {
        let so = async || {
            // What the command wrote is there once it has ended.
            let has_ended = copying.is_finished();
            let is_there = target.get(key.to_owned()).await.expect("a get").is_some();
            (has_ended || is_there).then_some(is_there)
        };
        to.until("it is copied", so).await
    };
    assert!(copied(&key).await, "the first pass copies it");
    target.put(key.clone(), "of the target").await.expect("a put");
    source.delete(key.clone()).await.expect("a delete");
    // The pass that copies the first one, or an earlier one, finds the key gone. The second one is copied by a later pass,
    // which begins once what is gone has been deleted.
    let mut has_met = true;
    for witness in ["first", "second"] {
        let witness = format!("{prefix}witness/{witness}");
        source.put(witness.clone(), "it is there").await.expect("a put");
        has_met &= copied(&witness).await;
    }
    stop.store(true, Ordering::Relaxed);
    writer.await.expect("every write was acknowledged");
    let copied = json_of(&copying.await.expect("the command ended"));
    let found = target.get(key).await.expect("a get").expect("it stays at the target");
    assert_eq!(found.value, "of the target");
    assert!(!has_met || copied["total"]["left"] == 1, "{}", copied["total"]);
    has_met
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_client_of_the_target_wrote_stays_though_its_key_is_gone_at_the_source() {
    let from = Cluster::start(1, "128MiB", "").await;
    let to = Cluster::start(1, "128MiB", "").await;
    for attempt in 0..100 {
        if copied_beside_another_client(&from, &to, &format!("{attempt}/")).await {
            return;
        }
    }
    panic!("no copy ran until it met that");
}

/// The story: somebody took both streams that a member has, and the copy ended at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_waits_for_a_member_that_sends_its_state_to_others() {
    let from = Cluster::start(1, "128MiB", "").await;
    let to = Cluster::start(1, "128MiB", "").await;
    let (source, target) = (from.client(), to.client());
    // More than a connection takes that nobody reads.
    for number in 0..24 {
        source.put(format!("large/{number}"), vec![b'v'; 1 << 20]).await.expect("a put");
    }
    let endpoint = from.endpoints().remove(0);
    let mut unread = Vec::new();
    for _ in 0..2 {
        unread.push(source.operator().state(&endpoint, &[]).await.expect("a state"));
    }
    let (source_at, target_at) = (from.endpoints().join(","), to.endpoints().join(","));
    let arguments = ["copy", "--from", &source_at, "--to", &target_at, "--timeout", "120s"];
    let mut copying = command(&std::env::temp_dir(), &arguments);
    let copying = copying.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut copying = copying.expect("cairn starts");
    let mut said = BufReader::new(copying.stderr.take().expect("a pipe"));
    let first = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        said.read_line(&mut line).expect("a pipe");
        (line, said)
    });
    let (line, mut said) = first.await.expect("it says something");
    assert!(line.contains("asking again"), "{line}");
    drop(unread);
    let rest = tokio::task::spawn_blocking(move || {
        let mut rest = String::new();
        said.read_to_string(&mut rest).expect("a pipe");
        rest
    });
    let ran = tokio::task::spawn_blocking(|| finish(copying)).await.expect("the command ended");
    assert_eq!(ran.code, 0, "{ran:?} {}", rest.await.expect("text"));
    assert_eq!(values(&target).await.len(), 24);
}
