//! The `lazy` mark: "this machine may have acknowledged what is not synced".
//!
//! What holds here, in mode `replicated`:
//! - the mark is set on the device, synced, before the first acknowledgement that runs ahead of its sync;
//! - it is cleared only after acknowledgements have stopped running ahead and everything that they covered is synced,
//!   and what is synced then is recorded with it;
//! - a power cut that finds the mark clear took nothing that was acknowledged.
//!
//! The mark is cleared when nothing has been acknowledged ahead of its sync for the sync interval, at a clean end, and while
//! the caller holds it clear. While it is clear every acknowledgement waits for a sync; a few of these within a second set it
//! again.

use crate::error::Result;
use crate::state::Shared;
use crate::superblock::Superblock;
use crate::types::Mode;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

impl Shared {
    pub(crate) fn hold(&self, held: bool) {
        if self.lazy.held.swap(held, Ordering::SeqCst) != held {
            if held && self.facts.options.mode == Mode::Replicated {
                // From here on nothing is acknowledged ahead; the syncer clears the mark on the device.
                self.progress.lock().ahead = false;
            }
            self.signals.syncer.notify_one();
        }
    }

    /// Sets or clears the mark where that is due.
    pub(super) async fn tend_mark(&self) -> Result<()> {
        if self.facts.options.mode != Mode::Replicated {
            return Ok(());
        }
        let _one_at_a_time = self.lazy.changing.lock().await;
        let held = self.lazy.held.load(Ordering::SeqCst);
        let on_device = self.lazy.is_set();
        let (wanted, quiet) = {
            let progress = self.progress.lock();
            // What is written and not synced is synced before the mark is cleared.
            let idle = progress.waiting.is_empty();
            (progress.wants_mark(), idle && progress.last_ahead.elapsed() >= self.facts.options.sync_interval)
        };
        match on_device {
            true if held || quiet => self.clear_mark().await,
            _ if held || !wanted || !self.lazy.demanded() => Ok(()),
            true => {
                self.run_ahead();
                Ok(())
            }
            false => self.set_mark().await,
        }
    }

    /// How long the syncer may wait until it looks again: the sync interval, or less where the mark is due to be cleared
    /// before that.
    pub(super) fn until_next_look(&self) -> Duration {
        let interval = self.facts.options.sync_interval;
        if !self.lazy.is_set() {
            return interval;
        }
        let due = self.progress.lock().last_ahead + interval;
        let left = due.saturating_duration_since(Instant::now());
        // Overdue only while somebody waits, whose acknowledgement starts the interval anew.
        if left.is_zero() { interval } else { left }
    }

    /// Clears the mark for good: nothing is acknowledged any more.
    pub(crate) async fn clear_mark_at_end(&self) -> Result<()> {
        self.hold(true);
        let _one_at_a_time = self.lazy.changing.lock().await;
        self.clear_mark().await
    }

    /// Stops acknowledgements from running ahead, syncs what they covered, and clears the mark.
    async fn clear_mark(&self) -> Result<()> {
        if self.facts.options.mode == Mode::Replicated {
            self.progress.lock().ahead = false;
        }
        let clean = self.sync_now().await?;
        let ahead = self.facts.options.mode == Mode::Replicated && self.progress.lock().ahead;
        assert!(!ahead, "the mark is cleared while acknowledgements run ahead");
        self.update_superblock(|s| {
            s.lazy = false;
            s.clean = clean;
        })
        .await?;
        self.lazy.on_device.store(false, Ordering::SeqCst);
        Ok(())
    }

    async fn set_mark(&self) -> Result<()> {
        self.lazy.on_device.store(true, Ordering::SeqCst);
        self.update_superblock(|s| s.lazy = true).await?;
        self.run_ahead();
        Ok(())
    }

    /// The mark is set on the device. If it is to be held clear by now, it is cleared next, before anything ran ahead.
    fn run_ahead(&self) {
        assert!(self.lazy.is_set(), "acknowledgements run ahead only with the mark set");
        let mut progress = self.progress.lock();
        if !self.lazy.held.load(Ordering::SeqCst) {
            progress.ahead = true;
            progress.last_ahead = Instant::now();
            progress.settle();
        }
    }

    /// Changes the superblock, synced. A failure ends the engine.
    pub(crate) async fn update_superblock(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let result = self.superblock.lock().await.update(change).await;
        self.counters.syncs.fetch_add(2, Ordering::Relaxed);
        self.counters.device_bytes.fetch_add(4 * crate::io::BLOCK as u64, Ordering::Relaxed);
        result.inspect_err(|error| self.fail(error.clone()))
    }
}
