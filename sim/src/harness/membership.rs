//! Members that an operator removes and adds.
//!
//! A member is removed, its machine gets an empty disk under a new identity, and that one is added.
//! Other faults happen meanwhile, so each step is asked for again, of whoever leads, until it is
//! done: at the latest when the faults are over. From the beginning until the new identity votes
//! its machine counts as one that lacks what it acknowledged, so that no more members lack some
//! than the cluster survives.
//!
//! What holds here: one change at a time; an identity that the leader said is removed is in no
//! leader's configuration from that term on, and leads no later term. A member is never replaced by another identity
//! while it is alive: a machine runs one node.

use super::clock::virtual_time;
use super::cluster::Cluster;
use super::disks::turn_up;
use super::faults::{EXIT_GRACE, Nemesis};
use super::kinds::FaultKind::ChangeMembers;
use super::machine::{Condition, Death, Machine};
use super::operator::{NotDone, until_done};
use cairn_clients::Violation;
use cairn_disk::Files;
use cairn_engine::Mode;
use cairn_raft::{MemberChange, NodeId};
use rand::RngExt;
use rand::seq::SliceRandom;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Fewer voters than this need mode `sync`.
const REPLICATED_VOTERS: usize = 3;
/// How long a change may take when the faults are over.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

impl Cluster {
    /// The latest term that any node knows.
    fn latest_term(&self) -> u64 {
        let nodes = self.machines.iter().filter_map(Machine::node);
        nodes.map(|(_, node)| node.replica().status().term).max().unwrap_or_default()
    }

    /// The configurations that the node with the latest membership has: one, or two.
    pub(super) fn configurations(&self) -> Vec<BTreeSet<NodeId>> {
        let nodes = self.machines.iter().filter(|machine| !machine.is_stale());
        let statuses = nodes.filter_map(|machine| Some(machine.node()?.1.replica().status()));
        let latest = statuses.max_by_key(|status| status.membership_log_id);
        latest.map(|status| status.configurations).unwrap_or_default()
    }

    /// The machines whose present identity votes, by the latest membership that a node knows.
    pub(super) fn voting(&self) -> Vec<&Machine> {
        let configurations = self.configurations();
        let votes = |machine: &&Machine| {
            let id = machine.identity();
            id.is_some_and(|id| configurations.iter().any(|voters| voters.contains(&id)))
        };
        self.machines.iter().filter(votes).collect()
    }

    /// Whether the leader's only configuration is committed and has the machine's identity.
    fn is_voter(&self, machine: &Machine) -> bool {
        let Some((_, leader)) = self.leading() else { return false };
        let status = leader.replica().status();
        let [voters] = status.configurations.as_slice() else { return false };
        let known = machine.node().is_some_and(|(_, node)| node.replica().votes());
        status.applied >= status.membership_log_id
            && known
            && machine.identity().is_some_and(|id| voters.contains(&id))
    }

    /// Asks once that the machine's member leaves. Done when its identity is removed.
    pub(super) async fn try_to_remove(&self, machine: &Machine) -> Result<(), NotDone> {
        if machine.leaving().is_none() {
            machine.leaves(machine.identity());
        }
        self.change_members(MemberChange::Remove(machine.slot)).await?;
        let Some(id) = machine.leaving() else { return Ok(()) };
        let term = self.latest_term();
        self.operator.removed(id, term);
        self.trace.event(format!("{id} is removed in term {term}"));
        Ok(())
    }

    /// Asks once that the machine's new identity is added. Done when it votes.
    pub(super) async fn try_to_add(&self, machine: &Machine) -> Result<(), NotDone> {
        if self.is_voter(machine) {
            machine.leaves(None);
            return Ok(());
        }
        self.change_members(MemberChange::Add(machine.slot)).await?;
        Err(NotDone::Later("it does not vote yet".into()))
    }

    /// Gives the machine an empty disk under another identity, and starts it. Returns the disk that
    /// it had.
    pub(super) async fn renew(self: &Arc<Self>, machine: &Machine, incarnation: u64) -> Files {
        self.stopping.fetch_add(1, Ordering::Relaxed);
        self.end(machine, Death::PowerCut);
        machine.lose();
        machine.open(true);
        let had = machine.disk.take_out();
        tokio::time::sleep(EXIT_GRACE).await;
        if let Err(error) = self.format(machine, incarnation).await {
            self.violation(Violation::new("an empty disk is formatted", error.to_string()));
        }
        machine.open(false);
        self.start(machine);
        self.stopping.fetch_sub(1, Ordering::Relaxed);
        had
    }
}

/// What happens to each member that leaves.
struct Leave {
    target: usize,
    /// How its machine ends before its removal.
    dead: Option<Death>,
    /// How long the removed identity stays, and whether it starts again meanwhile.
    lingers: Duration,
    restarts: bool,
    incarnation: u64,
    /// How long its disk is back when the new identity votes, and how the machine ends then.
    back: Option<(Duration, Death)>,
}

impl Nemesis {
    /// One member leaves, or two of five one after another; their machines come back under new
    /// identities.
    pub(super) fn change_members(&mut self) {
        let first = self.target();
        let mut targets = vec![first];
        let mut others: Vec<usize> =
            (0..self.cluster.machines.len()).filter(|number| *number != first).collect();
        others.shuffle(&mut self.rng);
        if others.len() > 2 && self.rng.random_bool(0.5) {
            targets.extend(others.pop());
        }
        let leaves: Vec<Leave> = targets.into_iter().map(|target| self.leave(target)).collect();
        if !self.cluster.operator.begin() {
            return;
        }
        let mut claimed = Vec::new();
        for leave in leaves {
            let Some(machine) = self.cluster.machines.get(leave.target) else { continue };
            if matches!(machine.condition(), Condition::Open | Condition::Stopping)
                || machine.identity().is_none()
                || !self.cluster.may_be_damaged(machine)
                || !self.cluster.does_without(machine)
                || !machine.claim_disk()
            {
                continue;
            }
            machine.leaves(machine.identity());
            claimed.push(leave);
        }
        if claimed.is_empty() {
            return self.cluster.operator.end();
        }
        madsim::task::spawn(change(self.cluster.clone(), claimed));
    }

    fn leave(&mut self, target: usize) -> Leave {
        let mut millis =
            |range: std::ops::Range<u64>| Duration::from_millis(self.rng.random_range(range));
        let (lingers, stay) = (millis(0..3_000), millis(500..6_000));
        let mut death = || if self.rng.random_bool(0.5) { Death::PowerCut } else { Death::Killed };
        let (dead, back) = (death(), death());
        Leave {
            target,
            dead: self.rng.random_bool(0.25).then_some(dead),
            lingers,
            restarts: self.rng.random_bool(0.3),
            incarnation: self.rng.random_range(1..1_u64 << 48),
            back: self.rng.random_bool(0.3).then_some((stay, back)),
        }
    }
}

async fn change(cluster: Arc<Cluster>, leaves: Vec<Leave>) {
    let shrinks = cluster.machines.len() - leaves.len() < REPLICATED_VOTERS;
    let syncs = shrinks && cluster.plan.may_ack_unsynced();
    if syncs {
        until_done(|| cluster.set_mode(Mode::Sync)).await;
    }
    let mut lost = Vec::new();
    for leave in &leaves {
        lost.push(remove(&cluster, leave).await);
    }
    for (leave, lost) in leaves.iter().zip(lost) {
        let Some((machine, lost)) = cluster.machines.get(leave.target).zip(lost) else { continue };
        until_done(|| cluster.try_to_add(machine)).await;
        cluster.count_event("removed and added again");
        if let Some((stay, death)) = leave.back.filter(|_| !cluster.faults_ended()) {
            cluster.stopping.fetch_add(1, Ordering::Relaxed);
            turn_up(&cluster, leave.target, lost, (death, stay)).await;
            cluster.stopping.fetch_sub(1, Ordering::Relaxed);
        }
        machine.release_disk();
    }
    if syncs && cluster.plan.mode == Mode::Replicated {
        until_done(|| cluster.set_mode(Mode::Replicated)).await;
    }
    cluster.operator.end();
}

/// Removes a member, and gives its machine an empty disk. Returns the disk that it had.
async fn remove(cluster: &Arc<Cluster>, leave: &Leave) -> Option<Files> {
    let machine = cluster.machines.get(leave.target)?;
    if let Some(death) = leave.dead.filter(|_| !cluster.faults_ended()) {
        let death = if cluster.may_lose_acks(machine) { death } else { Death::Killed };
        cluster.end(machine, death);
    }
    until_done(|| cluster.try_to_remove(machine)).await;
    cluster.count(ChangeMembers.name());
    pass(cluster, leave.lingers).await;
    if leave.restarts && !cluster.faults_ended() {
        cluster.end(machine, Death::Killed);
        tokio::time::sleep(EXIT_GRACE).await;
        cluster.start(machine);
        pass(cluster, leave.lingers).await;
    }
    let knows = machine.node().is_some_and(|(_, node)| node.replica().removed_reason().is_some());
    if knows {
        cluster.count_event("removed identities that knew it");
    }
    Some(cluster.renew(machine, leave.incarnation).await)
}

/// Waits for so long, or until the faults are over.
async fn pass(cluster: &Cluster, time: Duration) {
    let begun = virtual_time();
    while virtual_time() - begun < time && !cluster.faults_ended() {
        tokio::time::sleep(POLL).await;
    }
}

/// Waits until no change is under way. A script may have left members out: they are added.
pub(super) async fn finish(cluster: &Arc<Cluster>) {
    let finishing = async {
        while cluster.operator.is_busy() {
            tokio::time::sleep(POLL).await;
        }
        let mut rng = cluster.plan.rng(18);
        for machine in &cluster.machines {
            let Some(id) = machine.leaving() else { continue };
            let configured = || cluster.configurations().iter().any(|voters| voters.contains(&id));
            if machine.identity() == Some(id) && (cluster.operator.is_removed(id) || !configured())
            {
                cluster.renew(machine, rng.random_range(1..1_u64 << 48)).await;
            }
            until_done(|| cluster.try_to_add(machine)).await;
        }
    };
    if tokio::time::timeout(LIMIT, finishing).await.is_err() {
        let left: Vec<_> = cluster.machines.iter().filter_map(Machine::leaving).collect();
        let detail = format!("a change is still under way; these leave: {left:?}");
        cluster.violation(Violation::new("a membership change ends", detail));
    }
}
