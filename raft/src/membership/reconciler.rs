//! The leader's side: it collects join requests and changes the membership, one change after
//! another.

use super::heard::Heard;
use super::seen::{SILENT_AFTER, alive, caught_up, is_answered, is_settled};
use super::step::{self, Step, View};
use crate::core::command::Command;
use crate::core::ids::{MemberAddress, NodeId};
use crate::core::raft_metrics::with_metrics;
use crate::core::types::{Proposal, Reply, TypeConfig, engine_log_id};
use crate::core::version::{FIRST, VERSION};
use crate::core::{codec, runtime};
use crate::durability::leadership::To;
use crate::durability::{AckModes, LocalMember, leadership};
use crate::storage::mode_in_force::first_mode;
use crate::transport::PendingJoin;
use futures::lock::OwnedMutexGuard;
use openraft::raft::Precondition;
use openraft::vote::RaftLeaderId;
use openraft::{ChangeMembers, RaftMetrics, ServerState};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long a node that is to vote may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// The longest that one step of a change is waited for.
pub(super) const STEP_LIMIT: Duration = Duration::from_secs(5);
/// How long a record may take until it is applied.
pub(super) const RECORD_LIMIT: Duration = Duration::from_secs(5);
/// A join request counts for this long.
const REQUEST_LIFETIME: Duration = Duration::from_secs(3);
/// The log gets a member's new addresses at most this often: a member that starts again and again,
/// each time elsewhere, must not fill it.
const MOVE_INTERVAL: Duration = Duration::from_secs(5);
/// The most requests that are kept.
const PENDING_MAX: usize = 64;

/// Reconciles the membership with the join requests while this member leads.
pub(crate) struct Reconciler {
    pub(super) member: Arc<LocalMember>,
    pub(super) ack_modes: Arc<AckModes>,
    /// Changes are made one after another: those of operators, those of this task, and a new version
    /// of the cluster.
    pub(crate) changing: Arc<futures::lock::Mutex<()>>,
    pending_joins: Mutex<BTreeMap<u16, (PendingJoin, runtime::Instant)>>,
    /// What this member has heard from the others since it leads.
    heard: Mutex<Option<Heard>>,
    /// By slot: the last node that asked whether it may replace the voter.
    asked: Mutex<BTreeMap<u16, Asked>>,
    /// Whether a synced entry for them is under way.
    syncing: AtomicBool,
    /// When this leader last changed a member's addresses.
    moved: Mutex<BTreeMap<NodeId, runtime::Instant>>,
}

/// A node without an identity, which would overwrite what a voter's directory holds.
#[derive(Clone, Copy)]
struct Asked {
    by: NodeId,
    /// When it last asked, and the term that this member led then. What a leader of another term
    /// had is another question.
    at: runtime::Instant,
    term: u64,
    /// A synced entry that was proposed after the node's first request is committed.
    synced: bool,
}

impl Reconciler {
    pub(crate) fn new(member: Arc<LocalMember>, ack_modes: Arc<AckModes>) -> Reconciler {
        Reconciler {
            member,
            ack_modes,
            changing: Arc::default(),
            pending_joins: Mutex::default(),
            heard: Mutex::default(),
            asked: Mutex::default(),
            syncing: AtomicBool::new(false),
            moved: Mutex::default(),
        }
    }

    /// Takes a join request; returns whether the node votes already.
    ///
    /// # Errors
    /// Why the node cannot be added now.
    pub(crate) fn apply(&self, pending_join: PendingJoin) -> Result<bool, String> {
        let metrics = with_metrics(&self.member.raft, Clone::clone);
        let joiner = pending_join.id;
        if self.member.identity.identities.is_removed(joiner) {
            return Err(format!(
                "{joiner} was removed: start the node with an empty data directory"
            ));
        }
        // Whether it is silent for long enough is looked at when it is to be replaced.
        let (members, alive) = (metrics.membership_config.nodes(), alive(&metrics));
        let missed = members.map(|(id, _)| *id).filter(|id| !alive.contains(id)).collect();
        let voter = voter_to_replace(&metrics, &missed, joiner);
        let leads = metrics.state == ServerState::Leader;
        let is_learner = metrics.membership_config.get_node(&joiner).is_some();
        if leads && voter.as_ref().ok() != Some(&joiner) {
            self.keep(pending_join, is_learner);
        }
        match voter {
            Ok(voter) => Ok(voter == joiner),
            Err(_) if leads && is_learner => Ok(false),
            Err(reason) => Err(reason),
        }
    }

    /// Keeps a request: an operator may want the node although it may not take its slot by itself. Of
    /// two nodes that ask for one slot a learner is kept, else the first.
    fn keep(&self, pending_join: PendingJoin, is_learner: bool) {
        let now = runtime::now();
        let mut asked = self.pending_joins.lock();
        asked.retain(|_, (_, at)| now - *at < REQUEST_LIFETIME);
        let slot = pending_join.id.slot();
        let other = |(known, _): &(PendingJoin, _)| known.id != pending_join.id;
        if is_learner {
            asked.insert(slot, (pending_join, now));
            return;
        }
        if asked.get(&slot).is_some_and(other)
            || asked.len() >= PENDING_MAX && !asked.contains_key(&slot)
        {
            return;
        }
        asked.insert(slot, (pending_join, now));
    }

    /// The recent requests, by slot.
    pub(crate) fn fresh_joins(&self) -> BTreeMap<u16, PendingJoin> {
        let now = runtime::now();
        let mut asked = self.pending_joins.lock();
        let identities = &self.member.identity.identities;
        asked.retain(|_, (known, at)| {
            now - *at < REQUEST_LIFETIME && !identities.is_removed(known.id)
        });
        // The cluster's version may have risen since.
        let speaks = asked.iter().filter(|(_, (join, _))| identities.speaks_enough(join.id));
        speaks.map(|(slot, (pending_join, _))| (*slot, pending_join.clone())).collect()
    }

    /// The voter that the joining node may replace now: after this returned it, the node may
    /// overwrite the voter's directory. `None` unless three things hold: this member leads, it has
    /// led long enough to judge which members are silent, and a majority without that voter has
    /// synced every entry that this member had when asked.
    ///
    /// Proof of the third: an entry that was proposed after the request. Each member syncs it, and
    /// every entry before it, before it acknowledges it. Once committed it is on a majority. That
    /// majority excludes the asking slot, since no node speaks for that voter any more. Answers of
    /// followers would prove nothing: followers that lag answer too.
    pub(crate) fn replaceable_voter(&self, joiner: NodeId) -> Option<NodeId> {
        let metrics = with_metrics(&self.member.raft, Clone::clone);
        let now = runtime::now();
        let silent = self.silent(&metrics);
        metrics.last_quorum_acked.filter(|at| now - **at < SILENT_AFTER)?;
        let voter =
            voter_to_replace(&metrics, &silent, joiner).ok().filter(|voter| *voter != joiner)?;
        let term = metrics.current_term;
        let mut all = self.asked.lock();
        let known =
            all.get(&joiner.slot()).filter(|known| known.by == joiner && known.term == term);
        let synced = known.is_some_and(|known| known.synced);
        all.insert(joiner.slot(), Asked { by: joiner, at: now, term, synced });
        synced.then_some(voter)
    }

    /// Proposes a synced entry for the nodes that ask to replace a voter, however long it takes to
    /// commit.
    fn propose_synced_entry(self: &Arc<Self>, term: u64) {
        let now = runtime::now();
        let waiting: Vec<NodeId> = {
            let mut asked = self.asked.lock();
            asked.retain(|_, asked| now - asked.at < REQUEST_LIFETIME);
            let waiting = asked.values().filter(|asked| asked.term == term && !asked.synced);
            waiting.map(|asked| asked.by).collect()
        };
        if waiting.is_empty() || self.syncing.swap(true, Ordering::SeqCst) {
            return;
        }
        let reconciler = Arc::clone(self);
        runtime::spawn(async move {
            let committed = reconciler.synced_entry().await.is_some();
            reconciler.syncing.store(false, Ordering::SeqCst);
            for asked in reconciler.asked.lock().values_mut() {
                asked.synced |= committed && asked.term == term && waiting.contains(&asked.by);
            }
        });
    }

    /// Proposes an entry that changes nothing and is synced before it is acknowledged; `Some` if it
    /// was committed.
    async fn synced_entry(&self) -> Option<()> {
        let command = Command { synced: true, session: None, operations: Vec::new() };
        let (reply, answer) = Reply::pair(Box::new(()));
        self.member
            .raft
            .client_write_ff(codec::encode_command(command, 0), Some(reply))
            .await
            .ok()?;
        answer.await.ok()?.ok().map(drop)
    }

    /// Reconciles the membership until the member stops.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            runtime::sleep(POLL_INTERVAL).await;
            if self.member.stops() {
                return;
            }
            let leading = with_metrics(&self.member.raft, |metrics| {
                (metrics.state == ServerState::Leader).then(|| metrics.clone())
            });
            let Some(metrics) = leading else {
                *self.heard.lock() = None;
                continue;
            };
            self.log_epochs(&metrics);
            self.propose_synced_entry(metrics.current_term);
            // To replace and to add members needs a leader that can judge which ones are silent.
            let can_judge = self.hears(&metrics);
            self.log_beginning(&metrics, can_judge).await;
            let Some(_one_after_another) = self.changing.try_lock() else { continue };
            let needs_none = |step: &Step| matches!(step, Step::Finish | Step::Move(..));
            if let Some(step) = self.next(&metrics).filter(|step| can_judge || needs_none(step)) {
                if step == Step::Finish && self.gave_way(&metrics).await {
                    continue;
                }
                // What is begun goes on, and a joint configuration is finished in a later round. The
                // story: a change waited for a majority, and meanwhile this leader logged no boots,
                // also not those of the members that recovered and were to be part of that majority.
                runtime::timeout(STEP_LIMIT, self.take(step, &metrics)).await;
            }
        }
    }

    /// Whether this leader is not in the configuration that it should finish, and another one leads
    /// now: the members refuse the messages of one that left.
    async fn gave_way(&self, metrics: &RaftMetrics<TypeConfig>) -> bool {
        let configurations = metrics.membership_config.membership().get_joint_config();
        if configurations.last().is_none_or(|last| last.contains(&metrics.id)) {
            return false;
        }
        let limit = Duration::from_millis(self.member.config.election_max_ms);
        leadership::hand_over(&self.member, To::Best, limit).await;
        with_metrics(&self.member.raft, |metrics| metrics.state != ServerState::Leader)
    }

    /// Logs what a new cluster begins with, one after the other, as long as the log has no mode: the
    /// version that all members speak, and the mode of this member's configuration.
    async fn log_beginning(&self, metrics: &RaftMetrics<TypeConfig>, can_judge: bool) {
        // An operator's change comes first, and a record that is under way is waited for.
        let Some(alone) = self.changing.try_lock_owned() else { return };
        let modes = &self.member.modes;
        if !is_settled(metrics) || modes.is_changing() || modes.modes().cluster.is_some() {
            return;
        }
        let membership = metrics.membership_config.membership();
        let identities = &self.member.identity.identities;
        // What a member runs is in the log soon, unless it is silent.
        let (logged, silent) = (identities.logged(), self.silent(metrics));
        let is_awaited = |id: &NodeId| !can_judge || !silent.contains(id);
        if membership.nodes().any(|(id, _)| !logged.contains_key(id) && is_awaited(id)) {
            return;
        }
        let spoken_by_all = |version: &u32| identities.behind(membership, *version).is_empty();
        let version = (FIRST..=VERSION).rev().find(spoken_by_all).unwrap_or(FIRST);
        if identities.version() < version {
            if self.log_record(codec::encode_version(version), alone).await.is_some() {
                tracing::info!(node = %metrics.id, version, "the cluster begins at this version");
            }
            return;
        }
        let mode = first_mode(self.member.config.formation_mode, membership);
        if self.log_record(codec::encode_mode(mode), alone).await.is_some() {
            tracing::info!(node = %metrics.id, %mode, "the cluster's mode is logged");
        }
    }

    /// Proposes a record; its index once it is applied. Nobody else changes anything until openraft is
    /// done with it, however long that takes and whether the caller waits or not.
    pub(super) async fn log_record(
        &self,
        record: Proposal,
        alone: OwnedMutexGuard<()>,
    ) -> Option<u64> {
        let (reply, answer) = Reply::pair(Box::new(alone));
        self.member.raft.client_write_ff(record, Some(reply)).await.ok()?;
        let applied = runtime::timeout(RECORD_LIMIT, answer).await?.ok()?.ok()?;
        Some(engine_log_id(&applied.log_id).index)
    }

    /// Looks who has answered. Returns whether this member has led long enough to judge which members are
    /// silent, and hears them now.
    fn hears(&self, metrics: &RaftMetrics<TypeConfig>) -> bool {
        let now = runtime::now();
        // Where election timeouts are long, it is suspended late.
        let is_cut_off = self.member.check_quorum.is_suspended() || !is_answered(metrics, now);
        let others = metrics.heartbeat.iter().flatten().filter(|(id, _)| **id != metrics.id);
        let answered = others.map(|(id, at)| (*id, at.as_ref().map(|at| **at)));
        let mut heard = self.heard.lock();
        let after = Heard::after(heard.take(), metrics.current_term, is_cut_off, answered, now);
        let is_long = after.is_long();
        *heard = Some(after);
        is_long && !is_cut_off
    }

    /// The members that gave this leader no answer for long. None, if it does not know.
    fn silent(&self, metrics: &RaftMetrics<TypeConfig>) -> BTreeSet<NodeId> {
        let is_now = |heard: &&Heard| heard.is_of(metrics.current_term, runtime::now());
        let silent = self.heard.lock().as_ref().filter(is_now).map(Heard::silent);
        let alive = alive(metrics);
        silent.into_iter().flatten().filter(|id| !alive.contains(id)).collect()
    }

    /// Logs what the log lacks of the members' boots.
    fn log_epochs(&self, metrics: &RaftMetrics<TypeConfig>) {
        let identity = &self.member.identity;
        for (member, _) in metrics.membership_config.nodes() {
            let unlogged = match *member == metrics.id {
                true => identity.identities.unlogged_of(*member, &identity.boot()),
                false => identity.identities.unlogged(*member),
            };
            if let Some(boot) = unlogged {
                self.member.records.propose(metrics.vote, *member, boot, false);
            }
        }
    }

    fn next(&self, metrics: &RaftMetrics<TypeConfig>) -> Option<Step> {
        if !is_settled(metrics) {
            return None;
        }
        let now = runtime::now();
        let pending_joins = self.fresh_joins();
        let mut moved = self.member.addresses.moved();
        leave_out_recent(&mut moved, &mut self.moved.lock(), now);
        step::next(&View {
            own: metrics.id,
            membership: metrics.membership_config.membership(),
            alive: &alive(metrics),
            silent: &self.silent(metrics),
            caught_up: &caught_up(metrics),
            pending_joins: &pending_joins,
            moved: &moved,
        })
    }

    /// Whether a node that is to vote answers now, and is active. By what it asked and acknowledged
    /// before, one that has just gone still is: a cluster of one would become one of two, of which one
    /// is gone, and take no write.
    async fn is_there(&self, new: NodeId) -> bool {
        let answers = self.member.answers_of([new], ANSWER_LIMIT).await;
        answers.get(&new).is_some_and(|one| !one.recovering && !one.stopping)
    }

    /// Proposes one change and waits until it is committed or this member no longer leads.
    pub(crate) async fn take(&self, step: Step, metrics: &RaftMetrics<TypeConfig>) {
        if let Step::Promote(new) | Step::Replace { new, .. } = step
            && !self.is_there(new).await
        {
            return;
        }
        let seen = &metrics.membership_config;
        let node = self.member.raft.node_id();
        let (change, what) = match step {
            Step::Finish => (
                ChangeMembers::AddVoterIds(BTreeSet::new()),
                "finish the joint configuration".to_string(),
            ),
            Step::Drop(stale) => {
                let what = format!("remove learner {stale}, which had no recent contact");
                (ChangeMembers::RemoveNodes(BTreeSet::from([stale])), what)
            }
            Step::Move(member, address) => {
                // `SetNodes` would add a node that is not there.
                assert!(
                    seen.membership().get_node(&member).is_some(),
                    "an address belongs to a member"
                );
                self.moved.lock().insert(member, runtime::now());
                let what = format!(
                    "member {member} is reached at {} by members and at {} by clients",
                    address.peer, address.client
                );
                (ChangeMembers::SetNodes(BTreeMap::from([(member, address)])), what)
            }
            Step::Add(new, address) => {
                let what = format!("add learner {new} at {}", address.peer);
                (ChangeMembers::AddNodes(BTreeMap::from([(new, address)])), what)
            }
            Step::Replace { old, new } => {
                let change = vec![
                    ChangeMembers::RemoveVoters(BTreeSet::from([old])),
                    ChangeMembers::AddVoterIds(BTreeSet::from([new])),
                ];
                (ChangeMembers::Batch(change), format!("replace member {old} by {new}"))
            }
            Step::Promote(new) => (
                ChangeMembers::AddVoterIds(BTreeSet::from([new])),
                format!("make learner {new} a voter"),
            ),
            Step::Remove(old) => {
                (ChangeMembers::RemoveVoters(BTreeSet::from([old])), format!("remove member {old}"))
            }
        };
        tracing::warn!(%node, "{what}");
        // What was judged is still so: this member leads the same term, and nobody changed members.
        let unchanged = [
            Precondition::LastMembershipLogId { last_membership_log_id: *seen.log_id() },
            Precondition::CommittedLeaderId {
                committed_leader_id: metrics.vote.leader_id().to_committed(),
            },
        ];
        match self.member.raft.change_membership_if(change, false, unchanged).await {
            Ok(_) => tracing::info!(%node, "done: {what}"),
            Err(error) => tracing::info!(%node, %error, "not done: {what}"),
        }
    }
}

/// Leaves out the members whose addresses this leader changed a moment ago, and forgets the others.
fn leave_out_recent(
    moved: &mut BTreeMap<NodeId, MemberAddress>,
    changed: &mut BTreeMap<NodeId, runtime::Instant>,
    now: runtime::Instant,
) {
    changed.retain(|_, at| now - *at < MOVE_INTERVAL);
    moved.retain(|id, _| !changed.contains_key(id));
}

/// The voter that this node may replace; the node itself if it votes.
///
/// # Errors
/// Why the node cannot be added now.
fn voter_to_replace(
    metrics: &RaftMetrics<TypeConfig>,
    silent: &BTreeSet<NodeId>,
    joiner: NodeId,
) -> Result<NodeId, String> {
    if metrics.state != ServerState::Leader || !metrics.vote.is_committed() {
        return Err("this member does not lead".into());
    }
    let membership = metrics.membership_config.membership();
    if membership.voter_ids().any(|voter| voter == joiner) {
        return Ok(joiner);
    }
    let Some(voters) = membership.get_joint_config().last() else {
        return Err("the cluster is not formed".into());
    };
    step::voter_to_replace(metrics.id, membership, silent, voters, joiner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_starts_elsewhere_again_and_again_does_not_fill_the_log() {
        let member = NodeId::new(2, 22);
        let (began, mut changed, mut changes) = (runtime::now(), BTreeMap::new(), 0);
        // It is somewhere else at each check of a minute.
        for check in 0..600 {
            let now = began + POLL_INTERVAL * check;
            let mut moved = BTreeMap::from([(member, MemberAddress::default())]);
            leave_out_recent(&mut moved, &mut changed, now);
            if moved.contains_key(&member) {
                changed.insert(member, now);
                changes += 1;
            }
        }
        assert_eq!(changes, 60 / MOVE_INTERVAL.as_secs());
        let mut moved = BTreeMap::new();
        leave_out_recent(&mut moved, &mut changed, began + Duration::from_secs(3600));
        assert!(changed.is_empty(), "nothing is kept for good");
    }
}
