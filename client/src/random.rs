//! The client's only source of random numbers, seeded once.

use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::{StdRng, SysRng};
use rand::{RngExt, SeedableRng};

use crate::Error;

pub(crate) struct Random(Mutex<StdRng>);

impl Random {
    /// Seeded with `seed`, or by the operating system.
    pub(crate) fn new(seed: Option<u64>) -> Result<Self, Error> {
        let rng = match seed {
            Some(seed) => StdRng::seed_from_u64(seed),
            None => StdRng::try_from_rng(&mut SysRng).map_err(|e| {
                Error::InvalidOptions(format!("no random numbers from the operating system: {e}"))
            })?,
        };
        Ok(Random(Mutex::new(rng)))
    }

    pub(crate) fn client_id(&self) -> [u8; 16] {
        self.0.lock().random()
    }

    pub(crate) fn index(&self, bound: usize) -> usize {
        self.0.lock().random_range(0..bound.max(1))
    }

    /// Between half and all of `delay`, so that clients that failed together do not retry together.
    pub(crate) fn jitter(&self, delay: Duration) -> Duration {
        delay.mul_f64(0.5 + self.0.lock().random::<f64>() / 2.0)
    }
}
