//! Values that were read lately, in memory: a read of the device costs more than everything else of a get.
//!
//! What holds here: a value is asked for by what the index says of its key now, so no entry is ever wrong,
//! only unused. It is compared with its hash at each use, as one from the device is. All together take no
//! more than the bytes that the options give. Which ones stay depends on nothing but the reads.
//!
//! Which values stay is quick_cache's choice (CLOCK-Pro with a list of keys that were dropped lately): one
//! read of everything does not drive out what is read often.

use crate::types::{CacheStatus, LogId, ValueRef};
use bytes::Bytes;
use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::unsync::{Cache, DefaultLifecycle};
use std::hash::{BuildHasherDefault, DefaultHasher};

/// What an entry takes beside its value's bytes.
const ENTRY_BYTES: usize = 192;
/// About the bytes of a value, by which the list of dropped keys is bounded.
const ABOUT_BYTES: u64 = 1024;

/// Two values of one entry lie at different places, and a place gets another value only from a later entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    version: LogId,
    offset: u64,
}

#[derive(Clone, Copy)]
struct Bytewise;

impl Weighter<Key, Bytes> for Bytewise {
    fn weight(&self, _: &Key, value: &Bytes) -> u64 {
        (value.len() + ENTRY_BYTES) as u64
    }
}

// Not a hasher with a seed: a simulation repeats itself.
type Values =
    Cache<Key, Bytes, Bytewise, BuildHasherDefault<DefaultHasher>, DefaultLifecycle<Key, Bytes>>;

/// The values, and how often one was there.
pub(crate) struct ValueCache(Option<Mutex<Counted>>);

struct Counted {
    values: Values,
    hits: u64,
    misses: u64,
}

impl ValueCache {
    /// A cache of at most so many bytes; 0: none.
    pub(crate) fn new(bytes: u64) -> ValueCache {
        let about = usize::try_from(bytes / ABOUT_BYTES).unwrap_or(usize::MAX);
        let hasher = BuildHasherDefault::default();
        let values = || Cache::with(about, bytes, Bytewise, hasher, DefaultLifecycle::default());
        let counted = || Mutex::new(Counted { values: values(), hits: 0, misses: 0 });
        ValueCache((bytes > 0).then(counted))
    }

    /// The value of this version there, if it is in memory and intact.
    pub(crate) fn get(&self, at: &ValueRef, version: LogId) -> Option<Bytes> {
        let cache = self.0.as_ref().filter(|_| at.len > 0)?;
        let key = Key { version, offset: at.offset() };
        let found = {
            let cache = &mut *cache.lock();
            let found = cache.values.get(&key).cloned();
            *if found.is_some() { &mut cache.hits } else { &mut cache.misses } += 1;
            found
        };
        let found = found?;
        if !at.matches(&found) {
            cache.lock().values.remove(&key);
            return None;
        }
        Some(found)
    }

    /// Keeps a value that was read.
    pub(crate) fn keep(&self, at: &ValueRef, version: LogId, value: &Bytes) {
        if let Some(cache) = self.0.as_ref().filter(|_| at.len > 0) {
            cache.lock().values.insert(Key { version, offset: at.offset() }, value.clone());
        }
    }

    pub(crate) fn status(&self) -> CacheStatus {
        let Some(cache) = &self.0 else { return CacheStatus::default() };
        let cache = cache.lock();
        CacheStatus { bytes: cache.values.weight(), hits: cache.hits, misses: cache.misses }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::hash;

    fn value(number: u64) -> (ValueRef, LogId, Bytes) {
        let bytes = Bytes::from(vec![number as u8; 1000]);
        let at = ValueRef::contiguous(number * 4096, 1000, hash(&bytes)).expect("a place");
        (at, LogId { term: 1, index: number }, bytes)
    }

    #[test]
    fn what_is_kept_is_found_under_its_version_and_place_alone() {
        let cache = ValueCache::new(1 << 20);
        let (at, version, bytes) = value(7);
        assert_eq!(cache.get(&at, version), None);
        cache.keep(&at, version, &bytes);
        assert_eq!(cache.get(&at, version), Some(bytes));
        let (elsewhere, other, _) = value(8);
        assert_eq!((cache.get(&at, other), cache.get(&elsewhere, version)), (None, None));
        let CacheStatus { bytes, hits, misses } = cache.status();
        assert_eq!((bytes, hits, misses), (1000 + ENTRY_BYTES as u64, 1, 3));
    }

    #[test]
    fn a_value_that_is_not_what_the_index_names_is_not_given_and_not_kept() {
        let cache = ValueCache::new(1 << 20);
        let (at, version, _) = value(7);
        cache.keep(&at, version, &value(8).2);
        assert_eq!(cache.get(&at, version), None);
        assert_eq!(cache.status().bytes, 0);
    }

    #[test]
    fn all_together_take_no_more_than_the_bytes_given_and_what_is_asked_for_often_stays() {
        let most = 100 * (1000 + ENTRY_BYTES as u64);
        let cache = ValueCache::new(most);
        let often: Vec<_> = (1..=10).map(value).collect();
        for (at, version, bytes) in &often {
            cache.keep(at, *version, bytes);
            assert!(cache.get(at, *version).is_some());
        }
        // Everything is read once.
        for number in 100..2100 {
            let (at, version, bytes) = value(number);
            cache.keep(&at, version, &bytes);
            assert!(cache.status().bytes <= most);
            if number % 20 == 0 {
                for (at, version, _) in &often {
                    assert!(cache.get(at, *version).is_some(), "after {number}");
                }
            }
        }
        let huge = Bytes::from(vec![1; 200_000]);
        let at = ValueRef::contiguous(0, 200_000, hash(&huge)).expect("a place");
        cache.keep(&at, LogId { term: 2, index: 1 }, &huge);
        assert!(cache.status().bytes <= most);
        let none = ValueCache::new(0);
        none.keep(&often[0].0, often[0].1, &often[0].2);
        assert_eq!(
            (none.get(&often[0].0, often[0].1), none.status()),
            (None, CacheStatus::default())
        );
    }
}
