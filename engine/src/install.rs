//! Replacing a group's whole state by a peer's snapshot.
//!
//! Values go into extents of their own while the old state goes on serving. The swap is one step in memory, and a
//! checkpoint makes it durable before anything else is written; a crash before that leaves the old state.

use crate::codec::hash;
use crate::error::{Error, Result};
use crate::group::Keys;
use crate::io::{AlignedBuf, FileKind};
use crate::room::fits_state;
use crate::shared::{Shared, State};
use crate::types::{GroupId, KeyEntry, LogId, SharedImage, ValueRef};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Values gathered into one write, in bytes.
const BATCH_BYTES: usize = 256 << 10;

/// A snapshot being installed. Nothing is visible, and a crash leaves the old state, until [`Installer::finish`].
/// Dropping it gives its space back, once a write that is still under way has ended.
pub struct Installer {
    shared: Arc<Shared>,
    group: GroupId,
    /// What was put so far. A write under way has it; if nobody waited for the write's end, it is gone.
    claimed: Option<Claimed>,
    batch: Vec<Item>,
    batch_bytes: usize,
    /// The highest key so far.
    highest: Bytes,
}

type Item = (Bytes, LogId, Bytes);

/// Keys whose values have a reference each, which is given back on drop.
struct Claimed {
    shared: Arc<Shared>,
    keys: Keys,
}

impl Claimed {
    /// Gives a key its value, whose reference is counted here.
    fn insert(&mut self, state: &mut State, key: &Bytes, entry: KeyEntry) {
        state.space.link(&entry.value);
        if let Some(old) = self.keys.insert(key, entry) {
            state.space.unlink(&old.value);
        }
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        for (_, entry) in self.keys.iter() {
            state.space.unlink(&entry.value);
        }
    }
}

impl Installer {
    pub(crate) fn new(shared: Arc<Shared>, group: GroupId) -> Installer {
        Installer {
            claimed: Some(Claimed { shared: shared.clone(), keys: Keys::default() }),
            shared,
            group,
            batch: Vec::new(),
            batch_bytes: 0,
            highest: Bytes::new(),
        }
    }

    /// Adds a key with its value. A later value for the same key replaces the earlier one. What the old state holds intact
    /// is not written again.
    ///
    /// # Errors
    /// `Full`, `Failed`. May be cancelled; the installer is then of no more use: whatever it is asked is refused with `Closed`.
    pub async fn put(&mut self, key: Bytes, version: LogId, value: Bytes) -> Result<()> {
        let new = self.highest < key;
        self.highest = self.highest.clone().max(key.clone());
        if new && self.keep(&key, version, &value).await {
            return Ok(());
        }
        self.batch_bytes += value.len();
        self.batch.push((key, version, value));
        if self.batch_bytes >= BATCH_BYTES || self.batch.len() >= 4096 {
            self.flush().await?;
        }
        Ok(())
    }

    /// Takes over the extent of a key that has this very value already, and keeps it intact.
    async fn keep(&mut self, key: &Bytes, version: LogId, value: &Bytes) -> bool {
        let held = |state: &State| {
            let entry = state.groups.get(&self.group)?.keys.get(key)?;
            (entry.version == version && entry.value.len as usize == value.len() && entry.value.len > 0)
                .then_some(entry)
        };
        let Some(entry) = held(&self.shared.state.lock()).filter(|entry| entry.value.hash == hash(value))
        else {
            return false;
        };
        if self.shared.read_quietly(&entry.value, version).await.is_err() {
            return false;
        }
        let Some(claimed) = &mut self.claimed else {
            return false;
        };
        let mut state = self.shared.state.lock();
        // It may have been overwritten while it was read.
        if held(&state) != Some(entry) {
            return false;
        }
        claimed.insert(&mut state, key, entry);
        true
    }

    /// Writes what was put so far. After this, [`Installer::finish`] needs no more room.
    ///
    /// # Errors
    /// `Full`, `Failed`; the installer must then be dropped.
    pub async fn flush(&mut self) -> Result<()> {
        self.batch_bytes = 0;
        let mut rest = vec![std::mem::take(&mut self.batch)];
        while let Some(mut batch) = rest.pop() {
            match self.write(&batch).await {
                // Room in one piece is rarer than room.
                Err(Error::Full { .. }) if batch.len() > 1 => {
                    rest.push(batch.split_off(batch.len() / 2));
                    rest.push(batch);
                }
                written => written?,
            }
        }
        Ok(())
    }

    async fn write(&mut self, batch: &[Item]) -> Result<()> {
        let total = batch.iter().map(|(.., value)| value.len()).sum::<usize>();
        let too_large = || Error::Invalid(format!("{total} bytes in one step of a snapshot"));
        let len = u32::try_from(total).map_err(|_| too_large())?;
        let mut values = Vec::with_capacity(total);
        let mut entries = Vec::with_capacity(batch.len());
        for (key, version, value) in batch {
            let at = ValueRef { offset: values.len() as u64, len: value.len() as u32, hash: hash(value) };
            values.extend_from_slice(value);
            entries.push((key.clone(), KeyEntry { version: *version, value: at }));
        }
        let base = self.place(len, entries)?;
        if len == 0 {
            return Ok(());
        }
        let buf = AlignedBuf::copied_from(&values);
        self.shared.counters.device_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        // Whoever waits may give up, and the write goes on: its space stays taken until it has ended.
        let claimed = self.claimed.take().ok_or(Error::Closed)?;
        let writing = tokio::spawn(async move {
            let (result, _) = claimed.shared.devices.data.write(base, buf).await;
            let result = result.map_err(|error| {
                let error = claimed.shared.device_error(FileKind::Data, "write", &error);
                claimed.shared.fail(error.clone());
                error
            });
            (claimed, result)
        });
        let (claimed, result) = writing.await.map_err(|_| Error::Closed)?;
        self.claimed = Some(claimed);
        result
    }

    /// Gives a batch of `len` bytes its place and the keys their values in it.
    fn place(&mut self, len: u32, entries: Vec<(Bytes, KeyEntry)>) -> Result<u64> {
        let claimed = self.claimed.as_mut().ok_or(Error::Closed)?;
        let mut state = self.shared.state.lock();
        state.check_open()?;
        let (free, capacity) = (state.space.free_bytes(), state.space.capacity_bytes());
        let full = Error::Full { needed: u64::from(len), free, capacity };
        let base = if len == 0 { 0 } else { state.space.allocate_apart(len).ok_or(full)? };
        for (key, mut entry) in entries {
            entry.value.offset = if entry.value.len == 0 { 0 } else { entry.value.offset + base };
            claimed.insert(&mut state, &key, entry);
        }
        Ok(base)
    }

    /// Whether a checkpoint can hold what was put, with a machine image of so many bytes.
    ///
    /// # Errors
    /// `IndexFull`, `Closed`.
    pub fn fits(&self, image_bytes: u64) -> Result<()> {
        let claimed = self.claimed.as_ref().ok_or(Error::Closed)?;
        let bytes = claimed.keys.checkpoint_bytes().saturating_add(image_bytes);
        fits_state(bytes, self.shared.checkpoint_capacity)
    }

    /// Replaces the group's keys by what was put, its log by nothing (purged through `applied`), and its machine image.
    ///
    /// # After a crash
    /// During this call: the old state or the new one, whole. After it: the new one; a checkpoint holds it, synced.
    /// To be asked before: [`Installer::fits`].
    ///
    /// # Errors
    /// `Full`, `Failed`, `Closed`.
    pub async fn finish(mut self, applied: LogId, image: SharedImage) -> Result<()> {
        self.flush().await?;
        let mut claimed = self.claimed.take().ok_or(Error::Closed)?;
        let shared = self.shared.clone();
        let target = shared
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
                for (_, entry) in keys.iter() {
                    state.space.unlink(&entry.value);
                }
                for value in entries.iter().flat_map(|e| e.extents()) {
                    state.space.unlink(value);
                }
                state.checkpoints.hold = true;
                state.checkpoints.requested = true;
                Some(Ok(state.checkpoints.begun + 1))
            })
            .await?;
        shared.work.notify_one();
        shared.wait_for_checkpoint(target).await
    }
}
