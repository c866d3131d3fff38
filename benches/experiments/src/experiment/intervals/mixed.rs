//! Clients of the engine that put and get, and the keys that they use.

use super::super::Context;
use super::plan::VALUE_BYTES;
use crate::measure::{Limit, Payloads, Samples, Worker, drive_until};
use crate::subject::EngineLog;
use anyhow::{Context as _, Result};
use bytes::Bytes;
use cairn_engine::Engine;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A key by its number: 16 bytes, neighbours far apart.
pub(super) fn key(number: u64) -> Bytes {
    // An odd factor makes this a bijection.
    Bytes::from(format!("{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// What a round of puts and gets measured.
pub(super) struct Round {
    /// Puts and gets.
    pub all: Samples,
    pub puts: Samples,
    pub gets: Samples,
    pub syncs: u64,
    pub checkpoints: u64,
    /// How often puts waited for free space.
    pub waited: u64,
}

/// Puts and gets in equal numbers.
pub(super) struct Mix<'a> {
    pub log: &'a EngineLog,
    pub payloads: &'a Payloads,
    pub keys: u64,
    pub seed: u64,
}

impl Mix<'_> {
    pub(super) async fn round(
        &self,
        context: &Context<'_>,
        clients: usize,
        warm_up: Duration,
        measured: Duration,
    ) -> Result<Round> {
        let from = Instant::now() + warm_up;
        let until = from + measured;
        let kinds = Arc::new(Kinds {
            from,
            until,
            puts: Mutex::new(Samples::new()?),
            gets: Mutex::new(Samples::new()?),
        });
        let workers = (0..clients as u64).map(|client| MixedClient {
            log: self.log.clone(),
            payloads: self.payloads.clone(),
            keys: self.keys,
            rng: StdRng::seed_from_u64(self.seed ^ (client << 32)),
            kinds: Arc::clone(&kinds),
        });
        let waited = self.log.waits().await;
        let counters = tokio::spawn(counters(self.log.engine().clone(), from, until));
        let limit = Limit::Time { warm_up, measured };
        let driven = drive_until(workers.collect(), limit, &context.stop).await;
        let all = driven.inspect_err(|_| counters.abort())?;
        let (syncs, checkpoints) = counters.await.context("the counters' task ended early")?;
        let taken = |samples: &Mutex<Samples>| {
            let samples = samples.lock().unwrap_or_else(PoisonError::into_inner).clone();
            Samples { elapsed: measured, ..samples }
        };
        Ok(Round {
            all,
            puts: taken(&kinds.puts),
            gets: taken(&kinds.gets),
            syncs,
            checkpoints,
            waited: self.log.waits().await - waited,
        })
    }
}

/// Syncs and checkpoints that end in a time.
async fn counters(engine: Engine, from: Instant, until: Instant) -> (u64, u64) {
    let now = || {
        let status = engine.status();
        // A sync is two calls: of the data area and of the journal.
        (status.syncs / 2, status.checkpoints)
    };
    tokio::time::sleep_until(from.into()).await;
    let (syncs, checkpoints) = now();
    tokio::time::sleep_until(until.into()).await;
    let (syncs_after, checkpoints_after) = now();
    (syncs_after.saturating_sub(syncs), checkpoints_after.saturating_sub(checkpoints))
}

/// What the clients measured, the two kinds apart.
struct Kinds {
    from: Instant,
    until: Instant,
    puts: Mutex<Samples>,
    gets: Mutex<Samples>,
}

impl Kinds {
    fn answered(&self, kind: &Mutex<Samples>, sent: Instant) {
        let now = Instant::now();
        if now < self.from || now >= self.until {
            return;
        }
        kind.lock().unwrap_or_else(PoisonError::into_inner).record(now - sent);
    }
}

struct MixedClient {
    log: EngineLog,
    payloads: Payloads,
    keys: u64,
    rng: StdRng,
    kinds: Arc<Kinds>,
}

impl Worker for MixedClient {
    async fn step(&mut self) -> Result<()> {
        let key = key(self.rng.random_range(0..self.keys));
        if self.rng.random_bool(0.5) {
            let value = self.payloads.value(&mut self.rng, VALUE_BYTES);
            let sent = Instant::now();
            self.log.put(key, value).await?;
            self.kinds.answered(&self.kinds.puts, sent);
        } else {
            let sent = Instant::now();
            self.log.get(&key).await?.context("a written key is not there")?;
            self.kinds.answered(&self.kinds.gets, sent);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ() {
        let keys: std::collections::BTreeSet<Bytes> = (0..5000).map(key).collect();
        assert_eq!(keys.len(), 5000);
        assert!(keys.iter().all(|key| key.len() == 16));
    }
}
