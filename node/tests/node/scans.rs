//! Scans of real processes: one moment while others write, whole or an error, and bounded in what they keep.

use crate::metrics::metrics;
use crate::support::{Cluster, POLL, SLOW_ELECTIONS, WAIT_LIMIT};
use cairn_client::{Client, Error, KeyValue, Range, Scan};
use cairn_launch::Signal;
use cairn_node::access::TokenHash;
use futures::TryStreamExt;
use futures::future::join_all;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Of a key that is written in each round.
const VALUE_BYTES: usize = 24 << 10;
/// Keys that are written together: together more than two pieces of a scan.
const TOGETHER: usize = 100;
const ROUNDS: u64 = 20;

/// More than a connection has under way: a scan that nobody reads stays open.
const LARGE: usize = 48;
const LARGE_BYTES: usize = 512 << 10;
/// How often scans are begun that a node may end since nothing was taken for a minute.
const TRIES: usize = 10;

async fn fill(client: &Client) {
    for number in 0..LARGE {
        client.put(format!("large/{number:02}"), vec![7; LARGE_BYTES]).await.expect("written");
    }
}

/// What is left of a scan, and the error at its end.
async fn rest(mut scan: Scan) -> (usize, Option<Error>) {
    let mut keys = 0;
    loop {
        match scan.next().await {
            Ok(Some(_)) => keys += 1,
            Ok(None) => return (keys, None),
            Err(error) => return (keys, Some(error)),
        }
    }
}

/// A metric of a node.
fn metric(cluster: &Cluster, node: usize, name: &str) -> u64 {
    let text = metrics(cluster, node);
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.expect("a metric").trim().parse().expect("a number")
}

/// Scans that are open at a node.
fn open(cluster: &Cluster, node: usize) -> u64 {
    metric(cluster, node, "cairn_scans ")
}

/// Connections of clients to the first node.
fn connections(cluster: &Cluster) -> u64 {
    metric(cluster, 0, "cairn_connections{port=\"client\"} ")
}

async fn until_open(cluster: &Cluster, scans: u64) {
    let so_many = async || (open(cluster, 0) == scans).then_some(());
    cluster.until(&format!("{scans} open scans"), so_many).await;
}

/// Four scans of a client that nobody takes. A fifth one was refused beside them.
async fn four_unread(cluster: &Cluster, client: &Client) -> Vec<Scan> {
    for _ in 0..TRIES {
        let mut unread = Vec::new();
        for _ in 0..4 {
            unread.push(client.scan(..).await.expect("begun"));
        }
        let fifth = client.with_deadline(Duration::from_secs(5)).scan(..).await;
        let still_open = open(cluster, 0);
        assert!(still_open <= 4, "{still_open} are open");
        if still_open == 4 && fifth.is_err() {
            assert!(fifth.as_ref().is_err_and(Error::is_transient), "{fifth:?}");
            return unread;
        }
        // Nothing was taken of one for a minute: the machine is slow.
        drop((unread, fifth));
        until_open(cluster, 0).await;
    }
    panic!("no fifth scan was refused");
}

/// Writes beside a scan that nobody takes, until it has ended. Returns the reason.
async fn ended_by_writes(cluster: &Cluster, client: &Client) -> String {
    let scan = client.scan(Range::prefix("large/")).await.expect("begun");
    let mut numbers = (0..LARGE).cycle();
    while open(cluster, 0) > 0 {
        let number = numbers.next().expect("it goes on");
        match client.put(format!("large/{number:02}"), vec![8; LARGE_BYTES]).await {
            Ok(_) => {}
            Err(Error::StorageFull { .. }) => tokio::time::sleep(POLL).await,
            Err(error) => panic!("{error}"),
        }
    }
    let (keys, error) = rest(scan).await;
    let Some(Error::ScanBroken { received, last_error, .. }) = error else { panic!("{error:?}") };
    assert!(keys < LARGE && received == keys as u64, "{keys} keys");
    last_error
}

/// The round of which all keys of a scan are.
fn round_of(items: &[KeyValue], position: u64) -> u64 {
    assert_eq!(items.len(), TOGETHER + 1, "the keys of one round, and its own");
    let (own, together) = items.split_last().expect("its own");
    let round = String::from_utf8_lossy(&own.key["round/".len()..]).parse().expect("a number");
    for item in together {
        assert_eq!(item.value.len(), VALUE_BYTES);
        let of = u64::from_be_bytes(*item.value.first_chunk().expect("its round"));
        assert_eq!((of, item.version), (round, own.version), "key {:?}", item.key);
    }
    assert!(own.version.0 <= position, "{:?} in a state of {position}", own.version);
    round
}

/// Each round puts the same keys, together more than a piece, and one of its own in the place of the one before.
#[tokio::test(flavor = "multi_thread")]
async fn a_scan_shows_one_moment_at_every_member_while_others_write() {
    let cluster = Cluster::start(3, "128MiB", SLOW_ELECTIONS).await;
    let writer = cluster.client();
    let (done, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let write = async |round: u64| {
        let mut batch = writer.batch().put(format!("round/{round:03}"), "");
        if round > 0 {
            batch = batch.delete(format!("round/{:03}", round - 1));
        }
        let mut value = vec![7; VALUE_BYTES];
        value[..8].copy_from_slice(&round.to_be_bytes());
        for number in 0..TOGETHER {
            batch = batch.put(format!("all/{number:02}"), value.clone());
        }
        batch.commit().await.expect("written");
        acknowledged.store(round, Ordering::SeqCst);
    };
    write(0).await;
    let readers: Vec<_> = (0..3)
        .map(|node| {
            let options = cluster.options_of(&[node]).deadline(WAIT_LIMIT);
            let reader = options.attempt_timeout(WAIT_LIMIT).build().expect("good options");
            let (done, acknowledged) = (done.clone(), acknowledged.clone());
            tokio::spawn(async move {
                let mut scans = 0;
                loop {
                    let last = done.load(Ordering::SeqCst);
                    let before = acknowledged.load(Ordering::SeqCst);
                    let scan = reader.scan(..).await.expect("begun");
                    let position = scan.position().index;
                    let items: Vec<KeyValue> = scan.try_collect().await.expect("whole");
                    assert!(round_of(&items, position) >= before, "it lacks an acknowledged round");
                    let keys = reader.scan_keys("all/".."all0").await.expect("begun");
                    let keys: Vec<KeyValue> = keys.try_collect().await.expect("whole");
                    assert!(keys.len() == TOGETHER && keys.iter().all(|key| key.value.is_empty()));
                    assert_eq!(reader.count(..).await, Ok(TOGETHER as u64 + 1));
                    assert_eq!(reader.count(Range::prefix("round/")).await, Ok(1));
                    scans += 1;
                    if last {
                        return scans;
                    }
                }
            })
        })
        .collect();
    for round in 1..=ROUNDS {
        write(round).await;
    }
    done.store(true, Ordering::SeqCst);
    for reader in readers {
        assert!(reader.await.expect("a reader") > 0);
    }
}

/// The story: three scans that nobody took filled the window of their client's connection. No other answer came over it,
/// so the client opened another one, and had four scans more.
#[tokio::test(flavor = "multi_thread")]
async fn readers_that_stop_keep_few_scans_open_and_others_are_served() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let (greedy, other) = (cluster.client(), cluster.client());
    fill(&greedy).await;
    assert_eq!(other.count(..).await, Ok(LARGE as u64));
    let each_has_one = async || (connections(&cluster) == 2).then_some(());
    cluster.until("one connection of each client", each_has_one).await;
    let unread = four_unread(&cluster, &greedy).await;
    let refusals = "cairn_requests_total{method=\"Scan\",code=\"ResourceExhausted\"}";
    assert!(metrics(&cluster, 0).contains(refusals), "{}", metrics(&cluster, 0));
    assert!(greedy.get("large/00").await.expect("read").is_some(), "only its scans are refused");
    assert_eq!(other.count(..).await, Ok(LARGE as u64));
    let (keys, error) = rest(other.scan(..).await.expect("begun")).await;
    assert_eq!((keys, error), (LARGE, None));
    assert_eq!(connections(&cluster), 2, "none took the place of another");
    drop(unread);
    until_open(&cluster, 0).await;
    let (keys, error) = rest(greedy.scan(..).await.expect("begun")).await;
    assert_eq!((keys, error), (LARGE, None));
    let held = async || {
        let none = "cairn_memory_bytes{owner=\"reads\"} 0\n";
        metrics(&cluster, 0).contains(none).then_some(())
    };
    cluster.until("their memory is given back", held).await;
}

/// Its view keeps what is overwritten meanwhile. Before others have no space for it, the view ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_scan_that_nobody_reads_ends_where_space_becomes_scarce_and_writes_go_on() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let client = cluster.client();
    fill(&client).await;
    // A few writes more, and space is scarce.
    let part =
        |part: &str| metric(&cluster, 0, &format!("cairn_data_use_bytes{{part=\"{part}\"}} "));
    let scarce = metric(&cluster, 0, "cairn_data_capacity_bytes ") / 6;
    let mut more = 0;
    while part("free") + part("reserve") > scarce {
        client.put(format!("more/{more:03}"), vec![7; LARGE_BYTES]).await.expect("written");
        more += 1;
    }
    let mut tries = 0;
    let why = loop {
        let why = ended_by_writes(&cluster, &client).await;
        tries += 1;
        // A slow machine may not have written enough within the minute.
        if !why.contains("nothing was taken") || tries == TRIES {
            break why;
        }
    };
    assert!(why.contains("deleted or overwritten meanwhile"), "{why}");
    let again = async || client.put("large/00", vec![9; LARGE_BYTES]).await.ok().map(drop);
    cluster.until("space comes back", again).await;
    assert_eq!(client.count(..).await, Ok(LARGE as u64 + more));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_ends_when_its_caller_may_not_read_the_range_any_more() {
    let hash = |name: &str| TokenHash::of(name.as_bytes());
    let lines = format!(
        "access.all = \"read write operator token:{}\"\naccess.reader = \"read:large/ token:{}\"\n",
        hash("all's"),
        hash("reader's")
    );
    let mut cluster = Cluster::format(1, "64MiB", &lines).with_token("all's");
    cluster.start_all().await;
    fill(&cluster.client()).await;
    let options = cluster.options().deadline(WAIT_LIMIT).token("reader's").expect("a token");
    let reader = options.build().expect("good options");
    let wider = reader.scan("large/"..).await;
    assert!(matches!(wider, Err(Error::PermissionDenied { .. })), "{wider:?}");
    let scan = reader.scan(Range::prefix("large/")).await.expect("allowed");

    let text = std::fs::read_to_string(cluster.config(0)).expect("a configuration");
    std::fs::write(cluster.config(0), text.replace("read:large/", "read:other/")).expect("a file");
    cluster.signal_node(0, Signal::HUP);
    let denied = async || reader.get("large/00").await.is_err_and(|e| e.is_denied()).then_some(());
    cluster.until("the role is gone", denied).await;
    let (keys, error) = rest(scan).await;
    assert!(keys < LARGE, "{keys} keys");
    assert!(matches!(error, Some(Error::PermissionDenied { .. })), "{error:?}");
}

/// The story: scans that waited for a quorum had all slots of their client, and further ones were told of overload.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_no_scan_is_refused_since_others_wait_for_one() {
    let mut cluster = Cluster::start(3, "64MiB", SLOW_ELECTIONS).await;
    let leader = cluster.leader().await;
    let options = cluster.options_of(&[leader]).deadline(Duration::from_secs(5));
    let client = options.build().expect("good options");
    for node in (0..3).filter(|node| *node != leader) {
        cluster.kill_node(node);
    }
    let counts = join_all((0..6).map(|_| client.count(..))).await;
    for counted in counts {
        let error = counted.expect_err("there is no quorum");
        assert!(!matches!(error, Error::Overloaded { .. }), "{error}");
    }
}

/// The position and the first keys have arrived, so another node cannot go on with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_scan_of_a_node_that_is_killed_or_stops_is_broken_and_never_short() {
    let mut cluster = Cluster::start(3, "64MiB", SLOW_ELECTIONS).await;
    fill(&cluster.client()).await;
    let leader = cluster.leader().await;
    let followers: Vec<usize> = (0..3).filter(|node| *node != leader).collect();
    // With the others known, too: none of them is asked for the rest.
    for (node, kills) in [(followers[0], true), (followers[1], false)] {
        let options = cluster.options_of(&[node]).deadline(WAIT_LIMIT).connect_timeout(WAIT_LIMIT);
        let client = options.attempt_timeout(WAIT_LIMIT).build().expect("good options");
        let begun = async || {
            let mut scan = client.scan(..).await.ok()?;
            scan.next().await.ok()??;
            (open(&cluster, node) == 1).then_some(scan)
        };
        let scan = cluster.until("a scan of that node", begun).await;
        let address = cluster.endpoints().swap_remove(node);
        if kills {
            cluster.kill_node(node);
        } else {
            cluster.signal_node(node, Signal::TERM);
        }
        let closed = async || TcpStream::connect(&address).is_err().then_some(());
        cluster.until("it takes no connection", closed).await;
        let (keys, error) = rest(scan).await;
        assert!(keys + 1 < LARGE, "{keys} keys");
        let Some(Error::ScanBroken { received, .. }) = error else { panic!("{error:?}") };
        assert_eq!(received, keys as u64 + 1);
        if !kills {
            assert_eq!(cluster.ended(node), 0);
            let logs = cluster.logs();
            assert!(!logs.contains("were still under way"), "no stop waits for a scan: {logs}");
        }
        cluster.start_node(node);
        cluster.wait_ready().await;
        assert_eq!(client.count(..).await, Ok(LARGE as u64));
    }
}
