//! After an unsafe recovery a cluster is like any other: its history from there on is checked.

use super::clock::virtual_time;
use super::cluster::Cluster;
use super::faults::{EXIT_GRACE, start_later};
use super::machine::Death;
use cairn_client::Client;
use cairn_clients::Violation;
use cairn_clients::check::acknowledged::FinalKeys;
use cairn_clients::history::GROUP_KEYS;
use cairn_clients::workload::encode_key;
use rand::RngExt;
use std::sync::Arc;
use std::time::Duration;

/// How long clients continue.
const CONTINUES: Duration = Duration::from_secs(6);
/// How long a delete may take.
const LIMIT: Duration = Duration::from_secs(30);
/// The first number of these clients; earlier clients have lower ones.
pub(super) const FIRST_CLIENT: u32 = 500;

/// Deletes every key, so that the history begins with no keys.
pub(super) async fn clear(cluster: &Cluster, client: Client) {
    let client = client.with_deadline(LIMIT);
    for group in 0..cluster.plan.profile.groups {
        for key in 0..GROUP_KEYS {
            if let Err(error) = client.delete(encode_key(group, key)).await {
                let detail = format!("key {group}/{key} cannot be deleted: {error}");
                cluster.violation(Violation::new(
                    "a cluster that an operator recovered serves and agrees",
                    detail,
                ));
            }
        }
    }
}

/// Lets clients continue, while one member's process is killed and restarted.
pub(super) async fn disturb(cluster: &Arc<Cluster>) {
    let mut rng = cluster.plan.rng(15);
    let until = virtual_time() + CONTINUES;
    tokio::time::sleep(Duration::from_millis(rng.random_range(500..2_500))).await;
    let target = rng.random_range(0..cluster.machines.len());
    if let Some(machine) = cluster.machines.get(target) {
        cluster.end(machine, Death::Killed);
        start_later(cluster.clone(), target, EXIT_GRACE * rng.random_range(1..50));
    }
    tokio::time::sleep(until.saturating_sub(virtual_time())).await;
}

/// Adds the violations found in the history since the unsafe recovery.
pub(super) fn judge(cluster: &Cluster, found: Vec<Violation>, end: &FinalKeys) {
    cluster.count_event("histories checked after an unsafe recovery");
    cluster
        .trace
        .event(format!("after the unsafe recovery {} keys were read at the end", end.len()));
    for violation in found {
        let detail = format!("{violation}");
        cluster.violation(Violation::new("after an unsafe recovery every property holds", detail));
    }
}
