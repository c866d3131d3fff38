//! When a checkpoint is due, and how far the log is purged.
//!
//! What holds here: only entries that are applied and covered by a checkpoint are purged. Entries
//! that a follower will need next while it catches up are kept, and so are those whose changes are
//! kept, unless the disk fills up meanwhile or an entry before them is damaged for good.

use crate::core::config::ReplicaConfig;
use crate::storage::history::Retention;
use cairn_engine::{EngineStatus, LogBounds, LogId};
use std::time::Duration;

/// What one turn of the maintenance sees.
pub(super) struct Seen {
    pub(super) status: EngineStatus,
    pub(super) bounds: LogBounds,
    /// What the newest checkpoint covers.
    pub(super) checkpointed: Option<LogId>,
    pub(super) applied: Option<LogId>,
    pub(super) log_bytes: u64,
    /// The engine has freed what entries up to here refer to: they must go.
    pub(super) due: Option<LogId>,
    /// An entry up to here is unreadable for good.
    pub(super) unreadable_through: Option<u64>,
    /// The log after this index is needed by a follower, or for the history of changes.
    pub(super) held: Option<u64>,
    /// A write was refused since the last purge because a checkpoint area was full.
    pub(super) refused: bool,
    /// The last checkpoint to relieve them is long enough ago.
    pub(super) may_relieve_data: bool,
    pub(super) may_relieve_index: bool,
}

impl Seen {
    fn is_full(&self) -> bool {
        self.status.free_bytes < self.status.data_bytes / 8
    }

    /// Whether the log gives way. Small values take whole blocks, so a log within its byte limit may
    /// still fill the data area. A write that was refused because a checkpoint area was full may fit
    /// once the log is purged.
    fn is_tight(&self) -> bool {
        let status = &self.status;
        status.free_bytes < status.data_bytes / 4
            || status.index_log_bytes > status.index_capacity_bytes / 4
            || self.refused
    }

    /// The last unreadable entry that is still in the log.
    fn unreadable(&self) -> Option<u64> {
        let purged = self.bounds.purged.map(|purged| purged.index);
        self.unreadable_through.filter(|index| Some(*index) > purged)
    }
}

/// What a checkpoint relieves, beside being due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Relief {
    pub(super) data: bool,
    pub(super) index: bool,
}

/// So many entries are kept beside few keys, too: a follower that is away for seconds needs no snapshot.
const RETAINED_ENTRIES_LEAST: u64 = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purge {
    Through(u64),
    /// Nothing has to be, or nothing may be before another checkpoint.
    Later,
    /// All that may be is purged.
    NoMore,
}

/// The configured sizes, reduced on a small disk: the log may take a quarter of the data area at
/// most. Its records may take an eighth of a checkpoint area, and are checkpointed in time for
/// that.
pub(super) struct Limits {
    retain_bytes: u64,
    retain_index_bytes: u64,
    retain_entries: u64,
    history_bytes: u64,
    history_time: Duration,
    /// A checkpoint is due after so many bytes.
    checkpoint_bytes: u64,
}

impl Limits {
    pub(super) fn new(
        config: &ReplicaConfig,
        data_bytes: u64,
        index_capacity_bytes: u64,
    ) -> Limits {
        Limits {
            retain_bytes: config.log_retain_bytes.min(data_bytes / 8),
            retain_index_bytes: index_capacity_bytes / 8,
            retain_entries: config.log_retain_entries,
            history_bytes: config.history_retain_bytes.min(data_bytes / 8),
            history_time: config.history_retain_time,
            checkpoint_bytes: config.checkpoint_bytes,
        }
    }

    /// How much of the history of changes may be kept. The log waits for it, and each checkpoint holds
    /// what the log does. So it has no more entries than the log may have, beside so many keys. Beyond
    /// the other bounds the log would be tight, and let go all of it.
    pub(super) fn history(&self, bounds: &LogBounds, index_bytes: u64, keys: u64) -> Retention {
        Retention {
            bytes: self.history_bytes,
            entries: self.most_entries(bounds, index_bytes, keys),
            time: self.history_time,
        }
    }

    /// Whether a checkpoint should begin now, and what it relieves then.
    pub(super) fn wants_checkpoint(&self, seen: &Seen) -> Option<Relief> {
        let uncovered = seen.applied > seen.checkpointed;
        let relief = Relief {
            data: seen.is_full() && seen.may_relieve_data && uncovered,
            index: seen.refused && seen.may_relieve_index && uncovered,
        };
        let covered = seen.checkpointed.map(|covered| covered.index);
        let wanted = relief.data
            || relief.index
            || seen.due > seen.checkpointed
            || seen.unreadable() > covered
            || uncovered && self.is_due(seen);
        (wanted && !seen.status.checkpoint_running).then_some(relief)
    }

    /// After a number of bytes, or when the log is twice as long as it should be, since it can be
    /// purged only as far as a checkpoint covers it. The engine takes another one when the journal
    /// fills up. Among many keys a longer log is cheaper than a checkpoint: an entry in memory costs
    /// about what two keys do.
    fn is_due(&self, seen: &Seen) -> bool {
        let status = &seen.status;
        status.is_checkpoint_due(self.checkpoint_bytes)
            || entries(&seen.bounds) > self.retain_entries.saturating_mul(2).max(status.keys / 2)
            || status.index_log_bytes > self.retain_index_bytes / 2 * 3
    }

    /// How far the log should be purged now.
    pub(super) fn purge_through(&self, seen: &Seen) -> Purge {
        let (Some(target), Some(covered)) = (self.target(seen), seen.checkpointed) else {
            return Purge::Later;
        };
        let through = covered.index.min(target);
        match seen.bounds.purged.is_none_or(|purged| purged.index < through) {
            true => Purge::Through(through),
            false if seen.applied > seen.checkpointed => Purge::Later,
            false => Purge::NoMore,
        }
    }

    /// Up to where a checkpoint that begins now leaves entries out: they are purged once it covers them.
    pub(super) fn leave_out(&self, seen: &Seen) -> Option<u64> {
        let target = self.target(seen)?;
        seen.applied.map(|applied| applied.index.min(target))
    }

    /// How far the log should be purged, if all of it were covered.
    fn target(&self, seen: &Seen) -> Option<u64> {
        let tight = seen.is_tight();
        let surplus = match tight {
            true => seen.bounds.last.map(|last| last.index),
            false => {
                let status = &seen.status;
                let index_bytes = status.index_log_bytes;
                self.purge_target(&seen.bounds, seen.log_bytes, index_bytes, status.keys)
            }
        };
        let held = seen.held.filter(|_| !tight).unwrap_or(u64::MAX);
        // A due purge does not wait for followers: what it removes was freed, and may be unreadable.
        let due = seen.unreadable().max(seen.due.map(|due| due.index));
        surplus.map(|surplus| surplus.min(held)).max(due)
    }

    /// The index through which to purge so that about the configured amount is kept; `None` while
    /// the surplus is below an eighth. Assumes that bytes are spread evenly over the entries.
    fn purge_target(
        &self,
        bounds: &LogBounds,
        bytes: u64,
        index_bytes: u64,
        keys: u64,
    ) -> Option<u64> {
        let (last, entries) = (bounds.last?.index, entries(bounds));
        let most = self.most_entries(bounds, index_bytes, keys);
        let keep = share(entries, self.retain_bytes, bytes).min(most);
        let surplus = entries.saturating_sub(keep);
        (surplus > keep / 8).then(|| last.saturating_sub(keep))
    }

    /// How many entries are kept, however few bytes they have.
    fn most_entries(&self, bounds: &LogBounds, index_bytes: u64, keys: u64) -> u64 {
        share(entries(bounds), self.retain_index_bytes, index_bytes)
            .min(self.retain_entries)
            // A snapshot sends each key once: a follower that lacks more entries gets one for less.
            .min(keys.max(RETAINED_ENTRIES_LEAST))
    }
}

/// How many of the entries, which take so many bytes, take no more than the limit.
fn share(entries: u64, limit: u64, bytes: u64) -> u64 {
    match bytes {
        0 => entries,
        _ => (u128::from(entries) * u128::from(limit) / u128::from(bytes)) as u64,
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
    use crate::storage::tests::engine;
    use cairn_engine::Mode;
    use std::collections::BTreeMap;

    fn limits(config: &ReplicaConfig, data_bytes: u64) -> Limits {
        Limits::new(config, data_bytes, 8000)
    }

    fn target(bounds: LogBounds, log_bytes: u64) -> Option<u64> {
        let mut config = ReplicaConfig::new(Mode::Device, BTreeMap::new());
        (config.log_retain_bytes, config.log_retain_entries) = (1000, 100);
        limits(&config, 1 << 30).purge_target(&bounds, log_bytes, log_bytes, 0)
    }

    fn bounds(purged: Option<u64>, last: Option<u64>) -> LogBounds {
        LogBounds { purged: purged.map(id), last: last.map(id) }
    }

    fn id(index: u64) -> LogId {
        LogId { term: 1, index }
    }

    /// 200 entries, half of which are too many. A checkpoint covers those up to 50, and all are
    /// applied.
    async fn seen() -> Seen {
        let folder = tempfile::tempdir().unwrap();
        Seen {
            status: engine(&folder).await.status(),
            bounds: bounds(None, Some(199)),
            checkpointed: Some(id(50)),
            applied: Some(id(199)),
            log_bytes: 0,
            due: None,
            unreadable_through: None,
            held: None,
            refused: false,
            may_relieve_data: true,
            may_relieve_index: true,
        }
    }

    fn of(seen: &Seen) -> (Option<Relief>, Purge) {
        let mut config = ReplicaConfig::new(Mode::Device, BTreeMap::new());
        config.log_retain_entries = 100;
        let limits = limits(&config, 1 << 30);
        (limits.wants_checkpoint(seen), limits.purge_through(seen))
    }

    const DUE: Option<Relief> = Some(Relief { data: false, index: false });

    #[tokio::test]
    async fn what_no_checkpoint_covers_is_never_purged() {
        let seen = seen().await;
        let through = |change: &dyn Fn(&mut Seen)| {
            let mut seen = Seen { status: seen.status.clone(), ..seen };
            change(&mut seen);
            of(&seen).1
        };
        assert_eq!(through(&|_| ()), Purge::Through(50));
        assert_eq!(through(&|seen| seen.refused = true), Purge::Through(50));
        assert_eq!(through(&|seen| seen.status.free_bytes = 0), Purge::Through(50));
        assert_eq!(through(&|seen| seen.due = Some(id(150))), Purge::Through(50));
        assert_eq!(through(&|seen| seen.unreadable_through = Some(150)), Purge::Through(50));
        assert_eq!(through(&|seen| seen.checkpointed = None), Purge::Later);
    }

    #[tokio::test]
    async fn a_followers_next_entries_stay_unless_the_disk_fills_or_they_are_gone_already() {
        let mut seen = seen().await;
        seen.held = Some(20);
        assert_eq!(of(&seen).1, Purge::Through(20));
        seen.due = Some(id(30));
        assert_eq!(of(&seen).1, Purge::Through(30), "what was freed");
        seen.unreadable_through = Some(40);
        assert_eq!(of(&seen).1, Purge::Through(40), "what nobody can read");
        seen.refused = true;
        assert_eq!(of(&seen).1, Purge::Through(50), "what takes a checkpoint's space");
    }

    #[tokio::test]
    async fn a_refusal_counts_until_nothing_more_can_be_purged() {
        let mut seen = seen().await;
        seen.bounds = bounds(Some(50), Some(199));
        assert_eq!(of(&seen), (None, Purge::Later), "another checkpoint covers more");
        seen.checkpointed = seen.applied;
        seen.bounds = bounds(Some(199), Some(199));
        seen.refused = true;
        assert_eq!(of(&seen), (None, Purge::NoMore));
    }

    #[tokio::test]
    async fn a_checkpoint_begins_for_what_it_lets_go_and_none_beside_another() {
        let plain = seen().await;
        let checkpoint = |change: &dyn Fn(&mut Seen)| {
            let mut seen = Seen { status: plain.status.clone(), ..plain };
            change(&mut seen);
            let wanted = of(&seen).0;
            seen.status.checkpoint_running = true;
            assert_eq!(of(&seen).0, None);
            wanted
        };
        assert_eq!(checkpoint(&|_| ()), None);
        assert_eq!(checkpoint(&|seen| seen.due = Some(id(51))), DUE);
        assert_eq!(checkpoint(&|seen| seen.due = Some(id(50))), None);
        assert_eq!(checkpoint(&|seen| seen.unreadable_through = Some(51)), DUE);
        assert_eq!(checkpoint(&|seen| seen.unreadable_through = Some(50)), None);
        assert_eq!(checkpoint(&|seen| seen.bounds = bounds(None, Some(201))), DUE);
        let full = |seen: &mut Seen| seen.status.free_bytes = 0;
        assert_eq!(checkpoint(&full), Some(Relief { data: true, index: false }));
        let again = |seen: &mut Seen| (seen.status.free_bytes, seen.may_relieve_data) = (0, false);
        assert_eq!(checkpoint(&again), None, "the last one is not long ago");
        let refused = |seen: &mut Seen| seen.refused = true;
        assert_eq!(checkpoint(&refused), Some(Relief { data: false, index: true }));
        let covered = |seen: &mut Seen| (seen.refused, seen.checkpointed) = (true, seen.applied);
        assert_eq!(checkpoint(&covered), None, "it would cover nothing more");
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
    fn a_log_that_is_longer_than_the_state_loses_its_beginning() {
        let mut config = ReplicaConfig::new(Mode::Device, BTreeMap::new());
        config.log_retain_bytes = 1 << 30;
        config.log_retain_entries = 500_000;
        let limits = Limits::new(&config, 1 << 40, 1 << 40);
        let log = bounds(None, Some(599_999));
        let target = |keys| limits.purge_target(&log, 1000, 1000, keys);
        assert_eq!(target(0), Some(499_999), "100,000 stay beside few keys, too");
        assert_eq!(target(300_000), Some(299_999));
        assert_eq!(target(10_000_000), Some(99_999));
    }

    /// They go as soon as a checkpoint covers them, so the next one does not need them.
    #[tokio::test]
    async fn what_a_checkpoint_would_let_go_is_left_out_of_it_as_far_as_it_is_applied() {
        let mut seen = seen().await;
        let left_out = |seen: &Seen| {
            let mut config = ReplicaConfig::new(Mode::Device, BTreeMap::new());
            config.log_retain_entries = 100;
            limits(&config, 1 << 30).leave_out(seen)
        };
        assert_eq!(left_out(&seen), Some(99));
        seen.held = Some(20);
        assert_eq!(left_out(&seen), Some(20), "a follower needs what comes then");
        seen.refused = true;
        assert_eq!(left_out(&seen), Some(199), "what takes a checkpoint's space");
        seen.applied = Some(id(70));
        assert_eq!(left_out(&seen), Some(70));
        seen.bounds = bounds(None, Some(80));
        (seen.refused, seen.held) = (false, None);
        assert_eq!(left_out(&seen), None, "all of it is retained");
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
            |index| limits(&config, 1 << 30).purge_target(&bounds(None, Some(99)), 2000, index, 0);
        assert_eq!((target(2000), target(1000)), (Some(49), None));
    }

    #[test]
    fn on_a_small_disk_less_is_retained() {
        let config = ReplicaConfig::new(Mode::Device, BTreeMap::new());
        let limits = limits(&config, 80 << 20);
        assert_eq!(limits.retain_bytes, 10 << 20);
    }

    /// Beyond that the log would be tight, and let go of everything, also of what followers need.
    #[test]
    fn the_history_keeps_no_more_than_a_log_may_have() {
        let mut config = ReplicaConfig::new(Mode::Device, BTreeMap::new());
        (config.log_retain_entries, config.history_retain_bytes) = (500, 1000);
        let log = bounds(None, Some(999));
        let kept = |data_bytes, index_log_bytes| {
            limits(&config, data_bytes).history(&log, index_log_bytes, 0)
        };
        let Retention { bytes, entries, time } = kept(1 << 30, 0);
        assert_eq!((bytes, entries, time), (1000, 500, config.history_retain_time));
        assert_eq!(kept(80, 0).bytes, 10, "an eighth of a small data area");
        // Twice, and four times, as much as an eighth of a checkpoint area.
        assert_eq!(kept(1 << 30, 2000).entries, 500);
        assert_eq!(kept(1 << 30, 4000).entries, 250);
    }

    /// The story: beside few keys the log kept 100,000 entries, and the history five times as many. The
    /// log waited for it, and so each checkpoint held all of them.
    #[test]
    fn the_history_keeps_no_more_entries_beside_few_keys_than_the_log_does() {
        let mut config = ReplicaConfig::new(Mode::Device, BTreeMap::new());
        config.log_retain_bytes = 1 << 30;
        config.log_retain_entries = 500_000;
        let limits = Limits::new(&config, 1 << 40, 1 << 40);
        let log = bounds(None, Some(999_999));
        for (keys, entries) in [(0, 100_000), (300_000, 300_000), (10_000_000, 500_000)] {
            assert_eq!(limits.history(&log, 1000, keys).entries, entries, "{keys} keys");
            let target = limits.purge_target(&log, 1000, 1000, keys);
            assert_eq!(target, Some(999_999 - entries), "the log beside {keys} keys");
        }
    }

    #[test]
    fn an_empty_purged_log_has_nothing_to_lose() {
        assert_eq!(target(bounds(Some(9), Some(9)), 0), None);
    }
}
