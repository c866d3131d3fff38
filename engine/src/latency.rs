//! How long operations take, counted in buckets.
//!
//! What holds here: an observation is two additions, and waits for nobody. Counts are read one after
//! another, so they may lack a part of what is observed meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The buckets that have an upper bound: from 16 µs to 8 s.
const BOUNDED: usize = 20;
/// The bound of the first one. Each further bound is twice the one before.
const FIRST_NS: u64 = 16_000;

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Latency {
    buckets: [AtomicU64; BOUNDED + 1],
    sum_ns: AtomicU64,
}

impl Latency {
    /// Counts an operation that took this long.
    pub fn observe(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if let Some(bucket) = self.buckets.get(bucket_of(ns)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn counts(&self) -> LatencyCounts {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        let bounds = (0..BOUNDED).map(|number| Some(Duration::from_nanos(FIRST_NS << number)));
        LatencyCounts {
            buckets: bounds.chain([None]).zip(counts).collect(),
            sum: Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)),
        }
    }
}

/// The first bucket whose bound is no less.
fn bucket_of(ns: u64) -> usize {
    let bounds_below = u64::BITS - (ns.saturating_sub(1) / FIRST_NS).leading_zeros();
    (bounds_below as usize).min(BOUNDED)
}

/// What a [`Latency`] counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencyCounts {
    /// Each bucket's upper bound, `None` for the last one, and how many operations are in it and in no
    /// bucket before.
    pub buckets: Vec<(Option<Duration>, u64)>,
    /// The time that all operations took together.
    pub sum: Duration,
}

/// How long the operations of the devices take.
#[derive(Debug, Default)]
pub(crate) struct DeviceLatency {
    pub reads: Latency,
    pub writes: Latency,
    pub syncs: Latency,
}

/// How long operations took since the engine was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    /// Reads of the device.
    pub reads: LatencyCounts,
    /// Writes to the device.
    pub writes: LatencyCounts,
    /// Syncs of one file each.
    pub syncs: LatencyCounts,
    /// Appends to the log, until their promise held.
    pub appends: LatencyCounts,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_whose_bound_is_no_less() {
        let us = Duration::from_micros;
        let counted = |took: Duration| {
            let latency = Latency::default();
            latency.observe(took);
            let counts = latency.counts();
            assert_eq!(counts.sum, took);
            let found = counts.buckets.into_iter().filter(|(_, count)| *count > 0);
            let found: Vec<_> = found.map(|(bound, _)| bound).collect();
            assert_eq!(found.len(), 1, "{took:?} is counted once");
            found[0]
        };
        assert_eq!(counted(Duration::ZERO), Some(us(16)));
        assert_eq!(counted(us(16)), Some(us(16)));
        assert_eq!(counted(us(16) + Duration::from_nanos(1)), Some(us(32)));
        assert_eq!(counted(us(32)), Some(us(32)));
        assert_eq!(counted(us(33)), Some(us(64)));
        let last = us(16 << (BOUNDED - 1));
        assert_eq!(counted(last), Some(last));
        assert_eq!(counted(last + us(1)), None);
        assert_eq!(counted(Duration::from_secs(3600)), None);
    }

    #[test]
    fn the_bounds_rise_and_the_last_bucket_has_none() {
        let bounds: Vec<_> =
            Latency::default().counts().buckets.iter().map(|(bound, _)| *bound).collect();
        assert_eq!(bounds.len(), BOUNDED + 1);
        assert!(bounds[..BOUNDED].iter().all(Option::is_some) && bounds[..BOUNDED].is_sorted());
        assert_eq!(bounds.last(), Some(&None));
    }
}
