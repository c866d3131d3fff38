//! The state machine's progress: for readers that wait for it, and for maintenance.

use super::state_machine::identities::Identities;
use super::state_machine::image::{Image, UnsafeRecoveries};
use crate::core::ids::NodeId;
use crate::core::runtime::{self, WatchReceiver, WatchSender};
use cairn_engine::{BootEpoch, LogId};
use openraft_rt::{WatchReceiver as _, WatchSender as _};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Shared between the state machine and the parts that read its progress.
pub(crate) struct Progress {
    applied: WatchSender<Option<LogId>>,
    watch: WatchReceiver<Option<LogId>>,
    /// The newest entry that a checkpoint taken by this process covers, and the bytes written
    /// before it began.
    checkpointed: Mutex<(Option<LogId>, u64)>,
    /// Checkpoints under way.
    building: AtomicUsize,
    unsafe_recoveries: Mutex<UnsafeRecoveries>,
    identities: Identities,
}

/// A checkpoint under way. Dropping the guard ends it, done or not.
pub(crate) struct CheckpointGuard {
    progress: Arc<Progress>,
    written_bytes: u64,
}

impl CheckpointGuard {
    /// The checkpoint covers everything up to `through`.
    pub(crate) fn done(&self, through: Option<LogId>) {
        self.progress.checkpointed(through, self.written_bytes);
    }
}

impl Drop for CheckpointGuard {
    fn drop(&mut self) {
        self.progress.building.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Progress {
    /// The state machine keeps `identities` up to date through [`Progress::publish_image`].
    pub(crate) fn new(identities: Identities) -> Progress {
        let (applied, watch) = runtime::watch(None);
        Progress {
            applied,
            watch,
            checkpointed: Mutex::new((None, 0)),
            building: AtomicUsize::new(0),
            unsafe_recoveries: Mutex::default(),
            identities,
        }
    }

    /// Everything up to `through` is visible.
    pub(crate) fn applied(&self, through: Option<LogId>) {
        self.applied.send(through).ok();
    }

    /// Publishes the image's unsafe recoveries, removed identities and boot epochs.
    pub(crate) fn publish_image(&self, image: &Image) {
        self.identities.set_logged(&image.boot_epochs, &image.removed);
        *self.unsafe_recoveries.lock() = image.unsafe_recoveries;
    }

    pub(crate) fn unsafe_recoveries(&self) -> UnsafeRecoveries {
        *self.unsafe_recoveries.lock()
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

    /// A snapshot was installed; it ended with a checkpoint.
    pub(crate) fn installed(&self, through: LogId) {
        self.checkpointed(Some(through), 0);
        self.applied(Some(through));
    }

    fn checkpointed(&self, through: Option<LogId>, written_bytes: u64) {
        let mut checkpointed = self.checkpointed.lock();
        *checkpointed = (checkpointed.0.max(through), checkpointed.1.max(written_bytes));
    }

    /// A checkpoint of the present applied state begins; `written_bytes` were written before it.
    pub(crate) fn building(self: &Arc<Self>, written_bytes: u64) -> CheckpointGuard {
        self.building.fetch_add(1, Ordering::SeqCst);
        CheckpointGuard { progress: self.clone(), written_bytes }
    }

    pub(crate) fn is_building(&self) -> bool {
        self.building.load(Ordering::SeqCst) > 0
    }

    /// How many of `written_bytes` were written after the last checkpoint began.
    pub(crate) fn bytes_since_checkpoint(&self, written_bytes: u64) -> u64 {
        written_bytes.saturating_sub(self.checkpointed.lock().1)
    }

    pub(crate) fn last_checkpointed(&self) -> Option<LogId> {
        self.checkpointed.lock().0
    }

    /// Returns when entry `index` is applied. Never returns if the state machine ends before.
    pub(crate) async fn wait_applied(&self, index: u64) {
        let mut watch = self.watch.clone();
        loop {
            // A snapshot may skip the entry, so any later one will do.
            if watch.borrow_and_update().is_some_and(|applied| applied.index >= index) {
                return;
            }
            if watch.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}
