//! Changes of the members that an operator asks for.
//!
//! What holds here:
//! - a change begins only where it leaves a majority of the voters active and reachable;
//! - a removal that leaves fewer than three voters begins only after the end of `replicated` is
//!   committed, every voter that stays has synced everything up to there, and none of them may have
//!   acknowledged an unsynced write: with so few voters there may be nobody who holds what a power
//!   cut takes from one. The voters that stay are a majority of those before;
//! - one change is made after another, each on the membership that this leader saw.
//!
//! A call is repeated until the change is done. It keeps nothing between two calls, so that it does
//! not matter which leader gets them.

use super::reconciler::{Reconciler, STEP_LIMIT};
use super::request::{ChangeError, Seen, refused};
use super::seen::{alive, caught_up, is_settled};
use super::step::{self, Step, View};
use crate::core::ids::NodeId;
use crate::core::quorum::is_majority;
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime;
use crate::core::types::TypeConfig;
use crate::storage::mode_in_force::REPLICATED_VOTERS;
use crate::transport::{self, Contact, PendingJoin};
use cairn_engine::Mode;
use openraft::RaftMetrics;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// More voters cost more than they give: each write goes to all of them.
const MEMBERS_MAX: usize = 15;

/// How long a voter may take to answer before a change counts it as gone.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// A change of the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// The node of this slot that asks to join becomes a learner, and a voter once it has caught up.
    Add(u16),
    /// The slot's voter or learner leaves. Its identity is refused from then on.
    Remove(u16),
    /// The node of the same slot that asks to join takes over from this voter, dead or alive.
    Replace(NodeId),
    /// The slot's learner becomes a voter now.
    Promote(u16),
    /// The slot's member is looked for at this peer address.
    Move(u16, String),
}

type Changed = Result<Option<String>, ChangeError>;

fn waits(reason: impl Into<String>) -> Changed {
    Ok(Some(reason.into()))
}

impl Reconciler {
    /// Takes the next step of a change. `None`: it is done; else what it waits for.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub(crate) async fn change(&self, change: MemberChange) -> Changed {
        // What is begun goes on: the reconciler finishes it.
        let step = runtime::timeout(STEP_LIMIT, self.begin(change)).await;
        step.unwrap_or_else(|| waits("the members agree on the change"))
    }

    async fn begin(&self, change: MemberChange) -> Changed {
        let _one_after_another = self.changing.lock().await;
        let seen = match self.seen()? {
            Ok(seen) => seen,
            Err(reason) => return waits(reason),
        };
        match change {
            MemberChange::Add(slot) => self.add(&seen, slot).await,
            MemberChange::Remove(slot) => self.remove(&seen, slot).await,
            MemberChange::Replace(old) => self.replace(&seen, old).await,
            MemberChange::Promote(slot) => self.promote(&seen, slot).await,
            MemberChange::Move(slot, address) => self.relocate(&seen, slot, &address).await,
        }
    }

    fn pending_join(&self, slot: u16) -> Option<PendingJoin> {
        self.fresh_joins().remove(&slot)
    }

    async fn add(&self, seen: &Seen, slot: u16) -> Changed {
        if step::voter_of(&seen.voters, slot).is_some() {
            return Ok(None);
        }
        let learner = step::learner_of(seen.membership(), &seen.voters, slot);
        let Some(joins) = self.pending_join(slot) else {
            return waits(match learner {
                Some(learner) => format!("learner {learner} does not answer"),
                None => format!(
                    "no node of slot {slot} asks to join: start one with an empty data directory, `slot = {slot}` and `join` \
                     naming a member"
                ),
            });
        };
        if seen.membership().nodes().count() >= MEMBERS_MAX && learner.is_none() {
            return refused(format!(
                "the cluster has {MEMBERS_MAX} members already, the most there may be"
            ));
        }
        if learner.is_some_and(|known| known != joins.id && alive(&seen.metrics).contains(&known)) {
            return waits(format!("another learner of slot {slot} catches up"));
        }
        if let Some(step) = step::to_learn(seen.membership(), &seen.voters, &joins) {
            self.take(step, &seen.metrics).await;
        }
        waits(self.behind(&seen.metrics, &joins))
    }

    /// Why a learner does not vote yet.
    fn behind(&self, metrics: &RaftMetrics<TypeConfig>, joins: &PendingJoin) -> String {
        let last = metrics.last_log_index.unwrap_or(0);
        let matched = metrics.replication.as_ref().and_then(|all| all.get(&joins.id)?.as_ref());
        let matched = matched.map_or(0, |matched| matched.index());
        match joins.active {
            true => format!(
                "learner {} catches up: {} entries to go",
                joins.id,
                last.saturating_sub(matched)
            ),
            false => format!("learner {} recovers", joins.id),
        }
    }

    async fn promote(&self, seen: &Seen, slot: u16) -> Changed {
        let learner = step::learner_of(seen.membership(), &seen.voters, slot);
        let voter = step::voter_of(&seen.voters, slot);
        let Some(learner) = learner else {
            return match voter {
                Some(_) => Ok(None),
                None => refused(format!("slot {slot} has no learner: `cairn members add {slot}`")),
            };
        };
        if let Some(old) = voter {
            self.leaves(old).await?;
        }
        let Some(joins) = self.pending_join(slot).filter(|joins| joins.id == learner) else {
            return refused(format!("learner {learner} does not answer: look after its node"));
        };
        if !self.is_ready(seen, &joins) {
            return refused(format!(
                "{}: it votes by itself once it has caught up",
                self.behind(&seen.metrics, &joins)
            ));
        }
        match voter {
            Some(old) => self.replace_by(seen, old, learner).await,
            None => {
                let mut after = seen.voters.clone();
                after.insert(learner);
                self.check(seen, Some(learner), &after).await?;
                self.take(Step::Promote(learner), &seen.metrics).await;
                self.done_if(|metrics| votes(metrics, learner))
            }
        }
    }

    async fn replace(&self, seen: &Seen, old: NodeId) -> Changed {
        let slot = old.slot();
        if step::voter_of(&seen.voters, slot) != Some(old) {
            return match seen.membership().get_node(&old) {
                Some(_) => {
                    refused(format!("member {old} does not vote: `cairn members remove {slot}`"))
                }
                // It was replaced, if another one votes in its slot.
                None if step::voter_of(&seen.voters, slot).is_some() => Ok(None),
                None => refused(format!(
                    "no member has slot {slot}, so there is nobody to replace: `cairn members add {slot}`"
                )),
            };
        }
        if seen.voters.len() == 1 {
            return refused(format!(
                "{old} is the only voter, so nobody could lead while another node takes its slot: `cairn members add` another \
                 slot first"
            ));
        }
        self.leaves(old).await?;
        let Some(joins) = self.pending_join(slot).filter(|joins| joins.id != old) else {
            return waits(format!(
                "no other node of slot {slot} asks to join: start one with an empty data directory, `slot = {slot}` and \
                 `join` naming a member"
            ));
        };
        if let Some(step) = step::to_learn(seen.membership(), &seen.voters, &joins) {
            self.take(step, &seen.metrics).await;
            return waits(self.behind(&seen.metrics, &joins));
        }
        if !self.is_ready(seen, &joins) {
            return waits(self.behind(&seen.metrics, &joins));
        }
        self.replace_by(seen, old, joins.id).await
    }

    async fn replace_by(&self, seen: &Seen, old: NodeId, new: NodeId) -> Changed {
        let after: BTreeSet<NodeId> =
            seen.voters.iter().copied().filter(|voter| *voter != old).chain([new]).collect();
        self.check(seen, Some(new), &after).await?;
        self.take(Step::Replace { old, new }, &seen.metrics).await;
        self.done_if(|metrics| votes(metrics, new) && !votes(metrics, old))
    }

    async fn remove(&self, seen: &Seen, slot: u16) -> Changed {
        if let Some(learner) = step::learner_of(seen.membership(), &seen.voters, slot) {
            self.take(Step::Drop(learner), &seen.metrics).await;
            return waits("the slot's learner leaves first");
        }
        let Some(leaves) = step::voter_of(&seen.voters, slot) else {
            return Ok(None);
        };
        let mut after = seen.voters.clone();
        after.remove(&leaves);
        if after.is_empty() {
            return refused("it is the last voter: stop its node instead");
        }
        self.check(seen, None, &after).await?;
        if after.len() < REPLICATED_VOTERS {
            if self.member.modes.is_changing() {
                return waits("a change of the mode is under way");
            }
            let mode = self.member.modes.modes().cluster;
            if mode.is_none() {
                return waits("the first leader logs the mode");
            }
            if mode == Some(Mode::Replicated) {
                return refused(format!(
                    "the cluster would have {} voters, and mode `replicated` needs {REPLICATED_VOTERS} or more: end it with \
                     `cairn mode set sync` first",
                    after.len()
                ));
            }
            if let Some(reason) = self.unsynced(seen, &after).await {
                return waits(reason);
            }
        }
        self.leaves(leaves).await?;
        self.take(Step::Remove(leaves), &seen.metrics).await;
        self.done_if(|metrics| metrics.membership_config.get_node(&leaves).is_none())
    }

    /// A voter of these that may not hold, synced, everything up to the end of `replicated`. Each
    /// syncs that record, and all before it, before it acknowledges it, and from its append on
    /// acknowledges nothing unsynced. So its flag, once clear, stays clear.
    async fn unsynced(&self, seen: &Seen, voters: &BTreeSet<NodeId>) -> Option<String> {
        let member = &self.member;
        let since = member.modes.since();
        let asked = voters.iter().map(|voter| async move {
            let ended = match *voter == member.identity.id() {
                true => !member.engine.status().unsynced_acks,
                false => {
                    let all = seen.metrics.replication.as_ref();
                    let matched = all.and_then(|all| all.get(voter)?.as_ref());
                    let holds = matched.is_some_and(|matched| matched.index() >= since);
                    holds && self.has_synced(*voter).await
                }
            };
            (*voter, ended)
        });
        let answers = futures::future::join_all(asked).await;
        let waits: Vec<String> = answers
            .iter()
            .filter(|(_, ended)| !ended)
            .map(|(voter, _)| voter.to_string())
            .collect();
        (!waits.is_empty()).then(|| {
            format!("waits until {} has synced what it acknowledged before", waits.join(" and "))
        })
    }

    async fn has_synced(&self, voter: NodeId) -> bool {
        let answer = transport::ask(&self.member.identity, &self.member.addresses, voter).await;
        answer.is_some_and(|answer| answer.holds_synced())
    }

    /// Refuses a configuration of which too few voters are healthy. By what it acknowledged before, a
    /// member that has just gone still is: so each is asked. `joins` has just asked this leader.
    async fn check(
        &self,
        seen: &Seen,
        joins: Option<NodeId>,
        after: &BTreeSet<NodeId>,
    ) -> Result<(), ChangeError> {
        let answers = self.member.answers_of(seen.voters.iter().copied(), ANSWER_LIMIT).await;
        let answers_well = |id: &NodeId| {
            let answer = answers.get(id).is_some_and(|one| !one.recovering && !one.stopping);
            answer || *id == seen.metrics.id
        };
        let healthy: BTreeSet<NodeId> =
            seen.healthy.iter().copied().filter(answers_well).chain(joins).collect();
        if is_majority(after, &healthy) {
            return Ok(());
        }
        let missing: Vec<String> = after.difference(&healthy).map(ToString::to_string).collect();
        refused(format!(
            "of the {} voters after this change, {} would not be active and reachable now: bring {} back first, or \
             remove a voter that is gone for good",
            after.len(),
            missing.len(),
            missing.join(" and "),
        ))
    }

    async fn relocate(&self, seen: &Seen, slot: u16, address: &str) -> Changed {
        let known = step::voter_of(&seen.voters, slot)
            .or_else(|| step::learner_of(seen.membership(), &seen.voters, slot));
        let Some(known) = known else {
            return refused(format!("slot {slot} is not a member"));
        };
        let logged = seen.membership().get_node(&known);
        if logged.is_some_and(|logged| logged.peer == address) {
            return Ok(None);
        }
        let member = &self.member;
        let contact = Contact { address: address.to_owned(), slot: Some(slot) };
        let answer = transport::hello(&member.identity, Some(&member.addresses), &contact).await;
        let answer = match answer {
            Ok(answer) if answer.id == known => answer,
            Ok(answer) => {
                return refused(format!("{} answers at {address}, not {known}", answer.id));
            }
            Err(status) => {
                return refused(format!(
                    "{known} does not answer at {address}: {}",
                    transport::cause(&status)
                ));
            }
        };
        let Some(advertised) = answer.address else {
            return refused(format!("{known} does not say where it is reached"));
        };
        if advertised.peer != address {
            return refused(format!(
                "{known} answers at {address} but says that it is reached at {}: change `advertise` in its configuration",
                advertised.peer
            ));
        }
        member.addresses.answered(known, answer.epoch, advertised);
        waits("the leader logs the address")
    }

    fn is_ready(&self, seen: &Seen, joins: &PendingJoin) -> bool {
        let view = View {
            own: seen.metrics.id,
            membership: seen.membership(),
            alive: &alive(&seen.metrics),
            silent: &BTreeSet::new(),
            caught_up: &caught_up(&seen.metrics),
            pending_joins: &BTreeMap::new(),
            moved: &BTreeMap::new(),
        };
        step::is_ready(&view, joins)
    }

    fn done_if(&self, done: impl Fn(&RaftMetrics<TypeConfig>) -> bool) -> Changed {
        match is_done(&with_metrics(&self.member.raft, Clone::clone), done) {
            true => Ok(None),
            false => waits("the members agree on the change"),
        }
    }
}

/// Whether the membership says so by now, and is committed.
fn is_done(
    metrics: &RaftMetrics<TypeConfig>,
    done: impl Fn(&RaftMetrics<TypeConfig>) -> bool,
) -> bool {
    is_settled(metrics) && done(metrics)
}

fn votes(metrics: &RaftMetrics<TypeConfig>, member: NodeId) -> bool {
    metrics.membership_config.voter_ids().any(|voter| voter == member)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ids::MemberAddress;
    use crate::core::types::{Membership, StoredMembership, raft_log_id};
    use cairn_engine::LogId;

    /// Another leader may take back a membership that is not committed.
    #[test]
    fn a_change_is_done_once_its_membership_is_committed() {
        let stored = |index, slots: std::ops::RangeInclusive<u16>| {
            let voters: BTreeSet<NodeId> = slots.map(|slot| NodeId::new(slot, 1)).collect();
            let nodes = voters.iter().map(|id| (*id, MemberAddress::default()));
            let nodes: BTreeMap<_, _> = nodes.collect();
            let membership = Membership::new(vec![voters], nodes).unwrap();
            let id = raft_log_id(LogId { term: 2, index });
            std::sync::Arc::new(StoredMembership::new(Some(id), membership))
        };
        let mut metrics = RaftMetrics::new_initial(NodeId::new(1, 1));
        metrics.current_term = 2;
        metrics.last_applied = Some(raft_log_id(LogId { term: 2, index: 5 }));
        metrics.membership_config = stored(6, 1..=2);
        metrics.committed_membership_config = stored(5, 1..=3);
        let removed = |metrics: &RaftMetrics<TypeConfig>| !votes(metrics, NodeId::new(3, 1));
        assert!(removed(&metrics) && !is_done(&metrics, removed));
        metrics.committed_membership_config = stored(6, 1..=2);
        assert!(is_done(&metrics, removed));
        assert!(!is_done(&metrics, |metrics| votes(metrics, NodeId::new(3, 1))));
    }
}
