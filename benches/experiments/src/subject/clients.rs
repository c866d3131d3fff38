//! The clients of an engine's log.

use super::EngineLog;
use crate::measure::{Limit, Payloads, Samples, Worker, drive};
use anyhow::{Result, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Which key comes next.
#[derive(Clone)]
enum Order {
    /// Any, each equally likely.
    Random,
    /// Each once, by a number that all clients share.
    Once(Arc<AtomicU64>),
}

/// The bytes of a value.
#[derive(Clone, Copy, Debug)]
pub enum ValueBytes {
    /// Always these.
    Fixed(usize),
    /// From the first to the second: each factor of two is as likely as any other.
    Between(usize, usize),
}

impl ValueBytes {
    /// One size.
    pub fn draw(self, rng: &mut StdRng) -> usize {
        match self {
            ValueBytes::Fixed(bytes) => bytes,
            ValueBytes::Between(least, most) => {
                let (least, most) = (least.max(1) as f64, most.max(1) as f64);
                (least * (most / least).powf(rng.random_range(0.0..=1.0))) as usize
            }
        }
    }

    /// The mean.
    pub fn mean(self) -> f64 {
        match self {
            ValueBytes::Fixed(bytes) => bytes as f64,
            ValueBytes::Between(least, most) => {
                (most as f64 - least as f64) / (most as f64 / least as f64).ln()
            }
        }
    }
}

/// One client that puts random values.
pub struct Putter {
    log: EngineLog,
    payloads: Payloads,
    value_bytes: ValueBytes,
    order: Order,
    rng: StdRng,
}

impl Putter {
    /// `clients` clients, each with its own random numbers, that put under random keys.
    pub fn many(
        log: &EngineLog,
        payloads: &Payloads,
        value_bytes: usize,
        clients: usize,
        seed: u64,
    ) -> Vec<Putter> {
        Putter::mixed(log, payloads, ValueBytes::Fixed(value_bytes), clients, seed)
    }

    /// The same with values of different sizes.
    pub fn mixed(
        log: &EngineLog,
        payloads: &Payloads,
        value_bytes: ValueBytes,
        clients: usize,
        seed: u64,
    ) -> Vec<Putter> {
        Putter::in_order(log, payloads, value_bytes, clients, seed, &Order::Random)
    }

    /// Puts each key once, by `clients` clients.
    ///
    /// # Errors
    /// The engine's.
    pub async fn fill(
        log: &EngineLog,
        payloads: &Payloads,
        value_bytes: ValueBytes,
        clients: usize,
    ) -> Result<Samples> {
        let order = Order::Once(Arc::default());
        let putters = Putter::in_order(log, payloads, value_bytes, clients, 0, &order);
        drive(putters, Limit::Operations(payloads.keys())).await
    }

    fn in_order(
        log: &EngineLog,
        payloads: &Payloads,
        value_bytes: ValueBytes,
        clients: usize,
        seed: u64,
        order: &Order,
    ) -> Vec<Putter> {
        (0..clients as u64)
            .map(|client| Putter {
                log: log.clone(),
                payloads: payloads.clone(),
                value_bytes,
                order: order.clone(),
                rng: StdRng::seed_from_u64(seed ^ (client << 32)),
            })
            .collect()
    }
}

impl Worker for Putter {
    async fn step(&mut self) -> Result<()> {
        let key = match &self.order {
            Order::Random => self.payloads.key(&mut self.rng),
            Order::Once(next) => Payloads::nth_key(next.fetch_add(1, Ordering::Relaxed)),
        };
        let bytes = self.value_bytes.draw(&mut self.rng);
        let value = self.payloads.value(&mut self.rng, bytes);
        self.log.put(key, value).await
    }
}

/// One client that gets random keys.
pub struct Getter {
    log: EngineLog,
    payloads: Payloads,
    rng: StdRng,
}

impl Getter {
    /// `clients` clients, each with its own random numbers.
    pub fn many(log: &EngineLog, payloads: &Payloads, clients: usize, seed: u64) -> Vec<Getter> {
        (0..clients as u64)
            .map(|client| Getter {
                log: log.clone(),
                payloads: payloads.clone(),
                rng: StdRng::seed_from_u64(seed ^ (client << 32)),
            })
            .collect()
    }
}

impl Worker for Getter {
    async fn step(&mut self) -> Result<()> {
        let key = self.payloads.key(&mut self.rng);
        ensure!(self.log.get(&key).await?.is_some(), "{} is missing", key.escape_ascii());
        Ok(())
    }
}
