//! Syncing what is written, and telling those who wait for either.

use crate::error::Result;
use crate::io::FileKind;
use crate::state::Shared;
use crate::superblock::Clean;
use std::sync::atomic::Ordering;
use tokio::time::Instant;

impl Shared {
    /// Everything up to `sequence` is written. Returns whether somebody waits for it to be synced.
    pub(super) fn written(&self, sequence: u64, checksum: u128, claim: u64, bytes: u64) -> bool {
        let mut progress = self.progress.lock();
        assert!(sequence >= progress.written, "writes complete in order");
        progress.written = sequence;
        progress.written_checksum = checksum;
        progress.claims.push_back((sequence, claim));
        progress.unsynced_bytes += bytes;
        progress.oldest_unsynced.get_or_insert_with(Instant::now);
        progress.settle();
        progress.wants_sync() || progress.unsynced_bytes >= self.facts.options.sync_bytes
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
            return Err(self.fail_device(file, "sync", error));
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
        self.signals.changed.notify_waiters();
        Ok(Clean { sequence: target, checksum })
    }
}
