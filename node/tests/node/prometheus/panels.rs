//! The dashboard's queries, asked of a Prometheus that scrapes a working cluster.
//!
//! What holds here: each query of each panel returns a number. No panel is left out: there is none that can only be
//! empty here, since the cluster has certificates, a backup, refused writes, and voters on one machine, of which an
//! alert fires.

use super::server::{CLUSTER, Prometheus};
use crate::dashboard::{dashboard, targets, text};
use crate::support::stranger::Stranger;
use crate::support::{Cluster, SLOW_ELECTIONS};
use cairn_client::proto::kv_client::KvClient;
use cairn_client::proto::operation::Kind;
use cairn_client::{ListOptions, proto};
use serde_json::Value;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Between two rounds of requests, so that hours of them fit into the data area.
const PAUSE: Duration = Duration::from_millis(20);
/// What Grafana makes of `$__rate_interval` at the least: four scrapes, and more on a slow machine.
const RATE_INTERVAL: &str = "60s";

/// Clients that put, get and list, and one that asks this member, which does not lead, to write. It ends with the
/// returned task.
fn traffic(cluster: &Cluster, other: usize) -> JoinHandle<()> {
    let client = cluster.client();
    let ca = cluster.certificates.as_ref().expect("secured").ca();
    let stranger = Stranger::new(Some(&ca.issue("client/other")));
    let mut calls = KvClient::new(stranger.channel(&cluster.endpoints()[other]));
    tokio::spawn(async move {
        for number in 0_u64.. {
            let key = format!("key{}", number % 100);
            client.put(key.clone(), vec![7_u8; 4096]).await.expect("written");
            client.get(key.clone()).await.expect("read");
            client.get_many([key.clone()]).await.expect("read");
            client.list(ListOptions::prefix(key)).await.expect("listed");
            client.count(..).await.expect("counted");
            let put =
                proto::Put { key: "other".into(), value: "value".into(), ..Default::default() };
            let operations = vec![proto::Operation { kind: Some(Kind::Put(put)) }];
            let request = proto::WriteRequest { operations, ..Default::default() };
            // Refused, unless it leads by now.
            drop(calls.write(request).await);
            tokio::time::sleep(PAUSE).await;
        }
    })
}

/// The query as Grafana sends it, for all nodes.
fn filled(expression: &str) -> String {
    let text = expression.replace("$__rate_interval", RATE_INTERVAL);
    let text = text.replace("$cluster", CLUSTER).replace("$instance", ".*");
    assert!(!text.contains('$'), "a variable that is not known here: {text}");
    text
}

fn is_number(sample: &Value) -> bool {
    let value = sample["value"][1].as_str().and_then(|value| value.parse::<f64>().ok());
    value.is_some_and(f64::is_finite)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Prometheus: ./test prometheus"]
async fn each_query_of_the_dashboard_returns_a_number_while_clients_work() {
    let mut cluster = Cluster::secured(3, "256MiB", SLOW_ELECTIONS);
    let target = cluster.folder.path().join("saved");
    std::fs::create_dir(&target).expect("a folder");
    for node in 0..3 {
        let lines = format!("backup.target = {target:?}\nbackup.every = \"1h\"");
        cluster.configure(node, &lines);
    }
    cluster.start_all().await;
    let leader = cluster.leader().await;
    let traffic = traffic(&cluster, (leader + 1) % 3);
    let prometheus = Prometheus::start(&cluster).await;
    let dashboard = dashboard();
    let mut asked = 0;
    for target in targets(&dashboard) {
        let expression = filled(text(target, "/expr"));
        let has_numbers = async || {
            assert!(!traffic.is_finished(), "the clients ended");
            prometheus.query(&expression).iter().any(is_number)
        };
        prometheus.until(&format!("a number for {expression}"), has_numbers).await;
        asked += 1;
    }
    assert!(asked > 30, "{asked} queries");
    traffic.abort();
}
