//! What goes on beside replication: checkpoints, purging the log by size, letting go of what came to nothing, and
//! noticing that the engine has failed.
//!
//! What holds here: only entries that are applied and covered by a checkpoint are purged, and none that a snapshot
//! transfer's receiver will need next.

use crate::GROUP;
use crate::config::ReplicaConfig;
use crate::network::SnapshotReceiver;
use crate::progress::Progress;
use crate::runtime;
use crate::state_machine::PinnedSnapshot;
use crate::types::Raft;
use cairn_engine::{Engine, LogBounds, LogId};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What maintenance looks after. It ends when the replica does.
pub(crate) struct Maintained {
    pub(crate) engine: Engine,
    pub(crate) raft: Raft,
    pub(crate) progress: Arc<Progress>,
    pub(crate) pinned: PinnedSnapshot,
    pub(crate) receiver: Arc<SnapshotReceiver>,
    pub(crate) config: ReplicaConfig,
}

/// When the last checkpoint was asked for.
#[derive(Default)]
struct Asked {
    /// Bytes of log applied by then.
    applied_bytes: u64,
    /// The newest checkpointed entry by then, while that checkpoint is under way.
    pending: Option<Option<LogId>>,
}

/// Looks after the replica until it is gone or `stopped` says so.
pub(crate) async fn run(maintained: Weak<Maintained>, stop: impl Fn() -> bool + Send + 'static) {
    let mut asked = Asked::default();
    loop {
        let Some(pause) = maintained.upgrade().map(|it| Duration::from_millis(it.config.maintenance_ms))
        else {
            return;
        };
        runtime::sleep(pause).await;
        let Some(maintained) = maintained.upgrade() else {
            return;
        };
        if stop() {
            return;
        }
        if let Some(reason) = maintained.engine.status().failed {
            tracing::error!(node = %maintained.raft.node_id(), reason, "storage failed; replication stops");
            maintained.raft.shutdown().await.ok();
            return;
        }
        maintained.receiver.expire().await;
        if maintained.tend(&mut asked).await.is_err() {
            return;
        }
    }
}

impl Maintained {
    async fn tend(&self, asked: &mut Asked) -> Result<(), ()> {
        let checkpointed = self.progress.last_checkpointed();
        if asked.pending.is_some_and(|before| before != checkpointed) {
            asked.pending = None;
        }
        let bounds = self.engine.log_bounds(GROUP);
        let purgeable = purge_target(&bounds, self.engine.log_bytes(GROUP), &self.config);
        if asked.pending.is_none() && self.wants_checkpoint(asked, checkpointed, purgeable) {
            *asked = Asked { applied_bytes: self.progress.applied_bytes(), pending: Some(checkpointed) };
            self.raft.trigger().snapshot().await.map_err(drop)?;
        }
        if let Some(target) = purgeable {
            let covered = checkpointed.map(|id| id.index);
            let held = self.pinned.holds_log_after().map(|id| id.index);
            let through = [covered, held].into_iter().flatten().fold(target, u64::min);
            if covered.is_some() && bounds.purged.is_none_or(|purged| purged.index < through) {
                self.raft.trigger().purge_log(through).await.map_err(drop)?;
            }
        }
        Ok(())
    }

    /// After so many bytes; when the journal fills up; when the log is too large and only a checkpoint lets it be purged.
    fn wants_checkpoint(&self, asked: &Asked, checkpointed: Option<LogId>, purgeable: Option<u64>) -> bool {
        let applied = self.engine.applied(GROUP);
        if applied.is_none() || applied <= checkpointed {
            return false;
        }
        let status = self.engine.status();
        self.progress.applied_bytes() - asked.applied_bytes >= self.config.checkpoint_bytes
            || status.journal_used_blocks.saturating_mul(100)
                >= status.journal_blocks.saturating_mul(self.config.checkpoint_journal_percent)
            || purgeable > checkpointed.map(|id| id.index)
    }
}

/// The index through which the log should go so that about as much is kept as is to be retained; `None` while it is
/// smaller than that by less than an eighth. Bytes are taken to be spread evenly over the entries.
fn purge_target(bounds: &LogBounds, bytes: u64, config: &ReplicaConfig) -> Option<u64> {
    let last = bounds.last?.index;
    let entries =
        last.saturating_add(1) - bounds.purged.map_or(0, |id| id.index.saturating_add(1)).min(last + 1);
    let by_bytes = match bytes {
        0 => entries,
        _ => (u128::from(entries) * u128::from(config.log_retain_bytes) / u128::from(bytes)) as u64,
    };
    let keep = by_bytes.min(config.log_retain_entries);
    let surplus = entries.saturating_sub(keep);
    (surplus > keep / 8).then(|| last.saturating_sub(keep))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_engine::Mode;
    use std::collections::BTreeMap;

    fn config(bytes: u64, entries: u64) -> ReplicaConfig {
        let mut config = ReplicaConfig::new(Mode::Device, BTreeMap::new());
        (config.log_retain_bytes, config.log_retain_entries) = (bytes, entries);
        config
    }

    fn bounds(purged: Option<u64>, last: Option<u64>) -> LogBounds {
        let id = |index| LogId { term: 1, index };
        LogBounds { purged: purged.map(id), last: last.map(id) }
    }

    #[test]
    fn a_log_smaller_than_what_is_retained_is_left_alone() {
        assert_eq!(purge_target(&bounds(None, None), 0, &config(1000, 100)), None);
        assert_eq!(purge_target(&bounds(None, Some(99)), 1000, &config(1000, 100)), None);
    }

    #[test]
    fn a_log_with_too_many_bytes_loses_its_beginning() {
        // 100 entries of 20 bytes, of which 1000 bytes are kept: 50 entries, 50..=99.
        assert_eq!(purge_target(&bounds(None, Some(99)), 2000, &config(1000, 100)), Some(49));
    }

    #[test]
    fn a_log_with_too_many_entries_loses_its_beginning() {
        assert_eq!(purge_target(&bounds(Some(99), Some(299)), 200, &config(1000, 100)), Some(199));
    }

    #[test]
    fn a_small_surplus_waits_until_it_is_worth_a_purge() {
        assert_eq!(purge_target(&bounds(None, Some(104)), 105, &config(1000, 100)), None);
    }

    #[test]
    fn an_empty_purged_log_has_nothing_to_lose() {
        assert_eq!(purge_target(&bounds(Some(9), Some(9)), 0, &config(1000, 100)), None);
    }
}
