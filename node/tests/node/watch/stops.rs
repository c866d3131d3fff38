//! Clients that watch everything and take nothing.

use super::{Follower, Watches, prefix, until_open};
use crate::metrics::metrics;
use crate::support::{Cluster, SLOW_ELECTIONS};

const MIB: u64 = 1 << 20;
/// What answers on their way out may take: `limits.max_read_bytes`.
const ANSWERS: u64 = 32 * MIB;
const STALLED: usize = 40;
const PUTS: usize = 1000;
const VALUE_BYTES: usize = 64 << 10;

fn value(cluster: &Cluster, sample: &str) -> u64 {
    let text = metrics(cluster, 0);
    let line = text.lines().find_map(|line| line.strip_prefix(sample));
    line.expect("a metric").trim().parse().expect("a number")
}

/// Puts the same keys over and over: what is stored stays little, and what is told is much. Who follows is told all of it
/// soon.
async fn put_all(cluster: &Cluster, mut follower: Option<&mut Follower>) {
    let client = cluster.client();
    for number in 0..PUTS {
        let put = client.put(format!("key {}", number % 8), vec![7; VALUE_BYTES]).await;
        let index = put.expect("others are served").version.0;
        if let Some(follower) = &mut follower {
            follower.until(index).await;
        }
    }
}

/// The story that is not to be: each of forty clients that read nothing is kept what it has to be told, 64 MB, and takes
/// the memory of the node.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_take_nothing_cost_the_budget_at_most_and_others_miss_nothing() {
    let more = format!("{SLOW_ELECTIONS}limits.max_read_bytes = \"{}MiB\"\n", ANSWERS / MIB);
    let cluster = Cluster::start(1, "128MiB", &more).await;
    // What a node keeps of its own is there before it is measured.
    put_all(&cluster, None).await;
    let mut follower = Follower::new(&cluster.endpoints(), prefix("")).begun().await;
    let idle = cluster.memory(0);
    cluster.forget_peak(0);
    let mut stalled = Vec::new();
    for _ in 0..STALLED {
        let watches = Watches::open(&cluster.endpoints()[0]).await.expect("it listens");
        watches.begin(1, prefix(""), None);
        stalled.push(watches);
    }
    until_open(&cluster, STALLED + 1).await;
    put_all(&cluster, Some(&mut follower)).await;
    assert_eq!(follower.changes.len(), PUTS);
    // A connection that takes nothing while others wait for memory may be closed, too.
    let stopped = async || {
        let samples = ["cairn_watches_behind ", "cairn_slow_readers_closed_total "];
        samples.iter().any(|sample| value(&cluster, sample) > 0).then_some(())
    };
    cluster.until("those that take nothing are behind", stopped).await;
    let (peak, most) = (cluster.peak_memory(0), (idle + 2 * ANSWERS) * 11 / 10);
    println!("idle {} MiB, peak {} MiB, at most {}", idle / MIB, peak / MIB, most / MIB);
    assert!(peak <= most, "{} MiB, at most {} MiB", peak / MIB, most / MIB);
    drop(stalled);
    until_open(&cluster, 1).await;
}
