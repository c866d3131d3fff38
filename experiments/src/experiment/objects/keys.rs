//! Objects of 4 KiB under keys of an engine.
//!
//! What holds here: a put waits for space as a node's does, so a small engine is slow and not full.

use crate::measure::{Limit, Payloads, Stop, Worker, drive_until};
use crate::subject::EngineLog;
use anyhow::{Result, ensure};
use bytes::Bytes;
use cairn_engine::io::BLOCK;
use cairn_engine::{Error, Need};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// What all clients of an engine share.
#[derive(Clone)]
pub(super) struct Keys {
    log: EngineLog,
    payloads: Payloads,
    /// Held by the client that makes space, and how often one had to.
    space: Arc<Mutex<u64>>,
}

/// How long a put waits for space before the row fails.
const SPACE_TIMEOUT: Duration = Duration::from_secs(10);

impl Keys {
    pub(super) fn new(log: EngineLog, payloads: &Payloads) -> Keys {
        Keys { log, payloads: payloads.clone(), space: Arc::new(Mutex::new(0)) }
    }

    /// Puts an object, once there is space for it.
    pub(super) async fn put(&self, object: u64, rng: &mut StdRng) -> Result<()> {
        if !self.has_space()? {
            self.make_space().await?;
        }
        self.log.put(key(object), self.payloads.value(rng, BLOCK)).await
    }

    /// Whether the engine takes one more put, as a node asks it before each one.
    fn has_space(&self) -> Result<bool> {
        let value_bytes = BLOCK as u64;
        let need = Need { bytes: value_bytes, longest: Some(value_bytes), index_bytes: 0 };
        match self.log.engine().check_capacity(need) {
            Ok(()) => Ok(true),
            Err(Error::Full { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Overwritten and purged values free their space once a sync has recorded them. A client that
    /// is faster than that waits for it, and its latency has the wait in it.
    async fn make_space(&self) -> Result<()> {
        let until = Instant::now() + SPACE_TIMEOUT;
        while !self.has_space()? {
            let mut waits = self.space.lock().await;
            if !self.has_space()? {
                ensure!(Instant::now() < until, "no space was freed for {SPACE_TIMEOUT:?}");
                *waits += 1;
                // The barrier writes a block that says what the last sync reached.
                self.log.engine().barrier().await?;
                self.log.engine().sync().await?;
            }
        }
        Ok(())
    }

    /// Deletes an object.
    pub(super) async fn delete(&self, object: u64) -> Result<()> {
        self.log.delete(key(object)).await
    }

    /// Closes the engine.
    pub(super) async fn close(&self) -> Result<()> {
        Ok(self.log.engine().close().await?)
    }

    /// How often clients had to wait for space.
    pub(super) async fn waits(&self) -> u64 {
        *self.space.lock().await
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
