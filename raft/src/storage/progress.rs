//! How far the state machine is: for readers that wait for it, and for maintenance.

use super::state_machine::retired::Retired;
use super::state_machine::starts::Starts;
use super::state_machine::{Image, Losses};
use crate::core::ids::NodeId;
use crate::core::runtime::{self, WatchReceiver, WatchSender};
use cairn_engine::{LogId, Run};
use openraft_rt::{WatchReceiver as _, WatchSender as _};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Shared between the state machine and everybody who looks at it.
pub(crate) struct Progress {
    applied: WatchSender<Option<LogId>>,
    watch: WatchReceiver<Option<LogId>>,
    /// The newest entry that a checkpoint taken by this process covers, and the bytes written before it began.
    checkpointed: Mutex<(Option<LogId>, u64)>,
    /// Checkpoints under way.
    building: AtomicUsize,
    /// What was given up, and the term in which that was said last.
    losses: Mutex<(Losses, u64)>,
    retired: Retired,
    starts: Starts,
}

/// A checkpoint under way, ended or given up when this is dropped.
pub(crate) struct Building {
    progress: Arc<Progress>,
    written_bytes: u64,
}

impl Building {
    /// The checkpoint covers everything up to `through`.
    pub(crate) fn done(&self, through: Option<LogId>) {
        self.progress.checkpointed(through, self.written_bytes);
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        self.progress.building.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Progress {
    /// `retired` and `starts` are kept up to date.
    pub(crate) fn new(retired: Retired, starts: Starts) -> Progress {
        let (applied, watch) = runtime::watch(None);
        Progress {
            applied,
            watch,
            checkpointed: Mutex::new((None, 0)),
            building: AtomicUsize::new(0),
            losses: Mutex::default(),
            retired,
            starts,
        }
    }

    /// Everything up to `through` is visible.
    pub(crate) fn applied(&self, through: Option<LogId>) {
        self.applied.send(through).ok();
    }

    /// The losses, the retired identities and the starts by now.
    pub(crate) fn marked(&self, image: &Image) {
        self.retired.are(&image.retired);
        self.starts.are(&image.starts);
        *self.losses.lock() = (image.losses(), image.last_loss_term);
    }

    pub(crate) fn losses(&self) -> Losses {
        self.losses.lock().0
    }

    /// Whether the log says that the leadership of this term, or of a later one, gave something up.
    pub(crate) fn lost_since(&self, term: u64) -> bool {
        let (losses, last) = *self.losses.lock();
        losses.count > 0 && last >= term
    }

    /// Whether the record of this very run was applied.
    pub(crate) fn has_start(&self, member: NodeId, run: Run) -> bool {
        self.starts.is_latest(member, run)
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

    /// A checkpoint of what is applied now begins, after so many bytes were written.
    pub(crate) fn building(self: &Arc<Self>, written_bytes: u64) -> Building {
        self.building.fetch_add(1, Ordering::SeqCst);
        Building { progress: self.clone(), written_bytes }
    }

    pub(crate) fn is_building(&self) -> bool {
        self.building.load(Ordering::SeqCst) > 0
    }

    /// Of so many bytes written, those that were written after the last checkpoint began.
    pub(crate) fn bytes_since_checkpoint(&self, written_bytes: u64) -> u64 {
        written_bytes.saturating_sub(self.checkpointed.lock().1)
    }

    pub(crate) fn last_checkpointed(&self) -> Option<LogId> {
        self.checkpointed.lock().0
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
