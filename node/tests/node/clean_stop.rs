//! Clean stops: what clients notice, and which member may be stopped when.
//!
//! In the first test nobody campaigns by itself: only a hand-over elects another leader.

use crate::support::load::{History, Load};
use crate::support::raw::Raw;
use crate::support::{Cluster, SLOW_ELECTIONS, http_get, value_of};
use cairn_client::Role;
use cairn_client::proto::{self, call};
use cairn_launch::Signal;
use serde_json::Value;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

const NO_ELECTIONS: &str = "timing.election_min = \"300s\"\ntiming.election_max = \"600s\"";
const MIB: usize = 1 << 20;

fn http(cluster: &Cluster, node: usize) -> String {
    value_of(cluster.config(node), "listen.http")
}

/// A stream that has told once whether the node serves, and will tell when that changes.
async fn health_watch(address: &str) -> tonic::Streaming<tonic_health::pb::HealthCheckResponse> {
    let channel = Channel::from_shared(format!("http://{address}")).expect("a URI");
    let mut health = HealthClient::new(channel.connect().await.expect("it listens"));
    let request = HealthCheckRequest { service: "cairn.kv.v1.Kv".into() };
    let mut watch = health.watch(request).await.expect("it watches").into_inner();
    watch.message().await.expect("a message").expect("a message");
    watch
}

/// A client that asks for more than the system keeps for it, and reads nothing.
async fn unread(cluster: &Cluster, node: usize) -> Raw {
    cluster.client().put("large", vec![7; MIB]).await.expect("written");
    let mut raw = Raw::connect(&cluster.endpoints()[node]);
    let get = proto::GetRequest { key: "large".into(), ..Default::default() };
    let kind = Some(call::Kind::Get(get));
    let calls = (1..=64).map(|id| proto::Call { id, timeout_ms: 0, kind: kind.clone() });
    let calls = proto::MultiplexRequest { calls: calls.collect(), generation: None };
    raw.call("Multiplex", &calls, false);
    let held = async || {
        let metrics = http_get(&http(cluster, node), "/metrics");
        let sample = "cairn_memory_bytes{owner=\"reads\"} ";
        let held = metrics.lines().find_map(|line| line.strip_prefix(sample));
        held.is_some_and(|bytes| bytes != "0").then_some(())
    };
    cluster.until("its answers are under way", held).await;
    raw
}

/// The story: with one idle stream open, a leader that was asked to stop closed its listener and then
/// waited ten seconds for the stream. It led all that time, `/ready` said 200, and nobody took a write.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_stops_hands_over_first_and_waits_for_no_idle_stream() {
    let more = format!("{NO_ELECTIONS}\ntiming.shutdown = \"600s\"");
    let mut cluster = Cluster::start(3, "256MiB", &more).await;
    let leader = cluster.leader().await;
    let address = cluster.endpoints()[leader].clone();
    let client = cluster.client();
    client.put("before", "1").await.expect("written");
    let _watch = health_watch(&address).await;
    let _silent = Raw::connect(&address);
    // Only this one holds the stop up.
    let unread = unread(&cluster, leader).await;

    cluster.signal_node(leader, Signal::TERM);
    let another = async || {
        let statuses = cluster.statuses().await;
        let leads = statuses.iter().find(|status| status.role == Role::Leader)?;
        Some(usize::from(leads.slot) - 1).filter(|node| *node != leader)
    };
    let next = cluster.until("another member leads", another).await;
    client.put("while", "1").await.expect("written while the node stops");
    let ready = http_get(&http(&cluster, leader), "/ready");
    assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("stopping"), "{ready}");
    let third = (0..3).find(|node| ![leader, next].contains(node)).expect("three");
    // The next leader may not have heard of all others yet.
    let told = async || {
        let asked = http_get(&http(&cluster, third), "/safe-to-stop");
        assert!(!asked.starts_with("HTTP/1.1 200"), "{asked}");
        (asked.starts_with("HTTP/1.1 503") && asked.contains("is being stopped")).then_some(())
    };
    cluster.until("no other member may be stopped", told).await;

    drop(unread);
    assert_eq!(cluster.ended(leader), 0, "{}", cluster.logs());
    let log = cluster.log(leader);
    assert!(log.contains("stopped cleanly") && !log.contains("cut off"), "{log}");
    for key in ["before", "while"] {
        assert!(client.get(key).await.expect("served").is_some(), "{key}");
    }
}

/// Prints how long no write was acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn writers_go_on_while_one_leader_after_another_stops_and_nothing_is_lost() {
    let mut cluster = Cluster::start(3, "256MiB", "").await;
    let mut history = History::default();
    for _ in 0..3 {
        let load = Load::start(&cluster.client(), &history);
        load.wait_for_acknowledgements(500).await;
        let leader = cluster.leader().await;
        let address = cluster.endpoints()[leader].clone();
        let _watch = health_watch(&address).await;
        let _silent = Raw::connect(&address);
        let asked = Instant::now();
        cluster.signal_node(leader, Signal::TERM);
        assert_eq!(cluster.ended(leader), 0, "{}", cluster.logs());
        let ended = asked.elapsed();
        load.wait_for_acknowledgements(500).await;
        let pause = history.merge(load.stop().await).longest_pause_after(asked);
        println!(
            "slot {} led and stopped within {} ms: no write for {} ms",
            leader + 1,
            ended.as_millis(),
            pause.as_millis()
        );
        history.check(&cluster.client()).await;
        cluster.start_node(leader);
        let (code, answer) = answer_of(&cluster, &["--wait", "100s"]);
        assert_eq!(code, 0, "{answer}");
    }
}

/// The others are down: there is nobody to hand over to, and no majority that answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_nobody_can_follow_stops_nevertheless() {
    let mut cluster = Cluster::start(3, "64MiB", "").await;
    let leader = cluster.leader().await;
    for node in (0..3).filter(|node| *node != leader) {
        cluster.kill_node(node);
    }
    assert_eq!(cluster.stop_node(leader), 0, "{}", cluster.logs());
    assert!(cluster.log(leader).contains("stopped cleanly"), "{}", cluster.logs());
}

fn answer_of(cluster: &Cluster, more: &[&str]) -> (i32, Value) {
    let arguments = [&["health", "--safe-to-stop", "-o", "json"], more].concat();
    let ran = cluster.cairn(&arguments);
    (ran.code, serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}")))
}

/// The story: a member that came back copied a snapshot, and said that it was ready. The next member
/// was stopped, and for half a minute nobody took a write.
#[tokio::test(flavor = "multi_thread")]
async fn while_a_member_is_away_or_copies_a_snapshot_no_other_one_may_be_stopped() {
    let short = "storage.log_retain_bytes = \"1MiB\"\nwatch.retain_bytes = \"1MiB\"";
    let more = format!("{SLOW_ELECTIONS}{short}");
    let mut cluster = Cluster::start(3, "256MiB", &more).await;
    let leader = cluster.leader().await;
    let [away, third] = [1, 2].map(|more| (leader + more) % 3);
    let client = cluster.client();
    let slot = |node: usize| (node + 1).to_string();
    let all_safe = async || (answer_of(&cluster, &[]).0 == 0).then_some(());
    cluster.until("any member may be stopped", all_safe).await;
    let before = client.status(&cluster.endpoints()[away]).await.expect("a status");

    cluster.kill_node(away);
    let (code, answer) = answer_of(&cluster, &["--slot", &slot(third)]);
    assert_eq!((code, &answer["safe_to_stop"]), (4, &Value::Bool(false)), "{answer}");
    let why = answer["members"][0]["obstacles"].to_string();
    assert!(why.contains("does not answer the leader"), "{why}");
    assert_eq!(answer_of(&cluster, &["--slot", &slot(away)]).0, 0, "it is down already");
    for (node, path, safe) in [
        (third, "/safe-to-stop".to_string(), false),
        (leader, "/safe-to-stop".to_string(), false),
        (third, format!("/safe-to-stop?slot={}", slot(away)), true),
    ] {
        let told = http_get(&http(&cluster, node), &path);
        assert_eq!(told.starts_with("HTTP/1.1 200"), safe, "{node} {path}: {told}");
    }
    let told = http_get(&http(&cluster, third), "/safe-to-stop?slot=x");
    assert!(told.starts_with("HTTP/1.1 400"), "{told}");

    // More than the log keeps: the member needs a snapshot.
    for number in 0..120 {
        client.put(format!("key{number:03}"), vec![7; MIB / 2]).await.expect("written");
    }
    let purged = async || {
        let status = client.status(&cluster.endpoints()[leader]).await.ok()?;
        (status.purged_index > before.last_log_index).then_some(status.committed_index)
    };
    let committed = cluster.until("the leader has purged what it lacks", purged).await;
    cluster.start_node(away);
    let listens =
        async || tokio::net::TcpStream::connect(http(&cluster, away)).await.is_ok().then_some(());
    cluster.until("it listens", listens).await;
    let ready = async || {
        let told = http_get(&http(&cluster, away), "/ready");
        told.starts_with("HTTP/1.1 200").then_some(())
    };
    cluster.until("it is ready", ready).await;
    let status = client.status(&cluster.endpoints()[away]).await.expect("a status");
    assert!(status.applied_index >= committed, "ready at {}", status.applied_index);

    let (code, answer) = answer_of(&cluster, &["--wait", "100s"]);
    assert_eq!((code, &answer["safe_to_stop"]), (0, &Value::Bool(true)), "{answer}");
    assert_eq!(answer["members"].as_array().map(Vec::len), Some(3), "{answer}");
}
