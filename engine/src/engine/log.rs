//! Requests to the log: append, read, truncate, purge.

use crate::error::{Error, Result};
use crate::io::yield_once;
use crate::state::{Done, Engine, Op, Queued, State, View};
use crate::types::{Entry, GroupId, LogBounds, LogId, Mode, NewEntry, Promise, Value, ValueRef};
use crate::write::PreparedAppend;
use bytes::Bytes;
use std::ops::Range;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// The most entries that one step of a purge removes. Everything else waits for the step.
const PURGE_STEP: usize = 1024;

impl Engine {
    /// Appends entries that follow the log's last one without a hole. When this returns, the
    /// entries can be read. `done` is called once, in append order across all appends: when the
    /// promise holds, or when the engine fails. It must not call back into the engine. Waits while
    /// the queue to the device is full.
    ///
    /// # Errors
    /// `Full`, `Invalid` (a hole, a meta too long), `Failed`, `Closed`. Then `done` is dropped
    /// without a call, and a prefix of the entries may have been appended. Cancelling has the same
    /// effect.
    pub async fn append(
        &self,
        group: GroupId,
        entries: Vec<NewEntry>,
        promise: Promise,
        done: Box<dyn FnOnce(Result<()>) + Send>,
    ) -> Result<()> {
        let mut done = Some(done);
        let mut entries = entries.into_iter().peekable();
        loop {
            let mut batch = Some(PreparedAppend::prepare(&mut entries)?);
            let last = entries.peek().is_none();
            self.when_queue_has_space(|state| {
                let Some(batch) = batch.take() else { return Ok(()) };
                let (record_bytes, value_bytes) = (batch.record_bytes, batch.value_bytes);
                let op = batch.insert(state, group, self.shared.facts.options.log_cache_bytes)?;
                let done = if last { done.take() } else { None };
                let synced = promise == Promise::Synced || self.shared.mode() == Mode::Sync;
                state.enqueue(Queued { op, synced, done }, record_bytes, value_bytes);
                self.shared.counters.user_bytes.fetch_add(value_bytes, Ordering::Relaxed);
                Ok(())
            })
            .await?;
            if last {
                return Ok(());
            }
            // The writer begins with these meanwhile.
            yield_once().await;
        }
    }

    /// Runs `push` under the lock once the queue has space, then wakes the writer.
    async fn when_queue_has_space<T>(
        &self,
        mut push: impl FnMut(&mut State) -> Result<T>,
    ) -> Result<T> {
        let pushed = self
            .shared
            .wait_until(|shared| {
                let mut state = shared.state.lock();
                if let Err(error) = state.check_begun() {
                    return Some(Err(error));
                }
                (!state.queue.is_full() && !state.checkpoints.hold).then(|| push(&mut state))
            })
            .await?;
        self.shared.signals.writer.notify_one();
        Ok(pushed)
    }

    /// The position through which the log was purged before the restart, if open had to keep more
    /// of it: the newest checkpoint was damaged, and the older one needs those entries. The caller
    /// purges again once a checkpoint covers them. The extents of these entries were freed, so
    /// their values may be missing, and are never repaired.
    pub fn purge_due(&self, group: GroupId) -> Option<LogId> {
        self.shared.state.lock().groups.get(&group)?.purge_due()
    }

    /// Entries up to here are left out of the checkpoints that begin from now on, as far as they are
    /// applied then: the caller will purge them as soon as one covers them. A restart from such a
    /// checkpoint finds them purged.
    pub fn leave_out(&self, group: GroupId, through: u64) {
        if let Some(group) = self.shared.state.lock().groups.get_mut(&group) {
            group.left_out = Some(through);
        }
    }

    /// First and last position.
    pub fn log_bounds(&self, group: GroupId) -> LogBounds {
        self.shared.state.lock().groups.get(&group).map(|g| g.log.bounds()).unwrap_or_default()
    }

    /// The id of the entry at `index`, without reading it.
    pub fn log_id_at(&self, group: GroupId, index: u64) -> Option<LogId> {
        self.shared.state.lock().groups.get(&group)?.log.get(index).map(|e| e.id)
    }

    /// Whether an entry can be read without I/O.
    pub fn is_in_memory(&self, group: GroupId, index: u64) -> bool {
        self.shared.state.lock().groups.get(&group).is_some_and(|g| g.log.cached(index).is_some())
    }

    /// Bytes of values and meta that the log holds between purged and last.
    pub fn log_bytes(&self, group: GroupId) -> u64 {
        self.shared.state.lock().groups.get(&group).map_or(0, |g| g.log.bytes())
    }

    /// Entries from `range.start` on, without a hole. Ends at `range.end` (exclusive), at the log's
    /// end, or before `max_bytes` would be exceeded, but returns at least one. Cached entries cost
    /// no read.
    ///
    /// # Errors
    /// `Corrupt` for a value that does not match its record; `Io`.
    pub async fn read_log(
        &self,
        group: GroupId,
        range: Range<u64>,
        max_bytes: u64,
    ) -> Result<Vec<Entry>> {
        // A purge or truncation may happen during the read. The view keeps the freed extents from
        // being reused before the read has ended.
        let _pinned = View::new(&self.shared, group);
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
        let missing = found.iter().filter(|(_, cached)| cached.is_none());
        let missing =
            missing.flat_map(|(entry, _)| entry.values.iter().map(|at| (at.clone(), entry.id)));
        let missing: Vec<(ValueRef, LogId)> = missing.collect();
        let mut read = self.shared.read_all(&missing).await.into_iter();
        let mut entries = Vec::with_capacity(found.len());
        for (entry, cached) in found {
            let values = match cached {
                Some(values) => values.to_vec(),
                None => read.by_ref().take(entry.values.len()).collect::<Result<Vec<_>>>()?,
            };
            let values = values.into_iter().zip(&entry.values);
            let values = values.map(|(bytes, at)| Value::kept(bytes, at.hash)).collect();
            entries.push(Entry { id: entry.id, meta: entry.meta.clone(), values });
        }
        Ok(entries)
    }

    /// The ids and metas of at most `limit` entries from `range.start` on, without a hole. No I/O:
    /// to apply an entry, its values need not be read.
    pub fn read_metas(
        &self,
        group: GroupId,
        range: Range<u64>,
        limit: usize,
    ) -> Vec<(LogId, Bytes)> {
        let state = self.shared.state.lock();
        let Some(group) = state.groups.get(&group) else {
            return Vec::new();
        };
        let entries = range.take(limit).map_while(|index| group.log.get(index));
        entries.map(|entry| (entry.id, entry.meta.clone())).collect()
    }

    /// Bytes of values and meta of the entries from `range.start` on, each, without a hole.
    pub fn entry_bytes(&self, group: GroupId, range: Range<u64>) -> Vec<u64> {
        let state = self.shared.state.lock();
        let Some(group) = state.groups.get(&group) else {
            return Vec::new();
        };
        range.map_while(|index| group.log.get(index)).map(|entry| entry.bytes()).collect()
    }

    /// One value of an entry, from memory or from the device. `None` if the log does not hold this
    /// entry, or the entry has no such value.
    ///
    /// # Errors
    /// `Corrupt` if the value does not match its record; `Io`.
    pub async fn read_logged(
        &self,
        group: GroupId,
        id: LogId,
        number: usize,
    ) -> Result<Option<Bytes>> {
        // The entry may be purged during the read.
        let _pinned = View::new(&self.shared, group);
        let at = {
            let state = self.shared.state.lock();
            let log = state.groups.get(&group).map(|group| &group.log);
            let Some((log, entry)) = log.and_then(|log| Some((log, log.get(id.index)?))) else {
                return Ok(None);
            };
            if entry.id != id {
                return Ok(None);
            }
            let cached = log.cached(id.index).and_then(|values| values.get(number).cloned());
            if cached.is_some() {
                return Ok(cached);
            }
            let Some(at) = entry.values.get(number) else {
                return Ok(None);
            };
            at.clone()
        };
        self.shared.read(&at, id).await.map(Some)
    }

    /// Where an entry's values are.
    pub fn values_of(&self, group: GroupId, index: u64) -> Option<Vec<ValueRef>> {
        Some(self.shared.state.lock().groups.get(&group)?.log.get(index)?.values.to_vec())
    }

    /// Removes every entry above `last` (all entries for `None`). Resolves when written.
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

    /// Removes every entry up to `through`, in steps. Takes a checkpoint first if recovery would
    /// still need them.
    ///
    /// # After a crash
    /// During this call: the entries up to some step are removed.
    ///
    /// # Errors
    /// `Failed`, `Closed`.
    pub async fn purge(&self, group: GroupId, through: LogId) -> Result<()> {
        let needs_checkpoint = {
            let state = self.shared.state.lock();
            let applied = state.groups.get(&group).and_then(|g| g.applied);
            let covered = state.checkpoints.applied.get(&group).copied();
            applied.is_some_and(|a| {
                covered.is_none_or(|c| c.index < through.index && c.index < a.index)
            })
        };
        if needs_checkpoint {
            self.checkpoint().await?;
        }
        loop {
            let until = {
                let state = self.shared.state.lock();
                let log = state.groups.get(&group).map(|group| &group.log);
                log.and_then(|log| log.id_after(PURGE_STEP, through)).unwrap_or(through)
            };
            self.purge_step(group, until).await?;
            if until == through {
                return Ok(());
            }
        }
    }

    async fn purge_step(&self, group: GroupId, through: LogId) -> Result<()> {
        self.step(|state| {
            let g = state.groups.entry(group).or_default();
            let covered = state.checkpoints.applied.get(&group).map(|c| c.index);
            let applied = g.applied.map(|a| a.index);
            assert!(
                applied.is_none_or(|a| covered.is_some_and(|c| c >= through.index.min(a))),
                "purge through {through}, which no checkpoint covers ({covered:?} of {applied:?})"
            );
            for value in g.log.purge(through).iter().flat_map(|e| e.extents()) {
                state.space.unlink(value);
            }
            Ok(Op::Purge { group, through })
        })
        .await
    }

    /// Returns when every earlier append has kept its promise and its `done` was called.
    ///
    /// # Errors
    /// `Failed`, `Closed`.
    pub async fn barrier(&self) -> Result<()> {
        {
            let state = self.shared.state.lock();
            state.check_open()?;
            if !state.begun {
                // There was no append.
                return Ok(());
            }
        }
        self.step(|_| Ok(Op::Barrier)).await
    }

    /// Queues one operation and waits until it is written.
    async fn step(&self, mut change: impl FnMut(&mut State) -> Result<Op>) -> Result<()> {
        let (done, written) = oneshot::channel();
        let mut done = Some(done);
        self.when_queue_has_space(|state| {
            let op = change(state)?;
            let done = done.take().map(|done| -> Done {
                Box::new(move |result| {
                    let _ = done.send(result);
                })
            });
            let synced = self.shared.mode() == Mode::Sync;
            state.enqueue(Queued { op, synced, done }, 0, 0);
            Ok(())
        })
        .await?;
        written.await.unwrap_or_else(|_| Err(self.shared.failed().unwrap_or(Error::Closed)))
    }
}
