//! Puts every key once before anything is measured, in order of number, within a time.

use crate::sides::blocking;
use crate::store::{Put, Store};
use crate::values::{Values, key};
use anyhow::{Result, bail};
use cairn_engine::io::AlignedBuf;
use cairn_experiments::{
    BlockingWorker, EngineLog, FileStore, Limit, Stop, Stopped, Worker, drive_blocking, drive_until,
};
use rand::rngs::StdRng;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Requests under way at the engine, and puts of a batch at a peer.
const TOGETHER: usize = 128;
/// Threads that make files.
const THREADS: usize = 4;

/// Ends the preload of one side.
pub struct Until {
    /// The most time.
    pub time: Duration,
    /// Ends it early.
    pub stop: Stop,
}

impl Until {
    fn done(&self, put: u64, keys: u64) -> Result<()> {
        if self.stop.is_set() {
            return Err(Stopped.into());
        }
        if put < keys {
            bail!("only {put} of {keys} keys were put before the rounds, in {:?}", self.time);
        }
        Ok(())
    }
}

/// Into the engine.
///
/// # Errors
/// The engine's; `Stopped`; if the time is over.
pub async fn engine(log: &EngineLog, values: &Values, until: &Until) -> Result<()> {
    let next = Arc::new(AtomicU64::new(0));
    let layer = |client| EngineLayer {
        log: log.clone(),
        values: values.clone(),
        next: Arc::clone(&next),
        rng: Values::client(0, client),
    };
    let layers = (0..TOGETHER).map(layer).collect();
    let limit = Limit::Bounded { operations: values.keys, time: until.time };
    drive_until(layers, limit, &until.stop).await?;
    until.done(next.load(Ordering::Relaxed), values.keys)
}

struct EngineLayer {
    log: EngineLog,
    values: Values,
    next: Arc<AtomicU64>,
    rng: StdRng,
}

impl Worker for EngineLayer {
    async fn step(&mut self) -> Result<()> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.log.put(key(number), self.values.value(&mut self.rng)).await
    }
}

/// Into a peer, in batches that are not synced; a sync is the end.
///
/// # Errors
/// The store's; `Stopped`; if the time is over.
pub async fn store(store: &Arc<dyn Store>, values: &Values, until: &Until) -> Result<()> {
    let (store, values) = (Arc::clone(store), values.clone());
    let until = Until { time: until.time, stop: until.stop.clone() };
    blocking(move || {
        let end = Instant::now() + until.time;
        let mut rng = Values::client(0, 0);
        let mut put = 0;
        while put < values.keys && Instant::now() < end && !until.stop.is_set() {
            let to = values.keys.min(put + TOGETHER as u64);
            let puts = (put..to).map(|number| (key(number), values.value(&mut rng)));
            store.put(&puts.collect::<Vec<Put>>(), to == values.keys)?;
            put = to;
        }
        until.done(put, values.keys)?;
        if !store.settle(end)? {
            bail!("the store was still working in the background after {:?}", until.time);
        }
        Ok(())
    })
    .await
}

/// Into files.
///
/// # Errors
/// The system's; `Stopped`; if the time is over.
pub async fn files(store: &FileStore, values: &Values, until: &Until) -> Result<()> {
    let next = Arc::new(AtomicU64::new(0));
    let layer = |number| FileLayer {
        store: store.clone(),
        number,
        values: values.clone(),
        next: Arc::clone(&next),
        value: AlignedBuf::zeroed(values.bytes),
        rng: Values::client(0, number),
    };
    let layers = (0..THREADS).map(layer).collect();
    let limit = Limit::Bounded { operations: values.keys, time: until.time };
    drive_blocking(layers, limit, &until.stop).await?;
    until.done(next.load(Ordering::Relaxed), values.keys)
}

struct FileLayer {
    store: FileStore,
    number: usize,
    values: Values,
    next: Arc<AtomicU64>,
    value: AlignedBuf,
    rng: StdRng,
}

impl BlockingWorker for FileLayer {
    fn step(&mut self) -> Result<()> {
        let object = self.next.fetch_add(1, Ordering::Relaxed);
        let value = self.values.value(&mut self.rng);
        if let Some(place) = self.value.get_mut(..value.len()) {
            place.copy_from_slice(&value);
        }
        let whole = self.value.get(..self.values.bytes).unwrap_or_default();
        self.store.put(self.number, object, whole)
    }
}
