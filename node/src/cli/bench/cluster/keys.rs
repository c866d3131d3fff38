//! The keys of a run.
//!
//! What holds here: the prefix of a run is random, so no run writes over keys of another one, or of
//! anybody else. Each key of the run is put once before one is put again, so that a run of N puts of N
//! keys takes the space of N.

use bytes::Bytes;
use cairn_client::{Client, ListOptions};
use futures::{TryStreamExt, stream};
use std::sync::atomic::{AtomicU64, Ordering};

/// All runs have their keys under this.
pub(super) const PREFIX: &str = "cairn-bench/";
/// Keys that are asked for, and removed, at once.
const PAGE: u32 = 1000;
const REMOVALS: usize = 64;

/// The keys of one run.
#[derive(Debug)]
pub(super) struct Keys {
    prefix: String,
    count: u64,
    /// Keys that were handed out to be put.
    put: AtomicU64,
}

impl Keys {
    pub(super) fn new(count: u64) -> Keys {
        let prefix = format!("{PREFIX}{:016x}/", rand::random::<u64>());
        Keys { prefix, count, put: AtomicU64::new(0) }
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// How many different ones were handed out to be put.
    pub(super) fn used(&self) -> u64 {
        self.put.load(Ordering::Relaxed).min(self.count)
    }

    /// The next one to put.
    pub(super) fn next(&self) -> Bytes {
        self.key(self.put.fetch_add(1, Ordering::Relaxed) % self.count)
    }

    /// Sixteen digits in no order: neighbours in time are none among the keys. Multiplying by an odd
    /// number maps no two numbers to one.
    pub(super) fn key(&self, number: u64) -> Bytes {
        let scattered = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        format!("{}{:016x}", self.prefix, scattered ^ (scattered >> 32)).into()
    }
}

/// Whether the cluster holds keys that are of no run.
pub(super) async fn holds_others(client: &Client) -> anyhow::Result<bool> {
    let after = format!("{PREFIX}\u{10ffff}");
    // A caller that may not list all keys is one of several.
    for options in [ListOptions::prefix(""), ListOptions::prefix("").start_after(after)] {
        let options = options.limit(1).keys_only();
        let page = match client.list(options).await {
            Err(error) if error.is_denied() => return Ok(true),
            page => page?,
        };
        if page.items.first().is_some_and(|item| !item.key.starts_with(PREFIX.as_bytes())) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes all keys under the prefix, and returns how many there were.
pub(super) async fn remove_all(client: &Client, prefix: &str) -> anyhow::Result<u64> {
    let mut removed = 0;
    loop {
        let options = ListOptions::prefix(prefix.to_owned()).limit(PAGE).keys_only();
        let page = client.list(options).await?;
        if page.items.is_empty() {
            return Ok(removed);
        }
        removed += page.items.len() as u64;
        let keys = stream::iter(page.items.into_iter().map(|item| Ok(item.key)));
        let remove = |key| async move { client.delete(key).await.map(drop) };
        keys.try_for_each_concurrent(REMOVALS, remove).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The story: two runs with one seed wrote the same keys, and a run of N puts wrote two thirds of
    /// N keys, so an area was filled less than it seemed.
    #[test]
    fn every_key_is_put_once_before_one_is_put_again_and_no_other_run_has_it() {
        let (one, other) = (Keys::new(1000), Keys::new(1000));
        let all =
            |keys: &Keys, number| -> BTreeSet<Bytes> { (0..number).map(|_| keys.next()).collect() };
        let first = all(&one, 1000);
        assert_eq!((first.len(), one.used()), (1000, 1000));
        assert_eq!(all(&one, 500).intersection(&first).count(), 500);
        assert_eq!(one.used(), 1000);
        assert!(all(&other, 1000).is_disjoint(&first));
        assert!(first.iter().all(|key| key.starts_with(one.prefix().as_bytes())));
        let far: BTreeSet<Bytes> = (0..100_000).map(|number| one.key(number * 43)).collect();
        assert_eq!(far.len(), 100_000);
    }
}
