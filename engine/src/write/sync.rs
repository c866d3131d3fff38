//! Syncing what is written, and calling back those who wait for a write or a sync.

use crate::error::Result;
use crate::state::Shared;
use crate::superblock::Clean;
use std::sync::atomic::Ordering;
use tokio::time::Instant;

impl Shared {
    /// Everything up to `sequence` is written. Returns whether a sync is due: an acknowledgement
    /// waits for one, or too many bytes are unsynced.
    pub(super) fn written(
        &self,
        sequence: u64,
        checksum: u128,
        synced_stamp: u64,
        bytes: u64,
    ) -> bool {
        let mut progress = self.progress.lock();
        assert!(sequence >= progress.written, "writes complete in order");
        progress.written = sequence;
        progress.written_checksum = checksum;
        progress.synced_stamps.push_back((sequence, synced_stamp));
        progress.unsynced_bytes += bytes;
        progress.oldest_unsynced.get_or_insert_with(Instant::now);
        progress.complete_ready();
        progress.wants_sync() || progress.unsynced_bytes >= self.facts.options.sync_bytes
    }

    /// Syncs what is written. Returns the sequence that this reached, with the checksum of that
    /// block. A failure ends the engine. The kernel reports it only once: never call this where the
    /// future may be dropped.
    pub(crate) async fn sync_now(&self) -> Result<Clean> {
        let one_at_a_time = self.syncing.lock().await;
        if let Some(error) = self.failed() {
            return Err(error);
        }
        let (target, checksum) = {
            let mut progress = self.progress.lock();
            progress.sync_begins();
            (progress.written, progress.written_checksum)
        };
        let data = self.files.data.sync();
        let journal = self.files.journal.sync();
        let (data, journal) = futures::join!(data, journal);
        self.counters.syncs.fetch_add(2, Ordering::Relaxed);
        if let Err(error) = data.and(journal) {
            self.progress.lock().sync_failed();
            self.fail(&error);
            return Err(error);
        }
        let synced_stamp = {
            let mut progress = self.progress.lock();
            progress.sync_ended(target);
            progress.take_synced_stamp(target)
        };
        drop(one_at_a_time);
        if let Some(synced_stamp) = synced_stamp {
            self.release_space(synced_stamp).await;
        }
        self.signals.changed.notify_waiters();
        // What died may make compaction worthwhile, and what it emptied may be free.
        self.signals.compactor.notify_one();
        Ok(Clean { sequence: target, checksum })
    }
}
