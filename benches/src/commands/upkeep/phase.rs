//! One line of one round: puts, and what runs beside them.
//!
//! What holds here: the other work begins with the measured time, not with the warm-up, and only
//! what it does in that time counts.

use super::scrub::Scrub;
use anyhow::{Context, Result};
use cairn_engine::{Engine, GroupId};
use cairn_experiments::{EngineLog, Limit, Payloads, Putter, Samples, Worker, drive};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const GROUP: GroupId = GroupId(0);
const WARM_UP: Duration = Duration::from_millis(500);
/// Clients that delete.
const DELETERS: u64 = 10;

/// What all phases share.
pub(super) struct Bench {
    pub log: EngineLog,
    pub payloads: Payloads,
    pub value_bytes: usize,
    pub depth: usize,
    /// Of each phase.
    pub measured: Duration,
}

/// What one phase measured.
pub(super) struct Phase {
    pub puts: Samples,
    /// Checkpoints that ended.
    pub checkpoints: u64,
    pub moved_bytes: u64,
    /// Bytes scrubbed, or keys deleted.
    pub work: u64,
}

impl Bench {
    /// Overwrites keys until all that is free lies between other values: on a fresh area the first
    /// puts are faster than all later ones.
    pub(super) async fn age(&self) -> Result<()> {
        let target = 2 * self.engine().status().space.free;
        let began = self.engine().status().user_bytes_written;
        let mut seed = 0;
        while self.engine().status().user_bytes_written - began < target {
            self.write(super::RETAINED_LOG_BYTES, seed).await?;
            self.log.trim(super::RETAINED_LOG_BYTES).await?;
            seed += 1;
        }
        Ok(())
    }

    pub(super) async fn alone(&self, seed: u64) -> Result<Phase> {
        self.begin().await?;
        self.beside(seed, async { Ok(()) }).await
    }

    /// One checkpoint after another.
    pub(super) async fn beside_checkpoints(&self, seed: u64) -> Result<Phase> {
        self.begin().await?;
        let checkpoints = async {
            loop {
                self.engine().checkpoint().await?;
            }
        };
        self.beside(seed, checkpoints).await
    }

    pub(super) async fn beside_a_scrub(&self, seed: u64, scrub: &mut Scrub) -> Result<Phase> {
        self.begin().await?;
        let before = scrub.bytes();
        let phase = self.beside(seed, scrub.run()).await?;
        Ok(Phase { work: scrub.bytes() - before, ..phase })
    }

    pub(super) async fn beside_deletes(&self, seed: u64) -> Result<Phase> {
        self.begin().await?;
        let deleted = Arc::default();
        let limit = Limit::Time { warm_up: Duration::ZERO, measured: self.measured };
        let deletes = async {
            drive(self.deleters(seed, &deleted), limit).await?;
            Ok(())
        };
        let phase = self.beside(seed, deletes).await?;
        Ok(Phase { work: deleted.load(Ordering::Relaxed), ..phase })
    }

    /// Compaction begins by itself once nothing but keys refers to the values in sparse blocks.
    pub(super) async fn beside_compaction(&self, seed: u64) -> Result<Phase> {
        self.log.trim(0).await?;
        self.beside(seed, async { Ok(()) }).await
    }

    fn engine(&self) -> &Engine {
        self.log.engine()
    }

    /// Each phase begins with as much log as a node keeps, and a new checkpoint: purges come in each
    /// of them alike.
    async fn begin(&self) -> Result<()> {
        let keep_bytes = super::RETAINED_LOG_BYTES;
        let missing = keep_bytes.saturating_sub(self.engine().log_bytes(GROUP));
        if missing > 0 {
            self.write(missing, missing).await?;
        }
        self.log.trim(keep_bytes).await
    }

    /// Puts about so many bytes.
    async fn write(&self, bytes: u64, seed: u64) -> Result<()> {
        let limit = Limit::Operations(bytes.div_ceil(self.value_bytes.max(1) as u64));
        drive(self.putters(seed), limit).await?;
        Ok(())
    }

    fn putters(&self, seed: u64) -> Vec<Putter> {
        Putter::many(&self.log, &self.payloads, self.value_bytes, self.depth, seed)
    }

    /// Puts for the whole phase, and `work` in the measured time. It is dropped when the puts end.
    async fn beside(&self, seed: u64, work: impl Future<Output = Result<()>>) -> Result<Phase> {
        let limit = Limit::Time { warm_up: WARM_UP, measured: self.measured };
        let mut before = None;
        let puts = {
            let mut puts = pin!(drive(self.putters(seed), limit));
            let work = async {
                tokio::time::sleep(WARM_UP).await;
                before = Some(self.engine().status());
                work.await
            };
            tokio::select! {
                samples = &mut puts => samples?,
                ended = work => {
                    ended?;
                    puts.await?
                }
            }
        };
        let (before, after) = (before.context("no time was measured")?, self.engine().status());
        Ok(Phase {
            puts,
            checkpoints: after.checkpoints - before.checkpoints,
            moved_bytes: after.moved_bytes - before.moved_bytes,
            work: 0,
        })
    }

    /// Clients that delete random keys.
    fn deleters(&self, seed: u64, deleted: &Arc<AtomicU64>) -> Vec<Deleter> {
        (0..DELETERS)
            .map(|client| Deleter {
                log: self.log.clone(),
                payloads: self.payloads.clone(),
                rng: StdRng::seed_from_u64(seed ^ (1 << 63) ^ (client << 32)),
                deleted: Arc::clone(deleted),
            })
            .collect()
    }
}

struct Deleter {
    log: EngineLog,
    payloads: Payloads,
    rng: StdRng,
    /// Shared by all.
    deleted: Arc<AtomicU64>,
}

impl Worker for Deleter {
    async fn step(&mut self) -> Result<()> {
        self.log.delete(self.payloads.key(&mut self.rng)).await?;
        self.deleted.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
