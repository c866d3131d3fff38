//! Scrubs that the harness requests, as an operator would, and their results.

use super::cluster::Cluster;
use super::live;
use super::machine::Machine;
use crate::check::repaired::Scrub;
use cairn_clients::Violation;
use cairn_node::Node;
use std::time::Duration;

/// Longest wait for the end of a scrub.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);
/// After a scrub that found something follows another, up to this many.
const ROUNDS: usize = 3;

/// Scrubs a member until nothing is found. What is still damaged then is not needed. `None` if the
/// node ended, or a scrub took too long.
pub(super) async fn until_clean(cluster: &Cluster, machine: &Machine) -> Option<Scrub> {
    let mut last = None;
    for _ in 0..ROUNDS {
        let harms = machine.disk.harms();
        let (life, node) = machine.node()?;
        let scrub = once(&node).await.filter(|_| machine.life() == life)?;
        cluster.count_event("scrubs ended");
        cluster.trace.event(format!("node {}: a scrub found {scrub:?}", machine.slot));
        last = Some(scrub);
        if scrub.found == 0 && scrub.unrepairable == 0 {
            // Unless the disk decayed meanwhile.
            if machine.disk.harms() == harms {
                for key in live::damaged(machine, &node) {
                    let detail =
                        format!("node {}: key `{}` is damaged", machine.slot, key.escape_ascii());
                    cluster.violation(Violation::new(
                        "a scrub that finds nothing has missed nothing",
                        detail,
                    ));
                }
                machine.disk.forgive();
            }
            break;
        }
    }
    last
}

async fn once(node: &Node) -> Option<Scrub> {
    let before = node.replica().scrub_status();
    node.replica().start_scrub();
    let mut waited = Duration::ZERO;
    loop {
        tokio::time::sleep(POLL).await;
        waited += POLL;
        let now = node.replica().scrub_status();
        if !now.running && now.cycles > before.cycles {
            return Some(Scrub {
                found: now.damaged - before.damaged,
                unrepairable: now.unrepairable - before.unrepairable,
            });
        }
        if waited >= LIMIT {
            return None;
        }
    }
}
