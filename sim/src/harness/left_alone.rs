//! A majority that no fault touches serves, while faults hit the others.
//!
//! The harness knows from outside which machines and links a fault touches.

use super::cluster::{Cluster, virtual_time};
use super::kinds::FaultKind;
use super::machine::{Condition, Machine};
use super::network::Links;
use cairn_clients::Violation;
use cairn_clients::workload::Recorder;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The time between two checks.
const INTERVAL: Duration = Duration::from_millis(200);
/// How long a majority must have been undisturbed: an election or two on slow clocks, a recovery,
/// and the waits of clients.
const LIMIT: Duration = Duration::from_secs(12);

/// Checks until the clients are told to stop, or an unsafe recovery begins.
pub(super) async fn watch(
    cluster: Arc<Cluster>,
    links: Arc<Links>,
    recorder: Recorder,
    stop: Arc<AtomicBool>,
) {
    // A full cluster refuses writes.
    if cluster.plan.decays.contains(&FaultKind::Fill) {
        return;
    }
    let (mut acknowledged, mut served_at) = (recorder.acknowledged(), virtual_time());
    let mut alone_since = None;
    loop {
        tokio::time::sleep(INTERVAL).await;
        if stop.load(Ordering::Relaxed) || cluster.decided() {
            return;
        }
        let now = virtual_time();
        if recorder.acknowledged() > acknowledged {
            (acknowledged, served_at) = (recorder.acknowledged(), now);
        }
        alone_since = match left_alone(&cluster, &links) {
            true => alone_since.or(Some(now)),
            false => None,
        };
        let Some(since) = alone_since.filter(|since| now - *since >= LIMIT) else { continue };
        cluster.count_event("checks of a majority left alone for long");
        if now - served_at.max(since) >= LIMIT {
            let detail = format!("no write was acknowledged from {served_at:?} to {now:?}");
            cluster.violation(Violation::new("a majority that is left alone serves", detail));
            return;
        }
    }
}

/// Whether no fault touches the network or a majority that lacks nothing it acknowledged.
fn left_alone(cluster: &Cluster, links: &Links) -> bool {
    let alone = |machine: &&Machine| {
        machine.condition() == Condition::Up
            && machine.votes()
            && !machine.lacks_acks()
            && !machine.is_stale()
            && machine.leaving().is_none()
            && !machine.is_drained()
            && machine.disk.decayed() == 0
            && machine.disk.stalled_until().is_none_or(|until| until < tokio::time::Instant::now())
    };
    // Also where one leaves: what is a majority of all machines is one of those that stay.
    let majority = cluster.machines.len() / 2 + 1;
    let steady = cluster.machines.iter().filter(alone).count() >= majority;
    // The undisturbed members are the same as before only if nothing has happened to them.
    let changed = cluster
        .machines
        .iter()
        .filter(alone)
        .any(|machine| virtual_time().saturating_sub(machine.changed_at()) < INTERVAL);
    steady && !changed && links.undisturbed()
}
