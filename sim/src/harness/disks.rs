//! Disks that are lost, and disks that turn up again.
//!
//! A machine whose disk is gone gets an empty one, formatted under a new identity. It counts as forgetful, so that no more
//! forget than the cluster survives, until its node votes.

use super::cluster::{Condition, Death};
use super::faults::{FUNERAL, Nemesis, start_later};
use super::kinds::FaultKind::{LoseDisk, OldDisk};
use crate::check::Violation;
use rand::RngExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

const POLL: Duration = Duration::from_millis(50);
/// How long a newcomer is waited for before the lost disk turns up; faults may keep it from voting for longer.
const JOIN_LIMIT: Duration = Duration::from_secs(20);

impl Nemesis {
    /// A machine's disk is lost; `back`: it turns up again when the newcomer votes.
    pub(super) fn lose_disk(&mut self, back: bool) {
        let target = self.target();
        if !self.may_fail() {
            return;
        }
        let Some(machine) = self.cluster.machines.get(target) else { return };
        if matches!(machine.condition(), Condition::Open | Condition::Stopping)
            || !self.cluster.may_be_damaged(machine)
        {
            return;
        }
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
            tokio::time::sleep(FUNERAL).await;
            if let Err(error) = cluster.format(machine, incarnation).await {
                cluster.violation(Violation::new("an empty disk is formatted", error.to_string()));
            }
            tokio::time::sleep(off).await;
            machine.open(false);
            cluster.start(machine);
            let votes = || machine.node().is_some_and(|(_, node)| node.replica().votes());
            let mut waited = Duration::ZERO;
            while back && !votes() && !cluster.at_peace() && waited < JOIN_LIMIT {
                tokio::time::sleep(POLL).await;
                waited += POLL;
            }
            if back && votes() && !cluster.at_peace() {
                let death = if cluster.may_forget(machine) { death } else { Death::Killed };
                cluster.end(machine, death);
                machine.open(true);
                let new = machine.disk.take_out();
                tokio::time::sleep(FUNERAL).await;
                machine.disk.put_in(lost);
                machine.open(false);
                cluster.start(machine);
                cluster.count(OldDisk.name());
                cluster.trace.event(format!("disk {}: the lost one is back", machine.slot));
                let mut waited = Duration::ZERO;
                while waited < stay && !cluster.at_peace() {
                    tokio::time::sleep(POLL).await;
                    waited += POLL;
                }
                let told = machine.node().is_some_and(|(_, node)| node.replica().outcast().is_some());
                if told {
                    cluster.count_event("retired identities told");
                }
                cluster.end(machine, Death::Killed);
                machine.open(true);
                tokio::time::sleep(FUNERAL).await;
                machine.disk.put_in(new);
                machine.open(false);
                start_later(cluster.clone(), target, FUNERAL);
            }
            cluster.stopping.fetch_sub(1, Ordering::Relaxed);
        });
    }
}
