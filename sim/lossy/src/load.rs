//! Several clients that write, delete and read keys of their own, and log what they were told.

use crate::history::{Content, History, number_of, value};
use anyhow::{Result, bail};
use cairn_client::{Client, Error};
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Keys that a writer writes again and again.
const KEYS: u64 = 48;

/// After an error that says "not applied", so that a cluster that is away is not asked in a tight loop.
const PAUSE: Duration = Duration::from_millis(20);

/// Polled while waiting for acknowledgements.
const POLL: Duration = Duration::from_millis(5);

/// Counts of one or more periods of load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Writes acknowledged.
    pub acknowledged: u64,
    /// Writes of unknown outcome.
    pub unknown: u64,
    /// Writes refused, not applied.
    pub refused: u64,
    /// Reads answered, each compared with what was written.
    pub reads: u64,
    /// Reads that were answered wrong, one sentence each.
    pub wrong: Vec<String>,
}

impl Told {
    /// Adds another writer's or period's counts.
    pub fn add(&mut self, other: Told) {
        self.acknowledged += other.acknowledged;
        self.unknown += other.unknown;
        self.refused += other.refused;
        self.reads += other.reads;
        self.wrong.extend(other.wrong);
    }
}

/// One client's keys and log. Outlives the periods of load.
pub struct Writer {
    name: String,
    client: Client,
    rng: StdRng,
    /// Each of the [`KEYS`] keys is at this name; after a write of unknown outcome it gets another.
    generations: Vec<u64>,
    next_number: u64,
    history: SharedHistory,
}

/// What all writers wrote. No two write the same key.
pub type SharedHistory = Arc<Mutex<History>>;

impl Writer {
    /// A writer of this number, with a client of its own.
    pub fn new(number: u64, client: Client, seed: u64, history: SharedHistory) -> Writer {
        Writer {
            name: format!("w{number}"),
            client,
            rng: StdRng::seed_from_u64(seed),
            generations: vec![0; KEYS as usize],
            next_number: 1,
            history,
        }
    }

    fn pick(&mut self) -> String {
        let place = self.rng.random_range(0..self.generations.len());
        let generation = self.generations.get(place).copied().unwrap_or_default();
        let key = format!("{}/{place}.{generation}", self.name);
        if self.history.lock().register(&key).writable() {
            return key;
        }
        if let Some(generation) = self.generations.get_mut(place) {
            *generation += 1;
        }
        format!("{}/{place}.{}", self.name, generation + 1)
    }

    async fn step(&mut self, shared: &Shared, told: &mut Told) -> Result<()> {
        let key = self.pick();
        match self.rng.random_range(0..16_u8) {
            0 => self.write(key, None, shared, told).await,
            1..=3 => self.read(key, told).await,
            _ => {
                let number = self.next_number;
                self.next_number += 1;
                self.write(key, Some(number), shared, told).await
            }
        }
    }

    async fn write(&mut self, key: String, content: Content, shared: &Shared, told: &mut Told) -> Result<()> {
        let result = match content {
            Some(number) => self.client.put(key.clone(), value(&key, number)).await,
            None => self.client.delete(key.clone()).await,
        };
        match result {
            Ok(_) => {
                self.history.lock().register(&key).acknowledge(content);
                told.acknowledged += 1;
                shared.acknowledged.fetch_add(1, Ordering::SeqCst);
                shared.times.lock().push(Instant::now());
            }
            Err(Error::OutcomeUnknown { .. }) => {
                self.history.lock().register(&key).leave_open(content);
                told.unknown += 1;
            }
            Err(error) if error.is_transient() => {
                told.refused += 1;
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => bail!("{}: writing {key}: {error}", self.name),
        }
        Ok(())
    }

    async fn read(&mut self, key: String, told: &mut Told) -> Result<()> {
        let found = match self.client.get(key.clone()).await {
            Ok(found) => found,
            Err(error) if error.is_transient() => {
                tokio::time::sleep(PAUSE).await;
                return Ok(());
            }
            Err(error) => {
                told.wrong.push(format!("{key}: cannot be read: {error}"));
                return Ok(());
            }
        };
        told.reads += 1;
        let content = found.map(|item| number_of(&key, &item.value)).transpose();
        if let Err(reason) = content.and_then(|content| self.history.lock().register(&key).observe(content)) {
            told.wrong.push(format!("{key}: {reason}"));
        }
        Ok(())
    }
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    acknowledged: AtomicU64,
    times: Mutex<Vec<Instant>>,
}

/// A period of load.
pub struct Load {
    shared: Arc<Shared>,
    writers: Vec<JoinHandle<(Writer, Told, Result<()>)>>,
}

impl Load {
    /// Sets all writers to work.
    pub fn start(writers: Vec<Writer>) -> Load {
        let shared = Arc::new(Shared::default());
        let writers = writers
            .into_iter()
            .map(|mut writer| {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    let mut told = Told::default();
                    let mut result = Ok(());
                    while result.is_ok() && !shared.stop.load(Ordering::SeqCst) {
                        result = writer.step(&shared, &mut told).await;
                    }
                    (writer, told, result)
                })
            })
            .collect();
        Load { shared, writers }
    }

    /// Waits for `more` acknowledgements from now on. False if they did not come within `limit`.
    pub async fn wait_for(&self, more: u64, limit: Duration) -> bool {
        let until = self.shared.acknowledged.load(Ordering::SeqCst) + more;
        let began = Instant::now();
        while self.shared.acknowledged.load(Ordering::SeqCst) < until {
            if began.elapsed() > limit {
                return false;
            }
            tokio::time::sleep(POLL).await;
        }
        true
    }

    /// The longest time without an acknowledgement since `start`.
    pub fn longest_gap_since(&self, start: Instant) -> Duration {
        let mut times = vec![start];
        times.extend(self.shared.times.lock().iter().filter(|time| **time > start));
        times.push(Instant::now());
        times.sort();
        let gaps = times.iter().zip(times.iter().skip(1)).map(|(before, after)| *after - *before);
        gaps.max().unwrap_or_default()
    }

    /// Ends the load, after the writes under way.
    ///
    /// # Errors
    /// Where a writer got an answer that no fault explains.
    pub async fn stop(self) -> Result<(Vec<Writer>, Told)> {
        self.shared.stop.store(true, Ordering::SeqCst);
        let (mut writers, mut told) = (Vec::new(), Told::default());
        for task in self.writers {
            let (writer, own, result) = task.await?;
            result?;
            writers.push(writer);
            told.add(own);
        }
        Ok((writers, told))
    }
}
