//! Maintenance beside replication: checkpoints and purges when they are due ([`Limits`]), dropping
//! expired snapshot transfers, leadership of a member that should not lead, and stopping when the engine
//! has failed.

use super::retention::{Limits, Purge, Seen};
use super::{changes, serving};
use crate::core::ids::{GROUP, NodeId};
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime;
use crate::core::types::engine_log_id;
use crate::durability::leadership::To;
use crate::durability::{CommitProgress, LocalMember, leadership, longest_turn, stuck_after};
use cairn_engine::LogId;
use openraft::ServerState;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A follower whose log grew within this time is catching up: keep what it needs next.
const CATCHING_UP: Duration = Duration::from_secs(10);

/// The shortest interval between checkpoints whose only reason is a nearly full data area.
const SPACE_CHECKPOINT_INTERVAL: Duration = Duration::from_secs(5);

/// The same for checkpoints whose only reason is a write that was refused because a checkpoint area
/// was full.
const INDEX_CHECKPOINT_INTERVAL: Duration = Duration::from_millis(500);

/// Maintains one member.
pub(super) struct Maintenance {
    member: Arc<LocalMember>,
    followers: Followers,
    commits: CommitProgress,
    /// When it last looked whether entries advance.
    judged: runtime::Instant,
    /// When a checkpoint was last taken to free the data area, and a checkpoint area.
    data_relieved: runtime::Instant,
    index_relieved: runtime::Instant,
    /// How many refusals for a full checkpoint area are already dealt with.
    refusals: u64,
    /// The leader that was seen last, and its term.
    led: Option<(u64, NodeId)>,
}

/// Each follower's position, and when it last advanced.
type Followers = BTreeMap<NodeId, (Option<LogId>, runtime::Instant)>;

impl Maintenance {
    pub(super) fn new(member: Arc<LocalMember>) -> Maintenance {
        let (followers, now) = (Followers::new(), runtime::now());
        Maintenance {
            member,
            followers,
            commits: CommitProgress::default(),
            judged: now,
            data_relieved: now,
            index_relieved: now,
            refusals: 0,
            led: None,
        }
    }

    /// Runs until the member stops.
    pub(super) async fn run(mut self) {
        let member = self.member.clone();
        loop {
            runtime::sleep(Duration::from_millis(member.config.maintenance_ms)).await;
            if member.stops() {
                return;
            }
            if let Some(reason) = member.engine.status().failed {
                // The engine has logged it.
                tracing::info!(node = %member.raft.node_id(), reason, "storage failed; replication stops");
                member.raft.shutdown().await.ok();
                return;
            }
            member.receiver.expire();
            member.time_passes();
            serving::observe_lag(&member);
            self.hand_over_if_unfit().await;
            self.leave_if_stuck().await;
            if self.run_once().await.is_err() {
                return;
            }
        }
    }

    async fn run_once(&mut self) -> Result<(), ()> {
        self.count_leader();
        self.observe();
        let LocalMember { raft, config, engine, repairer, history, .. } = &*self.member;
        let (status, bounds) = (engine.status(), engine.log_bounds(GROUP));
        self.member.pinned.give_up_without_log(bounds.purged);
        let limits = Limits::new(config, status.data_bytes, status.index_capacity_bytes);
        let now = runtime::now();
        changes::follow_log(engine, history);
        let most = limits.history(&bounds, status.index_log_bytes, status.keys);
        history.retain(&most, now);
        let seen = Seen {
            bounds,
            checkpointed: engine.checkpointed(GROUP),
            applied: engine.applied(GROUP),
            log_bytes: engine.log_bytes(GROUP),
            due: engine.purge_due(GROUP),
            unreadable_through: repairer.purgeable_through(),
            held: self.held(),
            refused: status.index_refusals > self.refusals,
            may_relieve_data: self.data_relieved + SPACE_CHECKPOINT_INTERVAL <= now,
            may_relieve_index: self.index_relieved + INDEX_CHECKPOINT_INTERVAL <= now,
            status,
        };
        if let Some(through) = limits.leave_out(&seen) {
            engine.leave_out(GROUP, through);
        }
        if let Some(relieves) = limits.wants_checkpoint(&seen) {
            if relieves.data {
                self.data_relieved = now;
            }
            if relieves.index {
                self.index_relieved = now;
            }
            // If it fails, so has the engine, which the next turn sees.
            engine.begin_checkpoint().ok();
        }
        match limits.purge_through(&seen) {
            Purge::Through(through) => {
                // openraft purges no further than its newest snapshot.
                let snapshot = with_metrics(raft, |metrics| metrics.snapshot.map(|id| id.index()));
                match snapshot >= Some(through) {
                    true => raft.trigger().purge_log(through).await.map_err(drop)?,
                    false => return raft.trigger().snapshot().await.map_err(drop),
                }
            }
            Purge::Later => return Ok(()),
            Purge::NoMore => {}
        }
        // Purged, or nothing more can be: a later refusal counts again.
        self.refusals = seen.status.index_refusals;
        Ok(())
    }

    /// Hands leadership over if this member should not lead: an operator drains or stops it, it cannot read
    /// an entry that it should send, or its disk stalls. In the last case it takes no writes, and the engine's
    /// timeout ends it only later.
    async fn hand_over_if_unfit(&self) {
        let LocalMember { raft, config, engine, repairer, .. } = &*self.member;
        let limit = Duration::from_millis(config.election_min_ms);
        let leads = with_metrics(raft, |metrics| metrics.state == ServerState::Leader);
        if leads && engine.status().stalled {
            tracing::warn!(node = %raft.node_id(), "the disk stalls; handing leadership over");
            leadership::hand_over(&self.member, To::Best, limit).await;
        }
        if leads && self.member.kept_from_leading().is_some() {
            // It won an election that began before it was drained, or before its stop; or nobody else
            // was elected. Then it is the best leader there is, until another one is near.
            leadership::hand_over(&self.member, To::Near, limit.saturating_mul(2)).await;
        }
        if repairer.take_unreadable_for_long() {
            tracing::warn!(node = %raft.node_id(), "an entry cannot be read, and no member has it; handing leadership over");
            leadership::hand_over(&self.member, To::Best, limit).await;
        }
    }

    /// Leaves leadership to others if nobody takes the entries of this leader.
    async fn leave_if_stuck(&mut self) {
        let member = &*self.member;
        let (now, config) = (runtime::now(), &member.config);
        let passed = (now - self.judged).min(longest_turn(config));
        self.judged = now;
        // A suspended leader sends nothing; who takes a snapshot takes no entries.
        let waits =
            !member.check_quorum.is_suspended() && member.pinned.holds_log_after().is_none();
        let position = with_metrics(&member.raft, |metrics| self.commits.position(metrics));
        let position = position.filter(|_| waits);
        let limit = stuck_after(config);
        let stuck = self.commits.check(position, passed) >= limit;
        let was_stuck = member.stuck.swap(stuck, Ordering::Relaxed);
        if !stuck || !self.commits.is_due(limit) {
            return;
        }
        if !was_stuck {
            tracing::warn!(
                node = %member.raft.node_id(),
                "a majority answers this leader, and takes none of its entries: nothing is committed. Do large packets pass between \
                 the members, have they room, and do their disks answer?"
            );
        }
        if leadership::leave_to_others(member).await {
            tracing::warn!(node = %member.raft.node_id(), "this member leaves leadership to others, since they can elect one");
        }
    }

    /// Counts a leadership that was not seen before.
    fn count_leader(&mut self) {
        let leads = with_metrics(&self.member.raft, |metrics| {
            metrics.current_leader.map(|id| (metrics.current_term, id))
        });
        if let Some((term, leader)) = leads.filter(|_| leads != self.led) {
            self.led = leads;
            self.member.leader_changes.fetch_add(1, Ordering::Relaxed);
            if leader == *self.member.raft.node_id() {
                *self.member.leads_since.lock() = Some((term, runtime::now()));
            }
        }
    }

    /// While this member leads, records which followers advance.
    fn observe(&mut self) {
        let (followers, now) = (&mut self.followers, runtime::now());
        with_metrics(&self.member.raft, |metrics| match &metrics.replication {
            None => followers.clear(),
            Some(replication) => {
                followers.retain(|id, _| replication.contains_key(id));
                for (id, matched) in replication.iter().filter(|(id, _)| **id != metrics.id) {
                    let matched = matched.as_ref().map(engine_log_id);
                    let known = followers.entry(*id).or_insert((matched, now));
                    if known.0 != matched {
                        *known = (matched, now);
                    }
                }
            }
        });
    }

    /// The log after this index is needed by a follower that is catching up, by a snapshot's receiver,
    /// or for the history of changes.
    fn held(&self) -> Option<u64> {
        let now = runtime::now();
        let live = self.followers.values().filter(|(_, advanced)| now - *advanced < CATCHING_UP);
        let matched = live.filter_map(|(matched, _)| matched.map(|id| id.index));
        let pinned = self.member.pinned.holds_log_after().map(|id| id.index);
        matched.chain(pinned).chain(self.member.history.held_after()).min()
    }
}
