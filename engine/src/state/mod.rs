//! What the engine's tasks and callers share, by the lock that guards it: what is fixed at open
//! needs no lock, the state is under one lock, the progress of writes under another.
//!
//! The two locks are never held together. Neither is held across an await.

mod capacity;
mod checkpoints;
mod deferred_values;
mod freeing;
mod handle;
mod moves;
mod progress;
mod queue;
mod read;
mod scarcity;
mod status;
mod unsynced_ack_flag;
mod value_cache;
mod view;

pub use capacity::Need;
pub(crate) use capacity::{KeyUse, fits_state};
pub(crate) use checkpoints::{Checkpoints, Written};
pub(crate) use deferred_values::{Deferred, Placing};
pub(crate) use freeing::{Ended, free_what_ended};
pub use handle::Engine;
pub(crate) use moves::Movable;
pub(crate) use progress::{PendingAck, WriteProgress};
pub(crate) use queue::{Done, MovedValue, Op, Pending, Queue, Queued};
pub(crate) use scarcity::Scarcity;
pub(crate) use unsynced_ack_flag::UnsyncedAckFlag;
pub(crate) use value_cache::ValueCache;
pub use view::View;

use crate::error::{Corruption, Error, Result};
use crate::group::Group;
use crate::io::{Directory, FileKind, IoDeadlines, IoFuture, OpenFile};
use crate::journal::Ring;
use crate::latency::Latency;
use crate::space::SpaceMap;
use crate::superblock::SuperblockStore;
use crate::types::{FencingHistory, GroupId, Identity, MemberState, Mode, Options};
use bytes::Bytes;
use futures::FutureExt;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use tokio::sync::Notify;

pub(crate) struct State {
    /// The directory may be written. Before that only the superblock is.
    pub begun: bool,
    pub groups: BTreeMap<GroupId, Group>,
    pub space: SpaceMap,
    /// Bytes of values that only snapshots being installed refer to.
    pub installing_bytes: u64,
    pub queue: Queue,
    /// Values whose write has not completed, by the offset of their first byte.
    pub unwritten: BTreeMap<u64, Bytes>,
    /// Those of them that only the journal holds so far.
    pub deferred: Deferred,
    pub scarcity: Scarcity,
    pub closing: bool,
    pub failed: Option<Error>,
    /// A write or sync failed; says whether the superblock records it.
    pub failed_sync: Option<FailureRecord>,
    pub checkpoints: Checkpoints,
    /// To be freed in pieces.
    pub ended: Vec<Ended>,
    /// Replaced states and abandoned snapshots whose references are not all given back.
    pub unlinking: usize,
}

/// Whether the superblock records that a write or sync failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureRecord {
    NotYet,
    Yes,
    /// The record could not be written either.
    No,
}

impl State {
    /// The same, and as long as the directory may not be written.
    pub(crate) fn check_begun(&self) -> Result<()> {
        self.check_open()?;
        match self.begun {
            true => Ok(()),
            false => Err(Error::Invalid(
                "a write before it is decided that the directory may be overwritten".to_owned(),
            )),
        }
    }

    /// Refuses work when the engine failed or is closing.
    pub(crate) fn check_open(&self) -> Result<()> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None if self.closing => Err(Error::Closed),
            None => Ok(()),
        }
    }

    /// Whether something was applied or freed that no journal block records yet, or a value is not at
    /// its place yet.
    pub(crate) fn unrecorded(&self) -> bool {
        !self.deferred.is_empty()
            || self.space.waits_for_journal()
            || self.groups.values().any(|g| g.applied > g.applied_recorded)
    }

    /// Queues an operation. Values of different parts of the queue share no block.
    pub(crate) fn enqueue(&mut self, queued: Queued, record_bytes: usize, value_bytes: u64) {
        if self.queue.push(queued, record_bytes, value_bytes) {
            self.space.close_block();
        }
    }

    /// Bytes that a checkpoint taken now needs for everything but the log.
    pub(crate) fn checkpoint_state_bytes(&self) -> u64 {
        let image = |group: &Group| group.image.as_ref().map_or(0, |image| image.encoded_bytes());
        self.groups.values().map(|group| group.keys.checkpoint_bytes() + image(group)).sum()
    }

    /// Bytes that it needs for the log.
    pub(crate) fn checkpoint_log_bytes(&self) -> u64 {
        self.groups.values().map(|group| group.log.checkpoint_bytes()).sum()
    }

    /// Bytes that it needs for everything.
    pub(crate) fn index_bytes(&self) -> u64 {
        self.checkpoint_state_bytes() + self.checkpoint_log_bytes()
    }
}

#[derive(Default)]
pub(crate) struct Counters {
    pub device_bytes: AtomicU64,
    pub user_bytes: AtomicU64,
    pub moved_bytes: AtomicU64,
    pub syncs: AtomicU64,
    pub corrupt_values: AtomicU64,
    pub repaired_values: AtomicU64,
    pub index_refusals: AtomicU64,
    /// How long appends take until their promise holds.
    pub appends: Arc<Latency>,
}

pub(crate) struct Files {
    pub data: OpenFile,
    pub journal: OpenFile,
    pub checkpoints: [OpenFile; 2],
}

impl Files {
    /// The checkpoint area with this number, 0 or 1.
    pub(crate) fn area(&self, area: usize) -> &OpenFile {
        let [first, second] = &self.checkpoints;
        if area == 0 { first } else { second }
    }
}

/// What is fixed as long as the directory is open.
pub(crate) struct Facts {
    pub location: String,
    pub backend: &'static str,
    pub options: Options,
    pub identity: Identity,
    pub ring: Ring,
    /// The boot epoch of this open, and the nonces of those before it.
    pub epoch: u64,
    pub fencing_history: FencingHistory,
    pub checkpoint_capacity: u64,
}

/// Wake-ups for the engine's tasks.
#[derive(Default)]
pub(crate) struct Signals {
    pub writer: Notify,
    pub syncer: Notify,
    pub compactor: Notify,
    pub freeing: Notify,
    /// For every task that waits for a change.
    pub changed: Notify,
}

impl Signals {
    /// The engine failed, or ends.
    pub(crate) fn ends(&self) {
        for task in [&self.writer, &self.syncer, &self.compactor, &self.freeing] {
            task.notify_one();
        }
        self.changed.notify_waiters();
    }
}

/// What an open writes before anything else is written.
pub(crate) type Begin = Box<dyn FnOnce(Arc<Shared>) -> IoFuture<Result<()>> + Send>;

pub(crate) struct Shared {
    pub facts: Facts,
    pub directory: Arc<dyn Directory>,
    pub files: Files,
    /// The device operations in flight.
    pub deadlines: Arc<IoDeadlines>,
    /// The superblock, and copies of parts of it that are read without waiting for a write of it.
    pub superblock: tokio::sync::Mutex<SuperblockStore>,
    pub votes: Mutex<BTreeMap<GroupId, Bytes>>,
    pub member_state: Mutex<MemberState>,
    pub generation: AtomicU32,
    /// Until the directory may be written: what that begins with.
    pub begin: tokio::sync::Mutex<Option<Begin>>,
    /// What the directory lacks, until it may be written.
    pub damage: Mutex<Option<Corruption>>,
    pub state: Mutex<State>,
    pub progress: Mutex<WriteProgress>,
    pub unsynced_acks: UnsyncedAckFlag,
    /// Completed writes can no longer be trusted: whatever the mode was, it is `sync` now.
    pub syncs_required: AtomicBool,
    /// Values that were read lately.
    pub values: ValueCache,
    pub counters: Counters,
    pub signals: Signals,
    /// One value is repaired at a time.
    pub repairing: tokio::sync::Mutex<()>,
    /// One sync at a time.
    pub syncing: tokio::sync::Mutex<()>,
}

impl Shared {
    /// What an acknowledgement promises now.
    pub(crate) fn mode(&self) -> Mode {
        match self.syncs_required.load(Ordering::SeqCst) {
            true => Mode::Sync,
            false => self.facts.options.mode,
        }
    }

    /// Spawns a task of the engine. If it panics, the engine fails, so that no caller waits
    /// forever.
    pub(crate) fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let shared = self.clone();
        tokio::spawn(async move {
            if let Err(panic) = AssertUnwindSafe(task).catch_unwind().await {
                let reason = "a task of the engine ended by a panic";
                shared.fail_device(FileKind::Journal, "a task", reason);
                std::panic::resume_unwind(panic);
            }
        });
    }

    /// Ends the engine: nothing is written any more, and every waiting caller gets the error.
    pub(crate) fn fail(&self, error: &Error) {
        let queue = {
            let mut state = self.state.lock();
            if state.failed.is_none() {
                tracing::error!(%error, "the storage engine has stopped");
                state.failed = Some(error.clone());
            }
            if error.is_failed_io() {
                state.failed_sync.get_or_insert(FailureRecord::NotYet);
            }
            state.queue.take()
        };
        let waiting = std::mem::take(&mut self.progress.lock().waiting);
        let queued = queue.into_iter().filter_map(|q| q.done);
        for done in waiting.into_iter().map(|w| w.done).chain(queued) {
            done(Err(error.clone()));
        }
        self.signals.ends();
    }

    /// An operation of a device failed, which ends the engine.
    pub(crate) fn fail_device(
        &self,
        file: FileKind,
        operation: &'static str,
        reason: impl ToString,
    ) {
        self.fail(&Error::failed(&self.facts.location, file, operation, reason));
    }

    pub(crate) fn failed(&self) -> Option<Error> {
        self.state.lock().failed.clone()
    }

    /// Waits until `ready` returns a value. Calls it again after every change.
    pub(crate) async fn wait_until<T>(&self, mut ready: impl FnMut(&Shared) -> Option<T>) -> T {
        if let Some(answer) = ready(self) {
            return answer;
        }
        loop {
            let changed = self.signals.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if let Some(answer) = ready(self) {
                return answer;
            }
            changed.await;
        }
    }
}
