//! Which keys and values all sides put: the same ones, from the same random numbers.

use bytes::Bytes;
use cairn_experiments::Payloads;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Keys by number, each of 24 bytes, and random values. Clones share the pool of values.
#[derive(Clone)]
pub struct Values {
    payloads: Payloads,
    /// The number of keys.
    pub keys: u64,
    /// Bytes of a value.
    pub bytes: usize,
}

/// The length of a key in bytes.
pub const KEY_BYTES: usize = 24;

impl Values {
    /// Values of `bytes` bytes under `keys` keys.
    pub fn new(keys: u64, bytes: usize) -> Values {
        Values { payloads: Payloads::new(keys, 1), keys: keys.max(1), bytes }
    }

    /// One of the numbers of keys, each equally likely.
    pub fn any(&self, rng: &mut StdRng) -> u64 {
        rng.random_range(0..self.keys)
    }

    /// A random value.
    pub fn value(&self, rng: &mut StdRng) -> Bytes {
        self.payloads.value(rng, self.bytes)
    }

    /// The random numbers of a client in a round: the same ones for each side.
    pub fn client(seed: u64, client: usize) -> StdRng {
        StdRng::seed_from_u64(seed ^ ((client as u64) << 32))
    }
}

/// The key of a number. Neighbours in number are far apart in order.
pub fn key(number: u64) -> Bytes {
    // An odd factor makes it a bijection.
    Bytes::from(format!("objects:{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_number_has_a_key_of_its_own_of_24_bytes() {
        let keys: BTreeSet<Bytes> = (0..10_000).map(key).collect();
        assert_eq!(keys.len(), 10_000);
        assert!(keys.iter().all(|key| key.len() == KEY_BYTES));
    }

    #[test]
    fn clients_of_two_sides_draw_the_same_and_two_clients_do_not() {
        let values = Values::new(1000, 64);
        let draw = |client| {
            let mut rng = Values::client(3, client);
            (values.any(&mut rng), values.value(&mut rng))
        };
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
    }
}
