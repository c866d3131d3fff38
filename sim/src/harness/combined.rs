//! Faults that only matter together, in one order, at one moment.
//!
//! The story behind them (Jepsen, NATS 2.12.1): one machine loses power, and others are paused or
//! cut off, so that the next quorum consists of the members that never had the write and the one
//! that lost it. At random that is rare. Here each member gets one of three roles, with *f* the
//! number of members that may fail: *f* are **stale** (they never get the writes), one is
//! **forgetful** (it loses power, and with it what it acknowledged), and *f* are **absent**, the
//! leader among them. The stale members and the forgetful one are a majority.

use super::faults::{EXIT_GRACE, Nemesis, start_later};
use super::kinds::FaultKind::{self, Forget, ForgottenVote, HalfRecovered};
use super::machine::{Condition, Death, Machine};
use crate::disk::Moment;
use cairn_engine::Mode;
use cairn_engine::io::FileKind;
use cairn_raft::Role;
use madsim::task::NodeId as Host;
use rand::RngExt;
use rand::seq::SliceRandom;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The time between two checks while a fault waits.
pub(super) const POLL: Duration = Duration::from_millis(1);
/// Longest wait for the moment at which a fault is applied.
pub(super) const MOMENT: Duration = Duration::from_millis(1_500);
/// Longest wait for a new leader.
const LEADER: Duration = Duration::from_secs(3);
/// Longest wait for a member to become active.
const RETURN: Duration = Duration::from_secs(5);
/// Longest wait until members acknowledge before they sync.
pub(super) const UNSYNCED_ACKS_WITHIN: Duration = Duration::from_secs(4);

/// How the absent members are kept away.
#[derive(Clone, Copy, Debug)]
pub(super) enum Absence {
    CutOff,
    Paused,
    Killed,
}

/// The role of each member.
#[derive(Debug)]
pub(super) struct Roles {
    pub(super) stale: Vec<usize>,
    pub(super) forgetful: usize,
    pub(super) absent: Vec<usize>,
}

impl Nemesis {
    /// A member loses an entry that it acknowledged and the leader counted. Then the stale members
    /// ask for its vote.
    pub(super) async fn forget(&mut self) {
        self.until_unsynced_acks().await;
        let Some(leader) = self.leader(0) else { return };
        let Some(roles) = self.choose_roles(leader) else { return };
        self.begin(Forget, &roles);
        self.links.cut_between(
            &self.hosts(&roles.stale),
            &self.hosts(&[&roles.absent[..], &[roles.forgetful]].concat()),
        );
        // The others acknowledge before they sync until the leader has noticed that the stale
        // members are missing.
        self.pause_up_to(600).await;
        self.moment(roles.forgetful).await;
        self.end_forgetful(&roles);
        if self.rng.random_bool(0.3) {
            self.pause_up_to(100).await;
        }
        let absence = self.make_absent(&roles);
        self.links.heal();
        self.links.cut_between(
            &self.hosts(&roles.absent),
            &self.hosts(&[&roles.stale[..], &[roles.forgetful]].concat()),
        );
        self.bring_back(roles.forgetful).await;
        if self.rng.random_bool(0.4) {
            // A restart of the process must not end the recovery.
            self.end_once_more(roles.forgetful).await;
        }
        self.pause_between(1_500, 4_500).await;
        self.restore(&roles, absence).await;
    }

    /// A member loses a vote that it has just cast. Then it hears from the old leader, who may
    /// continue in its term, or from another candidate of the new term.
    pub(super) async fn use_forgotten_vote(&mut self) {
        let Some(leader) = self.leader(0) else { return };
        let Some(mut roles) = self.choose_roles(leader) else { return };
        // Here the old leader's side is the stale one until the vote is cast.
        std::mem::swap(&mut roles.stale, &mut roles.absent);
        self.begin(ForgottenVote, &roles);
        let term = self.term(leader);
        let rest = [&roles.absent[..], &[roles.forgetful]].concat();
        self.links.cut_between(&self.hosts(&roles.stale), &self.hosts(&rest));
        if self.rng.random_bool(0.5) {
            // Just while the vote is written.
            self.superblock_write(roles.forgetful, LEADER).await;
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
        // The newly elected member must be among the absent ones.
        if let Some(new) = self.leader(term + 1).filter(|new| *new == roles.forgetful)
            && let Some(first) = roles.absent.first_mut()
        {
            (roles.forgetful, *first) = (*first, new);
        }
        self.end_forgetful(&roles);
        self.ask_the_forgetful(&roles).await;
    }

    /// A member loses acknowledged entries and comes back under a leader that has committed few
    /// entries of its own term yet. As soon as the member is active, the stale members ask for its
    /// vote.
    pub(super) async fn half_recovered(&mut self) {
        self.until_unsynced_acks().await;
        let Some(leader) = self.leader(0) else { return };
        let Some(roles) = self.choose_roles(leader) else { return };
        self.begin(HalfRecovered, &roles);
        let stay = [&roles.absent[..], &[roles.forgetful]].concat();
        self.links.cut_between(&self.hosts(&roles.stale), &self.hosts(&stay));
        self.pause_up_to(600).await;
        self.moment(roles.forgetful).await;
        self.end_forgetful(&roles);
        if self.rng.random_bool(0.6) {
            // The leader restarts: it has to learn again what it had committed.
            if let Some(machine) = self.cluster.machines.get(leader) {
                self.cluster.end(machine, Death::Killed);
                start_later(self.cluster.clone(), leader, EXIT_GRACE);
            }
            self.links.heal();
            tokio::time::sleep(EXIT_GRACE * 2).await;
        }
        self.bring_back(roles.forgetful).await;
        let mut waited = Duration::ZERO;
        while self.leader(0).is_none() && waited < LEADER {
            tokio::time::sleep(POLL).await;
            waited += POLL;
        }
        // The stale members do not get what the leader has.
        self.links.cut_between(&self.hosts(&roles.stale), &self.hosts(&stay));
        if self.rng.random_bool(0.3) {
            self.end_once_more(roles.forgetful).await;
        }
        let mut waited = Duration::ZERO;
        while !self.is_active(roles.forgetful) && waited < RETURN {
            tokio::time::sleep(POLL).await;
            waited += POLL;
        }
        match self.rng.random_range(0..3) {
            0 => self.end_forgetful(&roles),
            1 => {
                self.pause_up_to(40).await;
                self.end_forgetful(&roles);
            }
            _ => {}
        }
        self.ask_the_forgetful(&roles).await;
    }

    /// The absent members go, and the stale ones need the forgetful one, which comes back, for a
    /// majority. Afterwards all are there again.
    pub(super) async fn ask_the_forgetful(&mut self, roles: &Roles) {
        let absence = self.make_absent(roles);
        self.links.heal();
        self.links.cut_between(
            &self.hosts(&roles.absent),
            &self.hosts(&[&roles.stale[..], &[roles.forgetful]].concat()),
        );
        self.bring_back(roles.forgetful).await;
        self.pause_between(1_500, 4_000).await;
        self.restore(roles, absence).await;
    }

    /// In mode `replicated` mostly waits until all members acknowledge before they sync, since only
    /// then can one lose an acknowledged entry.
    async fn until_unsynced_acks(&mut self) {
        if self.cluster.plan.mode != Mode::Replicated || self.rng.random_bool(0.2) {
            return;
        }
        let mut waited = Duration::ZERO;
        while waited < UNSYNCED_ACKS_WITHIN
            && !self.cluster.machines.iter().all(Machine::unsynced_acks)
        {
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
        node.is_some_and(|(_, node)| node.replica().holds_all())
    }

    pub(super) fn hosts(&self, members: &[usize]) -> Vec<Host> {
        members
            .iter()
            .filter_map(|number| self.cluster.machines.get(*number))
            .map(|machine| machine.host)
            .collect()
    }

    /// Chooses the roles at random, the leader among the absent members. `None` unless all members
    /// are up and lost nothing.
    pub(super) fn choose_roles(&mut self, leader: usize) -> Option<Roles> {
        let machines = &self.cluster.machines;
        if machines
            .iter()
            .any(|machine| machine.condition() != Condition::Up || machine.lacks_acks())
        {
            return None;
        }
        let spare = (machines.len() - 1) / 2;
        let mut others: Vec<usize> =
            (0..machines.len()).filter(|number| *number != leader).collect();
        others.shuffle(&mut self.rng);
        let stale = others.split_off(others.len() - spare);
        let forgetful = others.pop()?;
        others.push(leader);
        Some(Roles { stale, forgetful, absent: others })
    }

    pub(super) fn begin(&mut self, fault: FaultKind, roles: &Roles) {
        self.cluster.count(fault.name());
        self.cluster.trace.event(format!("{}: {roles:?}", fault.name()));
        self.partitions.fetch_add(1, Ordering::Relaxed);
        self.links.heal();
    }

    pub(super) async fn pause_up_to(&mut self, millis: u64) {
        self.pause_between(0, millis).await;
    }

    pub(super) async fn pause_between(&mut self, from: u64, to: u64) {
        tokio::time::sleep(Duration::from_millis(self.rng.random_range(from..=to))).await;
    }

    /// Waits for a moment to cut the power: now, amid writes, or while the superblock is written.
    async fn moment(&mut self, member: usize) {
        match self.rng.random_range(0..10) {
            0 | 1 => {}
            2..=7 => {
                let count = self.rng.random_range(1..10);
                let Some(machine) = self.cluster.machines.get(member) else { return };
                let _ =
                    tokio::time::timeout(MOMENT, machine.disk.after(Moment::Write, count)).await;
                self.pause_up_to(10).await;
            }
            _ => self.superblock_write(member, MOMENT).await,
        }
    }

    /// Waits until a superblock write is in flight, and for a part of the time that it takes.
    async fn superblock_write(&mut self, member: usize, limit: Duration) {
        let count = self.rng.random_range(1..5);
        let Some(machine) = self.cluster.machines.get(member) else { return };
        let written = machine.disk.after(Moment::WriteTo(FileKind::Superblock), count);
        let _ = tokio::time::timeout(limit, written).await;
        self.pause_up_to(15).await;
    }

    /// The forgetful member loses power. Only its process is killed where no further member may
    /// lose acknowledged entries.
    pub(super) fn end_forgetful(&mut self, roles: &Roles) {
        let Some(machine) = self.cluster.machines.get(roles.forgetful) else { return };
        let death =
            if self.cluster.may_lose_acks(machine) { Death::PowerCut } else { Death::Killed };
        self.cluster.end(machine, death);
    }

    pub(super) fn make_absent(&mut self, roles: &Roles) -> Absence {
        let absence = match self.rng.random_range(0..4) {
            0 => Absence::Paused,
            1 => Absence::Killed,
            _ => Absence::CutOff,
        };
        for machine in roles.absent.iter().filter_map(|number| self.cluster.machines.get(*number)) {
            match absence {
                Absence::CutOff => {}
                Absence::Paused => drop(self.cluster.pause(machine)),
                Absence::Killed => drop(self.cluster.end(machine, Death::Killed)),
            }
        }
        absence
    }

    /// Restarts the forgetful member after a short time.
    pub(super) async fn bring_back(&mut self, member: usize) {
        self.pause_between(25, 250).await;
        if let Some(machine) = self.cluster.machines.get(member) {
            self.cluster.start(machine);
        }
    }

    /// Ends the member once more, at one of its next disk operations.
    async fn end_once_more(&mut self, member: usize) {
        let steps = self.rng.random_range(1..120);
        let cut = self.rng.random_bool(0.3);
        let Some(machine) = self.cluster.machines.get(member) else { return };
        let _ = tokio::time::timeout(MOMENT, machine.disk.after(Moment::Operation, steps)).await;
        let death = if cut && self.cluster.may_lose_acks(machine) {
            Death::PowerCut
        } else {
            Death::Killed
        };
        self.cluster.end(machine, death);
        self.bring_back(member).await;
    }

    pub(super) async fn restore(&mut self, roles: &Roles, absence: Absence) {
        self.links.heal();
        self.cluster.trace.event("all links restored");
        for machine in roles.absent.iter().filter_map(|number| self.cluster.machines.get(*number)) {
            match absence {
                Absence::CutOff => {}
                Absence::Paused => self.cluster.resume(machine),
                Absence::Killed => self.cluster.start(machine),
            }
        }
        // Time to recover before the next fault.
        self.pause_between(500, 3_000).await;
    }
}
