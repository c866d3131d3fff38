//! Decay of storage media, where the atlas allows it, and the reads and scrubs that find it.
//!
//! Decay is independent of the other faults: a disk decays while machines end and links break.

use super::clock::virtual_time;
use super::cluster::Cluster;
use super::kinds::FaultKind::{self, *};
use super::machine::{Condition, Machine};
use super::scrub;
use crate::check::damage;
use cairn_clients::workload::encode_key;
use cairn_disk::Decay;
use cairn_engine::io::FileKind;
use cairn_raft::GROUP;
use madsim::runtime::Handle;
use rand::{RngExt, rngs::StdRng};
use std::sync::Arc;
use std::time::Duration;

/// The event of a key whose value no reachable member had intact.
pub(super) const UNREADABLE: &str = "keys unreadable at a victim";

/// Lets disks decay.
pub(super) struct DiskDecay {
    cluster: Arc<Cluster>,
    rng: StdRng,
}

impl Cluster {
    /// Whether this victim's disk may decay now.
    fn may_decay(&self, victim: &Machine) -> bool {
        !self.faults_ended()
            && victim.leaving().is_none()
            && self.may_be_damaged(victim)
            && self.does_without(victim)
    }
}

impl DiskDecay {
    pub(super) fn new(cluster: Arc<Cluster>) -> DiskDecay {
        let rng = cluster.plan.rng(8);
        DiskDecay { cluster, rng }
    }

    /// Lets disks decay until `end` of virtual time.
    pub(super) async fn run(mut self, end: Duration) {
        let decays = self.cluster.plan.decays.clone();
        if decays.is_empty() || self.cluster.atlas.victims().is_empty() {
            return;
        }
        loop {
            let gap = self.rng.random_range(500..5_000);
            tokio::time::sleep(Duration::from_millis(gap)).await;
            if virtual_time() >= end || self.cluster.faults_ended() {
                return;
            }
            match self.rng.random_range(0..10) {
                0 => self.scrub(),
                1 | 2 => self.read(),
                _ => {
                    let kind = decays.get(self.rng.random_range(0..decays.len())).copied();
                    kind.into_iter().for_each(|kind| self.damage(kind));
                }
            }
        }
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        of.get(self.rng.random_range(0..of.len().max(1))).copied()
    }

    /// Chooses a file: most of a disk is data.
    fn file(&mut self) -> FileKind {
        match self.rng.random_range(0..10) {
            0..=4 => FileKind::Data,
            5 | 6 => FileKind::Journal,
            7 => FileKind::Checkpoint0,
            8 => FileKind::Checkpoint1,
            _ => FileKind::Superblock,
        }
    }

    fn damage(&mut self, kind: FaultKind) {
        let (cluster, file) = (self.cluster.clone(), self.file());
        let victim = self.one(cluster.atlas.victims());
        let Some(machine) = victim.and_then(|victim| cluster.machines.get(victim)) else { return };
        if !cluster.may_decay(machine) {
            return;
        }
        // A lost write of data or journal may be found late. The other files are verified as soon
        // as they are read.
        let late = matches!(file, FileKind::Data | FileKind::Journal);
        let count = self.rng.random_range(1..=if file == FileKind::Data { 12 } else { 3 });
        let astray = (kind == StrayWrite).then(|| self.rng.random_range(1..16));
        machine.decays();
        let damaged = match kind {
            Rot => machine.disk.decay(Decay::Rot, file, count),
            Wear => machine.disk.decay(Decay::Wear, file, count),
            LostWrite if late => machine.disk.decay(Decay::Lost, file, count),
            StrayWrite if late => machine.disk.decay(Decay::Astray, file, count),
            LostWrite | StrayWrite => {
                machine.disk.arrange_wrong_write(file, astray);
                0
            }
            StrayRead => {
                machine.disk.arrange_wrong_read(file, self.rng.random());
                0
            }
            _ => 0,
        };
        cluster.trace.event(format!(
            "disk {}: {} of {damaged} blocks in {file:?}",
            machine.slot,
            kind.name()
        ));
        if damaged > 0 {
            cluster.count(kind.name());
            if self.rng.random_bool(0.5) {
                self.read();
            }
        }
    }

    /// Reads every key at a victim, as stale reads do.
    fn read(&mut self) {
        let cluster = self.cluster.clone();
        let Some(victim) = self.one(cluster.atlas.victims()) else { return };
        madsim::task::spawn(async move {
            if let Some(machine) = cluster.machines.get(victim) {
                read_all(&cluster, machine).await;
            }
        });
    }

    fn scrub(&mut self) {
        let cluster = self.cluster.clone();
        let Some(victim) = self.one(cluster.atlas.victims()) else { return };
        cluster.count_event("scrubs asked for");
        madsim::task::spawn(async move {
            if let Some(machine) = cluster.machines.get(victim) {
                scrub::until_clean(&cluster, machine).await;
            }
        });
    }
}

/// Reads every key of the workload at one member: a damaged value is repaired or reported, and
/// never passes for absent.
pub(super) async fn read_all(cluster: &Arc<Cluster>, machine: &Machine) {
    let (Some((_, node)), Some(host)) = (machine.node(), Handle::current().get_node(machine.host))
    else {
        return;
    };
    if machine.condition() != Condition::Up || !node.replica().holds_all() {
        return;
    }
    let keys = (0..cluster.plan.profile.groups).flat_map(|group| {
        (0..cairn_clients::history::GROUP_KEYS).map(move |key| encode_key(group, key))
    });
    let (keys, slot) = (keys.collect::<Vec<_>>(), machine.slot);
    let reading = {
        let cluster = cluster.clone();
        host.spawn(async move {
            for key in keys {
                let before = node.engine().lookup(GROUP, &key);
                let read = node.replica().get(&key).await;
                let after = node.engine().lookup(GROUP, &key);
                cluster.count_event(if read.is_ok() {
                    "keys read at a victim"
                } else {
                    UNREADABLE
                });
                if let Some(violation) = damage::check(slot, &key, before, &read, after) {
                    cluster.violation(violation);
                }
            }
        })
    };
    // The machine may end meanwhile, which ends the task.
    drop(reading.await);
}
