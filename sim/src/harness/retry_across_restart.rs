//! A write and its retry, on either side of a checkpoint and a restart.
//!
//! The answers of one member to the clients are lost. So writes take effect without their clients
//! knowing it, and the clients will retry them. Before that, some members take a checkpoint and
//! restart from it. What these members know of the first attempts comes from the checkpoint.

use super::combined::MOMENT;
use super::faults::{EXIT_GRACE, Nemesis};
use super::kinds::FaultKind::RetryAcrossRestart;
use super::machine::{Condition, Death};
use rand::RngExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Nemesis {
    /// Members restart from a checkpoint between a write and its retry.
    pub(super) async fn retry_across_restart(&mut self) {
        let machines = &self.cluster.machines;
        let Some(leader) = self.leader(0).and_then(|leader| machines.get(leader)) else { return };
        if machines.iter().any(|machine| machine.condition() != Condition::Up) {
            return;
        }
        let answers_from = leader.host;
        self.cluster.count(RetryAcrossRestart.name());
        self.cluster.trace.event(format!(
            "{}: answers of node {} are lost",
            RetryAcrossRestart.name(),
            leader.slot
        ));
        self.partitions.fetch_add(1, Ordering::Relaxed);
        self.links.heal();
        for client in &self.clients {
            self.links.cut(answers_from, *client);
        }
        self.pause_between(20, 600).await;
        let all = self.cluster.machines.len();
        let chosen: Vec<usize> = match self.rng.random_range(0..3) {
            0 => (0..all).collect(),
            1 => vec![self.rng.random_range(0..all)],
            _ => (0..all).filter(|_| self.rng.random_bool(0.5)).collect(),
        };
        for machine in chosen.iter().filter_map(|number| self.cluster.machines.get(*number)) {
            if let Some((_, node)) = machine.node() {
                let _ = tokio::time::timeout(MOMENT, node.engine().checkpoint()).await;
            }
        }
        let cut = self.rng.random_bool(0.3);
        for machine in chosen.iter().filter_map(|number| self.cluster.machines.get(*number)) {
            let death = if cut && self.cluster.may_lose_acks(machine) {
                Death::PowerCut
            } else {
                Death::Killed
            };
            self.cluster.end(machine, death);
        }
        self.pause_between(EXIT_GRACE.as_millis() as u64, 150).await;
        for machine in chosen.iter().filter_map(|number| self.cluster.machines.get(*number)) {
            self.cluster.start(machine);
        }
        self.links.heal();
        self.cluster.trace.event("all links restored");
        tokio::time::sleep(Duration::from_millis(self.rng.random_range(500..2_500))).await;
    }
}
