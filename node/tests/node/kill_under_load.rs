//! The promise, with real processes: `kill -9` of the leader, and of all three nodes, under load.
use crate::support::load::{History, Load};
use crate::support::{Cluster, UNHURRIED_ELECTIONS, WAIT_LIMIT};
use cairn_client::Error;
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_writes_survive_kill_9_of_the_leader_and_of_all_nodes() {
    tokio::time::timeout(WAIT_LIMIT * 2, scenario()).await.expect("the scenario ends in time");
}

async fn scenario() {
    let mut cluster = Cluster::start(3, "256MiB", "").await;
    let mut history = History::default();

    let load = Load::start(&cluster.client(), &history);
    load.wait_for_acknowledgements(500).await;
    let leader = cluster.leader().await;
    let killed_at = Instant::now();
    cluster.kill_node(leader);
    // While the leader is down. The simulation checks how soon, in the machines' time:
    // `leader-killed`.
    load.wait_for_acknowledgements_after_outage(killed_at).await;
    load.wait_for_acknowledgements(500).await;
    let outage = history.merge(load.stop().await).longest_pause_after(killed_at);
    let (checked, unknown) = history.check(&cluster.client()).await;
    println!(
        "kill -9 of the leader: writes continued after {} ms; {checked} acknowledged keys all there, {unknown} outcomes unknown",
        outage.as_millis()
    );

    cluster.start_node(leader);
    cluster.wait_ready().await;
    let load = Load::start(&cluster.client(), &history);
    load.wait_for_acknowledgements(500).await;
    let killed_at = Instant::now();
    cluster.kill_all();
    for node in 0..cluster.len() {
        cluster.start_node(node);
    }
    cluster.wait_ready().await;
    let ready = killed_at.elapsed();
    load.wait_for_acknowledgements(500).await;
    history.merge(load.stop().await);
    let (checked, unknown) = history.check(&cluster.client()).await;
    println!(
        "kill -9 of all three: ready again after {} ms; {checked} acknowledged keys all there, {unknown} outcomes unknown",
        ready.as_millis()
    );

    for node in 0..cluster.len() {
        assert_eq!(cluster.stop_node(node), 0, "node {node} stops cleanly");
    }
}

/// The story: a leader that was cut off had all its places taken by writes that it could not commit. It
/// told every client that it has too many, and they stayed with it while another member led.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_cut_off_with_all_places_taken_says_that_nobody_leads() {
    // It takes writes for a while after the others are down.
    let more = format!("{UNHURRIED_ELECTIONS}limits.max_in_flight_writes = 4");
    let mut cluster = Cluster::start(3, "64MiB", &more).await;
    let leader = cluster.leader().await;
    let client = cluster.options_of(&[leader]).connect().await.expect("connected");
    client.put("key", "value").await.expect("written");
    for other in (0..3).filter(|other| *other != leader) {
        cluster.kill_node(other);
    }
    let put_within = |number: usize, seconds| {
        let client = client.with_deadline(Duration::from_secs(seconds));
        async move { client.put(format!("key {number}"), "value").await.expect_err("no majority") }
    };
    let stuck = futures::future::join_all((0..8).map(|number| put_within(number, 5))).await;
    let put = |number| put_within(number, 1);
    assert!(stuck.iter().any(|error| matches!(error, Error::OutcomeUnknown { .. })), "{stuck:?}");
    // It knows in a while that nobody answers it. The stuck writes are not committed even then.
    cluster
        .until("the leader says that nobody leads", async || {
            matches!(put(9).await, Error::NoLeader { .. } | Error::Unavailable { .. }).then_some(())
        })
        .await;
    for number in 10..20 {
        let error = put(number).await;
        assert!(!matches!(error, Error::Overloaded { .. }), "{error:?}");
    }
}
