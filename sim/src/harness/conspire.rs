//! Faults that only matter together, in one order, at one moment.
//!
//! The story against which these stand (Jepsen, NATS 2.12.1): one machine loses power, and others are paused or cut off
//! just so that the quorum which comes next consists of those that never had the write and the one that forgot it. At
//! random that is rare. Here the members are dealt three parts, with *f* the number that may fail: *f* are **out**, one
//! **forgets**, and *f* are **gone**, the leader among them. Those out and the one that forgets are a majority.

use super::faults::{FUNERAL, Nemesis, start_later};
use super::kinds::FaultKind::{self, Forget, HalfRecovered, Usurp};
use super::machine::{Condition, Death, Machine};
use crate::disk::Moment;
use cairn_engine::io::FileKind;
use cairn_engine::{Mode, Standing};
use cairn_raft::Role;
use madsim::task::NodeId as Host;
use rand::RngExt;
use rand::seq::SliceRandom;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The time between two looks for a moment.
pub(super) const POLL: Duration = Duration::from_millis(1);
/// Longest wait for a moment to strike at.
pub(super) const MOMENT: Duration = Duration::from_millis(1_500);
/// Longest wait for a new leader, and for a member to come back.
const LEADER: Duration = Duration::from_secs(3);
const RETURN: Duration = Duration::from_secs(5);
/// Longest wait for acknowledgements to run ahead.
pub(super) const LAZY: Duration = Duration::from_secs(4);

/// How those who are gone are kept from helping.
#[derive(Clone, Copy, Debug)]
pub(super) enum Gone {
    CutOff,
    Paused,
    Killed,
}

/// The three parts.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) out: Vec<usize>,
    pub(super) forgets: usize,
    pub(super) gone: Vec<usize>,
}

impl Nemesis {
    /// A member forgets an acknowledgement that a leader counted, and is asked for its vote by those who were out.
    pub(super) async fn forget(&mut self) {
        self.running_ahead().await;
        let Some(leader) = self.leader(0) else { return };
        let Some(parts) = self.deal(leader) else { return };
        self.begin(Forget, &parts);
        self.links.part(&self.hosts(&parts.out), &self.hosts(&[&parts.gone[..], &[parts.forgets]].concat()));
        // Acknowledgements run ahead until the leader has missed those who are out.
        self.pause_up_to(600).await;
        self.moment(parts.forgets).await;
        self.strike(&parts);
        if self.rng.random_bool(0.3) {
            self.pause_up_to(100).await;
        }
        let gone = self.remove(&parts);
        self.links.heal();
        self.links.part(&self.hosts(&parts.gone), &self.hosts(&[&parts.out[..], &[parts.forgets]].concat()));
        self.bring_back(parts.forgets).await;
        if self.rng.random_bool(0.4) {
            // A restart of the process makes no forgetful node whole.
            self.again(parts.forgets).await;
        }
        self.pause_between(1_500, 4_500).await;
        self.undo(&parts, gone).await;
    }

    /// A member that has just voted forgets that, and hears of the old leader, who may go on in its term, or of another
    /// candidate of the new one.
    pub(super) async fn usurp(&mut self) {
        let Some(leader) = self.leader(0) else { return };
        let Some(mut parts) = self.deal(leader) else { return };
        // Here the old leader's side is out until the vote is cast.
        std::mem::swap(&mut parts.out, &mut parts.gone);
        self.begin(Usurp, &parts);
        let term = self.term(leader);
        let rest = [&parts.gone[..], &[parts.forgets]].concat();
        self.links.part(&self.hosts(&parts.out), &self.hosts(&rest));
        if self.rng.random_bool(0.5) {
            // At the very vote.
            self.superblock_write(parts.forgets, LEADER).await;
        } else {
            let mut waited = Duration::ZERO;
            while self.leader(term + 1).is_none() && waited < LEADER {
                tokio::time::sleep(POLL).await;
                waited += POLL;
            }
        }
        if self.rng.random_bool(0.6) {
            self.pause_up_to(80).await;
        }
        // Whoever was elected is the one that must not be heard of.
        if let Some(new) = self.leader(term + 1).filter(|new| *new == parts.forgets)
            && let Some(first) = parts.gone.first_mut()
        {
            (parts.forgets, *first) = (*first, new);
        }
        self.strike(&parts);
        let gone = self.remove(&parts);
        self.links.heal();
        self.links.part(&self.hosts(&parts.gone), &self.hosts(&[&parts.out[..], &[parts.forgets]].concat()));
        self.bring_back(parts.forgets).await;
        self.pause_between(1_500, 4_000).await;
        self.undo(&parts, gone).await;
    }

    /// A member forgets, comes back under a leader that has committed little of its own yet, and as soon as it counts
    /// itself whole its vote is asked for by those who were out.
    pub(super) async fn half_recovered(&mut self) {
        self.running_ahead().await;
        let Some(leader) = self.leader(0) else { return };
        let Some(parts) = self.deal(leader) else { return };
        self.begin(HalfRecovered, &parts);
        let stay = [&parts.gone[..], &[parts.forgets]].concat();
        self.links.part(&self.hosts(&parts.out), &self.hosts(&stay));
        self.pause_up_to(600).await;
        self.moment(parts.forgets).await;
        self.strike(&parts);
        if self.rng.random_bool(0.6) {
            // The leader starts again: what it committed is for it to learn.
            if let Some(machine) = self.cluster.machines.get(leader) {
                self.cluster.end(machine, Death::Killed);
                start_later(self.cluster.clone(), leader, FUNERAL);
            }
            self.links.heal();
            tokio::time::sleep(FUNERAL * 2).await;
        }
        self.bring_back(parts.forgets).await;
        let mut waited = Duration::ZERO;
        while self.leader(0).is_none() && waited < LEADER {
            tokio::time::sleep(POLL).await;
            waited += POLL;
        }
        // Those who are out stay behind what the leader has.
        self.links.part(&self.hosts(&parts.out), &self.hosts(&stay));
        if self.rng.random_bool(0.3) {
            self.again(parts.forgets).await;
        }
        let mut waited = Duration::ZERO;
        while !self.is_active(parts.forgets) && waited < RETURN {
            tokio::time::sleep(POLL).await;
            waited += POLL;
        }
        match self.rng.random_range(0..3) {
            0 => self.strike(&parts),
            1 => {
                self.pause_up_to(40).await;
                self.strike(&parts);
            }
            _ => {}
        }
        let gone = self.remove(&parts);
        self.links.heal();
        self.links.part(&self.hosts(&parts.gone), &self.hosts(&[&parts.out[..], &[parts.forgets]].concat()));
        self.bring_back(parts.forgets).await;
        self.pause_between(1_500, 4_000).await;
        self.undo(&parts, gone).await;
    }

    /// In mode `replicated` mostly waits until all acknowledge ahead of their syncs, since only then is there something to
    /// forget.
    async fn running_ahead(&mut self) {
        if self.cluster.plan.mode != Mode::Replicated || self.rng.random_bool(0.2) {
            return;
        }
        let mut waited = Duration::ZERO;
        while waited < LAZY && !self.cluster.machines.iter().all(Machine::lazy) {
            tokio::time::sleep(POLL * 10).await;
            waited += POLL * 10;
        }
    }

    /// The leader of the highest term, if that is at least `least`.
    pub(super) fn leader(&self, least: u64) -> Option<usize> {
        let leads = |(number, machine): (usize, &Machine)| {
            let (_, node) = machine.node()?;
            let status = node.replica().status();
            (status.role == Role::Leader && status.term >= least).then_some((status.term, number))
        };
        self.cluster.machines.iter().enumerate().filter_map(leads).max().map(|(_, number)| number)
    }

    fn term(&self, member: usize) -> u64 {
        let node = self.cluster.machines.get(member).and_then(Machine::node);
        node.map_or(0, |(_, node)| node.replica().status().term)
    }

    fn is_active(&self, member: usize) -> bool {
        let node = self.cluster.machines.get(member).and_then(Machine::node);
        node.is_some_and(|(_, node)| node.replica().standing() == Standing::Active)
    }

    pub(super) fn hosts(&self, members: &[usize]) -> Vec<Host> {
        members
            .iter()
            .filter_map(|number| self.cluster.machines.get(*number))
            .map(|machine| machine.host)
            .collect()
    }

    /// Deals the parts at random, with the leader among those who will be gone; only while all are up.
    pub(super) fn deal(&mut self, leader: usize) -> Option<Parts> {
        let machines = &self.cluster.machines;
        if machines.iter().any(|machine| machine.condition() != Condition::Up || machine.forgetful()) {
            return None;
        }
        let spare = (machines.len() - 1) / 2;
        let mut others: Vec<usize> = (0..machines.len()).filter(|number| *number != leader).collect();
        others.shuffle(&mut self.rng);
        let out = others.split_off(others.len() - spare);
        let forgets = others.pop()?;
        others.push(leader);
        Some(Parts { out, forgets, gone: others })
    }

    pub(super) fn begin(&mut self, fault: FaultKind, parts: &Parts) {
        self.cluster.count(fault.name());
        self.cluster.trace.event(format!("{}: {parts:?}", fault.name()));
        self.partitions.fetch_add(1, Ordering::Relaxed);
        self.links.heal();
    }

    pub(super) async fn pause_up_to(&mut self, millis: u64) {
        self.pause_between(0, millis).await;
    }

    pub(super) async fn pause_between(&mut self, from: u64, to: u64) {
        tokio::time::sleep(Duration::from_millis(self.rng.random_range(from..=to))).await;
    }

    /// A moment worth a strike: now, amid writes, or while the superblock is written.
    async fn moment(&mut self, member: usize) {
        match self.rng.random_range(0..10) {
            0 | 1 => {}
            2..=7 => {
                let count = self.rng.random_range(1..10);
                let Some(machine) = self.cluster.machines.get(member) else { return };
                let _ = tokio::time::timeout(MOMENT, machine.disk.after(Moment::Write, count)).await;
                self.pause_up_to(10).await;
            }
            _ => self.superblock_write(member, MOMENT).await,
        }
    }

    /// Waits until a superblock is being written, and for some of the time that this takes.
    async fn superblock_write(&mut self, member: usize, limit: Duration) {
        let count = self.rng.random_range(1..5);
        let Some(machine) = self.cluster.machines.get(member) else { return };
        let written = machine.disk.after(Moment::WriteTo(FileKind::Superblock), count);
        let _ = tokio::time::timeout(limit, written).await;
        self.pause_up_to(15).await;
    }

    /// The one that is to forget loses power, or at least its process where one more may not forget.
    pub(super) fn strike(&mut self, parts: &Parts) {
        let Some(machine) = self.cluster.machines.get(parts.forgets) else { return };
        let death = if self.cluster.may_forget(machine) { Death::PowerCut } else { Death::Killed };
        self.cluster.end(machine, death);
    }

    pub(super) fn remove(&mut self, parts: &Parts) -> Gone {
        let gone = match self.rng.random_range(0..4) {
            0 => Gone::Paused,
            1 => Gone::Killed,
            _ => Gone::CutOff,
        };
        for machine in parts.gone.iter().filter_map(|number| self.cluster.machines.get(*number)) {
            match gone {
                Gone::CutOff => {}
                Gone::Paused => drop(self.cluster.pause(machine)),
                Gone::Killed => drop(self.cluster.end(machine, Death::Killed)),
            }
        }
        gone
    }

    /// Starts the one that forgot, soon.
    pub(super) async fn bring_back(&mut self, member: usize) {
        self.pause_between(25, 250).await;
        if let Some(machine) = self.cluster.machines.get(member) {
            self.cluster.start(machine);
        }
    }

    /// Ends it once more, somewhere in its next steps.
    async fn again(&mut self, member: usize) {
        let steps = self.rng.random_range(1..120);
        let cut = self.rng.random_bool(0.3);
        let Some(machine) = self.cluster.machines.get(member) else { return };
        let _ = tokio::time::timeout(MOMENT, machine.disk.after(Moment::Operation, steps)).await;
        let death = if cut && self.cluster.may_forget(machine) { Death::PowerCut } else { Death::Killed };
        self.cluster.end(machine, death);
        self.bring_back(member).await;
    }

    pub(super) async fn undo(&mut self, parts: &Parts, gone: Gone) {
        self.links.heal();
        self.cluster.trace.event("all links whole");
        for machine in parts.gone.iter().filter_map(|number| self.cluster.machines.get(*number)) {
            match gone {
                Gone::CutOff => {}
                Gone::Paused => self.cluster.resume(machine),
                Gone::Killed => self.cluster.start(machine),
            }
        }
        // Time to come back before the next one.
        self.pause_between(500, 3_000).await;
    }
}
