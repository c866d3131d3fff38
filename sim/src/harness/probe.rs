//! Reads at members that may lack acknowledged entries, have not received everything yet, or know
//! that they are members no more: they must not answer, not even a stale read.

use super::cluster::Cluster;
use super::machine::Machine;
use cairn_client::Options;
use cairn_clients::Violation;
use cairn_clients::workload::encode_key;
use cairn_raft::Part;
use madsim::runtime::Handle;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

/// The time between two rounds.
const INTERVAL: Duration = Duration::from_millis(150);
/// How long one answer may take.
const DEADLINE: Duration = Duration::from_millis(300);
/// The event of a read that was refused.
const REFUSED: &str = "reads refused by a member that may lack something";

/// Sends reads from a host of its own until the run ends.
pub(super) fn spawn(cluster: &Arc<Cluster>) {
    let host =
        Handle::current().create_node().name("probe").ip(Ipv4Addr::new(10, 0, 2, 2).into()).build();
    let cluster = cluster.clone();
    drop(host.spawn(async move {
        loop {
            tokio::time::sleep(INTERVAL).await;
            for machine in &cluster.machines {
                ask(&cluster, machine).await;
            }
        }
    }));
}

/// The running process of a member that must not be read, if there is one.
pub(super) fn unreadable(machine: &Machine) -> Option<u32> {
    let (life, node) = machine.node()?;
    (node.replica().part() != Part::Active).then_some(life)
}

async fn ask(cluster: &Cluster, machine: &Machine) {
    let Some(before) = unreadable(machine) else { return };
    let Some(endpoint) = cluster.endpoint(machine.slot) else { return };
    let options =
        Options::new(vec![endpoint.clone()]).deadline(DEADLINE).attempt_timeout(DEADLINE).seed(1);
    let Ok(client) = options.build() else { return };
    let answer = client.get_stale_at(&endpoint, encode_key(0, 0)).await;
    // It may have become active while it was asked.
    if unreadable(machine) != Some(before) {
        return;
    }
    match answer {
        Ok(found) => {
            let found = found.map(|found| found.version);
            let detail = format!("node {} answered {found:?}", machine.slot);
            cluster
                .violation(Violation::new("a member that may lack writes answers no read", detail));
        }
        Err(_) => cluster.count_event(REFUSED),
    }
}
