//! Packs the values of a group commit, or of a part of a snapshot, into few large writes.

use crate::io::{AlignedBuf, BLOCK};
use crate::types::ValueRef;
use bytes::Bytes;

/// The largest write that combines several values, in bytes.
const MAX_WRITE: u64 = 1 << 20;
const BLOCK_BYTES: u64 = BLOCK as u64;

/// The writes that put these values at their places: whole blocks, with zeros where no value is.
/// Two writes never share a block. `take` gives a buffer of so many bytes, whatever it holds.
pub(crate) fn coalesce(
    values: &[(ValueRef, Bytes)],
    mut take: impl FnMut(usize) -> AlignedBuf,
) -> Vec<(u64, AlignedBuf)> {
    let writes = plan_writes(values).into_iter().map(|plan| {
        let mut buf = take(plan.bytes);
        fill(&mut buf, plan.offset, &plan.pieces);
        (plan.offset, buf)
    });
    writes.collect()
}

/// A write of whole blocks.
pub(crate) struct WritePlan<'a> {
    /// Where it begins, and its length, in bytes.
    pub offset: u64,
    pub bytes: usize,
    /// What is put into it, by offset.
    pub pieces: Vec<(u64, &'a [u8])>,
}

impl WritePlan<'_> {
    /// Puts the pieces into the blocks that are there.
    pub(crate) fn put_into(&self, buf: &mut [u8]) {
        for (offset, bytes) in &self.pieces {
            let at = (offset - self.offset) as usize;
            if let Some(place) = buf.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        }
    }
}

/// The writes that put these values at their places.
pub(crate) fn plan_writes(values: &[(ValueRef, Bytes)]) -> Vec<WritePlan<'_>> {
    let mut pieces: Vec<(u64, &[u8])> = Vec::with_capacity(values.len());
    for (at, bytes) in values {
        let mut rest: &[u8] = bytes;
        for segment in at.segments() {
            let len = ((segment.end - segment.start) as usize).min(rest.len());
            let (now, later) = rest.split_at(len);
            pieces.push((segment.start, now));
            rest = later;
        }
    }
    pieces.sort_unstable_by_key(|(offset, _)| *offset);
    let mut writes = Vec::new();
    let mut rest = pieces.as_slice();
    while let Some((first, end, count)) = next_write(rest) {
        let (now, later) = rest.split_at(count);
        rest = later;
        writes.push(WritePlan {
            offset: first,
            bytes: (end - first) as usize,
            pieces: now.to_vec(),
        });
    }
    writes
}

/// Fills a buffer that begins at `first` with these pieces, and with zeros where none is.
fn fill(buf: &mut [u8], first: u64, pieces: &[(u64, &[u8])]) {
    let mut filled = 0;
    for (offset, bytes) in pieces {
        let at = (offset - first) as usize;
        if let Some(gap) = buf.get_mut(filled..at) {
            gap.fill(0);
        }
        filled = at + bytes.len();
        if let Some(place) = buf.get_mut(at..filled) {
            place.copy_from_slice(bytes);
        }
    }
    if let Some(padding) = buf.get_mut(filled..) {
        padding.fill(0);
    }
}

/// Where the first write of these pieces begins and ends, and how many of them are in it.
fn next_write(pieces: &[(u64, &[u8])]) -> Option<(u64, u64, usize)> {
    let (first, _) = pieces.first()?;
    let start = first / BLOCK_BYTES * BLOCK_BYTES;
    let (mut end, mut count) = (start, 0);
    for (offset, bytes) in pieces {
        let block = offset / BLOCK_BYTES * BLOCK_BYTES;
        let last = offset + bytes.len() as u64;
        let adjacent = block == end && last - start <= MAX_WRITE;
        if count > 0 && block >= end && !adjacent {
            break;
        }
        end = end.max(last.next_multiple_of(BLOCK_BYTES));
        count += 1;
    }
    Some((start, end, count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Run;

    fn value(at: ValueRef) -> (ValueRef, Bytes) {
        let bytes = (0..at.len).map(|n| (u64::from(n) + at.offset() % 97) as u8).collect();
        (at, bytes)
    }

    fn at(offset: u64, len: u32) -> (ValueRef, Bytes) {
        value(ValueRef::contiguous(offset, len, 0).unwrap())
    }

    fn shape(values: &[(ValueRef, Bytes)]) -> Vec<(u64, usize)> {
        let used = |bytes| {
            let mut buf = AlignedBuf::zeroed(bytes);
            buf.fill(0xee);
            buf
        };
        let writes = coalesce(values, used);
        let bytes: usize = values.iter().map(|(_, bytes)| bytes.len()).sum();
        let zeros = writes.iter().flat_map(|(_, buf)| buf.iter()).filter(|byte| **byte == 0);
        let size: usize = writes.iter().map(|(_, buf)| buf.len()).sum();
        assert!(zeros.count() >= size - bytes, "what is no value is zeros");
        for (at, bytes) in values {
            let mut found = Vec::new();
            for segment in at.segments() {
                let (from, buf) = writes
                    .iter()
                    .find(|(from, buf)| (*from..*from + buf.len() as u64).contains(&segment.start))
                    .unwrap();
                let place = (segment.start - from) as usize;
                found
                    .extend_from_slice(&buf[place..place + (segment.end - segment.start) as usize]);
            }
            assert!(found == bytes[..], "{at:?} is not written");
        }
        let mut end = 0;
        for (offset, buf) in &writes {
            assert!(*offset >= end, "two writes share a block");
            end = offset + buf.len() as u64;
        }
        writes.iter().map(|(offset, buf)| (*offset, buf.len())).collect()
    }

    #[test]
    fn adjacent_values_share_a_write_and_distant_ones_do_not() {
        let values = [at(40_960, 10), at(0, 100), at(100, 3000), at(4096, 4096), at(8192, 10)];
        assert_eq!(shape(&values), [(0, 3 * BLOCK), (40_960, BLOCK)]);
    }

    #[test]
    fn a_gap_inside_a_block_stays_inside_one_write() {
        assert_eq!(shape(&[at(0, 100), at(300, 50)]), [(0, BLOCK)]);
    }

    #[test]
    fn the_pieces_of_a_value_go_where_they_belong() {
        let runs = [Run { first: 7, blocks: 1 }, Run { first: 1, blocks: 1 }];
        let several = ValueRef::new(8292, 0, &runs, Some(8292)).unwrap();
        let values = [value(several), at(8192, 100)];
        assert_eq!(shape(&values), [(4096, 2 * BLOCK), (7 * 4096, BLOCK)]);
    }

    #[test]
    fn writes_are_bounded_and_split_only_between_blocks() {
        let values: Vec<_> = (0..600).map(|i| at(i * 4096, 4096)).collect();
        assert_eq!(shape(&values), [(0, 1 << 20), (1 << 20, 1 << 20), (2 << 20, 88 * 4096)]);
        let packed: Vec<_> = (0..900).map(|i| at(i * 1500, 1500)).collect();
        shape(&packed);
    }
}
