//! What the commands that write many keys share: batches, their bounds, and what happens to a key that exists.
//!
//! What holds here: a batch is within what the servers take, unless one value is larger. In memory of a command
//! are [`BATCHES`] batches and [`IN_FLIGHT_BYTES`], and [`READS`] values of the cluster.

use bytes::Bytes;
use cairn_client::{Client, Error, Limits, Version};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Batches that are sent at a time.
const BATCHES: usize = 8;
/// Bytes of keys and values in a batch, unless one value is larger.
const BATCH_BYTES: u64 = 1 << 20;
/// The most operations of a batch, if the servers take as many.
const BATCH_OPERATIONS: usize = 128;
/// Bytes of all batches that are sent at a time, unless one is larger.
const IN_FLIGHT_BYTES: u64 = 32 << 20;
/// Values of the cluster that are read at a time, to compare them.
pub(super) const READS: usize = 16;
/// How often a batch is sent while other clients write or delete the same keys.
pub(super) const ROUNDS: usize = 16;

/// What happens to a key that exists with another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Existing {
    /// The command ends.
    Refuse,
    /// It stays as it is.
    Keep,
    /// It gets the new value.
    Replace,
}

/// The most that a batch has, unless one value is larger.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    pub(super) operations: usize,
    pub(super) bytes: u64,
}

impl From<Limits> for Most {
    fn from(limits: Limits) -> Most {
        let operations = usize::try_from(limits.max_batch_operations).unwrap_or(usize::MAX);
        Most {
            operations: BATCH_OPERATIONS.min(operations).max(1),
            bytes: BATCH_BYTES.min(limits.max_request_bytes.into()),
        }
    }
}

/// What is sent together, and its bytes.
#[derive(Debug)]
pub(super) struct Batch<T> {
    pub(super) entries: Vec<T>,
    pub(super) bytes: u64,
}

impl<T> Default for Batch<T> {
    fn default() -> Batch<T> {
        Batch { entries: Vec::new(), bytes: 0 }
    }
}

impl<T> Batch<T> {
    /// Whether an entry of so many bytes belongs into it too.
    pub(super) fn takes(&self, bytes: u64, most: Most) -> bool {
        self.entries.is_empty()
            || (self.entries.len() < most.operations
                && self.bytes.saturating_add(bytes) <= most.bytes)
    }

    pub(super) fn push(&mut self, entry: T, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.entries.push(entry);
    }

    /// Whether it may be sent beside so many others, which have so many bytes.
    pub(super) fn fits_beside(&self, running: usize, bytes: u64) -> bool {
        let fits = bytes.saturating_add(self.bytes) <= IN_FLIGHT_BYTES;
        running == 0 || (running < BATCHES && fits)
    }
}

/// A key that the cluster has.
#[derive(Clone, Copy, Debug)]
pub(super) struct There {
    /// It has the value that was asked about.
    pub(super) is_same: bool,
    pub(super) version: Version,
}

/// The cluster that is written, and how.
#[derive(Clone)]
pub(super) struct Cluster {
    pub(super) client: Client,
    pub(super) most: Most,
    pub(super) existing: Existing,
    reads: Arc<Semaphore>,
}

impl Cluster {
    pub(super) fn new(client: Client, most: Most, existing: Existing) -> Cluster {
        Cluster { client, most, existing, reads: Arc::new(Semaphore::new(READS)) }
    }

    /// Compares a value with the one that the cluster has; `None`: it has none.
    pub(super) async fn find(&self, key: &Bytes, value: &Bytes) -> Result<Option<There>, Error> {
        // It is never closed.
        let _permit = self.reads.acquire().await.ok();
        let there = self.client.get(key.clone()).await?;
        Ok(there.map(|there| There { is_same: there.value == *value, version: there.version }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_within_the_limits_and_a_large_value_is_alone() {
        let (most, mut batch) = (Most { operations: 3, bytes: 8 }, Batch::default());
        assert!(batch.takes(101, most));
        batch.push("large", 101);
        assert!(!batch.takes(2, most));
        let mut batch = Batch::default();
        for key in ["a", "b", "c"] {
            assert!(batch.takes(2, most), "{key}");
            batch.push(key, 2);
        }
        assert!(!batch.takes(2, most), "three operations");
        assert_eq!(batch.bytes, 6);
    }

    #[test]
    fn batches_that_are_sent_together_are_bounded_and_a_large_one_is_alone() {
        let batch = |bytes| Batch::<()> { bytes, ..Batch::default() };
        assert!(batch(IN_FLIGHT_BYTES + 1).fits_beside(0, 0));
        assert!(!batch(IN_FLIGHT_BYTES + 1).fits_beside(1, 0));
        assert!(batch(1).fits_beside(BATCHES - 1, IN_FLIGHT_BYTES - 1));
        assert!(!batch(1).fits_beside(BATCHES - 1, IN_FLIGHT_BYTES));
        assert!(!batch(1).fits_beside(BATCHES, 1));
    }
}
