//! Lost disks, lost disks that turn up again, older copies of disks, and disks without a
//! superblock.
//!
//! A machine whose disk is lost gets an empty one, formatted under a new identity. Until its node
//! votes it counts as one that lacks acknowledged entries, so that no more members lack some than
//! the cluster survives. An older copy replaces a disk only when the other members hold a later
//! boot epoch of the member in their checkpoints; before that nothing could tell the copy from the
//! disk itself.

use super::cluster::Cluster;
use super::faults::{EXIT_GRACE, Nemesis, start_later};
use super::kinds::FaultKind::{LoseDisk, LoseIdentity, OldDisk, StaleDisk};
use super::machine::{Condition, Death, Machine};
use cairn_clients::Violation;
use cairn_disk::Files;
use cairn_engine::io::FileKind;
use madsim::runtime::Handle;
use rand::RngExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const POLL: Duration = Duration::from_millis(50);
/// How long the new identity may take to join before the lost disk turns up; faults may keep it
/// from voting for longer.
const JOIN_LIMIT: Duration = Duration::from_secs(20);
/// How long the others may take to learn of a boot epoch.
const NOTE_LIMIT: Duration = Duration::from_secs(6);

impl Nemesis {
    /// A machine's disk is lost. With `back` it turns up again when the new identity votes.
    pub(super) fn lose_disk(&mut self, back: bool) {
        let target = self.target();
        if !self.may_fail() {
            return;
        }
        let Some(machine) = self.cluster.machines.get(target) else { return };
        if matches!(machine.condition(), Condition::Open | Condition::Stopping)
            || !self.cluster.may_be_damaged(machine)
            || !self.cluster.does_without(machine)
            || !machine.claim_disk()
        {
            return;
        }
        // An identity that never had the slot is not a removed one: when it turns up again it would
        // join.
        let back = back && machine.node().is_some_and(|(_, node)| node.replica().votes());
        let incarnation = self.rng.random_range(1..1_u64 << 48);
        let off = Duration::from_millis(self.rng.random_range(20..1_000));
        let stay = Duration::from_millis(self.rng.random_range(500..9_000));
        let death = if self.rng.random_bool(0.5) { Death::PowerCut } else { Death::Killed };
        let cluster = self.cluster.clone();
        cluster.stopping.fetch_add(1, Ordering::Relaxed);
        cluster.end(machine, Death::PowerCut);
        machine.lose();
        machine.open(true);
        let lost = machine.disk.take_out();
        cluster.count(LoseDisk.name());
        cluster.trace.event(format!("disk {} is lost", machine.slot));
        madsim::task::spawn(async move {
            let Some(machine) = cluster.machines.get(target) else { return };
            tokio::time::sleep(EXIT_GRACE).await;
            if let Err(error) = cluster.format(machine, incarnation).await {
                cluster.violation(Violation::new("an empty disk is formatted", error.to_string()));
            }
            tokio::time::sleep(off).await;
            machine.open(false);
            cluster.start(machine);
            let votes = || machine.node().is_some_and(|(_, node)| node.replica().votes());
            let mut waited = Duration::ZERO;
            while back && !votes() && !cluster.faults_ended() && waited < JOIN_LIMIT {
                tokio::time::sleep(POLL).await;
                waited += POLL;
            }
            if back && votes() && !cluster.faults_ended() {
                turn_up(&cluster, target, lost, (death, stay)).await;
            }
            machine.release_disk();
            cluster.stopping.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// A machine ends, and the rest of its disk does not tell the identity.
    pub(super) fn lose_identity(&mut self) {
        let target = self.target();
        if !self.may_fail() {
            return;
        }
        let Some(machine) = self.cluster.machines.get(target) else { return };
        if matches!(machine.condition(), Condition::Open | Condition::Stopping)
            || !self.cluster.may_be_damaged(machine)
            || !self.cluster.does_without(machine)
            || !machine.claim_disk()
        {
            return;
        }
        let off = Duration::from_millis(self.rng.random_range(20..3_000));
        let death = if self.rng.random_bool(0.5) { Death::PowerCut } else { Death::Killed };
        let erased = self.rng.random_bool(0.3);
        self.cluster.end(machine, death);
        machine.lose();
        match erased {
            true => machine.disk.erase(FileKind::Superblock),
            false => machine.disk.lose_identity(),
        }
        self.cluster.count(LoseIdentity.name());
        self.cluster.trace.event(format!("disk {}: the superblock is gone", machine.slot));
        machine.release_disk();
        start_later(self.cluster.clone(), target, EXIT_GRACE + off);
    }

    /// A machine's disk is copied, and later the copy replaces it for a while.
    pub(super) fn restore_copy(&mut self) {
        let target = self.target();
        if !self.may_fail() {
            return;
        }
        let Some(machine) = self.cluster.machines.get(target) else { return };
        if machine.condition() != Condition::Up
            || !self.cluster.may_be_damaged(machine)
            || !machine.claim_disk()
        {
            return;
        }
        let linger = Duration::from_millis(self.rng.random_range(0..4_000));
        let restarts = self.rng.random_range(0..3);
        let stay = Duration::from_millis(self.rng.random_range(500..6_000)) / (restarts + 1);
        let cluster = self.cluster.clone();
        cluster.stopping.fetch_add(1, Ordering::Relaxed);
        madsim::task::spawn(async move {
            if let Some(machine) = cluster.machines.get(target) {
                cluster.end(machine, Death::Killed);
                let copy = machine.disk.copy();
                tokio::time::sleep(EXIT_GRACE).await;
                cluster.start(machine);
                let mut waited = Duration::ZERO;
                while !later_epoch_is_known(&cluster, machine)
                    && !cluster.faults_ended()
                    && waited < NOTE_LIMIT
                {
                    tokio::time::sleep(POLL).await;
                    waited += POLL;
                }
                tokio::time::sleep(linger).await;
                if later_epoch_is_known(&cluster, machine)
                    && later_epoch_is_stored(&cluster, machine).await
                    && cluster.may_be_damaged(machine)
                    && !cluster.faults_ended()
                {
                    cluster.end(machine, Death::Killed);
                    machine.open(true);
                    machine.restored(true);
                    let own = machine.disk.take_out();
                    tokio::time::sleep(EXIT_GRACE).await;
                    machine.disk.put_in(copy);
                    machine.open(false);
                    cluster.start(machine);
                    cluster.count(StaleDisk.name());
                    cluster
                        .trace
                        .event(format!("disk {}: an older copy replaces it", machine.slot));
                    // Each start of the copy raises its boot epoch.
                    for _ in 0..restarts {
                        let mut waited = Duration::ZERO;
                        while waited < stay && !cluster.faults_ended() {
                            tokio::time::sleep(POLL).await;
                            waited += POLL;
                        }
                        cluster.end(machine, Death::Killed);
                        tokio::time::sleep(EXIT_GRACE).await;
                        cluster.start(machine);
                    }
                    let mut waited = Duration::ZERO;
                    while waited < stay && !cluster.faults_ended() {
                        tokio::time::sleep(POLL).await;
                        waited += POLL;
                    }
                    cluster.end(machine, Death::Killed);
                    machine.open(true);
                    tokio::time::sleep(EXIT_GRACE).await;
                    machine.disk.put_in(own);
                    machine.restored(false);
                    machine.open(false);
                }
                if machine.condition() == Condition::Down {
                    start_later(cluster.clone(), target, EXIT_GRACE);
                }
                machine.release_disk();
            }
            cluster.stopping.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// The disk of an identity that has no slot any more is in its machine again for a while. Nobody who leads sends
/// entries to such an identity, so it does not find what it holds discarded: a line that says so is not expected of
/// it, also if it was missing in an unsafe recovery.
pub(super) async fn turn_up(
    cluster: &Arc<Cluster>,
    target: usize,
    lost: Files,
    (death, stay): (Death, Duration),
) {
    let Some(machine) = cluster.machines.get(target) else { return };
    let death = if cluster.may_lose_acks(machine) { death } else { Death::Killed };
    cluster.end(machine, death);
    machine.open(true);
    let new = machine.disk.take_out();
    tokio::time::sleep(EXIT_GRACE).await;
    machine.disk.put_in(lost);
    machine.restored(true);
    machine.open(false);
    cluster.start(machine);
    cluster.count(OldDisk.name());
    cluster.trace.event(format!("disk {}: the lost one is back", machine.slot));
    let mut waited = Duration::ZERO;
    while waited < stay && !cluster.faults_ended() {
        tokio::time::sleep(POLL).await;
        waited += POLL;
    }
    let knows = machine.node().is_some_and(|(_, node)| node.replica().removed_reason().is_some());
    if knows {
        cluster.count_event("removed identities that knew it");
    }
    cluster.end(machine, Death::Killed);
    machine.open(true);
    tokio::time::sleep(EXIT_GRACE).await;
    machine.disk.put_in(new);
    machine.restored(false);
    machine.open(false);
    start_later(cluster.clone(), target, EXIT_GRACE);
}

/// Makes every other node write a checkpoint, so that it knows the epoch not only in memory.
async fn later_epoch_is_stored(cluster: &Cluster, machine: &Machine) -> bool {
    for other in cluster.machines.iter().filter(|other| other.slot != machine.slot) {
        let (Some((_, node)), Some(host)) = (other.node(), Handle::current().get_node(other.host))
        else {
            return false;
        };
        let kept = host.spawn(async move { node.engine().checkpoint().await.is_ok() });
        if !matches!(tokio::time::timeout(NOTE_LIMIT, kept).await, Ok(Ok(true))) {
            return false;
        }
    }
    later_epoch_is_known(cluster, machine)
}

/// Whether every other node runs, and knows from the log a boot epoch of the member later than the
/// copy's.
fn later_epoch_is_known(cluster: &Cluster, machine: &Machine) -> bool {
    let Some((_, own)) = machine.node() else { return false };
    let (id, epoch) = (own.replica().node_id(), own.engine().boot_epoch());
    let mut others = cluster.machines.iter().filter(|other| other.slot != machine.slot);
    others.all(|other| other.node().is_some_and(|(_, node)| node.replica().knows_epoch(id, epoch)))
}
