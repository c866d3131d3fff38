//! What clients ask of a system, the same of each.

use anyhow::{Result, ensure};
use bytes::Bytes;
use cairn_experiments::{Payloads, Worker};
use futures::{StreamExt, TryStreamExt, stream};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The most puts in one request, by etcd's default.
const BATCH: u64 = 128;
/// Requests under way while keys are put at the beginning.
const FILLING: usize = 8;

/// A connection to a system.
pub trait Store: Clone + Send + Sync + 'static {
    /// Puts one value.
    fn put(&self, key: Bytes, value: Bytes) -> impl Future<Output = Result<()>> + Send;

    /// The length of a key's value. Sees every put that was acknowledged before.
    fn get(&self, key: Bytes) -> impl Future<Output = Result<Option<usize>>> + Send;

    /// Puts all of these, [`BATCH`] at most.
    fn put_all(&self, values: Vec<(Bytes, Bytes)>) -> impl Future<Output = Result<()>> + Send;
}

/// A mix of puts and gets.
#[derive(Clone)]
pub struct Workload {
    /// The keys and values.
    pub payloads: Payloads,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// The share of puts. The others are gets of keys that are all there.
    pub puts_percent: u8,
}

impl Workload {
    /// Puts alone.
    pub fn puts(payloads: &Payloads, value_bytes: usize) -> Workload {
        Workload { payloads: payloads.clone(), value_bytes, puts_percent: 100 }
    }

    /// Puts every key once, if some are to be read.
    pub async fn fill<S: Store>(&self, store: &S) -> Result<()> {
        if self.puts_percent == 100 {
            return Ok(());
        }
        let keys = self.payloads.keys();
        let batches = (0..keys).step_by(BATCH as usize).map(|first| {
            let mut rng = StdRng::seed_from_u64(first);
            let value = |number| {
                let value = self.payloads.value(&mut rng, self.value_bytes);
                (Payloads::nth_key(number), value)
            };
            store.put_all((first..keys.min(first + BATCH)).map(value).collect())
        });
        stream::iter(batches).buffer_unordered(FILLING).try_collect().await
    }

    /// `clients` closed loops over these connections.
    pub fn callers<S: Store>(&self, pool: &[S], clients: usize, seed: u64) -> Vec<Caller<S>> {
        let caller = |(store, number): (&S, u64)| Caller {
            store: store.clone(),
            workload: self.clone(),
            rng: StdRng::seed_from_u64(seed ^ (number << 32)),
        };
        pool.iter().cycle().zip(0..clients as u64).map(caller).collect()
    }
}

/// One client.
pub struct Caller<S> {
    store: S,
    workload: Workload,
    rng: StdRng,
}

impl<S: Store> Worker for Caller<S> {
    async fn step(&mut self) -> Result<()> {
        let Workload { payloads, value_bytes, puts_percent } = &self.workload;
        let key = payloads.key(&mut self.rng);
        if *puts_percent == 100 || self.rng.random_range(0..100) < *puts_percent {
            let value = payloads.value(&mut self.rng, *value_bytes);
            return self.store.put(key, value).await;
        }
        let found = self.store.get(key.clone()).await?;
        ensure!(found == Some(*value_bytes), "a get of {key:?} returned {found:?} bytes");
        Ok(())
    }
}
