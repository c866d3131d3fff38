//! Keys of a real cluster into another one, by the command line.

use crate::support::{Cluster, Ran};
use cairn_client::{Client, ListOptions, Version};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Held = BTreeMap<Vec<u8>, Vec<u8>>;

async fn all(client: &Client) -> BTreeMap<Vec<u8>, (Version, Vec<u8>)> {
    let mut pages = client.pages(ListOptions::default());
    let mut held = BTreeMap::new();
    while let Some(page) = pages.next().await.expect("a page") {
        let items = page.items.into_iter();
        held.extend(items.map(|item| (item.key.to_vec(), (item.version, item.value.to_vec()))));
    }
    held
}

async fn values(client: &Client) -> Held {
    all(client).await.into_iter().map(|(key, (_, value))| (key, value)).collect()
}

/// Keys with values of all lengths, and bytes that are no text.
fn some_keys() -> Held {
    let mut held: Held = (0..1500_usize)
        .map(|number| (format!("many/{number:05}").into_bytes(), vec![b'v'; number % 50]))
        .collect();
    held.insert(b"\xff\xfe".to_vec(), b"\xff\x00\x80".to_vec());
    held.insert(vec![b'k'; 1024], vec![0; 1 << 20]);
    held
}

async fn put_all(client: &Client, held: &Held) {
    for (key, value) in held {
        client.put(key.clone(), value.clone()).await.expect("a put");
    }
}

/// The command, which finds both clusters by its own options.
fn copy(from: &Cluster, to: &Cluster, more: &[&str]) -> Ran {
    let (source, target) = (from.endpoints().join(","), to.endpoints().join(","));
    let always = ["copy", "--from", &source, "--to", &target, "--timeout", "120s", "-o", "json"];
    to.cairn_alone(&[&always[..], more].concat())
}

fn json_of(ran: &Ran) -> Value {
    assert_eq!(ran.code, 0, "{ran:?}");
    serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"))
}

fn refused(ran: &Ran, code: i32, says: &[&str]) {
    assert_eq!(ran.code, code, "{ran:?}");
    for says in says {
        assert!(ran.stderr.contains(says), "`{says}` is not in: {}", ran.stderr);
    }
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
    assert_eq!(copied["passes"].as_array().map(Vec::len), Some(2), "{copied}");
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

/// Writers of the source go on for as long as the command runs, and delete too.
#[tokio::test(flavor = "multi_thread")]
async fn what_changes_meanwhile_is_copied_by_a_later_pass_and_what_is_gone_is_deleted() {
    let from = Cluster::start(1, "128MiB", "").await;
    let to = Cluster::start(1, "128MiB", "").await;
    let (source, target) = (from.client(), to.client());
    put_all(&source, &some_keys()).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (source, stop) = (source.clone(), Arc::clone(&stop));
        async move {
            for number in 0..u64::MAX {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                source.put(format!("new/{number:08}"), "value").await.expect("a put");
                let gone = format!("many/{:05}", number % 1500);
                source.delete(gone).await.expect("a delete");
            }
        }
    });
    let (source_at, target_at) = (from.endpoints().join(","), to.endpoints().join(","));
    let busy = tokio::task::spawn_blocking(move || {
        let arguments = ["copy", "--from", &source_at, "--to", &target_at, "--passes", "3"];
        let more = ["--timeout", "120s", "-o", "json"];
        crate::support::run(&std::env::temp_dir(), &[&arguments[..], &more].concat())
    });
    let busy = json_of(&busy.await.expect("the command ended"));
    stop.store(true, Ordering::Relaxed);
    writer.await.expect("every write was acknowledged");
    let passes = busy["passes"].as_array().expect("passes");
    assert!((1..=3).contains(&passes.len()), "{busy}");
    // The writers are stopped: one more run makes both equal, but for what went between two runs.
    let last = json_of(&copy(&from, &to, &["--replace"]));
    assert_eq!(last["caught_up"], true, "{last}");
    let (held, copied) = (values(&source).await, values(&target).await);
    assert!(held.iter().all(|(key, value)| copied.get(key) == Some(value)));
    let mut extra = copied.keys().filter(|key| !held.contains_key(*key));
    assert!(extra.all(|key| key.starts_with(b"many/")), "only what was deleted since");
}
