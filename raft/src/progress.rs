//! How far the state machine is: for readers that wait for it, and for maintenance.

use crate::runtime::{self, WatchReceiver, WatchSender};
use cairn_engine::LogId;
use openraft_rt::{WatchReceiver as _, WatchSender as _};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Shared between the state machine and everybody who looks at it.
pub(crate) struct Progress {
    applied: WatchSender<Option<LogId>>,
    watch: WatchReceiver<Option<LogId>>,
    /// Bytes of log applied since the replica started.
    applied_bytes: AtomicU64,
    /// The newest entry that a checkpoint taken by this process covers.
    checkpointed: Mutex<Option<LogId>>,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        let (applied, watch) = runtime::watch(None);
        Progress { applied, watch, applied_bytes: AtomicU64::new(0), checkpointed: Mutex::new(None) }
    }

    /// Everything up to `through` is visible, `bytes` more of log than before.
    pub(crate) fn applied(&self, through: Option<LogId>, bytes: u64) {
        self.applied_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.applied.send(through).ok();
    }

    /// A snapshot was installed; it ended with a checkpoint.
    pub(crate) fn installed(&self, through: LogId) {
        self.checkpointed(Some(through));
        self.applied(Some(through), 0);
    }

    /// A checkpoint covers everything up to `through`.
    pub(crate) fn checkpointed(&self, through: Option<LogId>) {
        let mut checkpointed = self.checkpointed.lock();
        *checkpointed = (*checkpointed).max(through);
    }

    pub(crate) fn applied_bytes(&self) -> u64 {
        self.applied_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn last_checkpointed(&self) -> Option<LogId> {
        *self.checkpointed.lock()
    }

    /// Returns when entry `index` is applied. Never, if the state machine ends before.
    pub(crate) async fn wait_applied(&self, index: u64) {
        let mut watch = self.watch.clone();
        loop {
            // A snapshot can leap over the entry, so any later one will do.
            if watch.borrow_and_update().is_some_and(|applied| applied.index >= index) {
                return;
            }
            if watch.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}
