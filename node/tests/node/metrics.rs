//! What `/metrics` serves, and in which form.
use crate::support::{Cluster, SLOW_ELECTIONS, UNHURRIED_ELECTIONS, http_get, value_of};
use cairn_client::proto;
use cairn_client::proto::kv_client::KvClient;
use cairn_client::proto::operation::Kind;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use tonic::transport::Channel;

const TYPES: [&str; 5] = ["counter", "gauge", "histogram", "summary", "untyped"];

/// The body of `/metrics` of a node, asked by somebody who accepts anything.
pub fn metrics(cluster: &Cluster, node: usize) -> String {
    let answer = http_get(&value_of(cluster.config(node), "listen.http"), "/metrics");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    body.to_owned()
}

/// The type of each metric; fails where the text breaks a convention.
pub fn described(text: &str) -> BTreeMap<&str, &str> {
    let (mut types, mut helps) = (BTreeMap::new(), BTreeSet::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help");
            assert!(!help.trim().is_empty() && helps.insert(name), "{line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert!(TYPES.contains(&kind) && types.insert(name, kind).is_none(), "{line}");
            assert!(helps.contains(name), "{line} has no help before it");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            let reserved = ["_sum", "_count", "_bucket"];
            assert!(!reserved.iter().any(|suffix| name.ends_with(*suffix)), "{line}");
        } else {
            assert!(!line.starts_with('#'), "{line}");
            let (sample, value) = line.rsplit_once(' ').expect("a sample");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            let name = sample.split('{').next().expect("a name");
            let base = ["_sum", "_count", "_bucket"]
                .iter()
                .filter_map(|suffix| name.strip_suffix(*suffix))
                .find(|base| types.get(base) == Some(&"histogram"));
            assert!(types.contains_key(base.unwrap_or(name)), "{line} is not described before");
        }
    }
    types
}

/// A cluster of three with a schedule of backups that has taken a write, refused one at a member that does
/// not lead, and saved a backup, and what each node serves: the leader first.
pub async fn scraped() -> (Cluster, Vec<String>) {
    // The one that leads saves the backup.
    let mut cluster = Cluster::format(3, "64MiB", SLOW_ELECTIONS);
    let target = cluster.folder.path().join("saved");
    std::fs::create_dir(&target).expect("a folder");
    for node in 0..cluster.len() {
        let lines = format!("backup.target = {target:?}\nbackup.every = \"1h\"");
        cluster.configure(node, &lines);
    }
    cluster.start_all().await;
    let leader = cluster.leader().await;
    cluster.client().put("key", "value").await.expect("written");
    let other = (leader + 1) % 3;
    let endpoint = format!("http://{}", cluster.endpoints()[other]);
    let channel = Channel::from_shared(endpoint).expect("a URI").connect().await;
    let mut calls = KvClient::new(channel.expect("it listens"));
    let refused = async || {
        let put = proto::Put { key: "key".into(), value: "other".into(), ..Default::default() };
        let operations = vec![proto::Operation { kind: Some(Kind::Put(put)) }];
        let request = proto::WriteRequest { operations, ..Default::default() };
        calls.write(request).await.err()?;
        let sample = "cairn_proposals_refused_total{reason=\"not_leader\"}";
        metrics(&cluster, other).contains(sample).then_some(())
    };
    cluster.until("a refused write is counted", refused).await;
    let counted = async || {
        let none = |node| metrics(&cluster, node).contains("\ncairn_leader_changes_total 0\n");
        (!(0..3).any(none)).then_some(())
    };
    cluster.until("each has seen the leader", counted).await;
    let saved = async || {
        let sample = "\ncairn_backup_last_success_timestamp_seconds ";
        metrics(&cluster, leader).contains(sample).then_some(())
    };
    cluster.until("the leader has saved a backup", saved).await;
    let texts = [leader, other, (leader + 2) % 3].map(|node| metrics(&cluster, node));
    (cluster, texts.to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_follow_the_conventions_and_count_what_happened() {
    let (_cluster, texts) = scraped().await;
    let types: Vec<_> = texts.iter().map(|text| described(text)).collect();
    let text = &texts[0];
    for (name, kind) in [
        ("cairn_requests_total", "counter"),
        ("cairn_request_duration_seconds", "histogram"),
        ("cairn_device_operation_duration_seconds", "histogram"),
        ("cairn_append_duration_seconds", "histogram"),
        ("cairn_leader_changes_total", "counter"),
        ("cairn_history_oldest_index", "gauge"),
        ("cairn_history_entries", "gauge"),
        ("cairn_history_bytes", "gauge"),
        ("cairn_history_age_seconds", "gauge"),
        ("cairn_watches", "gauge"),
        ("cairn_watches_behind", "gauge"),
        ("cairn_watch_changes_total", "counter"),
        ("cairn_build_info", "gauge"),
        ("process_cpu_seconds_total", "counter"),
        ("process_resident_memory_bytes", "gauge"),
        ("cairn_memory_limit_bytes", "gauge"),
        ("process_start_time_seconds", "gauge"),
        ("process_open_fds", "gauge"),
    ] {
        assert_eq!(types[0].get(name), Some(&kind), "{name} in\n{text}");
    }
    let value = |sample: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(sample));
        let line = line.unwrap_or_else(|| panic!("{sample} is not in\n{text}"));
        line.trim().parse::<f64>().expect("a number")
    };
    assert!(value("cairn_append_duration_seconds_count") > 0.0);
    assert!(value("cairn_device_operation_duration_seconds_count{operation=\"write\"}") > 0.0);
    let idle = |text: &String| text.contains("\ncairn_connections{port=\"peer\"} 0\n");
    assert!(!texts.iter().all(idle), "the leader sends to the others: {text}");
    assert!(value("cairn_connections_limit{port=\"client\"}") > 0.0);
    assert!(value("cairn_leader_changes_total") > 0.0);
    for owner in ["requests", "reads", "value_cache", "log_cache"] {
        value(&format!("cairn_memory_bytes{{owner=\"{owner}\"}}"));
    }
    let resident = value("process_resident_memory_bytes");
    assert!(resident > 0.0 && resident < value("cairn_memory_limit_bytes"), "{text}");
    assert!((value("cairn_sync_interval_seconds") - 1.0).abs() < 1e-9, "{text}");
    for text in &texts {
        let line =
            text.lines().find_map(|line| line.strip_prefix("cairn_backup_interval_seconds "));
        let seconds = line.and_then(|seconds| seconds.parse::<f64>().ok());
        assert!(seconds.is_some_and(|seconds| (seconds - 3600.0).abs() < 1e-9), "{text}");
    }
    let followed = |text: &String| text.matches("\ncairn_follower_lag_entries{").count();
    assert_eq!(texts.iter().map(followed).max(), Some(2), "{text}");
}

/// A member that can elect nobody asks for pre-votes, which change nothing: its Raft still knows the last leader. That
/// one is not heard, so the alert of a cluster without a leader sounds.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_left_alone_says_that_it_has_no_leader_until_the_others_are_back() {
    let mut cluster = Cluster::start(3, "64MiB", UNHURRIED_ELECTIONS).await;
    let leader = cluster.leader().await;
    let (others, left) = ([leader, (leader + 1) % 3], (leader + 2) % 3);
    let says = |cluster: &Cluster, flag: u8| {
        let sample = format!("\ncairn_has_leader {flag}\n");
        metrics(cluster, left).contains(&sample).then_some(())
    };
    cluster.until("it hears its leader", async || says(&cluster, 1)).await;
    for node in others {
        cluster.kill_node(node);
    }
    cluster.until("it has no leader", async || says(&cluster, 0)).await;
    let endpoint = value_of(cluster.config(left), "listen.client");
    let ran = cluster.cairn_alone(&["health", "--endpoints", &endpoint, "-o", "json"]);
    assert!(ran.stdout.contains("\"no_leader\""), "{ran:?}");
    for node in others {
        cluster.start_node(node);
    }
    cluster.wait_ready().await;
    cluster.until("it hears a leader again", async || says(&cluster, 1)).await;
}

/// Prometheus asks for it.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_accepts_openmetrics_gets_it() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let http = value_of(cluster.config(0), "listen.http");
    let mut stream = std::net::TcpStream::connect(&http).expect("HTTP is served");
    let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.1";
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {http}\r\nAccept: {accept}\r\n\r\n")
        .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.contains("application/openmetrics-text; version=1.0.0"), "{answer}");
    assert!(answer.ends_with("# EOF\n"), "{answer}");
    assert!(answer.contains("# TYPE cairn_requests counter\n"), "{answer}");
}
