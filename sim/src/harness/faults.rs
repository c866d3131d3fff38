//! Applies faults, and ends them.
//!
//! Faults overlap. One loop applies them all; a task of its own ends each, unless something else
//! happened to the machine in between.

use super::cluster::Cluster;
use super::half_connected;
use super::kinds::FaultKind::{self, *};
use super::machine::{Condition, Death, Machine};
use super::network::Links;
use crate::disk::Moment;
use cairn_disk::Failing;
use cairn_engine::io::FileKind;
use cairn_raft::Role;
use madsim::task::NodeId as Host;
use rand::seq::SliceRandom;
use rand::{RngExt, rngs::StdRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Longest wait for a clean stop.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(12);
/// Longest wait for the write at which a fault is applied.
pub(super) const MOMENT_LIMIT: Duration = Duration::from_secs(3);
/// How long the survivors of a power cut may take until they sync before they acknowledge.
const NOTICE: Duration = Duration::from_secs(6);
const POLL: Duration = Duration::from_millis(20);
/// The time that the tasks of an ended process get to end before a restart.
pub(super) const EXIT_GRACE: Duration = Duration::from_millis(20);

/// Injects faults.
pub(super) struct Nemesis {
    pub(super) cluster: Arc<Cluster>,
    pub(super) links: Arc<Links>,
    pub(super) clients: Vec<Host>,
    pub(super) rng: StdRng,
    /// Counts changes of partitions, so that the end of an old partition does not undo a new one.
    pub(super) partitions: Arc<AtomicU64>,
    /// The same for changes of loss and latency.
    quality_changes: Arc<AtomicU64>,
}

impl Nemesis {
    pub(super) fn new(cluster: Arc<Cluster>, links: Arc<Links>, clients: Vec<Host>) -> Nemesis {
        let rng = cluster.plan.rng(2);
        Nemesis {
            cluster,
            links,
            clients,
            rng,
            partitions: Arc::default(),
            quality_changes: Arc::default(),
        }
    }

    /// Injects faults until `end` of virtual time.
    pub(super) async fn inject(mut self, end: Duration) {
        loop {
            let gap = self.rng.random_range(self.cluster.plan.fault_gap.clone());
            tokio::time::sleep(gap).await;
            if super::clock::virtual_time() >= end {
                return;
            }
            let faults = &self.cluster.plan.faults;
            if let Some(fault) = faults.get(self.rng.random_range(0..faults.len().max(1))).copied()
            {
                self.apply(fault).await;
            }
        }
    }

    async fn apply(&mut self, fault: FaultKind) {
        let long = self.rng.random_bool(0.3);
        let [most, some] = &self.cluster.plan.outage_ms;
        let lasts =
            Duration::from_millis(self.rng.random_range(if long { some } else { most }.clone()));
        match fault {
            Kill => self.end_one(fault, Death::Killed, lasts),
            PowerCut => self.end_one(fault, Death::PowerCut, lasts),
            KillAll => self.end_all(fault, Death::Killed),
            PowerCutAll => self.end_all(fault, Death::PowerCut),
            EndAgain => self.end_again(),
            PowerCutRolling => self.roll(),
            Pause => self.pause(lasts),
            Shutdown => self.shut_down(),
            Isolate | Split | OneWay | HalfConnected => self.partition(fault, lasts),
            Lossy => {
                let loss = self.rng.random_range(0.02..0.3);
                self.degrade_network(
                    fault,
                    loss,
                    Duration::from_millis(1)..Duration::from_millis(20),
                    lasts,
                );
            }
            Slow => {
                let worst = self.rng.random_range(20..600);
                self.degrade_network(
                    fault,
                    0.0,
                    Duration::from_millis(1)..Duration::from_millis(worst),
                    lasts,
                );
            }
            Late => self.late(lasts),
            Clock => self.clock(),
            FailWrite => self.fail_device(fault, Some(Failing::Write), lasts),
            FailSync => self.fail_device(fault, Some(Failing::Sync), lasts),
            Hang => self.fail_device(fault, Some(Failing::Hang), lasts),
            DiskPower => self.fail_device(fault, None, lasts),
            Stall => self.stall(),
            Misread => self.misread(),
            LoseDisk => self.lose_disk(false),
            LoseIdentity => self.lose_identity(),
            OldDisk => self.lose_disk(true),
            StaleDisk => self.restore_copy(),
            Forget => self.forget().await,
            ForgottenVote => self.use_forgotten_vote().await,
            HalfRecovered => self.half_recovered().await,
            CutBeforeFlag => self.cut_before_flag().await,
            RetryAcrossRestart => self.retry_across_restart().await,
            Move => self.move_member(),
            ChangeMembers => self.change_members(),
            ChangeMode => self.change_mode(),
            MoveLeader => self.move_leader(),
            Drain => self.drain(),
            // Drawn by `decay`.
            Rot | Wear | LostWrite | StrayWrite | StrayRead | Fill => {}
            // Applied to messages all the time.
            Repeat | Reset => {}
        }
    }

    /// Chooses a machine: often the leader's, since a fault does most harm there.
    pub(super) fn target(&mut self) -> usize {
        let leads = |machine: &Machine| {
            machine.node().is_some_and(|(_, node)| node.replica().status().role == Role::Leader)
        };
        let leader = self.cluster.machines.iter().position(leads);
        match leader {
            Some(leader) if self.rng.random_bool(0.4) => leader,
            _ => self.rng.random_range(0..self.cluster.machines.len()),
        }
    }

    /// Whether one more machine may fail. Beyond a minority only now and then.
    pub(super) fn may_fail(&mut self) -> bool {
        let up = self
            .cluster
            .machines
            .iter()
            .filter(|machine| machine.condition() == Condition::Up)
            .count();
        up > self.cluster.machines.len() / 2 + 1 || self.rng.random_bool(0.25)
    }

    fn end_one(&mut self, fault: FaultKind, death: Death, lasts: Duration) {
        let target = self.target();
        if !self.may_fail() {
            return;
        }
        let end = self.end(fault, target, death, lasts);
        self.now_or_amid_writes(target, end);
    }

    /// Ends one machine, and then each of its next processes at a random disk operation.
    fn end_again(&mut self) {
        let target = self.target();
        if !self.may_fail() {
            return;
        }
        let rounds = self.rng.random_range(2..=6);
        let rounds: Vec<(Death, (Moment, u32), Duration)> = (0..rounds)
            .map(|_| {
                let death = if self.rng.random_bool(0.6) { Death::PowerCut } else { Death::Killed };
                // An open takes some ten operations, more with a long journal, and few of them are
                // at the end.
                let moment = match self.rng.random_range(0..10) {
                    0..=4 => (Moment::Operation, self.rng.random_range(1..25)),
                    5 | 6 => (Moment::Operation, self.rng.random_range(25..200)),
                    _ => (Moment::WriteTo(FileKind::Superblock), self.rng.random_range(1..8)),
                };
                (death, moment, Duration::from_millis(self.rng.random_range(20..300)))
            })
            .collect();
        let cluster = self.cluster.clone();
        madsim::task::spawn(async move {
            let Some(machine) = cluster.machines.get(target) else { return };
            for (round, (death, (moment, count), down)) in rounds.into_iter().enumerate() {
                // An idle node does no operation, so the wait has a limit.
                let _ = tokio::time::timeout(MOMENT_LIMIT, machine.disk.after(moment, count)).await;
                if cluster.faults_ended() {
                    return;
                }
                let death = if cluster.may_lose_acks(machine) { death } else { Death::Killed };
                if cluster.end(machine, death) && round > 0 {
                    cluster.count(EndAgain.name());
                }
                let change = machine.change();
                tokio::time::sleep(down.max(EXIT_GRACE)).await;
                if !machine.unchanged(change) {
                    return;
                }
                cluster.start(machine);
            }
        });
    }

    fn end_all(&mut self, fault: FaultKind, death: Death) {
        let all = 0..self.cluster.machines.len();
        let ends: Vec<_> = all
            .map(|target| {
                let lasts = Duration::from_millis(self.rng.random_range(100..3_000));
                self.end(fault, target, death, lasts)
            })
            .collect();
        let target = self.target();
        self.now_or_amid_writes(target, move || ends.into_iter().for_each(|end| end()));
    }

    /// Cuts the power of one machine after another. Before each cut but the first it waits until
    /// the survivors have noticed that the quorum is degraded and sync before they acknowledge. If
    /// that takes too long, the rest are spared.
    fn roll(&mut self) {
        let mut order: Vec<usize> = (0..self.cluster.machines.len()).collect();
        order.shuffle(&mut self.rng);
        let pauses: Vec<Duration> =
            order.iter().map(|_| Duration::from_millis(self.rng.random_range(0..1_500))).collect();
        let lasts = Duration::from_millis(self.rng.random_range(100..2_000));
        let cluster = self.cluster.clone();
        let mut cut = Vec::new();
        madsim::task::spawn(async move {
            for (target, pause) in order.into_iter().zip(pauses) {
                let Some(machine) = cluster.machines.get(target) else { continue };
                let mut waited = Duration::ZERO;
                while !cut.is_empty() && machine.unsynced_acks() && waited < NOTICE {
                    tokio::time::sleep(POLL).await;
                    waited += POLL;
                }
                if cluster.faults_ended()
                    || !cut.is_empty() && machine.unsynced_acks()
                    || !cluster.may_lose_acks(machine)
                {
                    break;
                }
                if cluster.end(machine, Death::PowerCut) {
                    cluster.count(PowerCutRolling.name());
                }
                cut.push(target);
                if cut.len() == cluster.machines.len() {
                    cluster.count("power cut of all, rolling");
                }
                tokio::time::sleep(pause).await;
            }
            for target in cut {
                start_later(cluster.clone(), target, lasts);
            }
        });
    }

    /// Returns a function that ends a node and restarts it later.
    fn end(
        &self,
        fault: FaultKind,
        target: usize,
        death: Death,
        lasts: Duration,
    ) -> impl FnOnce() + Send + use<> {
        let cluster = self.cluster.clone();
        move || {
            let Some(machine) = cluster.machines.get(target) else { return };
            if cluster.faults_ended() || death == Death::PowerCut && !cluster.may_lose_acks(machine)
            {
                return;
            }
            if cluster.end(machine, death) {
                cluster.count(fault.name());
            }
            start_later(cluster.clone(), target, lasts);
        }
    }

    /// Mostly waits until a write of the target's disk is in flight, since a fault at an idle
    /// moment shows little.
    fn now_or_amid_writes(&mut self, target: usize, end: impl FnOnce() + Send + 'static) {
        let Some(machine) = self.cluster.machines.get(target) else { return };
        if self.rng.random_bool(0.3) {
            return end();
        }
        let (disk, writes) = (machine.disk.clone(), self.rng.random_range(1..30));
        let linger = self
            .rng
            .random_bool(0.3)
            .then(|| Duration::from_micros(self.rng.random_range(1_000..5_000)));
        madsim::task::spawn(async move {
            // The wait has a limit, since there may be no writes.
            let _ = tokio::time::timeout(MOMENT_LIMIT, disk.after(Moment::Write, writes)).await;
            if let Some(linger) = linger {
                tokio::time::sleep(linger).await;
            }
            end();
        });
    }

    fn pause(&mut self, lasts: Duration) {
        let target = self.target();
        if !self.may_fail() {
            return;
        }
        let Some(machine) = self.cluster.machines.get(target) else { return };
        if self.cluster.pause(machine) {
            self.cluster.count(Pause.name());
            let (cluster, change) = (self.cluster.clone(), machine.change());
            madsim::task::spawn(async move {
                tokio::time::sleep(lasts).await;
                if let Some(machine) =
                    cluster.machines.get(target).filter(|machine| machine.unchanged(change))
                {
                    cluster.resume(machine);
                }
            });
        }
    }

    fn shut_down(&mut self) {
        let target = self.target();
        let then = if self.rng.random_bool(0.5) { Death::PowerCut } else { Death::Killed };
        let up = self
            .cluster
            .machines
            .get(target)
            .is_some_and(|machine| machine.condition() == Condition::Up);
        if !up || !self.may_fail() {
            return;
        }
        self.cluster.count(Shutdown.name());
        self.cluster.stopping.fetch_add(1, Ordering::Relaxed);
        let cluster = self.cluster.clone();
        let lasts = Duration::from_millis(self.rng.random_range(50..2_000));
        madsim::task::spawn(async move {
            if let Some(machine) = cluster.machines.get(target)
                && let Some(clean) = cluster.shut_down(machine, SHUTDOWN_LIMIT).await
            {
                cluster.end(machine, if clean { then } else { Death::Killed });
                start_later(cluster.clone(), target, lasts);
            }
            cluster.stopping.fetch_sub(1, Ordering::Relaxed);
        });
    }

    fn partition(&mut self, fault: FaultKind, lasts: Duration) {
        let hosts: Vec<Host> = self.cluster.machines.iter().map(|machine| machine.host).collect();
        let target = self.target();
        let Some(victim) = hosts.get(target).copied() else { return };
        let others = hosts.iter().copied().filter(|host| *host != victim);
        let mut cuts: Vec<(Host, Host)> = Vec::new();
        match fault {
            Isolate => {
                let clients =
                    if self.rng.random_bool(0.3) { self.clients.clone() } else { Vec::new() };
                for other in others.chain(clients) {
                    cuts.extend([(victim, other), (other, victim)]);
                }
            }
            Split => {
                let sides: Vec<bool> = hosts.iter().map(|_| self.rng.random_bool(0.5)).collect();
                for (from, side) in hosts.iter().zip(&sides) {
                    cuts.extend(
                        hosts
                            .iter()
                            .zip(&sides)
                            .filter(|(_, other)| side != *other)
                            .map(|(to, _)| (*from, *to)),
                    );
                }
            }
            HalfConnected => {
                let hosts = half_connected::in_order(&self.cluster, &mut self.rng);
                let shape = half_connected::Shape::any(&mut self.rng);
                self.cluster.trace.event(format!("{shape:?}"));
                cuts = shape.cuts(&hosts);
            }
            _ => {
                let outward = self.rng.random_bool(0.5);
                let all = self.rng.random_bool(0.5);
                for other in others.take(if all { usize::MAX } else { 1 }) {
                    cuts.push(if outward { (victim, other) } else { (other, victim) });
                }
            }
        }
        self.cluster.count(fault.name());
        self.cluster.trace.event(format!("{}: {} links cut", fault.name(), cuts.len()));
        self.links.heal();
        for (from, to) in cuts {
            self.links.cut(from, to);
        }
        let count = self.partitions.fetch_add(1, Ordering::Relaxed) + 1;
        let (cluster, links, partitions) =
            (self.cluster.clone(), self.links.clone(), self.partitions.clone());
        madsim::task::spawn(async move {
            tokio::time::sleep(lasts).await;
            if partitions.load(Ordering::Relaxed) == count {
                links.heal();
                cluster.trace.event("all links restored");
            }
        });
    }

    fn degrade_network(
        &mut self,
        fault: FaultKind,
        loss: f64,
        latency: std::ops::Range<Duration>,
        lasts: Duration,
    ) {
        self.cluster.count(fault.name());
        self.cluster.trace.event(format!("{}: {loss:.3} lost, {latency:?} late", fault.name()));
        self.links.set_quality(loss, latency);
        let count = self.quality_changes.fetch_add(1, Ordering::Relaxed) + 1;
        let (cluster, links, quality_changes) =
            (self.cluster.clone(), self.links.clone(), self.quality_changes.clone());
        madsim::task::spawn(async move {
            tokio::time::sleep(lasts).await;
            if quality_changes.load(Ordering::Relaxed) == count {
                links.restore_quality();
                cluster.trace.event("network undisturbed");
            }
        });
    }

    /// Delays some of all requests by seconds.
    fn late(&mut self, lasts: Duration) {
        self.cluster.count(Late.name());
        self.cluster.trace.event(Late.name());
        self.links.late(true);
        let count = self.quality_changes.fetch_add(1, Ordering::Relaxed) + 1;
        let (cluster, links, quality_changes) =
            (self.cluster.clone(), self.links.clone(), self.quality_changes.clone());
        madsim::task::spawn(async move {
            tokio::time::sleep(lasts).await;
            if quality_changes.load(Ordering::Relaxed) == count {
                links.restore_quality();
                cluster.trace.event("network undisturbed");
            }
        });
    }

    fn clock(&mut self) {
        let target = self.target();
        let Some(machine) = self.cluster.machines.get(target) else { return };
        let skew = self.cluster.plan.clock_skew;
        let rate = 1_000_000 - skew + self.rng.random_range(0..=2 * skew);
        cairn_raft::set_clock_rate(machine.host, rate);
        self.cluster.count(Clock.name());
        self.cluster.trace.event(format!("node {} clock at {rate} ppm", machine.slot));
    }
}

/// Restarts an ended node after a while, if nothing else happened to it.
pub(super) fn start_later(cluster: Arc<Cluster>, target: usize, lasts: Duration) {
    let Some(change) = cluster.machines.get(target).map(Machine::change) else { return };
    madsim::task::spawn(async move {
        tokio::time::sleep(lasts.max(EXIT_GRACE)).await;
        if let Some(machine) =
            cluster.machines.get(target).filter(|machine| machine.unchanged(change))
        {
            cluster.start(machine);
        }
    });
}
