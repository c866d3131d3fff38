//! Packs records, given in key order, into a new leaf. Its buffers are used again, so a leaf costs
//! one allocation.

use super::leaf::{HEADER, Leaf, SLOT, capacity_for, record_bytes};
use super::varint;
use std::ops::Range;

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
        self.begin();
        varint::put(&mut self.bytes, key.len() as u64);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(entry);
    }

    /// Appends a record of a leaf.
    pub(super) fn push_record(&mut self, record: &[u8]) {
        self.begin();
        self.bytes.extend_from_slice(record);
    }

    /// Appends some records of a leaf.
    pub(super) fn push_range(&mut self, leaf: &Leaf, range: Range<usize>) {
        let (from, to) = (leaf.start(range.start), self.bytes.len());
        self.bytes.extend_from_slice(leaf.records(range.clone()));
        assert!(range.is_empty() || self.bytes.len() <= 1 << 16, "a leaf's starts have 16 bits");
        self.starts.extend(range.map(|at| (leaf.start(at) - from + to) as u16));
    }

    fn begin(&mut self) {
        let start = u16::try_from(self.bytes.len());
        assert!(start.is_ok(), "only the last record of a leaf may be long");
        self.starts.push(start.unwrap_or_default());
    }

    /// The leaf. The packer is empty afterwards.
    pub(super) fn finish(&mut self) -> Leaf {
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
        let leaf = Leaf::of_bytes(&self.bytes);
        self.starts.clear();
        self.bytes.truncate(HEADER);
        leaf
    }
}
