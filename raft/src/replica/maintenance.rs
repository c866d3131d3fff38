//! Maintenance beside replication: checkpoints, purging the log by size, dropping expired snapshot
//! transfers, and stopping when the engine has failed.
//!
//! What holds here: only entries that are applied and covered by a checkpoint are purged. Entries
//! that a follower will need next while it catches up are kept, unless the disk fills up meanwhile
//! or an entry before them is damaged for good.

use super::serving;
use crate::core::config::ReplicaConfig;
use crate::core::ids::{GROUP, NodeId};
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime;
use crate::core::types::engine_log_id;
use crate::durability::leadership::To;
use crate::durability::{LocalMember, leadership};
use cairn_engine::{EngineStatus, LogBounds, LogId};
use openraft::ServerState;
use std::collections::BTreeMap;
use std::sync::Arc;
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
    /// When a checkpoint was last taken to free the data area, and a checkpoint area.
    data_relieved: runtime::Instant,
    index_relieved: runtime::Instant,
    /// How many refusals for a full checkpoint area are already dealt with.
    refusals: u64,
}

/// Each follower's position, and when it last advanced.
type Followers = BTreeMap<NodeId, (Option<LogId>, runtime::Instant)>;

impl Maintenance {
    pub(super) fn new(member: Arc<LocalMember>) -> Maintenance {
        let (followers, now) = (Followers::new(), runtime::now());
        Maintenance { member, followers, data_relieved: now, index_relieved: now, refusals: 0 }
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
            if self.run_once().await.is_err() {
                return;
            }
        }
    }

    async fn run_once(&mut self) -> Result<(), ()> {
        self.observe();
        let LocalMember { raft, config, engine, repairer, .. } = &*self.member;
        let checkpointed = engine.checkpointed(GROUP);
        let bounds = engine.log_bounds(GROUP);
        self.member.pinned.give_up_without_log(bounds.purged);
        let status = engine.status();
        let limits = Limits::new(config, status.data_bytes, status.index_capacity_bytes);
        // Small values take whole blocks, so a log within its byte limit may still fill the data
        // area. A write that was refused because a checkpoint area was full may fit once the log is
        // purged.
        let refused = status.index_refusals > self.refusals;
        let tight = status.free_bytes < status.data_bytes / 4
            || status.index_log_bytes > status.index_capacity_bytes / 4
            || refused;
        let full = status.free_bytes < status.data_bytes / 8;
        let purgeable = match tight {
            true => bounds.last.map(|last| last.index),
            false => limits.purge_target(&bounds, engine.log_bytes(GROUP), status.index_log_bytes),
        };
        let due = engine.purge_due(GROUP);
        let purgeable_entry = repairer
            .purgeable_through()
            .filter(|index| bounds.purged.is_none_or(|purged| purged.index < *index));
        let (now, applied) = (runtime::now(), engine.applied(GROUP));
        let relief =
            full && self.data_relieved + SPACE_CHECKPOINT_INTERVAL <= now && applied > checkpointed;
        let index_relief = refused
            && self.index_relieved + INDEX_CHECKPOINT_INTERVAL <= now
            && applied > checkpointed;
        if !status.checkpoint_running
            && (relief
                || index_relief
                || due > checkpointed
                || purgeable_entry
                    .is_some_and(|index| checkpointed.is_none_or(|covered| covered.index < index))
                || self.wants_checkpoint(&status, &limits, checkpointed, &bounds))
        {
            if relief {
                self.data_relieved = now;
            }
            if index_relief {
                self.index_relieved = now;
            }
            // If it fails, so has the engine, which the next turn sees.
            engine.begin_checkpoint().ok();
        }
        let held = self.held().filter(|_| !tight).unwrap_or(u64::MAX);
        // A due purge does not wait for followers: what it removes was freed, and may be
        // unreadable.
        let target = purgeable
            .map(|target| target.min(held))
            .max(purgeable_entry)
            .max(due.map(|due| due.index));
        if let (Some(target), Some(covered)) = (target, checkpointed) {
            let through = covered.index.min(target);
            if bounds.purged.is_none_or(|purged| purged.index < through) {
                // openraft purges no further than its newest snapshot.
                let snapshot = with_metrics(raft, |metrics| metrics.snapshot.map(|id| id.index()));
                match snapshot >= Some(through) {
                    true => raft.trigger().purge_log(through).await.map_err(drop)?,
                    false => return raft.trigger().snapshot().await.map_err(drop),
                }
            } else if applied > checkpointed {
                return Ok(());
            }
            // Purged, or nothing more can be: a later refusal counts again.
            self.refusals = status.index_refusals;
        }
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

    /// The log after this index is needed by a follower that is catching up, or by a snapshot's
    /// receiver.
    fn held(&self) -> Option<u64> {
        let now = runtime::now();
        let live = self.followers.values().filter(|(_, advanced)| now - *advanced < CATCHING_UP);
        let matched = live.filter_map(|(matched, _)| matched.map(|id| id.index));
        matched.chain(self.member.pinned.holds_log_after().map(|id| id.index)).min()
    }

    /// A checkpoint is due after a number of bytes, or when the log is twice as long as it should
    /// be, since it can be purged only as far as a checkpoint covers it. The engine takes another
    /// one when the journal fills up.
    /// Among many keys a longer log is cheaper than a checkpoint: an entry in memory costs about
    /// what two keys do.
    fn wants_checkpoint(
        &self,
        status: &EngineStatus,
        limits: &Limits,
        checkpointed: Option<LogId>,
        bounds: &LogBounds,
    ) -> bool {
        let applied = self.member.engine.applied(GROUP);
        if applied.is_none() || applied <= checkpointed {
            return false;
        }
        status.is_checkpoint_due(self.member.config.checkpoint_bytes)
            || entries(bounds) > limits.retain_entries.saturating_mul(2).max(status.keys / 2)
            || status.index_log_bytes > limits.retain_index_bytes / 2 * 3
    }
}

/// The configured sizes, reduced on a small disk: the log may take a quarter of the data area at
/// most. Its records may take an eighth of a checkpoint area, and are checkpointed in time for
/// that.
struct Limits {
    retain_bytes: u64,
    retain_index_bytes: u64,
    retain_entries: u64,
}

impl Limits {
    fn new(config: &ReplicaConfig, data_bytes: u64, index_capacity_bytes: u64) -> Limits {
        Limits {
            retain_bytes: config.log_retain_bytes.min(data_bytes / 8),
            retain_index_bytes: index_capacity_bytes / 8,
            retain_entries: config.log_retain_entries,
        }
    }

    /// The index through which to purge so that about the configured amount is kept; `None` while
    /// the surplus is below an eighth. Assumes that bytes are spread evenly over the entries.
    fn purge_target(&self, bounds: &LogBounds, bytes: u64, index_bytes: u64) -> Option<u64> {
        let (last, entries) = (bounds.last?.index, entries(bounds));
        let within = |limit: u64, bytes: u64| match bytes {
            0 => entries,
            _ => (u128::from(entries) * u128::from(limit) / u128::from(bytes)) as u64,
        };
        let keep = within(self.retain_bytes, bytes)
            .min(within(self.retain_index_bytes, index_bytes))
            .min(self.retain_entries);
        let surplus = entries.saturating_sub(keep);
        (surplus > keep / 8).then(|| last.saturating_sub(keep))
    }
}

/// How many entries the log holds.
fn entries(bounds: &LogBounds) -> u64 {
    let end = bounds.last.map_or(0, |id| id.index.saturating_add(1));
    end.saturating_sub(bounds.purged.map_or(0, |id| id.index.saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_engine::Mode;
    use std::collections::BTreeMap;

    fn limits(config: &ReplicaConfig, data_bytes: u64) -> Limits {
        Limits::new(config, data_bytes, 8000)
    }

    fn target(bounds: LogBounds, log_bytes: u64) -> Option<u64> {
        let mut config = ReplicaConfig::new(Mode::Device, BTreeMap::new());
        (config.log_retain_bytes, config.log_retain_entries) = (1000, 100);
        limits(&config, 1 << 30).purge_target(&bounds, log_bytes, log_bytes)
    }

    fn bounds(purged: Option<u64>, last: Option<u64>) -> LogBounds {
        let id = |index| LogId { term: 1, index };
        LogBounds { purged: purged.map(id), last: last.map(id) }
    }

    #[test]
    fn a_log_smaller_than_what_is_retained_is_left_alone() {
        assert_eq!(target(bounds(None, None), 0), None);
        assert_eq!(target(bounds(None, Some(99)), 1000), None);
    }

    #[test]
    fn a_log_with_too_many_bytes_loses_its_beginning() {
        // 100 entries of 20 bytes, of which 1000 bytes are kept: 50 entries, 50..=99.
        assert_eq!(target(bounds(None, Some(99)), 2000), Some(49));
    }

    #[test]
    fn a_log_with_too_many_entries_loses_its_beginning() {
        assert_eq!(target(bounds(Some(99), Some(299)), 200), Some(199));
    }

    #[test]
    fn a_small_surplus_waits_until_it_is_worth_a_purge() {
        assert_eq!(target(bounds(None, Some(104)), 105), None);
    }

    #[test]
    fn a_log_whose_records_fill_a_checkpoint_area_loses_its_beginning() {
        // An eighth of the area is 1000 bytes; 100 entries whose records take 2000.
        let mut config = ReplicaConfig::new(Mode::Device, BTreeMap::new());
        config.log_retain_bytes = 1 << 20;
        let target =
            |index| limits(&config, 1 << 30).purge_target(&bounds(None, Some(99)), 2000, index);
        assert_eq!((target(2000), target(1000)), (Some(49), None));
    }

    #[test]
    fn on_a_small_disk_less_is_retained() {
        let config = ReplicaConfig::new(Mode::Device, BTreeMap::new());
        let limits = limits(&config, 80 << 20);
        assert_eq!(limits.retain_bytes, 10 << 20);
    }

    #[test]
    fn an_empty_purged_log_has_nothing_to_lose() {
        assert_eq!(target(bounds(Some(9), Some(9)), 0), None);
    }
}
