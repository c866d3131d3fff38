//! The unsynced-ack flag: "this machine may have acknowledged writes that are not synced".
//!
//! What holds here, in mode `replicated`:
//! - The flag is set on the device, and synced, before the first acknowledgement that runs ahead of
//!   its sync.
//! - It is cleared only after such acknowledgements have stopped and everything that they covered
//!   is synced. The journal end that is synced then is recorded with it.
//! - If the flag is clear at a power cut, no acknowledged write was lost.
//!
//! The flag is cleared in three cases: no acknowledgement ran ahead of its sync for the sync
//! interval, at a clean end, and while the caller asks for safe acknowledgements. While it is
//! clear, every acknowledgement waits for a sync; a few such waits within a second set the flag
//! again.

use crate::error::Result;
use crate::state::Shared;
use crate::superblock::Superblock;
use crate::types::Mode;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// How often in a sync interval the flag is looked at while it is overdue.
const OVERDUE_CHECKS: u32 = 20;

impl Shared {
    pub(crate) fn set_safe(&self, safe: bool) {
        if self.unsynced_acks.safe.swap(safe, Ordering::SeqCst) != safe {
            let mut progress = self.progress.lock();
            if safe {
                // From here on every acknowledgement waits for its sync. The syncer clears the flag
                // on the device.
                progress.acks_before_sync = false;
            } else if self.facts.options.mode == Mode::Device {
                // The device itself keeps what is written: there is no flag to set first.
                progress.acks_before_sync = true;
                progress.complete_ready();
            }
            drop(progress);
            self.signals.syncer.notify_one();
        }
    }

    /// Sets or clears the flag if that is due.
    pub(super) async fn update_flag(&self) -> Result<()> {
        if self.facts.options.mode != Mode::Replicated {
            return Ok(());
        }
        let _one_at_a_time = self.unsynced_acks.changing.lock().await;
        let safe = self.unsynced_acks.safe.load(Ordering::SeqCst);
        let on_device = self.unsynced_acks.is_set();
        let (wanted, quiet) = {
            let progress = self.progress.lock();
            // Clearing syncs what is written first, so only acknowledgements that still wait keep
            // the flag set.
            let idle = progress.waiting.is_empty();
            (
                progress.wants_unsynced_acks(),
                idle && progress.last_unsynced_ack.elapsed() >= self.facts.options.sync_interval,
            )
        };
        match on_device {
            true if safe || quiet => self.clear_flag().await,
            _ if safe || !wanted || !self.unsynced_acks.enough_waiters() => Ok(()),
            true => {
                self.allow_unsynced_acks();
                Ok(())
            }
            false => self.set_flag().await,
        }
    }

    /// How long the syncer may wait until its next check: the sync interval, or less if the flag is
    /// due to be cleared before that.
    pub(super) fn until_next_check(&self) -> Duration {
        let interval = self.facts.options.sync_interval;
        if !self.unsynced_acks.is_set() {
            return interval;
        }
        let progress = self.progress.lock();
        let left =
            (progress.last_unsynced_ack + interval).saturating_duration_since(Instant::now());
        // It may have become due during a sync, and is overdue while an acknowledgement waits.
        match left.is_zero() && !progress.waiting.is_empty() {
            true => interval / OVERDUE_CHECKS,
            false => left,
        }
    }

    /// Clears the flag for good: nothing will be acknowledged any more.
    pub(crate) async fn clear_flag_at_end(&self) -> Result<()> {
        self.set_safe(true);
        let _one_at_a_time = self.unsynced_acks.changing.lock().await;
        self.clear_flag().await
    }

    /// Stops acknowledgements from running ahead, syncs what they covered, and clears the flag.
    async fn clear_flag(&self) -> Result<()> {
        if self.facts.options.mode == Mode::Replicated {
            self.progress.lock().acks_before_sync = false;
        }
        let clean = self.sync_now().await?;
        let acks_before_sync =
            self.facts.options.mode == Mode::Replicated && self.progress.lock().acks_before_sync;
        assert!(
            !acks_before_sync,
            "the unsynced-ack flag is cleared while acknowledgements run ahead"
        );
        self.update_superblock(|s| {
            s.unsynced_acks = false;
            s.clean = clean;
        })
        .await?;
        self.unsynced_acks.on_device.store(false, Ordering::SeqCst);
        Ok(())
    }

    async fn set_flag(&self) -> Result<()> {
        self.unsynced_acks.on_device.store(true, Ordering::SeqCst);
        self.update_superblock(|s| s.unsynced_acks = true).await?;
        self.allow_unsynced_acks();
        Ok(())
    }

    /// The flag is set on the device. If the caller asks for safe acknowledgements by now, nothing
    /// runs ahead, and the flag is cleared next.
    fn allow_unsynced_acks(&self) {
        assert!(
            self.unsynced_acks.is_set(),
            "acknowledgements run ahead only with the unsynced-ack flag set"
        );
        let mut progress = self.progress.lock();
        if !self.unsynced_acks.safe.load(Ordering::SeqCst) {
            progress.acks_before_sync = true;
            progress.last_unsynced_ack = Instant::now();
            progress.complete_ready();
        }
    }

    /// Changes the superblock, synced. A failure ends the engine.
    pub(crate) async fn update_superblock(
        &self,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<()> {
        let result = self.superblock.lock().await.update(change).await;
        self.counters.syncs.fetch_add(2, Ordering::Relaxed);
        self.counters.device_bytes.fetch_add(4 * crate::io::BLOCK as u64, Ordering::Relaxed);
        result.inspect_err(|error| self.fail(error))
    }
}
