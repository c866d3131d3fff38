//! Replacing all of a group's state by a peer's snapshot.
//!
//! Values go into extents of their own while the old state continues to serve. The swap is one step
//! in memory, and a checkpoint makes it durable before anything else is written. A crash before
//! that leaves the old state.

use crate::error::{Error, Result};
use crate::group::{Entries, Keys};
use crate::io::AlignedBuf;
use crate::state::{Ended, Engine, KeyUse, Shared, State, View, fits_state};
use crate::types::{GroupId, KeyEntry, LogId, SharedImage, SnapshotKey, ValueRef};
use crate::write::coalesce;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// About the most bytes of values that are written at once.
const BATCH_BYTES: usize = 1 << 20;
/// The most keys whose values are written at once.
const BATCH_KEYS: usize = 4096;
/// Keys taken over from the old state before the lock is released.
const KEEP_KEYS: usize = 128;

/// A snapshot being installed. Until [`Installer::finish`], nothing of it is visible and a crash
/// leaves the old state. Dropping the installer frees its space soon, after the end of any write in
/// flight.
pub struct Installer {
    shared: Arc<Shared>,
    group: GroupId,
    /// The keys put so far. A write in flight owns them; if `put` was cancelled during the write,
    /// they are gone.
    claimed: Option<Claimed>,
}

/// A key of the snapshot, and the old state's entry that has its value.
type Held = (SnapshotKey, KeyEntry);

/// Keys whose values hold one reference each. Drop releases the references.
struct Claimed {
    shared: Arc<Shared>,
    keys: Keys,
    /// Bytes of the values that were written.
    written_bytes: u64,
}

impl Claimed {
    /// Adds a key with its value and counts the reference.
    fn insert(&mut self, state: &mut State, key: &Bytes, entry: KeyEntry) {
        state.space.link(&entry.value);
        if let Some(old) = self.keys.insert(key, entry) {
            state.space.unlink(&old.value);
        }
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.shared.state.lock().installing_bytes -= self.written_bytes;
        if self.keys.len() > 0 {
            let (keys, entries) = (std::mem::take(&mut self.keys), Entries::default());
            self.shared.free(Ended::References { keys, entries });
        }
    }
}

impl Engine {
    /// Begins to replace a group's whole state by a snapshot from a peer. Waits until what an earlier one
    /// replaced, or took without being installed, has given all its references back: so few things refer
    /// to a value at any time.
    ///
    /// # Errors
    /// `Failed`, `Closed`.
    pub async fn begin_install(&self, group: GroupId) -> Result<Installer> {
        let shared = self.shared.clone();
        let begins = |shared: &Shared| {
            let state = shared.state.lock();
            match state.check_begun() {
                Ok(()) => (state.unlinking == 0).then_some(Ok(())),
                refused => Some(refused),
            }
        };
        shared.wait_until(begins).await?;
        let claimed =
            Some(Claimed { shared: shared.clone(), keys: Keys::default(), written_bytes: 0 });
        Ok(Installer { shared, group, claimed })
    }
}

impl Installer {
    /// Adds keys, each once. A value that was put before or that the old state holds is not written
    /// again. If a key comes with its value and the old state has it too, `put` reads the old
    /// state's copy and writes the value if that copy is damaged. If a key comes without its value,
    /// it takes over the old state's extent unread; reads and the scrubber find damage there, as
    /// before. Returns the keys that came without a value and that the old state does not hold:
    /// they are not added.
    ///
    /// # Errors
    /// `Full`, `Failed`; the installer must then be dropped. May be
    /// cancelled; then every later call of the installer returns `Closed`.
    pub async fn put(&mut self, keys: Vec<SnapshotKey>) -> Result<Vec<Bytes>> {
        let old = View::new(&self.shared, self.group);
        let (mut held, mut rest) = (Vec::new(), Vec::new());
        let put = &self.claimed.as_ref().ok_or(Error::Closed)?.keys;
        for key in keys {
            if put.get(&key.key).is_some_and(|put| key.is(&put)) {
                continue;
            }
            match old.get(&key.key).filter(|entry| key.is(entry) && entry.value.len > 0) {
                Some(entry) => held.push((key, entry)),
                None => rest.push(key),
            }
        }
        rest.extend(self.keep(&old, held).await?);
        drop(old);
        let (mut missing, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0);
        for key in rest {
            let Some(value) = &key.value else {
                missing.push(key.key);
                continue;
            };
            bytes += value.len();
            batch.push(key);
            if bytes >= BATCH_BYTES || batch.len() >= BATCH_KEYS {
                bytes = 0;
                self.write(std::mem::take(&mut batch)).await?;
            }
        }
        self.write(batch).await?;
        Ok(missing)
    }

    /// Takes over the extents of values that the old state holds. If a key came with its value and
    /// the old extent is damaged, the key is returned instead. Returns the keys that were not taken
    /// over.
    async fn keep(&mut self, old: &View, held: Vec<Held>) -> Result<Vec<SnapshotKey>> {
        let (with_value, mut kept): (Vec<Held>, Vec<Held>) =
            held.into_iter().partition(|(key, _)| key.value.is_some());
        let entries: Vec<KeyEntry> = with_value.iter().map(|(_, entry)| entry.clone()).collect();
        let intact = old.are_intact(&entries).await;
        let mut rest = Vec::new();
        for (held, intact) in with_value.into_iter().zip(intact) {
            match intact {
                true => kept.push(held),
                false => rest.push(held.0),
            }
        }
        let claimed = self.claimed.as_mut().ok_or(Error::Closed)?;
        let mut kept = kept.into_iter().peekable();
        while kept.peek().is_some() {
            let mut state = self.shared.state.lock();
            for (key, entry) in kept.by_ref().take(KEEP_KEYS) {
                // The key may have been overwritten since the view was made. Before the log is
                // re-applied to its position before the restart, a key may name an extent that
                // belongs to another value now; then only a value that was read and matched is
                // taken over.
                let group = state.groups.get(&self.group);
                let reapplied = group.is_some_and(|group| group.is_reapplied());
                let group = group.filter(|group| key.value.is_some() || group.is_reapplied());
                let now = group.and_then(|group| group.keys.get(&key.key));
                // It may have been moved since, too.
                match now.filter(|now| *now == entry || (reapplied && key.is(now))) {
                    Some(now) => claimed.insert(&mut state, &key.key, now),
                    None => rest.push(key),
                }
            }
        }
        Ok(rest)
    }

    async fn write(&mut self, batch: Vec<SnapshotKey>) -> Result<()> {
        let values = self.allocate(batch)?;
        if values.is_empty() {
            return Ok(());
        }
        // In a task of its own: the caller may be cancelled, and the write continues. Its space
        // stays allocated until the write has ended.
        let claimed = self.claimed.take().ok_or(Error::Closed)?;
        let writing = tokio::spawn(async move {
            let shared = &claimed.shared;
            let writes = coalesce(&values, AlignedBuf::zeroed).into_iter().map(|(offset, buf)| {
                shared.counters.device_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
                shared.files.data.write(offset, buf)
            });
            let written = futures::future::join_all(writes.collect::<Vec<_>>()).await;
            let result = written.into_iter().collect::<Result<()>>();
            let result = result.inspect_err(|error| shared.fail(error));
            (claimed, result)
        });
        let (claimed, result) = writing.await.map_err(|_| Error::Closed)?;
        self.claimed = Some(claimed);
        result
    }

    /// Allocates the extents of a batch, apart from all others, and adds its keys. Returns what is
    /// to be written.
    fn allocate(&mut self, batch: Vec<SnapshotKey>) -> Result<Vec<(ValueRef, Bytes)>> {
        let claimed = self.claimed.as_mut().ok_or(Error::Closed)?;
        let mut state = self.shared.state.lock();
        state.check_open()?;
        state.space.close_block();
        let mut values = Vec::with_capacity(batch.len());
        for key in batch {
            let bytes = key.value.unwrap_or_default();
            let allocated = state.space.allocate(key.length, key.hash);
            let value = allocated.ok_or_else(|| state.space.full(bytes.len() as u64))?;
            let entry = KeyEntry { version: key.version, value: value.clone() };
            claimed.insert(&mut state, &key.key, entry);
            // The key's reference is counted by now.
            state.space.unlink(&value);
            claimed.written_bytes += u64::from(value.len);
            state.installing_bytes += u64::from(value.len);
            if !bytes.is_empty() {
                values.push((value, bytes));
            }
        }
        state.space.close_block();
        Ok(values)
    }

    /// Whether a checkpoint can hold the keys put so far, with a machine image of so many bytes.
    ///
    /// # Errors
    /// `IndexFull`, `Closed`.
    pub fn fits(&self, image_bytes: u64) -> Result<()> {
        let claimed = self.claimed.as_ref().ok_or(Error::Closed)?;
        let bytes = claimed.keys.checkpoint_bytes().saturating_add(image_bytes);
        let (keys, value_bytes) = (claimed.keys.len() as u64, claimed.keys.value_bytes());
        fits_state(bytes, self.shared.facts.checkpoint_capacity, KeyUse { keys, value_bytes })
    }

    /// Replaces the group's keys by those put, its log by an empty one purged through `applied`,
    /// and its machine image.
    ///
    /// # After a crash
    /// During this call: all of the old state, or all of the new one. After it: the new one, held
    /// by a synced checkpoint. Call [`Installer::fits`] before.
    ///
    /// # Errors
    /// `Full`, `Failed`, `Closed`.
    pub async fn finish(mut self, applied: LogId, image: SharedImage) -> Result<()> {
        let mut claimed = self.claimed.take().ok_or(Error::Closed)?;
        let shared = self.shared.clone();
        let (target, replaced) = shared
            .wait_until(|shared| {
                let mut state = shared.state.lock();
                if let Err(error) = state.check_open() {
                    return Some(Err(error));
                }
                if state.checkpoints.hold {
                    return None;
                }
                let group = state.groups.entry(self.group).or_default();
                let (keys, entries) =
                    group.replace(std::mem::take(&mut claimed.keys), applied, image.clone());
                // They are keys' by now.
                state.installing_bytes -= std::mem::take(&mut claimed.written_bytes);
                state.checkpoints.hold = true;
                state.checkpoints.requested = true;
                let replaced = Ended::References { keys, entries };
                Some(Ok((state.checkpoints.begun + 1, replaced)))
            })
            .await?;
        shared.signals.writer.notify_one();
        shared.free(replaced);
        shared.wait_for_checkpoint(target).await
    }
}
