//! A leaf: records packed one behind another in one allocation, with a table of where they start.
//!
//! ```text
//! count (u16) | end of the records (u32) | records in key order → | free | ← starts (u16 each)
//! ```
//!
//! A record is the length of its key (varint), the key, the encoded entry. The starts lie in
//! reverse order, the first at the very end, so that an insert moves only what follows it.
//!
//! What holds here:
//! - A leaf in a tree is never empty. Its keys ascend strictly.
//! - A leaf of more than one record has at most [`LEAF_BYTES`], so each start fits into 16 bits. A
//!   record of any size has a place: a leaf of its own.
//! - A leaf takes the allocation of its content, rounded up to a size class of the allocator, so
//!   half a leaf costs half the memory. It grows and shrinks class by class.
//! - A shared leaf is never changed. A change makes a new one.

use super::packer::{COUNTERS, HEADER, Packer, SLOT, record_bytes};
use crate::codec::{Reader, varint_bytes, write_varint};
use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

/// The most bytes of a leaf of several records: with the counters of its [`Arc`], 2 KiB. That is
/// about forty keys of 24 bytes. Larger leaves cost more to copy while a snapshot is held, and the
/// memory for smaller ones grows.
pub(super) const LEAF_BYTES: usize = 2048 - COUNTERS;
/// Where the end of the records is kept.
const END: usize = 2;
#[derive(Clone)]
pub(super) struct Leaf(Arc<[u8]>);

impl Leaf {
    /// The packer's records. The packer is empty afterwards.
    pub(super) fn packed(packer: &mut Packer) -> Leaf {
        Leaf(packer.finish())
    }

    /// Appends some records to a packer.
    pub(super) fn pack(&self, range: Range<usize>, packer: &mut Packer) {
        let from = self.start(range.start);
        let starts = range.clone().map(|at| self.start(at) - from);
        packer.push_records(self.records(range), starts);
    }

    pub(super) fn count(&self) -> usize {
        u16_at(&self.0, 0)
    }

    /// Bytes of the header, the records and the starts.
    pub(super) fn size(&self) -> usize {
        end(&self.0) + SLOT * self.count()
    }

    /// A reference that does not keep it.
    #[cfg(test)]
    pub(super) fn downgrade(&self) -> std::sync::Weak<[u8]> {
        Arc::downgrade(&self.0)
    }

    /// Bytes that it occupies.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.0.len()
    }

    /// The key and the encoded entry of a record.
    pub(super) fn get(&self, at: usize) -> (&[u8], &[u8]) {
        split_record(self.records(at..at + 1))
    }

    pub(super) fn first_key(&self) -> &[u8] {
        self.get(0).0
    }

    pub(super) fn last_key(&self) -> &[u8] {
        self.get(self.count() - 1).0
    }

    /// Where a key is, or where it belongs.
    pub(super) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let end = end(&self.0);
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = low.midpoint(high);
            let (found, _) = split_record(within(&self.0, start(&self.0, middle)..end));
            match found.cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// The bytes of some records.
    fn records(&self, range: Range<usize>) -> &[u8] {
        within(&self.0, self.start(range.start)..self.start(range.end))
    }

    /// Where a record starts, or the records end.
    fn start(&self, at: usize) -> usize {
        if at < self.count() { start(&self.0, at) } else { end(&self.0) }
    }

    /// Sets the record at `place`, the result of [`Leaf::search`] for this key. Returns the leaves
    /// that split off to its right.
    pub(super) fn put(
        &mut self,
        place: Result<usize, usize>,
        key: &[u8],
        entry: &[u8],
        packer: &mut Packer,
    ) -> Vec<Leaf> {
        let (at, gone) = place.map_or_else(|at| (at, 0), |at| (at, 1));
        let old_bytes = self.records(at..at + gone).len();
        let new_bytes = record_bytes(key, entry);
        let size = self.size() - old_bytes - SLOT * gone + new_bytes + SLOT;
        if size > LEAF_BYTES && self.count() > gone {
            return self.split(at, gone, (key, entry), packer);
        }
        if let Some(bytes) = Arc::get_mut(&mut self.0).filter(|bytes| suits(size, bytes.len())) {
            let start = replace(bytes, at, old_bytes, new_bytes);
            if gone == 0 {
                insert_start(bytes, at, start);
            }
            move_starts(bytes, at + 1, old_bytes, new_bytes);
            write_record(within_mut(bytes, start..start + new_bytes), key, entry);
        } else {
            self.pack(0..at, packer);
            packer.push(key, entry);
            self.pack(at + gone..self.count(), packer);
            *self = Leaf::packed(packer);
        }
        Vec::new()
    }

    /// Removes a record. The leaf may become empty; the caller then drops it.
    pub(super) fn remove(&mut self, at: usize, packer: &mut Packer) {
        let old_bytes = self.records(at..at + 1).len();
        let size = self.size() - old_bytes - SLOT;
        if let Some(bytes) = Arc::get_mut(&mut self.0).filter(|bytes| suits(size, bytes.len())) {
            replace(bytes, at, old_bytes, 0);
            remove_start(bytes, at);
            move_starts(bytes, at, old_bytes, 0);
        } else {
            self.pack(0..at, packer);
            self.pack(at + 1..self.count(), packer);
            *self = Leaf::packed(packer);
        }
    }

    /// Cuts the records, with `gone` records at `at` replaced by a new one, into leaves: two halves,
    /// or more leaves around a long record. Keeps the first, returns the others.
    fn split(
        &mut self,
        at: usize,
        gone: usize,
        (key, entry): (&[u8], &[u8]),
        packer: &mut Packer,
    ) -> Vec<Leaf> {
        let mut new = vec![0; record_bytes(key, entry)];
        write_record(&mut new, key, entry);
        let before = (0..at).map(|at| self.records(at..at + 1));
        let after = (at + gone..self.count()).map(|at| self.records(at..at + 1));
        let records: Vec<&[u8]> = before.chain([&new[..]]).chain(after).collect();
        let half = records.iter().map(|record| record.len() + SLOT).sum::<usize>() / 2;
        let mut leaves = Vec::with_capacity(2);
        for record in records {
            let with_it = packer.size() + record.len() + SLOT;
            let halved = leaves.is_empty() && packer.size() + record.len() / 2 > half;
            if !packer.is_empty() && (with_it > LEAF_BYTES || halved) {
                leaves.push(Leaf::packed(packer));
            }
            packer.push_record(record);
        }
        let last = Leaf::packed(packer);
        let mut leaves = leaves.into_iter();
        *self = leaves.next().unwrap_or_else(|| last.clone());
        leaves.chain([last]).collect()
    }
}

/// Whether content of `size` bytes may stay in this capacity: it fits, and is at most two classes
/// below it. So sizes that swing around the border of a class do not copy the leaf each time.
fn suits(size: usize, capacity: usize) -> bool {
    size <= capacity && capacity - size <= capacity.max(256) / 3
}

/// Writes a record into exactly its bytes.
fn write_record(out: &mut [u8], key: &[u8], entry: &[u8]) {
    let (head, rest) = out.split_at_mut(varint_bytes(key.len() as u64));
    write_varint(head, key.len() as u64);
    let (key_bytes, entry_bytes) = rest.split_at_mut(key.len());
    key_bytes.copy_from_slice(key);
    entry_bytes.copy_from_slice(entry);
}

/// Key and encoded entry of a record.
fn split_record(record: &[u8]) -> (&[u8], &[u8]) {
    let mut r = Reader::new(record);
    let key = r.varint().and_then(|len| r.bytes(len as usize));
    assert!(key.is_some(), "a record of the index is longer than its key");
    (key.unwrap_or_default(), r.rest())
}

/// Where the records end.
fn end(bytes: &[u8]) -> usize {
    within(bytes, END..HEADER).try_into().map_or(0, u32::from_le_bytes) as usize
}

fn set_end(bytes: &mut [u8], end: usize) {
    within_mut(bytes, END..HEADER).copy_from_slice(&(end as u32).to_le_bytes());
}

fn slot(bytes: &[u8], at: usize) -> usize {
    bytes.len() - SLOT * (at + 1)
}

fn start(bytes: &[u8], at: usize) -> usize {
    u16_at(bytes, slot(bytes, at))
}

/// Makes a gap of `new` bytes instead of the `old` bytes of record `at`. Returns where it starts.
fn replace(bytes: &mut [u8], at: usize, old: usize, new: usize) -> usize {
    let end = end(bytes);
    let from = if at < u16_at(bytes, 0) { start(bytes, at) } else { end };
    if old != new {
        bytes.copy_within(from + old..end, from + new);
        set_end(bytes, end - old + new);
    }
    from
}

fn insert_start(bytes: &mut [u8], at: usize, start: usize) {
    let count = u16_at(bytes, 0);
    if at < count {
        let (last, first) = (slot(bytes, count - 1), slot(bytes, at));
        bytes.copy_within(last..first + SLOT, last - SLOT);
    }
    let slot = slot(bytes, at);
    set_u16(bytes, slot, start);
    set_u16(bytes, 0, count + 1);
}

fn remove_start(bytes: &mut [u8], at: usize) {
    let count = u16_at(bytes, 0);
    let (last, gone) = (slot(bytes, count - 1), slot(bytes, at));
    bytes.copy_within(last..gone, last + SLOT);
    set_u16(bytes, 0, count - 1);
}

/// The records from `at` on moved, because one before them has `new` bytes instead of `old`.
fn move_starts(bytes: &mut [u8], at: usize, old: usize, new: usize) {
    let count = u16_at(bytes, 0);
    if old == new || at >= count {
        return;
    }
    let range = slot(bytes, count - 1)..slot(bytes, at) + SLOT;
    let delta = (new as u16).wrapping_sub(old as u16);
    let (starts, _) = within_mut(bytes, range).as_chunks_mut::<SLOT>();
    for start in starts {
        *start = u16::from_le_bytes(*start).wrapping_add(delta).to_le_bytes();
    }
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    within(bytes, at..at + 2).try_into().map_or(0, u16::from_le_bytes).into()
}

fn set_u16(bytes: &mut [u8], at: usize, number: usize) {
    within_mut(bytes, at..at + 2).copy_from_slice(&(number as u16).to_le_bytes());
}

fn within(bytes: &[u8], range: Range<usize>) -> &[u8] {
    let found = bytes.get(range);
    assert!(found.is_some(), "what a leaf of the index names lies within it");
    found.unwrap_or_default()
}

fn within_mut(bytes: &mut [u8], range: Range<usize>) -> &mut [u8] {
    let found = bytes.get_mut(range);
    assert!(found.is_some(), "what a leaf of the index names lies within it");
    found.unwrap_or_default()
}
