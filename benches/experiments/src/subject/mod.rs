//! What is measured: small files, raw writes, the shipped engine.

mod blocks;
mod clients;
mod engine_log;
mod files;
mod raw;

pub(crate) use blocks::{BlockWrites, Content, Durable, FileState, Settled, fill_file, stamp};
pub use blocks::{raw_writes, sync_filesystem};
pub use clients::{Getter, Putter, ValueBytes};
pub use engine_log::EngineLog;
pub use files::{FileStore, FileSync};
pub use raw::{FileReader, RawReader, RawWriter, make_engine, make_raw_device, open_engine};
pub(crate) use raw::{make_engine_with, open_engine_with};

use crate::measure::{Limit, Payloads, Samples, Stop, Worker, drive_until};
use anyhow::Result;
use bytes::Bytes;
use cairn_engine::io::BLOCK;
use futures::future::BoxFuture;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The load of one round.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// Requests under way.
    pub depth: usize,
    /// When the round ends.
    pub limit: Limit,
    /// Of the random numbers.
    pub seed: u64,
    /// Ends it early.
    pub stop: Stop,
}

/// What a row measures.
pub(crate) trait Subject: Send {
    /// One round of load.
    fn round<'a>(&'a mut self, load: &'a Load) -> BoxFuture<'a, Result<Samples>>;

    /// Ends what runs in the background.
    fn close(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

/// Clients that lay objects out: many, so that an engine that syncs does so once for many puts.
const LAYERS: u64 = 128;

/// Puts these objects of a block each, in order, until the time is over. Returns how many it put.
///
/// # Errors
/// The engine's; `Stopped`.
pub(crate) async fn lay_out(
    log: &EngineLog,
    payloads: &Payloads,
    key: fn(u64) -> Bytes,
    objects: u64,
    time: Duration,
    stop: &Stop,
) -> Result<u64> {
    let next = Arc::new(AtomicU64::new(0));
    let layer = |client| Layer {
        log: log.clone(),
        payloads: payloads.clone(),
        key,
        next: Arc::clone(&next),
        rng: StdRng::seed_from_u64(client),
    };
    let layers = (0..LAYERS).map(layer).collect();
    drive_until(layers, Limit::Bounded { operations: objects, time }, stop).await?;
    Ok(next.load(Ordering::Relaxed))
}

struct Layer {
    log: EngineLog,
    payloads: Payloads,
    key: fn(u64) -> Bytes,
    next: Arc<AtomicU64>,
    rng: StdRng,
}

impl Worker for Layer {
    async fn step(&mut self) -> Result<()> {
        let object = self.next.fetch_add(1, Ordering::Relaxed);
        self.log.put((self.key)(object), self.payloads.value(&mut self.rng, BLOCK)).await
    }
}

/// Puts of random values under random keys into the shipped engine. A round leaves nothing
/// unsynced: the next row would pay for it.
pub(crate) struct EnginePuts {
    pub log: EngineLog,
    pub payloads: Payloads,
    pub value_bytes: usize,
}

impl Subject for EnginePuts {
    fn round<'a>(&'a mut self, load: &'a Load) -> BoxFuture<'a, Result<Samples>> {
        let (log, payloads) = (&self.log, &self.payloads);
        let putters = Putter::many(log, payloads, self.value_bytes, load.depth, load.seed);
        Box::pin(async move {
            let samples = drive_until(putters, load.limit, &load.stop).await?;
            log.engine().sync().await?;
            Ok(samples)
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move { Ok(self.log.engine().close().await?) })
    }
}
