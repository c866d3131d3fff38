//! A cluster that goes on after a person gave something up is a cluster like any other: from there on its history is judged.

use super::cluster::{Cluster, virtual_time};
use super::faults::{FUNERAL, start_later};
use super::machine::Death;
use cairn_client::Client;
use cairn_clients::Violation;
use cairn_clients::check::acknowledged::FinalKeys;
use cairn_clients::history::GROUP_KEYS;
use cairn_clients::workload::encode_key;
use rand::RngExt;
use std::sync::Arc;
use std::time::Duration;

/// How long clients go on.
const GOES_ON: Duration = Duration::from_secs(6);
/// How long a delete may take.
const LIMIT: Duration = Duration::from_secs(30);
/// No member of these clients' histories has the number of an earlier client.
pub(super) const FIRST_CLIENT: u32 = 500;

/// Deletes every key, so that the history from here on begins with nothing.
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

/// Lets clients go on, while one member's process dies and comes back.
pub(super) async fn disturb(cluster: &Arc<Cluster>) {
    let mut rng = cluster.plan.rng(15);
    let until = virtual_time() + GOES_ON;
    tokio::time::sleep(Duration::from_millis(rng.random_range(500..2_500))).await;
    let target = rng.random_range(0..cluster.machines.len());
    if let Some(machine) = cluster.machines.get(target) {
        cluster.end(machine, Death::Killed);
        start_later(cluster.clone(), target, FUNERAL * rng.random_range(1..50));
    }
    tokio::time::sleep(until.saturating_sub(virtual_time())).await;
}

/// Adds what was found in the history from there on.
pub(super) fn judge(cluster: &Cluster, found: Vec<Violation>, end: &FinalKeys) {
    cluster.count_event("histories judged after an accepted loss");
    cluster.trace.event(format!("after the loss {} keys were read at the end", end.len()));
    for violation in found {
        let detail = format!("{violation}");
        cluster.violation(Violation::new("after an accepted loss all holds as before", detail));
    }
}
