//! What the engine's tasks and callers share: the state under one lock, the progress of writes under another.
//!
//! The two locks are never held together. Neither is held across an await.

use crate::error::{Error, Result};
use crate::group::{Group, LogEntry};
use crate::io::{Device, FileKind, Watch};
use crate::journal::Ring;
use crate::mark::LazyMark;
use crate::space::SpaceMap;
use crate::superblock::{Clean, SuperblockStore};
use crate::types::{EngineStatus, GroupId, Identity, Lineage, LogId, Mode, Options, Standing};
use bytes::Bytes;
use futures::FutureExt;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Called once when an operation's promise holds, or with the error that ended the engine.
pub(crate) type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// A step waiting to be written.
pub(crate) enum Op {
    Append {
        group: GroupId,
        entries: Vec<Pending>,
    },
    Truncate {
        group: GroupId,
        last: Option<u64>,
    },
    Purge {
        group: GroupId,
        through: LogId,
    },
    /// Changes nothing; it is done when everything before it is.
    Barrier,
}

/// An appended entry with the bytes that go to the data area.
pub(crate) struct Pending {
    pub entry: Arc<LogEntry>,
    pub values: Arc<[Bytes]>,
    /// The body, if it goes to an extent of its own.
    pub body: Option<Bytes>,
}

/// A step, how it is promised, and who waits for it.
pub(crate) struct Queued {
    pub op: Op,
    pub synced: bool,
    pub done: Option<Done>,
}

/// The checkpoint machinery's state.
#[derive(Default)]
pub(crate) struct Checkpoints {
    /// Somebody asked for one that begins from now on.
    pub requested: bool,
    pub running: bool,
    /// Captures taken, and how many of them ended as checkpoints.
    pub begun: u64,
    pub completed: u64,
    /// The number and area of the newest checkpoint on the device.
    pub number: u64,
    pub area: usize,
    /// The sequence that the newest checkpoint covers, and the one before it.
    pub sequence: u64,
    pub previous: u64,
    /// What each group had applied in the newest one.
    pub applied: BTreeMap<GroupId, LogId>,
    /// A snapshot was swapped in: nothing more is written until a checkpoint holds it, and older ones are void.
    pub hold: bool,
}

pub(crate) struct State {
    pub groups: BTreeMap<GroupId, Group>,
    pub space: SpaceMap,
    pub queue: Vec<Queued>,
    /// Bytes of records and of values in the queue.
    pub queued_record_bytes: usize,
    pub queued_value_bytes: u64,
    /// Values whose write has not completed, by offset.
    pub unwritten: BTreeMap<u64, Bytes>,
    /// Write a block even if the queue is empty, to record what was applied.
    pub flush: bool,
    pub closing: bool,
    pub failed: Option<Error>,
    /// A write or sync failed, and what became of telling the next opening so.
    pub failed_sync: Option<Remembered>,
    pub checkpoints: Checkpoints,
}

/// Whether the directory remembers that a write or sync failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remembered {
    NotYet,
    Yes,
    /// That could not be written either.
    No,
}

impl State {
    /// Refuses work when the engine failed or is closing.
    pub(crate) fn check_open(&self) -> Result<()> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None if self.closing => Err(Error::Closed),
            None => Ok(()),
        }
    }

    /// Whether something was applied, or died, that no journal block tells of.
    pub(crate) fn unrecorded(&self) -> bool {
        self.space.waits_for_journal() || self.groups.values().any(|g| g.applied > g.applied_recorded)
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

/// An operation whose write is under way, in journal order.
pub(crate) struct Waiting {
    pub sequence: u64,
    /// An append, on which others count once it is acknowledged.
    pub append: bool,
    pub synced: bool,
    pub done: Done,
}

/// How far writes and syncs have come.
pub(crate) struct Progress {
    pub written: u64,
    pub synced: u64,
    pub waiting: VecDeque<Waiting>,
    /// For each written gathering that no sync covers yet: its last block, and what its blocks say was synced.
    pub claims: VecDeque<(u64, u64)>,
    pub unsynced_bytes: u64,
    pub oldest_unsynced: Option<Instant>,
    /// The writer has ended.
    pub writer_ended: bool,
    /// The checksum of block `written`.
    pub written_checksum: u128,
    /// When an append was last acknowledged ahead of the sync that covers it, or appends were allowed to be.
    pub last_ahead: Instant,
    /// An acknowledgement may run ahead of the sync that covers it. In mode `replicated` only while the `lazy` mark is
    /// set on the device.
    pub ahead: bool,
}

impl Progress {
    /// What the synced blocks say was synced. Dead blocks whose record lies at or below may be used again.
    ///
    /// That the record is synced is not enough: recovery must also be able to tell that it was. It checks the values
    /// named behind the last sync that it knows of, and takes a mismatch for a write that never arrived. Were an
    /// extent reused before a synced block says that its death is synced, then a crash could leave the new value in
    /// place, no block that tells of it, and an acknowledged entry whose value does not match: the journal would be
    /// cut there.
    fn claim(&mut self, synced: u64) -> Option<u64> {
        let mut claim = None;
        while let Some((_, said)) = self.claims.pop_front_if(|(sequence, _)| *sequence <= synced) {
            claim = Some(said);
        }
        claim
    }

    /// Whether somebody waits for a sync of what is written.
    pub(crate) fn wants_sync(&self) -> bool {
        self.waiting.front().is_some_and(|w| (w.synced || !self.ahead) && w.sequence <= self.written)
    }

    /// Whether somebody waits for a sync who would not with the `lazy` mark set.
    pub(crate) fn wants_mark(&self) -> bool {
        !self.ahead && self.waiting.front().is_some_and(|w| !w.synced && w.sequence <= self.written)
    }

    /// Calls everybody whose promise holds, strictly in order.
    pub(crate) fn settle(&mut self) {
        let (written, synced, ahead) = (self.written, self.synced, self.ahead);
        let holds = |w: &mut Waiting| w.sequence <= if w.synced || !ahead { synced } else { written };
        let mut ran_ahead = false;
        while let Some(waiting) = self.waiting.pop_front_if(holds) {
            ran_ahead |= waiting.append && waiting.sequence > synced;
            (waiting.done)(Ok(()));
        }
        if ran_ahead {
            self.last_ahead = Instant::now();
        }
    }
}

#[derive(Default)]
pub(crate) struct Counters {
    pub device_bytes: AtomicU64,
    pub user_bytes: AtomicU64,
    pub syncs: AtomicU64,
    pub corrupt_values: AtomicU64,
    pub mended_values: AtomicU64,
    pub index_refusals: AtomicU64,
}

pub(crate) struct Devices {
    pub data: Arc<dyn Device>,
    pub journal: Arc<dyn Device>,
    pub checkpoints: [Arc<dyn Device>; 2],
}

pub(crate) struct Shared {
    pub location: String,
    pub backend: &'static str,
    pub options: Options,
    pub identity: Identity,
    pub ring: Ring,
    pub epoch: u64,
    pub lineage: Lineage,
    pub checkpoint_capacity: u64,
    pub devices: Devices,
    /// The operations that are out.
    pub watch: Arc<Watch>,
    pub superblock: tokio::sync::Mutex<SuperblockStore>,
    pub votes: Mutex<BTreeMap<GroupId, Bytes>>,
    pub state: Mutex<State>,
    pub progress: Mutex<Progress>,
    pub standing: Mutex<Standing>,
    pub lazy: LazyMark,
    pub counters: Counters,
    /// Wakes the writer.
    pub work: Notify,
    /// Wakes the syncer.
    pub sync_work: Notify,
    /// Something that somebody may wait for has changed.
    pub changed: Notify,
    /// One value is mended at a time.
    pub mending: tokio::sync::Mutex<()>,
    /// One sync at a time.
    pub syncing: tokio::sync::Mutex<()>,
    /// Completed writes count for nothing any more: whatever the mode was, it is `sync` now.
    pub distrusted: AtomicBool,
}

impl Shared {
    /// What an acknowledgement promises now.
    pub(crate) fn mode(&self) -> Mode {
        match self.distrusted.load(Ordering::SeqCst) {
            true => Mode::Sync,
            false => self.options.mode,
        }
    }

    /// Runs a task of the engine. If it panics the engine fails, so that nobody waits for it without an end.
    pub(crate) fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let shared = self.clone();
        tokio::spawn(async move {
            if let Err(panic) = AssertUnwindSafe(task).catch_unwind().await {
                let reason = std::io::Error::other("a task of the engine ended by a panic");
                shared.fail(shared.device_error(FileKind::Journal, "a task", &reason));
                std::panic::resume_unwind(panic);
            }
        });
    }

    /// Ends the engine: nothing is written any more, and everybody who waits is told why.
    pub(crate) fn fail(&self, error: Error) {
        let queue = {
            let mut state = self.state.lock();
            if state.failed.is_none() {
                tracing::error!(%error, "the storage engine has stopped");
                state.failed = Some(error.clone());
            }
            if error.is_failed_io() {
                state.failed_sync.get_or_insert(Remembered::NotYet);
            }
            std::mem::take(&mut state.queue)
        };
        let waiting = std::mem::take(&mut self.progress.lock().waiting);
        let queued = queue.into_iter().filter_map(|q| q.done);
        for done in waiting.into_iter().map(|w| w.done).chain(queued) {
            done(Err(error.clone()));
        }
        self.changed.notify_waiters();
        self.work.notify_one();
        self.sync_work.notify_one();
    }

    /// The error for a failed operation of a device.
    pub(crate) fn device_error(
        &self,
        file: FileKind,
        operation: &'static str,
        error: &std::io::Error,
    ) -> Error {
        Error::Failed { location: self.location.clone(), file, operation, reason: error.to_string() }
    }

    pub(crate) fn failed(&self) -> Option<Error> {
        self.state.lock().failed.clone()
    }

    /// Everything up to `sequence` is written. Returns whether somebody waits for it to be synced.
    pub(crate) fn written(&self, sequence: u64, checksum: u128, claim: u64, bytes: u64) -> bool {
        let mut progress = self.progress.lock();
        assert!(sequence >= progress.written, "writes complete in order");
        progress.written = sequence;
        progress.written_checksum = checksum;
        progress.claims.push_back((sequence, claim));
        progress.unsynced_bytes += bytes;
        progress.oldest_unsynced.get_or_insert_with(Instant::now);
        progress.settle();
        progress.wants_sync() || progress.unsynced_bytes >= self.options.sync_bytes
    }

    /// Syncs what is written and reports how far that reaches, with the checksum of the block there. A failure ends the
    /// engine, and is told only once: never call this where the future may be dropped.
    pub(crate) async fn sync_now(&self) -> Result<Clean> {
        let _one_at_a_time = self.syncing.lock().await;
        let (target, checksum, bytes, since) = {
            let mut progress = self.progress.lock();
            let bytes = std::mem::take(&mut progress.unsynced_bytes);
            (progress.written, progress.written_checksum, bytes, progress.oldest_unsynced.take())
        };
        if let Some(error) = self.failed() {
            return Err(error);
        }
        let data = self.devices.data.sync();
        let journal = self.devices.journal.sync();
        let (data, journal) = futures::join!(data, journal);
        self.counters.syncs.fetch_add(2, Ordering::Relaxed);
        let results = [(FileKind::Data, data), (FileKind::Journal, journal)];
        if let Some((file, Err(error))) = results.into_iter().find(|(_, result)| result.is_err()) {
            let mut progress = self.progress.lock();
            progress.unsynced_bytes += bytes;
            progress.oldest_unsynced = since;
            drop(progress);
            let error = self.device_error(file, "sync", &error);
            self.fail(error.clone());
            return Err(error);
        }
        let claim = {
            let mut progress = self.progress.lock();
            progress.synced = progress.synced.max(target);
            progress.settle();
            progress.claim(target)
        };
        if let Some(claim) = claim {
            self.state.lock().space.release(claim);
        }
        self.changed.notify_waiters();
        Ok(Clean { sequence: target, checksum })
    }

    /// Waits until `ready` answers, looking again after every change.
    pub(crate) async fn wait_until<T>(&self, mut ready: impl FnMut(&Shared) -> Option<T>) -> T {
        if let Some(answer) = ready(self) {
            return answer;
        }
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if let Some(answer) = ready(self) {
                return answer;
            }
            changed.await;
        }
    }

    pub(crate) fn status(&self) -> EngineStatus {
        let (written, synced, unsynced_bytes, unsynced_ms) = {
            let progress = self.progress.lock();
            let ms = progress.oldest_unsynced.map_or(0, |since| since.elapsed().as_millis() as u64);
            (progress.written, progress.synced, progress.unsynced_bytes, ms)
        };
        let standing = *self.standing.lock();
        let state = self.state.lock();
        EngineStatus {
            backend: self.backend,
            mode: self.mode(),
            standing,
            lazy: self.lazy.is_set(),
            written_sequence: written,
            synced_sequence: synced,
            unsynced_bytes,
            unsynced_ms,
            data_bytes: state.space.capacity_bytes(),
            free_bytes: state.space.free_bytes(),
            keys: state.groups.values().map(|g| g.keys.len() as u64).sum(),
            live_bytes: state.groups.values().map(|g| g.keys.live_bytes()).sum(),
            index_bytes: state.index_bytes(),
            index_log_bytes: state.checkpoint_log_bytes(),
            index_capacity_bytes: self.checkpoint_capacity,
            index_refusals: self.counters.index_refusals.load(Ordering::Relaxed),
            journal_used_blocks: written.saturating_sub(state.checkpoints.previous),
            journal_blocks: self.ring.blocks(),
            checkpoint_sequence: state.checkpoints.sequence,
            checkpoints: state.checkpoints.completed,
            device_bytes_written: self.counters.device_bytes.load(Ordering::Relaxed),
            user_bytes_written: self.counters.user_bytes.load(Ordering::Relaxed),
            syncs: self.counters.syncs.load(Ordering::Relaxed),
            corrupt_values: self.counters.corrupt_values.load(Ordering::Relaxed),
            mended_values: self.counters.mended_values.load(Ordering::Relaxed),
            failed: state.failed.as_ref().map(ToString::to_string),
            stalled: self.watch.stalled(),
            failed_sync_recorded: state.failed_sync == Some(Remembered::Yes),
        }
    }
}
