//! Packs records, given in key order, into a new leaf. Its buffers are used again, so a leaf costs
//! one allocation.

use crate::codec::{put_varint, varint_bytes};
use std::sync::Arc;

/// The two counters of an [`Arc`], in the same allocation as its content.
pub(super) const COUNTERS: usize = 16;
/// Where the records begin.
pub(super) const HEADER: usize = 6;
/// Bytes of a start.
pub(super) const SLOT: usize = 2;

/// A leaf in the making.
pub(super) struct Packer {
    /// The header's bytes, then the records.
    bytes: Vec<u8>,
    starts: Vec<u16>,
}

impl Default for Packer {
    fn default() -> Packer {
        Packer { bytes: vec![0; HEADER], starts: Vec::new() }
    }
}

impl Packer {
    pub(super) fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Bytes of a leaf with the records so far.
    pub(super) fn size(&self) -> usize {
        self.bytes.len() + SLOT * self.starts.len()
    }

    /// Bytes of a leaf with one record more.
    pub(super) fn size_with(&self, key: &[u8], entry: &[u8]) -> usize {
        self.size() + record_bytes(key, entry) + SLOT
    }

    pub(super) fn push(&mut self, key: &[u8], entry: &[u8]) {
        self.add_start(self.bytes.len());
        put_varint(&mut self.bytes, key.len() as u64);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(entry);
    }

    /// Appends a record of a leaf.
    pub(super) fn push_record(&mut self, record: &[u8]) {
        self.add_start(self.bytes.len());
        self.bytes.extend_from_slice(record);
    }

    /// Appends records of a leaf, which start at `starts` of these bytes.
    pub(super) fn push_records(&mut self, records: &[u8], starts: impl Iterator<Item = usize>) {
        let to = self.bytes.len();
        self.bytes.extend_from_slice(records);
        for start in starts {
            self.add_start(to + start);
        }
    }

    fn add_start(&mut self, start: usize) {
        let start = u16::try_from(start);
        assert!(start.is_ok(), "only the last record of a leaf may be long");
        self.starts.push(start.unwrap_or_default());
    }

    /// The bytes of the leaf. The packer is empty afterwards.
    pub(super) fn finish(&mut self) -> Arc<[u8]> {
        let (end, count) = (self.bytes.len(), self.starts.len());
        let capacity = capacity_for(self.size());
        let (head, _) = self.bytes.split_at_mut(HEADER);
        let (for_count, for_end) = head.split_at_mut(2);
        for_count.copy_from_slice(&(count as u16).to_le_bytes());
        for_end.copy_from_slice(&(end as u32).to_le_bytes());
        self.bytes.resize(capacity - SLOT * count, 0);
        for start in self.starts.iter().rev() {
            self.bytes.extend_from_slice(&start.to_le_bytes());
        }
        let leaf = Arc::from(self.bytes.as_slice());
        self.starts.clear();
        self.bytes.truncate(HEADER);
        leaf
    }
}

/// The capacity for content of `size` bytes: with the counters, a size class of the usual
/// allocators, which have four classes for each doubling.
pub(super) fn capacity_for(size: usize) -> usize {
    let bytes = (size + COUNTERS).max(64);
    let step = 1 << ((bytes - 1).ilog2() - 2);
    bytes.next_multiple_of(step) - COUNTERS
}

/// Bytes of a record.
pub(super) fn record_bytes(key: &[u8], entry: &[u8]) -> usize {
    varint_bytes(key.len() as u64) + key.len() + entry.len()
}
