//! Values that were read lately, in memory: a read of the device costs more than everything else of a get.
//!
//! What holds here: a value is asked for by what the index says of its key now, so no entry is ever wrong,
//! only unused. It is compared with its hash at each use, as one from the device is. All together take no
//! more than the bytes that the options give. Which ones stay depends on nothing but the reads. Keeping one
//! takes a bounded time: it looks at one part of the values, and at one value it drops a few.
//!
//! Which values stay is quick_cache's choice (CLOCK-Pro with a list of keys that were dropped lately): one
//! read of everything does not drive out what is read often.

use crate::io::BLOCK;
use crate::types::{CacheStatus, LogId, ValueRef};
use crate::values::COPIED_BYTES;
use bytes::Bytes;
use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::unsync::{Cache, DefaultLifecycle};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// What an entry takes beside its value's bytes.
const ENTRY_BYTES: usize = 192;
/// About the bytes of a value, by which the list of dropped keys is bounded.
const ABOUT_BYTES: u64 = 1024;
/// The part of the bytes that this list may take.
const LIST_PART: u64 = 16;
/// About the bytes of one part of the values. To drop a value, all of a part may be looked at.
const PART_BYTES: u64 = 8 << 20;
/// A value that is more than this part of a part is not kept: it would drive out many.
const LARGE_PART: u64 = 16;

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
        // A large one keeps the blocks that it was read with.
        let bytes = match value.len() > COPIED_BYTES {
            true => value.len().next_multiple_of(BLOCK) + BLOCK,
            false => value.len(),
        };
        (bytes + ENTRY_BYTES) as u64
    }
}

// Not a hasher with a seed: a simulation repeats itself.
type Hasher = BuildHasherDefault<DefaultHasher>;
type Part = Cache<Key, Bytes, Bytewise, Hasher, DefaultLifecycle<Key, Bytes>>;

/// The values, and how often one was there.
pub(crate) struct ValueCache {
    counted: Mutex<Counted>,
    /// The longest value that is kept.
    longest: u32,
}

struct Counted {
    parts: Vec<Part>,
    hits: u64,
    misses: u64,
}

impl Counted {
    /// The part that may hold this; `None` if nothing is kept.
    fn part(&mut self, key: &Key) -> Option<&mut Part> {
        let hash = Hasher::default().hash_one(key);
        let number = hash.checked_rem(self.parts.len() as u64)?;
        self.parts.get_mut(usize::try_from(number).ok()?)
    }
}

impl ValueCache {
    /// A cache of at most so many bytes; 0: none.
    pub(crate) fn new(bytes: u64) -> ValueCache {
        let parts = bytes.div_ceil(PART_BYTES);
        let each = bytes.checked_div(parts).unwrap_or(0);
        let about = usize::try_from(each / ABOUT_BYTES).unwrap_or(usize::MAX);
        let values = each - each / LIST_PART;
        let part = |_| {
            Cache::with(about, values, Bytewise, Hasher::default(), DefaultLifecycle::default())
        };
        let counted = Counted { parts: (0..parts).map(part).collect(), hits: 0, misses: 0 };
        let longest = u32::try_from(each / LARGE_PART).unwrap_or(u32::MAX);
        ValueCache { counted: Mutex::new(counted), longest }
    }

    /// Whether such a value may be here.
    fn keeps(&self, at: &ValueRef) -> bool {
        at.len > 0 && at.len <= self.longest
    }

    /// The value of this version there, if it is in memory and intact.
    pub(crate) fn get(&self, at: &ValueRef, version: LogId) -> Option<Bytes> {
        if !self.keeps(at) {
            return None;
        }
        let key = Key { version, offset: at.offset() };
        let found = {
            let mut counted = self.counted.lock();
            let found = counted.part(&key)?.get(&key).cloned();
            *if found.is_some() { &mut counted.hits } else { &mut counted.misses } += 1;
            found?
        };
        if !at.matches(&found) {
            self.counted.lock().part(&key)?.remove(&key);
            return None;
        }
        Some(found)
    }

    /// Keeps a value that was read from the device.
    pub(crate) fn keep(&self, at: &ValueRef, version: LogId, value: &Bytes) {
        let key = Key { version, offset: at.offset() };
        if self.keeps(at)
            && let Some(part) = self.counted.lock().part(&key)
        {
            part.insert(key, value.clone());
        }
    }

    pub(crate) fn status(&self) -> CacheStatus {
        let counted = self.counted.lock();
        let bytes = counted.parts.iter().map(Cache::weight).sum();
        CacheStatus { bytes, hits: counted.hits, misses: counted.misses }
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
        // More than a sixteenth of it.
        let large = Bytes::from(vec![1; 20_000]);
        let at = ValueRef::contiguous(0, 20_000, hash(&large)).expect("a place");
        let before = cache.status();
        cache.keep(&at, LogId { term: 2, index: 1 }, &large);
        assert_eq!((cache.get(&at, LogId { term: 2, index: 1 }), cache.status()), (None, before));
        let none = ValueCache::new(0);
        none.keep(&often[0].0, often[0].1, &often[0].2);
        assert_eq!(
            (none.get(&often[0].0, often[0].1), none.status()),
            (None, CacheStatus::default())
        );
    }
}
