//! Objects of 4 KiB under keys of an engine.

use crate::measure::{Limit, Payloads, Stop, Worker, drive_until};
use crate::subject::EngineLog;
use anyhow::Result;
use bytes::Bytes;
use cairn_engine::io::BLOCK;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What all clients of an engine share.
#[derive(Clone)]
pub(super) struct Keys {
    log: EngineLog,
    payloads: Payloads,
}

impl Keys {
    pub(super) fn new(log: EngineLog, payloads: &Payloads) -> Keys {
        Keys { log, payloads: payloads.clone() }
    }

    /// Puts an object.
    pub(super) async fn put(&self, object: u64, rng: &mut StdRng) -> Result<()> {
        self.log.put(key(object), self.payloads.value(rng, BLOCK)).await
    }

    /// Deletes an object.
    pub(super) async fn delete(&self, object: u64) -> Result<()> {
        self.log.delete(key(object)).await
    }

    /// Closes the engine.
    pub(super) async fn close(&self) -> Result<()> {
        Ok(self.log.engine().close().await?)
    }

    /// Syncs what was put so far.
    pub(super) async fn sync(&self) -> Result<()> {
        Ok(self.log.engine().sync().await?)
    }

    /// How often a sync was made to free space.
    pub(super) async fn waits(&self) -> u64 {
        self.log.waits().await
    }

    /// Puts these objects, in order, until the time is over. Returns how many it put.
    ///
    /// # Errors
    /// The engine's; `Stopped`.
    pub(super) async fn lay_out(
        &self,
        objects: Range<u64>,
        time: Duration,
        stop: &Stop,
    ) -> Result<u64> {
        let operations = objects.end - objects.start;
        let next = Arc::new(AtomicU64::new(objects.start));
        let client = |client| EngineLayer {
            keys: self.clone(),
            next: Arc::clone(&next),
            rng: StdRng::seed_from_u64(client),
        };
        let clients = (0..LAYERS).map(client).collect();
        drive_until(clients, Limit::Bounded { operations, time }, stop).await?;
        Ok(next.load(Ordering::Relaxed) - objects.start)
    }
}

/// A key of 16 bytes.
fn key(object: u64) -> Bytes {
    Bytes::from(format!("{object:016x}"))
}

/// Clients that lay objects out: many, so that an engine that syncs does so once for many puts.
const LAYERS: u64 = 128;

struct EngineLayer {
    keys: Keys,
    next: Arc<AtomicU64>,
    rng: StdRng,
}

impl Worker for EngineLayer {
    async fn step(&mut self) -> Result<()> {
        let object = self.next.fetch_add(1, Ordering::Relaxed);
        self.keys.put(object, &mut self.rng).await
    }
}
