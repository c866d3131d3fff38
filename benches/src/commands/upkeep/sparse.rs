//! What compaction finds: many blocks that hold a little live data each.
//!
//! Small values are put, so that they share blocks, and most are deleted again. While the log keeps
//! the entries that wrote them, their bytes count as live: compaction begins when the log is
//! purged.

use crate::report::Report;
use anyhow::{Result, ensure};
use cairn_experiments::{EngineLog, Payloads};
use futures::{StreamExt, TryStreamExt, stream};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::time::Duration;

/// Bytes of a small value: the least, and the most.
const SMALL_BYTES: std::ops::RangeInclusive<usize> = 250..=1024;
/// One key in so many keeps its value: the blocks are about a quarter full.
const KEPT: u64 = 4;
/// Concurrent changes.
const DEPTH: usize = 400;
/// After so many syncs in which nothing moved, compaction has ended.
const IDLE_SYNCS: u32 = 3;
const SYNC_INTERVAL: Duration = Duration::from_millis(500);

/// The small values.
pub(super) struct Sparse {
    log: EngineLog,
    payloads: Payloads,
    count: u64,
    rng: StdRng,
    /// Free beside the reserve, in hundredths of the data area, when all was ready; least of the
    /// rounds.
    free_percent: f64,
}

impl Sparse {
    pub(super) fn new(log: &EngineLog, payloads: &Payloads, count: u64) -> Sparse {
        let rng = StdRng::seed_from_u64(count);
        Sparse { log: log.clone(), payloads: payloads.clone(), count, rng, free_percent: 100.0 }
    }

    /// Leaves sparse blocks behind, and nothing moved yet.
    pub(super) async fn make(&mut self) -> Result<()> {
        // What the log keeps then is of the small values alone.
        self.log.trim(0).await?;
        let before = self.log.engine().status().moved_bytes;
        let values: Vec<_> = (0..self.count)
            .map(|number| {
                let bytes = self.rng.random_range(SMALL_BYTES);
                (Payloads::nth_key(self.nth(number)), self.payloads.value(&mut self.rng, bytes))
            })
            .collect();
        let puts = values.into_iter().map(|(key, value)| self.log.put(key, value));
        stream::iter(puts).buffer_unordered(DEPTH).try_collect::<()>().await?;
        self.delete(|number| number % KEPT != 0).await?;
        let status = self.log.engine().status();
        ensure!(
            status.moved_bytes == before,
            "compaction began too early: make fewer small values"
        );
        let free = status.space.free as f64 / status.data_bytes as f64 * 100.0;
        self.free_percent = self.free_percent.min(free);
        Ok(())
    }

    /// Lets compaction end, and deletes the small values that are left: the next phases have nothing
    /// to compact. A plan whose values were deleted under it would make compaction pause.
    pub(super) async fn remove(&self) -> Result<()> {
        let engine = self.log.engine();
        let (mut moved, mut unchanged) = (engine.status().moved_bytes, 0);
        while unchanged < IDLE_SYNCS {
            // Syncs drive it.
            engine.barrier().await?;
            engine.sync().await?;
            tokio::time::sleep(SYNC_INTERVAL).await;
            let now = engine.status().moved_bytes;
            unchanged = if now == moved { unchanged + 1 } else { 0 };
            moved = now;
        }
        self.delete(|number| number % KEPT == 0).await?;
        self.log.trim(0).await
    }

    async fn delete(&self, chosen: impl Fn(u64) -> bool) -> Result<()> {
        let numbers = (0..self.count).filter(|number| chosen(*number));
        let deletes = numbers.map(|number| self.log.delete(Payloads::nth_key(self.nth(number))));
        stream::iter(deletes).buffer_unordered(DEPTH).try_collect::<()>().await
    }

    /// Behind the keys of the puts.
    fn nth(&self, number: u64) -> u64 {
        self.payloads.keys() + number
    }

    pub(super) fn report(&self, report: &mut Report) {
        report.figure("free before compaction", self.free_percent, "% of the data area");
    }
}
