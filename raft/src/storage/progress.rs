//! The state machine's progress, for those who wait for it.

use super::mode_in_force::ModeInForce;
use super::state_machine::identities::Identities;
use super::state_machine::image::Image;
use super::state_machine::recoveries::{RecoveryRecords, UnsafeRecoveries};
use crate::core::ids::NodeId;
use crate::core::runtime::{self, WatchReceiver, WatchSender};
use cairn_engine::{BootEpoch, LogId};
use openraft_rt::{WatchReceiver as _, WatchSender as _};
use parking_lot::Mutex;
use std::io;
use std::sync::{Arc, OnceLock};

/// Shared between the state machine and the parts that read its progress.
pub(crate) struct Progress {
    applied: WatchSender<Option<LogId>>,
    watch: WatchReceiver<Option<LogId>>,
    /// How many, and the records of the newest.
    unsafe_recoveries: Mutex<(UnsafeRecoveries, RecoveryRecords)>,
    identities: Identities,
    modes: Arc<ModeInForce>,
    failure: OnceLock<String>,
}

impl Progress {
    /// The state machine keeps `identities` and `modes` up to date through [`Progress::publish`].
    pub(crate) fn new(identities: Identities, modes: Arc<ModeInForce>) -> Progress {
        let (applied, watch) = runtime::watch(None);
        Progress {
            applied,
            watch,
            unsafe_recoveries: Mutex::default(),
            identities,
            modes,
            failure: OnceLock::new(),
        }
    }

    /// A snapshot through `index` is about to be installed, and this is its image.
    pub(crate) fn installs(&self, image: &Image, index: u64) {
        if image.mode.is_some() {
            self.modes.installs(index);
        }
    }

    /// Everything up to `through` is visible, and this is the image there.
    pub(crate) fn publish(&self, image: &Image, through: Option<LogId>) {
        self.identities.set_logged(&image.boot_epochs, &image.removed, image.version);
        *self.unsafe_recoveries.lock() = (image.unsafe_recoveries, image.recovery_records.clone());
        if let Some(through) = through {
            self.modes.applied(through.index, image.mode, image.mode_index);
        }
        self.applied.send(through).ok();
    }

    /// The state machine ends by this error. openraft may find only that it ended.
    pub(crate) fn failed(&self, error: &io::Error) {
        self.failure.set(error.to_string()).ok();
    }

    /// Why the state machine ended.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.get().cloned()
    }

    pub(crate) fn unsafe_recoveries(&self) -> UnsafeRecoveries {
        self.unsafe_recoveries.lock().0
    }

    /// Entries of the log at the newest unsafe recoveries; none if there was no unsafe recovery.
    pub(crate) fn recovered_entries(&self) -> Vec<LogId> {
        let known = self.unsafe_recoveries.lock();
        known.1.entries(known.0).collect()
    }

    /// Whether the log has an unsafe-recovery record of this term or a later one.
    pub(crate) fn unsafely_recovered_since(&self, term: u64) -> bool {
        let known = self.unsafe_recoveries();
        known.count > 0 && known.last_term >= term
    }

    /// Whether the record of this boot epoch is the member's latest that is applied.
    pub(crate) fn has_epoch(&self, member: NodeId, epoch: BootEpoch) -> bool {
        self.identities.is_latest(member, epoch)
    }

    /// Returns `true` when this entry is applied, and `false` when what is applied contradicts it: an
    /// unsafe recovery discarded what this member holds. Never returns if the state machine ends before.
    pub(crate) async fn wait_entry(&self, entry: LogId) -> bool {
        let mut watch = self.watch.clone();
        loop {
            let applied = *watch.borrow_and_update();
            if let Some(known) = holds(entry, applied) {
                return known;
            }
            if watch.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Returns when an entry behind this index is applied. Never returns if the state machine ends before.
    pub(crate) async fn wait_behind(&self, index: u64) {
        let mut watch = self.watch.clone();
        while watch.borrow_and_update().is_none_or(|applied| applied.index <= index) {
            if watch.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

/// Whether what is applied holds the entry, or contradicts it; `None`: it has not come to it.
fn holds(entry: LogId, applied: Option<LogId>) -> Option<bool> {
    // A snapshot may skip the entry, so any later one will do. Terms never fall along a log.
    let reached = applied.filter(|applied| applied.index >= entry.index);
    reached.map(|applied| applied.term >= entry.term)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::tests::engine;
    use cairn_engine::Mode;
    use futures::FutureExt;

    /// The story: a member that was away during an unsafe recovery had applied more entries than the new
    /// leader's log had. It took an index of that log for applied, and served what was discarded.
    #[tokio::test]
    async fn an_entry_is_not_applied_where_a_discarded_one_has_its_index() {
        let folder = tempfile::tempdir().unwrap();
        let modes = Arc::new(ModeInForce::new(engine(&folder).await, Mode::Replicated, None));
        let progress = Progress::new(Identities::default(), modes);
        let id = |term, index| LogId { term, index };
        let reached = |entry| progress.wait_entry(entry).now_or_never();
        assert_eq!(reached(id(1, 0)), None, "nothing is applied");
        progress.publish(&Image::default(), Some(id(5, 100)));
        assert_eq!(reached(id(5, 100)), Some(true));
        assert_eq!(reached(id(3, 60)), Some(true));
        assert_eq!(reached(id(8, 70)), Some(false), "the leader of term 8 has another entry 70");
        assert_eq!(reached(id(8, 101)), None);
        // A snapshot of that leader.
        progress.publish(&Image::default(), Some(id(8, 120)));
        assert_eq!(reached(id(8, 101)), Some(true));
    }

    #[tokio::test]
    async fn whoever_has_read_up_to_an_entry_waits_for_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let modes = Arc::new(ModeInForce::new(engine(&folder).await, Mode::Replicated, None));
        let progress = Progress::new(Identities::default(), modes);
        let mut behind = Box::pin(progress.wait_behind(7));
        let publish = |index| progress.publish(&Image::default(), Some(LogId { term: 1, index }));
        assert_eq!(futures::poll!(&mut behind), std::task::Poll::Pending, "nothing is applied");
        publish(7);
        assert_eq!(futures::poll!(&mut behind), std::task::Poll::Pending);
        publish(8);
        behind.await;
        assert_eq!(progress.wait_behind(6).now_or_never(), Some(()));
        assert_eq!(progress.wait_behind(8).now_or_never(), None);
    }

    /// Whoever took part in a leadership under a grant stays recovering until its own one is logged.
    #[tokio::test]
    async fn an_unsafe_recovery_of_an_earlier_term_is_none_of_this_one() {
        let folder = tempfile::tempdir().unwrap();
        let modes = Arc::new(ModeInForce::new(engine(&folder).await, Mode::Replicated, None));
        let progress = Progress::new(Identities::default(), modes);
        let since = || [0, 3, 4, 5].map(|term| progress.unsafely_recovered_since(term));
        assert_eq!(since(), [false; 4]);
        assert!(progress.recovered_entries().is_empty());
        let unsafe_recoveries = UnsafeRecoveries { count: 1, last_term: 4, last_index: 9 };
        progress.publish(&Image { unsafe_recoveries, ..Image::default() }, None);
        assert_eq!(since(), [true, true, true, false]);
        let entries = [LogId { term: 4, index: 8 }, LogId { term: 4, index: 9 }];
        assert_eq!(progress.recovered_entries(), entries, "of the record, and of its term");
    }
}
