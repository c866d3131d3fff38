//! A majority that no fault touches serves, while faults hit the others.
//!
//! Those who watch hear of what it acknowledges.
//!
//! The harness knows from outside which machines and links a fault touches: it does not ask the
//! members whom they reach.

use super::clock::virtual_time;
use super::cluster::Cluster;
use super::kinds::FaultKind;
use super::machine::{Condition, Machine};
use super::network::Links;
use super::watches::BESIDE_A_MAJORITY;
use cairn_clients::Violation;
use cairn_clients::history::Version;
use cairn_clients::workload::Recorder;
use madsim::task::NodeId as Host;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The time between two checks.
const INTERVAL: Duration = Duration::from_millis(200);
/// How long a majority must have been undisturbed: check-quorum of a leader that is none of it, an
/// election or two on slow clocks, a recovery, and the waits of clients.
const LIMIT: Duration = Duration::from_secs(12);
/// How much longer watchers may take: a client leaves a node of which it hears nothing for 25 s, and a node says
/// every 10 s how far it is.
const WATCHERS: Duration = Duration::from_secs(25 + 10);
/// For how long a drained member leaves elections to others, on a slow clock.
const LAST_RESORT: Duration = Duration::from_secs(8);
/// A majority that is left alone for so long is checked by all that they say: all of these limits, and a few seconds
/// until the last change before is over.
pub(super) const LONG: Duration = Duration::from_secs(12 + 25 + 10 + 8 + 5);

/// A majority of all members, and since when no fault touches it.
struct Majority {
    members: Vec<usize>,
    alone_since: Option<Duration>,
}

/// Checks until the clients are told to stop, or an unsafe recovery begins.
pub(super) async fn watch(
    cluster: Arc<Cluster>,
    (links, clients): (Arc<Links>, Vec<Host>),
    recorder: Recorder,
    stop: Arc<AtomicBool>,
) {
    // A full cluster refuses writes.
    if cluster.plan.decays.contains(&FaultKind::Fill) {
        return;
    }
    let (mut acknowledged, mut served_at) = (recorder.acknowledged(), virtual_time());
    let mut drained_at = Duration::ZERO;
    let mut majorities = majorities(cluster.machines.len());
    loop {
        tokio::time::sleep(INTERVAL).await;
        if stop.load(Ordering::Relaxed) || cluster.decided() {
            return;
        }
        let now = virtual_time();
        if recorder.acknowledged() > acknowledged {
            (acknowledged, served_at) = (recorder.acknowledged(), now);
        }
        for majority in &mut majorities {
            majority.alone_since = match left_alone(&cluster, &links, &majority.members, &clients) {
                true => majority.alone_since.or(Some(now)),
                false => None,
            };
        }
        let since = majorities.iter().filter_map(|majority| majority.alone_since).min();
        if cluster.machines.iter().any(Machine::is_drained) {
            drained_at = now;
        }
        let limit = match now - drained_at < LIMIT {
            true => LIMIT + LAST_RESORT,
            false => LIMIT,
        };
        let Some(since) = since.filter(|since| now - *since >= limit) else { continue };
        cluster.count_event("checks of a majority left alone for long");
        if !links.all_pass() {
            cluster.count_event("the same in a half-connected network");
        }
        if now - served_at.max(since) >= limit {
            let detail = format!("no write was acknowledged from {served_at:?} to {now:?}");
            cluster.violation(Violation::new("a majority that is left alone serves", detail));
            return;
        }
        let late = limit + WATCHERS;
        if now - since >= late && !watchers_advance(&cluster, &recorder, late) {
            return;
        }
    }
}

/// Whether each watcher that reads for so long has heard of all that was acknowledged before.
fn watchers_advance(cluster: &Cluster, recorder: &Recorder, limit: Duration) -> bool {
    let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
    let before = recorder.now().saturating_sub(nanos);
    let Some(goal) = recorder.acknowledged_through(before) else { return true };
    let mut behind = cluster.watches.behind(Version::MAX, before);
    if behind.is_empty() {
        // Nobody reads for so long.
        return true;
    }
    cluster.count_event(BESIDE_A_MAJORITY);
    behind.retain(|(_, index)| *index < goal);
    if behind.is_empty() {
        return true;
    }
    let property = "a watcher hears what a majority acknowledges that is left alone";
    let detail = format!("{behind:?} are not at {goal}, acknowledged {limit:?} before");
    cluster.violation(Violation::new(property, detail));
    false
}

/// Each smallest majority of so many members.
fn majorities(members: usize) -> Vec<Majority> {
    let sets = 0..1_u32 << members;
    let smallest = sets.filter(|set| set.count_ones() as usize == members / 2 + 1);
    smallest
        .map(|set| Majority {
            members: (0..members).filter(|number| set >> number & 1 == 1).collect(),
            alone_since: None,
        })
        .collect()
}

/// Whether no fault touches these members, which lack nothing that they acknowledged, nor the links
/// between them and to the clients. Others may be cut off from some of them, and stay so.
fn left_alone(cluster: &Cluster, links: &Links, members: &[usize], clients: &[Host]) -> bool {
    let alone = |machine: &Machine| {
        machine.condition() == Condition::Up
            && machine.votes()
            && !machine.lacks_acks()
            && !machine.is_stale()
            && machine.leaving().is_none()
            && machine.disk.decayed() == 0
            && machine.disk.stalled_until().is_none_or(|until| until < tokio::time::Instant::now())
    };
    let lately = |at: Duration| virtual_time().saturating_sub(at) < INTERVAL;
    // Also where one leaves: what is a majority of all machines is one of those that stay.
    let mut machines = members.iter().filter_map(|number| cluster.machines.get(*number));
    let undisturbed = machines.all(|machine| alone(machine) && !lately(machine.changed_at()));
    let hosts = members.iter().filter_map(|number| cluster.machines.get(*number));
    let hosts: BTreeSet<Host> =
        hosts.map(|machine| machine.host).chain(clients.iter().copied()).collect();
    // A leader outside of this majority may be reached by only some clients.
    let all: BTreeSet<Host> = cluster.machines.iter().map(|machine| machine.host).collect();
    let clients_reach =
        all.iter().all(|host| links.connects(&clients.iter().copied().chain([*host]).collect()));
    undisturbed
        && links.undisturbed()
        && !lately(links.changed_at())
        && clients_reach
        && links.connects(&hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_smallest_majority_is_watched() {
        let of =
            |members| majorities(members).into_iter().map(|one| one.members).collect::<Vec<_>>();
        assert_eq!(of(3), [vec![0, 1], vec![0, 2], vec![1, 2]]);
        assert_eq!(of(5).len(), 10);
        assert!(of(5).iter().all(|members| members.len() == 3));
    }
}
