//! A cluster that is incomplete for long. A minority is down while faults hit the others; when the
//! faults are over, some members stay down or stand still, or one disk is slow. The cluster must serve
//! nevertheless.

use super::cluster::Cluster;
use super::left_alone;
use super::machine::{Death, Machine};
use rand::seq::SliceRandom;
use rand::{RngExt, rngs::StdRng};
use std::sync::Arc;
use std::time::Duration;

/// How much longer an operation of a slow disk takes, in milliseconds.
const SLOWER_MS: std::ops::Range<u64> = 5..60;

/// A vote takes two writes and two syncs, and twice that may be needed for one election. Where each
/// takes longer than the shortest timeout allows, no candidate hears of its votes in time.
const VOTE_OPERATIONS: u32 = 8;

/// When a minority is stopped, and for how long, in milliseconds: longer than the others need to
/// notice.
const LEAVES_AT_MS: std::ops::Range<u64> = 1_000..10_000;
const AWAY_MS: std::ops::Range<u64> = 18_000..35_000;

/// Stops a minority for most of the faults.
pub(super) async fn leave(cluster: Arc<Cluster>) {
    let mut rng = cluster.plan.rng(17);
    tokio::time::sleep(Duration::from_millis(rng.random_range(LEAVES_AT_MS))).await;
    let mut all: Vec<usize> = (0..cluster.machines.len()).collect();
    all.shuffle(&mut rng);
    all.truncate((cluster.machines.len() - 1) / 2);
    let mut away = Vec::new();
    for machine in all.iter().filter_map(|number| cluster.machines.get(*number)) {
        let cut = rng.random_bool(0.5) && cluster.may_lose_acks(machine);
        cluster.end(machine, if cut { Death::PowerCut } else { Death::Killed });
        away.push((machine, machine.change()));
    }
    cluster.count_event("a minority down for long");
    tokio::time::sleep(Duration::from_millis(rng.random_range(AWAY_MS))).await;
    for (machine, change) in away {
        if machine.unchanged(change) {
            cluster.start(machine);
        }
    }
}

/// Chooses the members that stay down at first, in some of the seeds: as many as the cluster can
/// lose, and only if no other member may lack something.
pub(super) fn choose(cluster: &Cluster) -> Vec<usize> {
    match cluster.plan.heals_bare {
        true => any(cluster, &mut cluster.plan.rng(13)),
        false => Vec::new(),
    }
}

/// Chooses as many members as the cluster can lose; none, if another member may lack something.
fn any(cluster: &Cluster, rng: &mut StdRng) -> Vec<usize> {
    let voters = cluster
        .machines
        .iter()
        .all(|machine| machine.votes() && !machine.is_stale() && machine.leaving().is_none());
    if !voters {
        return Vec::new();
    }
    let mut dead: Vec<usize> = (0..cluster.machines.len()).collect();
    dead.shuffle(rng);
    // Members that may lack something come first.
    dead.sort_by_key(|number| !cluster.machines.get(*number).is_some_and(Machine::faulty));
    let others = dead.split_off((cluster.machines.len() - 1) / 2);
    let intact = |number: &usize| {
        cluster
            .machines
            .get(*number)
            .is_some_and(|machine| !machine.faulty() && !machine.device_failed())
    };
    if others.iter().all(intact) { dead } else { Vec::new() }
}

/// Kills these members; they stay down for now.
pub(super) fn keep_down(cluster: &Cluster, dead: &[usize]) {
    for machine in dead.iter().filter_map(|number| cluster.machines.get(*number)) {
        cluster.end(machine, Death::Killed);
        cluster.trace.event(format!("node {} stays down", machine.slot));
    }
    if !dead.is_empty() {
        cluster.count_event("healed but for a minority");
    }
}

/// In some of the seeds clients go on for long while a minority is paused, or down: the rest is a majority that is
/// left alone for as long as a watcher may need to leave a node that says nothing.
pub(super) async fn linger(cluster: &Arc<Cluster>) {
    if !cluster.plan.lingers || cluster.may_be_stuck() {
        return;
    }
    let mut rng = cluster.plan.rng(27);
    let mut stopped = Vec::new();
    for machine in any(cluster, &mut rng).iter().filter_map(|number| cluster.machines.get(*number))
    {
        if rng.random_bool(0.5) {
            cluster.pause(machine);
        } else {
            cluster.end(machine, Death::Killed);
        }
        stopped.push((machine, machine.change()));
    }
    if !stopped.is_empty() {
        cluster.count_event("healed, and then a minority stood still for long");
    }
    tokio::time::sleep(left_alone::LONG).await;
    for (machine, change) in stopped {
        if machine.unchanged(change) {
            cluster.resume(machine);
            cluster.start(machine);
        }
    }
}

/// Slows one disk down from now on, in some of the seeds.
pub(super) fn slow_down(cluster: &Cluster) {
    let mut rng = cluster.plan.rng(14);
    if !cluster.plan.heals_slow {
        return;
    }
    if let Some(machine) = cluster.machines.get(rng.random_range(0..cluster.machines.len())) {
        let mut slower = Duration::from_millis(rng.random_range(SLOWER_MS));
        if let Some((shortest, _)) = cluster.plan.election {
            slower = slower.min(shortest / VOTE_OPERATIONS);
        }
        machine.disk.slow_down(slower);
        cluster.trace.event(format!("disk {} is slower by {slower:?}", machine.slot));
        cluster.count_event("healed but for a slow disk");
    }
}

/// Restores the speed of every disk.
pub(super) fn speed_up(cluster: &Cluster) {
    cluster.machines.iter().for_each(|machine| machine.disk.slow_down(Duration::ZERO));
}
