//! What an operator asks of the cluster: other members, another mode, another leader.
//!
//! What holds here: a request goes to whoever leads, on the leader's own host. When the time for an
//! answer is over, the request is dropped there too, and the caller asks again.

use super::clock::virtual_time;
use super::cluster::Cluster;
use super::faults::Nemesis;
use super::kinds::FaultKind::{ChangeMode, Drain, MoveLeader};
use super::machine::{Condition, Drained, Machine};
use cairn_engine::Mode;
use cairn_node::Node;
use cairn_raft::{ChangeError, MemberChange, NodeId, Role};
use rand::RngExt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for an answer.
const ANSWER: Duration = Duration::from_secs(3);
/// The same, for a machine whose process is paused.
const NO_ANSWER: Duration = Duration::from_secs(4);
/// How long a campaign may go on that began before a member was asked not to lead.
const CAMPAIGN: Duration = Duration::from_secs(1);
/// The time between two attempts.
const RETRY: Duration = Duration::from_millis(150);

/// Why what was asked is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotDone {
    /// The leader refuses it.
    Refused(String),
    /// It is under way, or nobody leads, or there is no answer.
    Later(String),
}

/// Asks again until it is done.
pub(super) async fn until_done<F>(mut attempt: impl FnMut() -> F)
where
    F: Future<Output = Result<(), NotDone>>,
{
    while attempt().await.is_err() {
        tokio::time::sleep(RETRY).await;
    }
}

impl Cluster {
    /// The machine whose node leads the latest term, and its node.
    pub(super) fn leading(&self) -> Option<(&Machine, Arc<Node>)> {
        let leads = |machine: &&Machine| {
            let (_, node) = machine.node().filter(|_| machine.condition() == Condition::Up)?;
            let status = node.replica().status();
            (status.role == Role::Leader).then_some((status.term, node))
        };
        let all = self.machines.iter();
        let leaders = all.filter_map(|machine| Some((machine, leads(&machine)?)));
        let latest = leaders.max_by_key(|(_, (term, _))| *term);
        latest.map(|(machine, (_, node))| (machine, node))
    }

    /// Runs a request on a machine's host.
    async fn ask<T: Send + 'static>(
        &self,
        machine: &Machine,
        request: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, NotDone> {
        let no_answer = || NotDone::Later("no answer".into());
        let host = self.host(machine).ok_or_else(no_answer)?;
        let asked = host.spawn(tokio::time::timeout(ANSWER, request));
        let running = asked.abort_handle();
        match tokio::time::timeout(NO_ANSWER, asked).await {
            Ok(Ok(Ok(answer))) => Ok(answer),
            _ => {
                running.abort();
                Err(no_answer())
            }
        }
    }

    /// Asks the leader for a change of the membership.
    pub(super) async fn change_members(&self, change: MemberChange) -> Result<(), NotDone> {
        let (machine, node) = self.leading().ok_or_else(nobody_leads)?;
        let what = format!("{change:?}");
        let replica = node.replica().clone();
        let answer = self.ask(machine, async move { replica.change_members(change).await }).await;
        let done = match answer? {
            Ok(None) => Ok(()),
            Ok(Some(reason)) => Err(NotDone::Later(reason)),
            Err(error) => Err(not_done(error)),
        };
        self.trace.event(format!("node {} is asked to {what}: {done:?}", machine.slot));
        if matches!(done, Err(NotDone::Refused(_))) {
            self.count_event("membership changes refused");
        }
        done
    }

    /// Asks the leader for a mode.
    pub(super) async fn set_mode(&self, mode: Mode) -> Result<(), NotDone> {
        let (machine, node) = self.leading().ok_or_else(nobody_leads)?;
        let (replica, request) = (node.replica().clone(), self.promises.asked(mode));
        let answer = self.ask(machine, async move {
            let answer = replica.set_mode(mode).await;
            drop(request);
            answer
        });
        let done = answer.await?.map_err(not_done);
        self.trace.event(format!("node {} is asked for mode {mode}: {done:?}", machine.slot));
        if done.is_ok() {
            let applied = node.replica().status().applied.map_or(0, |applied| applied.index);
            self.promises.answered(mode, applied);
        }
        done
    }

    /// Asks the leader to hand leadership over, to the member of this slot if one is named.
    pub(super) async fn move_leader(&self, to: Option<u16>) -> Result<NodeId, NotDone> {
        let (machine, node) = self.leading().ok_or_else(nobody_leads)?;
        let replica = node.replica().clone();
        let answer = self.ask(machine, async move { replica.move_leader(to).await }).await;
        let done = answer?.map_err(not_done);
        self.trace.event(format!("node {} is asked to let {to:?} lead: {done:?}", machine.slot));
        done
    }

    /// Asks a member not to lead for this long.
    pub(super) async fn drain(&self, machine: &Machine, time: Duration) -> Result<(), NotDone> {
        let (life, node) = machine.node().ok_or_else(|| NotDone::Later("no node".into()))?;
        let replica = node.replica().clone();
        let begun = virtual_time();
        let answer = self.ask(machine, async move { replica.drain(time).await }).await;
        let done = answer?.map_err(not_done);
        self.trace.event(format!("node {} is drained for {time:?}: {done:?}", machine.slot));
        if done.is_ok() {
            // Its clock may be a fifth faster.
            let (from, until) = (virtual_time() + CAMPAIGN, begun + time * 4 / 5);
            machine.drained(Drained { from, until, life, term: node.replica().status().term });
        }
        done
    }
}

fn nobody_leads() -> NotDone {
    NotDone::Later("nobody leads".into())
}

fn not_done(error: ChangeError) -> NotDone {
    match error {
        ChangeError::Refused(reason) => NotDone::Refused(reason),
        other => NotDone::Later(format!("{other:?}")),
    }
}

impl Nemesis {
    /// The mode becomes stricter and laxer again, a few times.
    pub(super) fn change_mode(&mut self) {
        if !self.cluster.operator.begin() {
            return;
        }
        let lax = match self.cluster.plan.mode {
            Mode::Device => Mode::Device,
            Mode::Replicated | Mode::Sync => Mode::Replicated,
        };
        let first = if self.cluster.plan.mode == Mode::Sync { lax } else { Mode::Sync };
        let second = if first == lax { Mode::Sync } else { lax };
        let rounds = self.rng.random_range(1..=3);
        let steps: Vec<(Mode, Duration)> = (0..rounds)
            .flat_map(|_| [first, second])
            .map(|mode| (mode, Duration::from_millis(self.rng.random_range(0..3_000))))
            .collect();
        let cluster = self.cluster.clone();
        madsim::task::spawn(async move {
            for (mode, pause) in steps {
                until_done(|| async {
                    match cluster.faults_ended() {
                        true => Ok(()),
                        false => cluster.set_mode(mode).await,
                    }
                })
                .await;
                if cluster.faults_ended() {
                    break;
                }
                cluster.count(ChangeMode.name());
                tokio::time::sleep(pause).await;
            }
            cluster.operator.end();
        });
    }

    /// The leader is asked to hand leadership over.
    pub(super) fn move_leader(&mut self) {
        let target = self.rng.random_range(0..self.cluster.machines.len());
        let slot = self.cluster.machines.get(target).map(|machine| machine.slot);
        let to = slot.filter(|_| self.rng.random_bool(0.5));
        let cluster = self.cluster.clone();
        madsim::task::spawn(async move {
            if cluster.move_leader(to).await.is_ok() {
                cluster.count(MoveLeader.name());
            }
        });
    }

    /// A member, often the leader, is asked not to lead for a while.
    pub(super) fn drain(&mut self) {
        let target = self.target();
        let time = Duration::from_millis(self.rng.random_range(500..8_000));
        let cluster = self.cluster.clone();
        madsim::task::spawn(async move {
            let Some(machine) = cluster.machines.get(target) else { return };
            let up = machine.condition() == Condition::Up;
            if up && cluster.drain(machine, time).await.is_ok() {
                cluster.count(Drain.name());
            }
        });
    }
}
