//! Replacing a group's whole state by a peer's snapshot.
//!
//! Values go into extents of their own while the old state goes on serving. The swap is one step in memory, and a
//! checkpoint makes it durable before anything else is written; a crash before that leaves the old state.

use crate::error::{Error, Result};
use crate::group::Keys;
use crate::io::{AlignedBuf, FileKind};
use crate::state::{Shared, State, View, fits_state};
use crate::types::{GroupId, KeyEntry, LogId, SharedImage, SnapshotKey, ValueRef};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Values gathered into one write, in bytes.
const BATCH_BYTES: usize = 1 << 20;
/// Keys of such a batch, at most.
const BATCH_KEYS: usize = 4096;
/// Keys taken over from the old state before others may look at it.
const KEEP_KEYS: usize = 128;

/// A snapshot being installed. Nothing is visible, and a crash leaves the old state, until [`Installer::finish`].
/// Dropping it gives its space back, once a write that is still under way has ended.
pub struct Installer {
    shared: Arc<Shared>,
    group: GroupId,
    /// What was put so far. A write under way has it; if nobody waited for the write's end, it is gone.
    claimed: Option<Claimed>,
}

/// A key of the snapshot, and where the old state has its value.
type Held = (SnapshotKey, KeyEntry);

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
        Installer { claimed: Some(Claimed { shared: shared.clone(), keys: Keys::default() }), shared, group }
    }

    /// Adds keys, each once. A value that was put before, or that the old state holds, is not written again; one that is here and in the
    /// old state is read there first, and replaces what is damaged. A key that came without its value takes over what the old state
    /// names: damage there is met by reads and the scrubber, as before. Returns the keys that came without their value and that the
    /// old state does not hold: they are not added.
    ///
    /// # Errors
    /// `Invalid` for 4 GiB of values, `Full`, `Failed`; the installer must then be dropped. May be cancelled; the installer is then of
    /// no more use: whatever it is asked is refused with `Closed`.
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
                self.write_in_pieces(std::mem::take(&mut batch)).await?;
            }
        }
        self.write_in_pieces(batch).await?;
        Ok(missing)
    }

    /// Takes over the extents of values that the old state holds, unless there is a better one for what is damaged. Returns the keys of
    /// the others.
    async fn keep(&mut self, old: &View, held: Vec<Held>) -> Result<Vec<SnapshotKey>> {
        let (doubtful, mut kept): (Vec<Held>, Vec<Held>) =
            held.into_iter().partition(|(key, _)| key.value.is_some());
        let entries: Vec<KeyEntry> = doubtful.iter().map(|(_, entry)| *entry).collect();
        let intact = old.are_intact(&entries).await;
        let mut rest = Vec::new();
        for (held, intact) in doubtful.into_iter().zip(intact) {
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
                // It may have been overwritten since somebody looked. Before the log is applied again up to where it was before a
                // restart, a key may name what is another's by now: then only bytes that were read tell.
                let group = state.groups.get(&self.group);
                let group = group.filter(|group| key.value.is_some() || group.is_reapplied());
                let now = group.and_then(|group| group.keys.get(&key.key));
                match now == Some(entry) {
                    true => claimed.insert(&mut state, &key.key, entry),
                    false => rest.push(key),
                }
            }
        }
        Ok(rest)
    }

    async fn write_in_pieces(&mut self, keys: Vec<SnapshotKey>) -> Result<()> {
        let mut rest = vec![keys];
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

    async fn write(&mut self, batch: &[SnapshotKey]) -> Result<()> {
        let bytes = || batch.iter().map(|key| key.value.as_deref().unwrap_or_default());
        let total = bytes().map(<[u8]>::len).sum::<usize>();
        let too_large = || Error::Invalid(format!("{total} bytes in one step of a snapshot"));
        let len = u32::try_from(total).map_err(|_| too_large())?;
        let mut values = Vec::with_capacity(total);
        let mut entries = Vec::with_capacity(batch.len());
        for (key, bytes) in batch.iter().zip(bytes()) {
            let at = ValueRef { offset: values.len() as u64, len: bytes.len() as u32, hash: key.hash };
            values.extend_from_slice(bytes);
            entries.push((key.key.clone(), KeyEntry { version: key.version, value: at }));
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
            let result = result.map_err(|error| claimed.shared.fail_device(FileKind::Data, "write", error));
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
        fits_state(bytes, self.shared.facts.checkpoint_capacity)
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
        shared.signals.writer.notify_one();
        shared.wait_for_checkpoint(target).await
    }
}
