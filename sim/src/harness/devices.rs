//! Faults of devices: errors, stalls, misread blocks.
//!
//! A node whose device failed an operation, or never completed it, must stop on its own and name
//! the reason. What its files hold then is unknown: the machine may lose power, or the process may
//! restart on the running machine. A failed sync may have dropped some of the unsynced blocks. The
//! others it may keep only until a power cut, whatever is synced meanwhile.

use super::cluster::{Cluster, IO_TIMEOUT};
use super::crash_image;
use super::faults::{EXIT_GRACE, MOMENT_LIMIT, Nemesis, start_later};
use super::kinds::FaultKind::{self, Hang, Misread, Stall};
use super::machine::{Condition, Death, Machine};
use crate::disk::Moment;
use cairn_clients::Violation;
use cairn_disk::Failing;
use cairn_engine::io::FileKind;
use cairn_engine::{LogId, MemberState};
use rand::RngExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a node may take to stop once its device has failed; it may be paused for most of this
/// time.
const STOP_LIMIT: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(10);
/// How long a node may take to open with a misread block, or to refuse to.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

impl Nemesis {
    /// All files, or one of them: the small files are written rarely, and their errors matter most.
    fn file(&mut self) -> Option<FileKind> {
        let all = FileKind::ALL;
        if self.rng.random_bool(0.4) {
            None
        } else {
            all.get(self.rng.random_range(0..all.len())).copied()
        }
    }

    /// One write or sync of a machine's disk fails, or never returns; of a restarting node sometimes
    /// while it opens. Without `failing` the disk alone loses power.
    pub(super) fn fail_device(
        &mut self,
        fault: FaultKind,
        failing: Option<Failing>,
        lasts: Duration,
    ) {
        let (target, file) = (self.target(), self.file());
        let spared = self.rng.random_range(0..20);
        let linger = Duration::from_millis(self.rng.random_range(0..500));
        let dropped = self.rng.random_bool(0.5);
        let away = failing.is_none() && spared % 2 == 0;
        // An open does few of each operation on each file.
        let (opening, spared) = match failing {
            Some(_) if spared % 2 == 0 => (true, spared / if file.is_some() { 8 } else { 2 }),
            _ => (false, spared),
        };
        let cluster = self.cluster.clone();
        let Some(machine) = cluster.machines.get(target) else { return };
        if machine.condition() != Condition::Up || !self.may_fail() {
            return;
        }
        // A node whose device failed recovers from the others, in every mode.
        let boundless = cluster.plan.may_ack_unsynced() && cluster.plan.beyond_tolerance;
        if !cluster.may_be_damaged(machine) && !boundless {
            return;
        }
        let failure =
            Failure { fault, failing, file, spared, away, opening, dropped, linger, lasts };
        let cluster = self.cluster.clone();
        cluster.stopping.fetch_add(1, Ordering::Relaxed);
        madsim::task::spawn(async move {
            failure.play(&cluster, target).await;
            cluster.stopping.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// A disk completes no operation for seconds; its machine may end meanwhile.
    pub(super) fn stall(&mut self) {
        let target = self.target();
        let file = if self.rng.random_bool(0.5) { None } else { self.file() };
        let lasts = Duration::from_millis(self.rng.random_range(500..8_000));
        let end = self.rng.random_bool(0.5).then(|| lasts.mul_f64(self.rng.random_range(0.3..1.0)));
        let death = if self.rng.random_bool(0.5) { Death::PowerCut } else { Death::Killed };
        let down = Duration::from_millis(self.rng.random_range(20..1_000));
        let Some(machine) = self.cluster.machines.get(target) else { return };
        machine.disk.stall(lasts, file);
        self.cluster.count(Stall.name());
        self.cluster.trace.event(format!("disk {} stalls for {lasts:?}, {file:?}", machine.slot));
        let Some(end) = end else { return };
        let (cluster, change) = (self.cluster.clone(), machine.change());
        madsim::task::spawn(async move {
            tokio::time::sleep(end).await;
            let Some(machine) =
                cluster.machines.get(target).filter(|machine| machine.unchanged(change))
            else {
                return;
            };
            if !cluster.faults_ended() {
                let death = if cluster.may_lose_acks(machine) { death } else { Death::Killed };
                cluster.end(machine, death);
                start_later(cluster.clone(), target, down);
            }
        });
    }

    /// A node restarts, and one block of its journal is misread. The node may not need that block.
    /// Otherwise it opens with what came before it and recovers the rest from the others.
    pub(super) fn misread(&mut self) {
        let target = self.target();
        let death = if self.rng.random_bool(0.5) { Death::PowerCut } else { Death::Killed };
        let up = self
            .cluster
            .machines
            .get(target)
            .is_some_and(|machine| machine.condition() == Condition::Up);
        if !up || !self.may_fail() {
            return;
        }
        let cluster = self.cluster.clone();
        cluster.stopping.fetch_add(1, Ordering::Relaxed);
        madsim::task::spawn(async move {
            if let Some(machine) = cluster.machines.get(target) {
                let death = if cluster.may_lose_acks(machine) { death } else { Death::Killed };
                cluster.end(machine, death);
                let change = machine.change();
                tokio::time::sleep(EXIT_GRACE).await;
                if machine.unchanged(change) {
                    if cluster.may_be_damaged(machine) && machine.disk.misread_journal() {
                        machine.damage();
                        cluster.count(Misread.name());
                        cluster.trace.event(format!("disk {} misreads a block", machine.slot));
                    }
                    cluster.start(machine);
                    poll(OPEN_LIMIT, || machine.condition() != Condition::Starting).await;
                    machine.disk.read_right();
                    if machine.condition() == Condition::Down {
                        start_later(cluster.clone(), target, EXIT_GRACE);
                    }
                }
            }
            cluster.stopping.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// How a device fails.
struct Failure {
    fault: FaultKind,
    /// The operation that fails. Without, the disk alone loses power.
    failing: Option<Failing>,
    file: Option<FileKind>,
    /// How many operations succeed before.
    spared: u32,
    /// The disk that lost power stays away.
    away: bool,
    /// While the node opens.
    opening: bool,
    /// Then the machine loses power; else its process restarts.
    dropped: bool,
    /// From the node's end to that, and from that to its next start.
    linger: Duration,
    lasts: Duration,
}

impl Failure {
    async fn play(&self, cluster: &Arc<Cluster>, target: usize) {
        let Some(machine) = cluster.machines.get(target) else { return };
        if self.opening && !end_for_a_start(cluster, machine, self.linger).await {
            return;
        }
        let counted = machine.counted().filter(|_| self.opening);
        if !self.happens(cluster, machine).await {
            return;
        }
        machine.io_failed();
        if machine.node().is_none() {
            cluster.count_event("failures during an open");
        }
        let (slot, name) = (machine.slot, self.fault.name());
        cluster.count(name);
        cluster.trace.event(format!("node {slot}: {name} in {:?}", self.file));
        let (life, change) = (machine.life(), machine.change());
        self.node_stops(cluster, machine, life).await;
        if let Some(counted) = counted.filter(|_| machine.life() == life) {
            check_next_start(cluster, machine, counted).await;
        }
        tokio::time::sleep(self.linger).await;
        if machine.life() == life && (machine.stopped(life) || machine.unchanged(change)) {
            let power_cut = self.dropped && cluster.may_lose_acks(machine);
            cluster.end(machine, if power_cut { Death::PowerCut } else { Death::Killed });
            if self.away {
                machine.other_history();
            }
            start_later(cluster.clone(), target, self.lasts);
        } else if machine.condition() == Condition::Down {
            start_later(cluster.clone(), target, self.lasts);
        }
    }

    /// Waits for the operation that fails. False if none came in time.
    async fn happens(&self, cluster: &Arc<Cluster>, machine: &Machine) -> bool {
        let before = machine.disk.errors();
        let mut left = MOMENT_LIMIT;
        match self.failing {
            Some(failing) => machine.disk.arrange(failing, self.file, self.spared),
            // The node gets an error only for operations that are in flight.
            None => {
                let lost = lose_power(machine, self.spared + 1, self.away);
                tokio::time::timeout(MOMENT_LIMIT, lost).await.ok();
                left = Duration::ZERO;
            }
        }
        if self.opening {
            cluster.start(machine);
        }
        poll(left, || machine.disk.errors() > before).await;
        machine.disk.disarm();
        machine.disk.errors() > before
    }

    /// Waits until the node of this life has stopped: it must.
    async fn node_stops(&self, cluster: &Cluster, machine: &Machine, life: u32) {
        let hangs = if self.fault == Hang { IO_TIMEOUT } else { Duration::ZERO };
        let other_life = || machine.life() != life || machine.stopped(life);
        poll(STOP_LIMIT + hangs, || other_life() || machine.condition() == Condition::Down).await;
        if !other_life() && machine.condition() == Condition::Up {
            let (slot, name) = (machine.slot, self.fault.name());
            let detail = format!("node {slot} continues to serve after a {name}");
            cluster.violation(Violation::new("a node whose device fails stops", detail));
        }
    }
}

/// Waits until this is so, at most for this time.
async fn poll(limit: Duration, so: impl Fn() -> bool) {
    let mut waited = Duration::ZERO;
    while !so() && waited < limit {
        tokio::time::sleep(POLL).await;
        waited += POLL;
    }
}

/// Ends a node, so that it can be started. False if something else has happened to it since.
async fn end_for_a_start(cluster: &Cluster, machine: &Machine, linger: Duration) -> bool {
    let death = match linger.as_millis().is_multiple_of(2) && cluster.may_lose_acks(machine) {
        true => Death::PowerCut,
        false => Death::Killed,
    };
    cluster.end(machine, death);
    let change = machine.change();
    tokio::time::sleep(EXIT_GRACE).await;
    machine.unchanged(change) && machine.condition() == Condition::Down
}

/// After a failed open: the next one finds what the node had counted as stored before, or recovers.
pub(super) async fn check_next_start(cluster: &Cluster, machine: &Machine, counted: LogId) {
    if machine.condition() != Condition::Down
        || machine.damaged()
        || machine.disk.decayed() > 0
        || machine.is_stale()
    {
        return;
    }
    let starts = crash_image::starts_as(cluster, machine, Some(counted)).await;
    cluster.count_event("starts after a failed open looked at");
    if starts == Some((MemberState::Active, false)) {
        let slot = machine.slot;
        let detail = format!("node {slot} would start as active without entry {counted:?}");
        cluster.violation(Violation::new("a failed open loses nothing unnoticed", detail));
    }
}

/// Cuts the power of a machine's disk in the middle of a write.
async fn lose_power(machine: &Machine, writes: u32, away: bool) {
    loop {
        machine.disk.after(Moment::Write, writes).await;
        if machine.disk.lose_power(away).is_some() {
            return;
        }
    }
}
