//! Random keys and values, so that nothing on the way can compress or deduplicate them.

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};

const POOL_BYTES: usize = 32 << 20;
/// The exponent of YCSB's zipfian distribution.
const ZIPFIAN: f64 = 0.99;

/// A pool of random bytes. Values are slices of it at random offsets, without a copy.
#[derive(Clone)]
pub struct Payloads {
    pool: Bytes,
    keys: u64,
    /// How often which key is asked for; all equally often without it.
    popularity: Option<Zipf<f64>>,
}

impl Payloads {
    /// A pool for one measurement. `keys` is the number of different keys.
    pub fn new(keys: u64, seed: u64) -> Payloads {
        let mut pool = vec![0; POOL_BYTES];
        StdRng::seed_from_u64(seed).fill_bytes(&mut pool);
        Payloads { pool: pool.into(), keys: keys.max(1), popularity: None }
    }

    /// Draws some keys more often: by a zipfian distribution with the exponent 0.99, as YCSB does.
    pub fn zipfian(self) -> Payloads {
        let popularity = Zipf::new(self.keys as f64, ZIPFIAN).ok();
        Payloads { popularity, ..self }
    }

    /// A value of `bytes` bytes, at most the pool's size.
    pub fn value(&self, rng: &mut StdRng, bytes: usize) -> Bytes {
        let bytes = bytes.min(POOL_BYTES);
        let start = rng.random_range(0..=POOL_BYTES - bytes);
        self.pool.slice(start..start + bytes)
    }

    /// One of the keys.
    pub fn key(&self, rng: &mut StdRng) -> Bytes {
        Self::nth_key(match &self.popularity {
            Some(zipf) => (zipf.sample(rng) as u64).clamp(1, self.keys) - 1,
            None => rng.random_range(0..self.keys),
        })
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

    /// Of `n` keys the commonest is asked for once in 1 + 2^-0.99 + … + n^-0.99 times.
    #[test]
    fn zipfian_keys_are_as_common_as_their_rank_says() {
        let payloads = Payloads::new(1000, 1).zipfian();
        let mut rng = StdRng::seed_from_u64(2);
        let drawn: Vec<Bytes> = (0..100_000).map(|_| payloads.key(&mut rng)).collect();
        let sum: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-ZIPFIAN)).sum();
        for rank in [1, 2, 10, 100] {
            let key = Payloads::nth_key(rank - 1);
            let found = drawn.iter().filter(|drawn| **drawn == key).count() as f64 / 1e5;
            let expected = (rank as f64).powf(-ZIPFIAN) / sum;
            assert!((found / expected - 1.0).abs() < 0.2, "rank {rank}: {found}, not {expected}");
        }
        let all: BTreeSet<Bytes> = (0..1000).map(Payloads::nth_key).collect();
        assert!(drawn.iter().all(|key| all.contains(key)));
    }

    #[test]
    fn values_have_the_asked_length() {
        let payloads = Payloads::new(1, 1);
        let mut rng = StdRng::seed_from_u64(2);
        assert_eq!(payloads.value(&mut rng, 4096).len(), 4096);
        assert_eq!(payloads.value(&mut rng, POOL_BYTES).len(), POOL_BYTES);
    }
}
