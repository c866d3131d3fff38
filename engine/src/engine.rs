//! The engine's handle: what callers may ask, and the rules that each request is held to.

use crate::append::Batches;
use crate::error::{Error, Result};
use crate::install::Installer;
use crate::io::Directory;
use crate::open;
use crate::shared::{Op, Queued, Shared, State};
use crate::superblock::{MAX_VOTE_BYTES, MAX_VOTES};
use crate::syncer;
use crate::types::{
    Change, EngineStatus, Entry, Geometry, GroupId, Identity, KeyEntry, LogBounds, LogId, Mode, NewEntry,
    Options, Promise, Run, SharedImage, Standing, Transition, ValueRef,
};
use crate::values::read_value;
use crate::view::View;
use crate::writer::Writer;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// Values in the queue before append waits, in bytes.
const MAX_QUEUED_VALUES: u64 = 32 << 20;
/// How often a read is tried again because its key changed under it.
const READ_ATTEMPTS: usize = 8;

/// An open data directory. Clones share it; dropping the last one ends it like a crash of the process, without the
/// clean shutdown of [`Engine::close`].
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
    _ends: Arc<EndOnDrop>,
}

struct EndOnDrop(Arc<Shared>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.state.lock().closing = true;
        self.0.work.notify_one();
        self.0.sync_work.notify_one();
        self.0.changed.notify_waiters();
    }
}

impl Engine {
    /// Makes an engine's directory of five zeroed files of this geometry. Ends synced; the superblock comes last.
    ///
    /// # Errors
    /// `Invalid` for a bad identity or geometry, `WrongSize`, `InUse`, `NotFormatted` for a missing file, `Failed`.
    pub async fn format(directory: &dyn Directory, geometry: Geometry, identity: &Identity) -> Result<()> {
        open::format(directory, geometry, identity).await
    }

    /// Opens and recovers. `expected` (cluster, slot) is compared before anything is written, and a directory that is
    /// refused is left as it was.
    ///
    /// # Errors
    /// `NotFormatted`, `NewerFormat`, `Foreign`, `InUse`, `WrongSize`, `Corrupt`, `Io`, `Failed`.
    pub async fn open(
        directory: Arc<dyn Directory>,
        expected: Option<(String, u16)>,
        options: Options,
    ) -> Result<Engine> {
        let opened = open::open(directory.as_ref(), expected, options).await?;
        let shared = opened.shared;
        let captured = shared.state.lock().checkpoints.sequence;
        tokio::spawn(Writer::new(shared.clone(), opened.next, opened.chain, captured).run());
        tokio::spawn(syncer::run(shared.clone()));
        Ok(Engine { _ends: Arc::new(EndOnDrop(shared.clone())), shared })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Who this is.
    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    /// This opening of the directory.
    pub fn run(&self) -> Run {
        Run { start: self.shared.epoch, nonce: self.shared.options.run }
    }

    /// Whether it remembers everything that it acknowledged.
    pub fn standing(&self) -> Standing {
        *self.shared.standing.lock()
    }

    /// The caller knows that whatever was forgotten is here again. That is synced first, since what came back may not
    /// be lost a second time by a node that thinks itself whole; then the standing is.
    ///
    /// # After a crash
    /// During this call: recovering or active.
    ///
    /// # Errors
    /// `Failed`, `Closed`.
    pub async fn set_active(&self) -> Result<()> {
        self.shared.state.lock().check_open()?;
        self.shared.sync_now().await?;
        self.shared.update_superblock(|s| s.standing = Standing::Active).await?;
        *self.shared.standing.lock() = Standing::Active;
        Ok(())
    }

    /// While `held`, nothing is acknowledged before it is synced, and the `lazy` mark is clear as soon as everything
    /// acknowledged before is synced: for times when too few others hold what a power cut here would take. Has no
    /// effect in other modes than `replicated`.
    pub fn hold_synced(&self, held: bool) {
        self.shared.hold(held);
    }

    /// Appends entries that follow the log's last one without a hole. When this returns they can be read; `done` is
    /// called once, in append order across all appends, when the promise holds or the engine failed. It must not call
    /// back into the engine. Waits while the queue to the device is full.
    ///
    /// # Errors
    /// `Full`, `Invalid` (a hole, a meta too long), `Failed`, `Closed`; `done` is then dropped uncalled, and a prefix
    /// of the entries may have been appended. Cancelling has the same effect.
    pub async fn append(
        &self,
        group: GroupId,
        entries: Vec<NewEntry>,
        promise: Promise,
        done: Box<dyn FnOnce(Result<()>) + Send>,
    ) -> Result<()> {
        let synced = promise == Promise::Synced || self.shared.options.mode == Mode::Sync;
        let mut done = Some(done);
        let mut batches = Batches::prepare(entries)?;
        while let Some(batch) = batches.next() {
            let last = batches.is_empty();
            let mut batch = Some(batch);
            self.when_queue_has_room(|state| {
                let Some(batch) = batch.take() else { return Ok(()) };
                let (record_bytes, value_bytes) = (batch.record_bytes, batch.value_bytes);
                let op = batch.insert(state, group, self.shared.options.log_cache_bytes)?;
                let done = if last { done.take() } else { None };
                state.queue.push(Queued { op, synced, done });
                state.queued_record_bytes += record_bytes;
                state.queued_value_bytes += value_bytes;
                self.shared.counters.user_bytes.fetch_add(value_bytes, Ordering::Relaxed);
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Runs `push` under the lock once the queue has room, then wakes the writer.
    async fn when_queue_has_room<T>(&self, mut push: impl FnMut(&mut State) -> Result<T>) -> Result<T> {
        let most_records = self.shared.ring.blocks() as usize / 8 * crate::io::BLOCK;
        let pushed = self
            .shared
            .wait_until(|shared| {
                let mut state = shared.state.lock();
                if let Err(error) = state.check_open() {
                    return Some(Err(error));
                }
                let full = state.queued_record_bytes >= most_records
                    || state.queued_value_bytes >= MAX_QUEUED_VALUES;
                (!full && !state.checkpoints.hold).then(|| push(&mut state))
            })
            .await?;
        self.shared.work.notify_one();
        Ok(pushed)
    }

    /// Through where the log was purged before the restart, if more of it had to be kept: the newest checkpoint was damaged,
    /// and the older one needs it. To be purged again once a checkpoint covers it; not all its values need be intact.
    pub fn purge_due(&self, group: GroupId) -> Option<LogId> {
        let state = self.shared.state.lock();
        let group = state.groups.get(&group)?;
        group.purge_due.filter(|due| group.log.bounds().purged.is_none_or(|purged| purged.index < due.index))
    }

    /// First and last position.
    pub fn log_bounds(&self, group: GroupId) -> LogBounds {
        self.shared.state.lock().groups.get(&group).map(|g| g.log.bounds()).unwrap_or_default()
    }

    /// The id of the entry at `index`, without reading it.
    pub fn log_id_at(&self, group: GroupId, index: u64) -> Option<LogId> {
        self.shared.state.lock().groups.get(&group)?.log.get(index).map(|e| e.id)
    }

    /// Bytes of values and meta that the log holds between purged and last.
    pub fn log_bytes(&self, group: GroupId) -> u64 {
        self.shared.state.lock().groups.get(&group).map_or(0, |g| g.log.bytes())
    }

    /// Entries from `range.start` on, without a hole, ending at `range.end` (exclusive), at the log's end, or before
    /// `max_bytes` would be exceeded (never before the first). Cached ones cost no read.
    ///
    /// # Errors
    /// `Corrupt` for a value that does not match its record; `Io`.
    pub async fn read_log(&self, group: GroupId, range: Range<u64>, max_bytes: u64) -> Result<Vec<Entry>> {
        let mut found = Vec::new();
        {
            let state = self.shared.state.lock();
            let Some(group) = state.groups.get(&group) else {
                return Ok(Vec::new());
            };
            let mut bytes = 0u64;
            for index in range {
                let Some(entry) = group.log.get(index) else { break };
                bytes = bytes.saturating_add(entry.bytes());
                if bytes > max_bytes && !found.is_empty() {
                    break;
                }
                found.push((entry.clone(), group.log.cached(index)));
            }
        }
        let mut entries = Vec::with_capacity(found.len());
        for (entry, cached) in found {
            let values = match cached {
                Some(values) => values.to_vec(),
                None => {
                    let mut values = Vec::with_capacity(entry.values.len());
                    for at in &entry.values {
                        values.push(self.shared.read(at, entry.id).await?);
                    }
                    values
                }
            };
            entries.push(Entry { id: entry.id, meta: entry.meta.clone(), values });
        }
        Ok(entries)
    }

    /// The ids and metas of at most `limit` entries from `range.start` on, without a hole. No I/O: values stay where they
    /// are, which is all that applying an entry needs.
    pub fn read_metas(&self, group: GroupId, range: Range<u64>, limit: usize) -> Vec<(LogId, Bytes)> {
        let state = self.shared.state.lock();
        let Some(group) = state.groups.get(&group) else {
            return Vec::new();
        };
        let entries = range.take(limit).map_while(|index| group.log.get(index));
        entries.map(|entry| (entry.id, entry.meta.clone())).collect()
    }

    /// Where an entry's values are.
    pub fn values_of(&self, group: GroupId, index: u64) -> Option<Vec<ValueRef>> {
        Some(self.shared.state.lock().groups.get(&group)?.log.get(index)?.values.to_vec())
    }

    /// Removes every entry above `last` (all, for `None`). Resolves when written.
    ///
    /// # Errors
    /// `Invalid` for an entry that is already applied, `Failed`, `Closed`.
    pub async fn truncate_after(&self, group: GroupId, last: Option<u64>) -> Result<()> {
        self.step(|state| {
            let g = state.groups.entry(group).or_default();
            if g.applied.is_some_and(|applied| last.is_none_or(|last| last < applied.index)) {
                return Err(Error::Invalid(format!(
                    "truncating the log after {last:?} would remove applied entries"
                )));
            }
            for value in g.log.truncate_after(last).iter().flat_map(|e| e.extents()) {
                state.space.unlink(value);
            }
            Ok(Op::Truncate { group, last })
        })
        .await
    }

    /// Removes every entry up to `through`. Takes a checkpoint first where recovery would still need them.
    ///
    /// # Errors
    /// `Failed`, `Closed`.
    pub async fn purge(&self, group: GroupId, through: LogId) -> Result<()> {
        let needs_checkpoint = {
            let state = self.shared.state.lock();
            let applied = state.groups.get(&group).and_then(|g| g.applied);
            let covered = state.checkpoints.applied.get(&group).copied();
            applied.is_some_and(|a| covered.is_none_or(|c| c.index < through.index && c.index < a.index))
        };
        if needs_checkpoint {
            self.checkpoint().await?;
        }
        self.step(|state| {
            let g = state.groups.entry(group).or_default();
            let covered = state.checkpoints.applied.get(&group).map(|c| c.index);
            let applied = g.applied.map(|a| a.index);
            assert!(
                applied.is_none_or(|a| covered.is_some_and(|c| c >= through.index.min(a))),
                "purging through {through} what no checkpoint covers ({covered:?} of {applied:?})"
            );
            for value in g.log.purge(through).iter().flat_map(|e| e.extents()) {
                state.space.unlink(value);
            }
            Ok(Op::Purge { group, through })
        })
        .await
    }

    /// Returns when every earlier append has kept its promise and been told so.
    ///
    /// # Errors
    /// `Failed`, `Closed`.
    pub async fn barrier(&self) -> Result<()> {
        self.step(|_| Ok(Op::Barrier)).await
    }

    /// Queues one operation and waits until it is written.
    async fn step(&self, mut change: impl FnMut(&mut State) -> Result<Op>) -> Result<()> {
        let synced = self.shared.options.mode == Mode::Sync;
        let (done, written) = oneshot::channel();
        let mut done = Some(done);
        self.when_queue_has_room(|state| {
            let op = change(state)?;
            let done = done.take().map(|done| -> crate::shared::Done {
                Box::new(move |result| {
                    let _ = done.send(result);
                })
            });
            state.queue.push(Queued { op, synced, done });
            Ok(())
        })
        .await?;
        written.await.unwrap_or_else(|_| Err(self.shared.failed().unwrap_or(Error::Closed)))
    }

    /// Stores up to 248 bytes for the group, synced before this returns.
    ///
    /// # After a crash
    /// During this call: the old vote or the new one.
    ///
    /// # Errors
    /// `Invalid` for a vote that is too long or a group too many, `Failed`, `Closed`.
    pub async fn save_vote(&self, group: GroupId, vote: &[u8]) -> Result<()> {
        self.shared.state.lock().check_open()?;
        let superblock = self.shared.superblock.lock().await;
        let votes = &superblock.current().votes;
        if vote.len() > MAX_VOTE_BYTES || (votes.len() >= MAX_VOTES && !votes.contains_key(&group)) {
            return Err(Error::Invalid(format!("a vote of {} bytes for group {}", vote.len(), group.0)));
        }
        drop(superblock);
        self.shared.update_superblock(|s| drop(s.votes.insert(group, vote.to_vec()))).await?;
        self.shared.votes.lock().insert(group, Bytes::copy_from_slice(vote));
        Ok(())
    }

    /// What [`Engine::save_vote`] last stored.
    pub fn vote(&self, group: GroupId) -> Option<Bytes> {
        self.shared.votes.lock().get(&group).cloned()
    }

    /// The highest position that this node is known to have applied before it was restarted. Until the log has been
    /// re-applied to here the key space is older than what was served before.
    pub fn applied_before_restart(&self, group: GroupId) -> Option<LogId> {
        self.shared.state.lock().groups.get(&group).and_then(|g| g.applied_before)
    }

    /// Applies entries in order; `image` is the rest of the state machine after the last of them. All of it becomes
    /// visible at once. Values are linked, not copied.
    ///
    /// # Errors
    /// `Invalid` for an entry that is already applied, or that changes something and is not in the log; then nothing was
    /// applied.
    pub fn apply(&self, group: GroupId, transitions: Vec<Transition>, image: SharedImage) -> Result<()> {
        let mut state = self.shared.state.lock();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let State { groups, space, .. } = &mut *state;
        let group = groups.entry(group).or_default();
        let mut last = group.applied.map(|a| a.index);
        for transition in &transitions {
            let id = transition.applied;
            let entry = group.log.get(id.index).filter(|e| e.id == id);
            if entry.is_none() && !transition.changes.is_empty() {
                return Err(Error::Invalid(format!("entry {id} is applied but not in the log")));
            }
            if last.is_some_and(|last| id.index <= last) {
                return Err(Error::Invalid(format!("entry {id} is applied after entry {last:?}")));
            }
            last = Some(id.index);
            let values = entry.map_or(0, |entry| entry.values.len());
            let bad =
                transition.changes.iter().any(|c| matches!(c, Change::Put { value, .. } if *value >= values));
            if bad {
                return Err(Error::Invalid(format!(
                    "entry {id} has {values} values, and a change names another"
                )));
            }
        }
        for transition in transitions {
            let version = transition.applied;
            for change in transition.changes {
                let old = match &change {
                    Change::Put { key, value } => {
                        let entry = group.log.get(version.index);
                        let Some(value) = entry.and_then(|e| e.values.get(*value)).copied() else {
                            continue;
                        };
                        space.link(&value);
                        group.keys.insert(key, KeyEntry { version, value })
                    }
                    Change::Delete { key } => group.keys.remove(key),
                };
                if let Some(old) = old {
                    space.unlink(&old.value);
                }
            }
            group.applied = Some(version);
        }
        group.image = Some(image);
        Ok(())
    }

    /// The last applied position.
    pub fn applied(&self, group: GroupId) -> Option<LogId> {
        self.shared.state.lock().groups.get(&group).and_then(|g| g.applied)
    }

    /// A key's state, without its value.
    pub fn lookup(&self, group: GroupId, key: &[u8]) -> Option<KeyEntry> {
        self.shared.state.lock().groups.get(&group)?.keys.get(key)
    }

    /// A key's state and value, checked.
    ///
    /// # Errors
    /// `Corrupt` where the value's bytes do not match the record that names it; `Io`.
    pub async fn get(&self, group: GroupId, key: &[u8]) -> Result<Option<(KeyEntry, Bytes)>> {
        let mut attempt = 0;
        loop {
            let Some(entry) = self.lookup(group, key) else {
                return Ok(None);
            };
            match self.shared.read_quietly(&entry.value, entry.version).await {
                Ok(value) => return Ok(Some((entry, value))),
                // Overwritten meanwhile, so the extent may be another value's by now.
                Err(_) if attempt < READ_ATTEMPTS && self.lookup(group, key) != Some(entry) => attempt += 1,
                Err(error) => return Err(self.shared.counted(error)),
            }
        }
    }

    /// A consistent picture of a group in O(1). While it lives, none of its extents is reused.
    pub fn view(&self, group: GroupId) -> View {
        View::new(&self.shared, group)
    }

    /// Writes a checkpoint of everything up to now. Resolves when it is synced.
    ///
    /// # Errors
    /// `Failed`, `Closed`.
    pub async fn checkpoint(&self) -> Result<()> {
        let target = {
            let mut state = self.shared.state.lock();
            state.check_open()?;
            state.checkpoints.requested = true;
            state.checkpoints.begun + 1
        };
        self.shared.work.notify_one();
        self.shared.wait_for_checkpoint(target).await
    }

    /// Begins to replace a group's whole state by a snapshot from a peer.
    ///
    /// # Errors
    /// `Failed`, `Closed`.
    pub async fn begin_install(&self, group: GroupId) -> Result<Installer> {
        self.shared.state.lock().check_open()?;
        Ok(Installer::new(self.shared.clone(), group))
    }

    /// Syncs everything written so far.
    ///
    /// # Errors
    /// `Failed`.
    pub async fn sync(&self) -> Result<()> {
        self.shared.sync_now().await.map(drop)
    }

    /// What it can say of itself.
    pub fn status(&self) -> EngineStatus {
        self.shared.status()
    }

    /// Waits for writes under way, syncs, and marks a clean shutdown. Later requests return `Closed`; reads go on.
    ///
    /// # Errors
    /// `Failed`: the shutdown is then not marked as clean.
    pub async fn close(&self) -> Result<()> {
        let shared = &self.shared;
        shared.state.lock().closing = true;
        shared.work.notify_one();
        shared
            .wait_until(|shared| {
                let idle = shared.state.lock().checkpoints.running;
                (shared.progress.lock().writer_ended && !idle || shared.failed().is_some()).then_some(())
            })
            .await;
        shared.sync_now().await?;
        shared.sync_work.notify_one();
        shared.clear_mark_at_end().await
    }
}

impl Shared {
    /// Reads a value, from memory while its write is under way.
    pub(crate) async fn read_quietly(&self, at: &ValueRef, log_id: LogId) -> Result<Bytes> {
        if let Some(value) = self.state.lock().unwritten.get(&at.offset)
            && value.len() == at.len as usize
        {
            return Ok(value.clone());
        }
        read_value(self.devices.data.as_ref(), at, log_id).await
    }

    /// The same, counting damage.
    pub(crate) async fn read(&self, at: &ValueRef, log_id: LogId) -> Result<Bytes> {
        self.read_quietly(at, log_id).await.map_err(|error| self.counted(error))
    }

    fn counted(&self, error: Error) -> Error {
        if matches!(error, Error::Corrupt(_)) {
            self.counters.corrupt_values.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%error, "a value does not match its hash");
        }
        error
    }

    /// Waits until checkpoint number `target` of this run has ended.
    pub(crate) async fn wait_for_checkpoint(&self, target: u64) -> Result<()> {
        self.wait_until(|shared| {
            let state = shared.state.lock();
            if state.checkpoints.completed >= target {
                return Some(Ok(()));
            }
            state.failed.clone().map(Err)
        })
        .await
    }
}
