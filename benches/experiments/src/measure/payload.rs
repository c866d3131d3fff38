//! Random keys and values, so that nothing on the way can compress or deduplicate them.

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

const POOL_BYTES: usize = 32 << 20;

/// A pool of random bytes. Values are slices of it at random offsets, without a copy.
#[derive(Clone)]
pub struct Payloads {
    pool: Bytes,
    keys: u64,
}

impl Payloads {
    /// A pool for one measurement. `keys` is the number of different keys.
    pub fn new(keys: u64, seed: u64) -> Payloads {
        let mut pool = vec![0; POOL_BYTES];
        StdRng::seed_from_u64(seed).fill_bytes(&mut pool);
        Payloads { pool: pool.into(), keys: keys.max(1) }
    }

    /// A value of `bytes` bytes, at most the pool's size.
    pub fn value(&self, rng: &mut StdRng, bytes: usize) -> Bytes {
        let bytes = bytes.min(POOL_BYTES);
        let start = rng.random_range(0..=POOL_BYTES - bytes);
        self.pool.slice(start..start + bytes)
    }

    /// One of the keys, each equally likely.
    pub fn key(&self, rng: &mut StdRng) -> Bytes {
        Self::nth_key(rng.random_range(0..self.keys))
    }

    /// The keys: 24 bytes each, in no particular order.
    pub fn nth_key(number: u64) -> Bytes {
        Bytes::from(format!("object/{:016x}/", scatter(number)))
    }

    /// How many keys there are.
    pub fn keys(&self) -> u64 {
        self.keys
    }
}

/// SplitMix64's finalizer: a bijection that puts neighbours far apart.
fn scatter(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_have_24_bytes_and_are_as_many_as_asked() {
        let payloads = Payloads::new(50, 1);
        let mut rng = StdRng::seed_from_u64(2);
        let keys: BTreeSet<Bytes> = (0..2000).map(|_| payloads.key(&mut rng)).collect();
        assert_eq!(keys.len(), 50);
        assert!(keys.iter().all(|key| key.len() == 24));
        let all: BTreeSet<Bytes> = (0..payloads.keys()).map(Payloads::nth_key).collect();
        assert_eq!(keys, all);
    }

    #[test]
    fn values_have_the_asked_length() {
        let payloads = Payloads::new(1, 1);
        let mut rng = StdRng::seed_from_u64(2);
        assert_eq!(payloads.value(&mut rng, 4096).len(), 4096);
        assert_eq!(payloads.value(&mut rng, POOL_BYTES).len(), POOL_BYTES);
    }
}
