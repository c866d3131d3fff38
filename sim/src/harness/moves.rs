//! Members that start at another address: their machines keep the disk, and listen at other ports.
//!
//! The next member moves when the last one's new address is in the log, so that the seed that its
//! configuration names is where a member is. That all move at once is a scenario.

use super::cluster::Cluster;
use super::faults::{EXIT_GRACE, Nemesis, start_later};
use super::kinds::FaultKind::Move;
use super::machine::{Condition, Death, Machine};
use cairn_clients::Violation;
use cairn_raft::{Member, ReplicaStatus};
use rand::RngExt;
use std::time::Duration;

/// The member's addresses in the log, as `status` shows it, are those of its machine.
pub(super) fn is_logged(machine: &Machine, status: &ReplicaStatus) -> bool {
    let mut own = status.members.iter().filter(|member| member.id.slot() == machine.slot);
    let address = machine.address();
    own.clone().next().is_some() && own.all(|member| member.logged_address == address)
}

/// A node knows the members only at addresses where they are, or were.
pub(super) fn check(cluster: &Cluster, by: u16, members: &[Member]) {
    for member in members {
        let slot = member.id.slot();
        let Some(machine) = cluster.machines.iter().find(|machine| machine.slot == slot) else {
            continue;
        };
        for at in [&member.logged_address, &member.address] {
            if !machine.was_ever_at(at) {
                let detail = format!("node {by} knows member {} at {at:?}", member.id);
                cluster.violation(Violation::new("an address is one of the member's own", detail));
            }
        }
    }
}

impl Cluster {
    /// Whether the newest membership that a node knows has every member where it is.
    fn all_are_logged(&self) -> bool {
        let nodes = self.machines.iter().filter_map(Machine::node);
        let statuses = nodes.map(|(_, node)| node.replica().status());
        let newest = statuses.max_by_key(|status| status.membership_log_id);
        newest.is_some_and(|status| self.machines.iter().all(|machine| is_logged(machine, &status)))
    }
}

impl Nemesis {
    /// A machine's process ends, and its next one listens elsewhere.
    pub(super) fn move_member(&mut self) {
        let target = self.target();
        if !self.may_fail() {
            return;
        }
        let Some(machine) = self.cluster.machines.get(target) else { return };
        let running = matches!(machine.condition(), Condition::Up | Condition::Starting);
        if !running || !self.cluster.all_are_logged() {
            return;
        }
        let lasts = Duration::from_millis(self.rng.random_range(20..2_000));
        self.cluster.end(machine, Death::Killed);
        machine.relocate();
        self.cluster.count(Move.name());
        self.cluster.trace.event(format!("node {} moves to {:?}", machine.slot, machine.address()));
        start_later(self.cluster.clone(), target, EXIT_GRACE + lasts);
    }
}
