//! Where a value is in the data area, and what its bytes must hash to.
//!
//! What holds here: the parts of a location are those that the value's length asks for (see
//! `layout`), in the order of its bytes, and no two of them overlap. A location that breaks
//! this cannot be made. Whether it lies inside a data area is checked where that area is known.

use crate::codec::{Reader, hash, put_varint, varint_bytes};
use crate::layout::{BLOCK_BYTES, shared_tail, whole_blocks};
use std::ops::Range;
use std::sync::Arc;

/// Blocks of the data area, one behind another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// The number of the first block.
    pub first: u32,
    /// How many; more than zero.
    pub blocks: u32,
}

impl Run {
    /// The number of the block behind it. A run ends at or below `u32::MAX`.
    pub(crate) fn end(&self) -> u32 {
        self.first.saturating_add(self.blocks)
    }

    /// Its bytes in the data area.
    fn bytes(&self) -> Range<u64> {
        u64::from(self.first) * BLOCK_BYTES..u64::from(self.end()) * BLOCK_BYTES
    }
}

/// Where a value is, and what its bytes must hash to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueRef {
    /// XXH3-128 of the bytes.
    pub hash: u128,
    /// Length in bytes; an empty value is nowhere.
    pub len: u32,
    /// The first whole block, if there are any and they are one run.
    first: u32,
    /// The byte offset of the shared tail, if there is one.
    tail: u64,
    /// The runs of whole blocks, if they are several.
    runs: Option<Arc<[Run]>>,
}

impl ValueRef {
    /// A value of `len` bytes whose whole blocks are these runs, and whose shared tail begins at
    /// this byte. `None` unless both are what the length asks for, and nothing overlaps.
    pub(crate) fn new(len: u32, hash: u128, runs: &[Run], tail: Option<u64>) -> Option<ValueRef> {
        let mut blocks = 0u32;
        for run in runs {
            run.first.checked_add(run.blocks).filter(|_| run.blocks > 0)?;
            blocks = blocks.checked_add(run.blocks)?;
        }
        if blocks != whole_blocks(len) || tail.is_some() != (shared_tail(len) > 0) {
            return None;
        }
        tail.map_or(Some(0), |tail| tail.checked_add(u64::from(shared_tail(len))))?;
        let first = match runs {
            [run] => run.first,
            _ => 0,
        };
        let several = (runs.len() > 1).then(|| Arc::from(runs));
        let value = ValueRef { hash, len, first, tail: tail.unwrap_or(0), runs: several };
        (!value.overlaps_itself()).then_some(value)
    }

    /// A value whose bytes lie one behind another from `offset` on. `None` if it has whole blocks
    /// and `offset` is not the beginning of a block.
    pub fn contiguous(offset: u64, len: u32, hash: u128) -> Option<ValueRef> {
        let blocks = whole_blocks(len);
        let first = u32::try_from(offset / BLOCK_BYTES).ok()?;
        let run = Run { first, blocks };
        let tail = (shared_tail(len) > 0).then(|| offset + u64::from(blocks) * BLOCK_BYTES);
        let runs = std::slice::from_ref(&run).get(..usize::from(blocks > 0))?;
        (blocks == 0 || offset.is_multiple_of(BLOCK_BYTES))
            .then(|| ValueRef::new(len, hash, runs, tail))?
    }

    /// The byte offset of its first byte; 0 if it is empty. No two live values begin at the same
    /// byte.
    pub fn offset(&self) -> u64 {
        self.segments().next().map_or(0, |segment| segment.start)
    }

    /// The runs of its whole blocks.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Run> {
        let blocks = whole_blocks(self.len);
        let one = (self.runs.is_none() && blocks > 0).then_some(Run { first: self.first, blocks });
        one.into_iter().chain(self.runs.iter().flat_map(|runs| runs.iter().copied()))
    }

    /// The bytes of its shared tail.
    pub(crate) fn tail(&self) -> Option<Range<u64>> {
        let len = u64::from(shared_tail(self.len));
        (len > 0).then(|| self.tail..self.tail.saturating_add(len))
    }

    /// Its bytes in the data area, in their order. Padding is left out.
    pub fn segments(&self) -> impl Iterator<Item = Range<u64>> {
        let mut rest = u64::from(self.len - shared_tail(self.len));
        let whole = self.runs().map(move |run| {
            let Range { start, end } = run.bytes();
            let bytes = rest.min(end - start);
            rest -= bytes;
            start..start + bytes
        });
        whole.chain(self.tail())
    }

    /// The blocks that hold it, in bytes, in the order of its bytes.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Range<u64>> {
        self.segments().map(|segment| {
            segment.start / BLOCK_BYTES * BLOCK_BYTES..segment.end.next_multiple_of(BLOCK_BYTES)
        })
    }

    /// The same as block numbers.
    pub(crate) fn block_runs(&self) -> impl Iterator<Item = Run> {
        self.blocks().map(|bytes| {
            let number = |at: u64| u32::try_from(at / BLOCK_BYTES).unwrap_or(u32::MAX);
            let first = number(bytes.start);
            Run { first, blocks: number(bytes.end) - first }
        })
    }

    /// Whether it lies inside a data area of this many bytes.
    pub(crate) fn is_within(&self, bytes: u64) -> bool {
        self.blocks().all(|blocks| blocks.end <= bytes)
    }

    fn overlaps_itself(&self) -> bool {
        if self.runs.is_none() && self.tail().is_none() {
            return false;
        }
        let mut blocks: Vec<(u64, u64)> = self.blocks().map(|b| (b.start, b.end)).collect();
        blocks.sort_unstable();
        blocks.windows(2).any(|pair| match pair {
            [(_, end), (start, _)] => end > start,
            _ => false,
        })
    }

    /// Whether these are the bytes of the value.
    pub(crate) fn matches(&self, bytes: &[u8]) -> bool {
        bytes.len() == self.len as usize && hash(bytes) == self.hash
    }

    /// Appends it: length, hash, location.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.len));
        out.extend_from_slice(&self.hash.to_le_bytes());
        self.encode_location(out);
    }

    /// Appends the location alone: what [`ValueRef::decode_location`] reads with length and hash
    /// known.
    pub(crate) fn encode_location(&self, out: &mut Vec<u8>) {
        let count = self.runs().count();
        if count > 0 {
            put_varint(out, count as u64);
        }
        for (number, run) in self.runs().enumerate() {
            put_varint(out, u64::from(run.first));
            if number + 1 < count {
                put_varint(out, u64::from(run.blocks));
            }
        }
        if let Some(tail) = self.tail() {
            put_varint(out, tail.start);
        }
    }

    /// The bytes that [`ValueRef::encode`] appends.
    pub(crate) fn encoded_bytes(&self) -> usize {
        let mut bytes = varint_bytes(u64::from(self.len)) + size_of::<u128>();
        let (mut count, mut last) = (0, 0);
        for run in self.runs() {
            last = varint_bytes(u64::from(run.blocks));
            bytes += varint_bytes(u64::from(run.first)) + last;
            count += 1;
        }
        if count > 0 {
            // The last run has no length.
            bytes = bytes + varint_bytes(count) - last;
        }
        bytes + self.tail().map_or(0, |tail| varint_bytes(tail.start))
    }

    /// The most bytes that [`ValueRef::encode`] appends for a value of `len` bytes, wherever it
    /// lies. A directory has at most 2^31 blocks.
    pub(crate) fn encoded_bytes_max(len: u64) -> u64 {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let runs = match u64::from(whole_blocks(len)) {
            0 => 0,
            1 => 1 + 5,
            blocks => 4 + 6 * blocks + blocks / 64,
        };
        let tail = if shared_tail(len) > 0 { 7 } else { 0 };
        (varint_bytes(len.into()) + size_of::<u128>()) as u64 + runs + tail
    }

    /// Reads what [`ValueRef::encode`] appends; `None` if the bytes are not that.
    pub(crate) fn decode(r: &mut Reader<'_>) -> Option<ValueRef> {
        let len = r.varint32()?;
        let hash = r.u128()?;
        ValueRef::decode_location(r, len, hash)
    }

    /// Reads the location of a value.
    pub(crate) fn decode_location(r: &mut Reader<'_>, len: u32, hash: u128) -> Option<ValueRef> {
        let mut left = whole_blocks(len);
        let count = if left > 0 { r.varint32().filter(|count| *count > 0)? } else { 0 };
        // Each run takes at least a byte: a count that is not true allocates nothing.
        if count > left || count as usize > r.remaining() {
            return None;
        }
        let mut one = None;
        let mut several = Vec::with_capacity(if count > 1 { count as usize } else { 0 });
        for number in 1..=count {
            let first = r.varint32()?;
            let blocks = if number < count { r.varint32()? } else { left };
            left = left.checked_sub(blocks)?;
            match count {
                1 => one = Some(Run { first, blocks }),
                _ => several.push(Run { first, blocks }),
            }
        }
        let tail = if shared_tail(len) > 0 { Some(r.varint()?) } else { None };
        let runs = one.as_ref().map_or(several.as_slice(), std::slice::from_ref);
        ValueRef::new(len, hash, runs, tail)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn encoded(value: &ValueRef) -> Vec<u8> {
        let mut out = Vec::new();
        value.encode(&mut out);
        out
    }

    fn run(first: u32, blocks: u32) -> Run {
        Run { first, blocks }
    }

    /// References of all shapes: empty, a tail, one run, several.
    pub(crate) fn any_ref() -> impl Strategy<Value = ValueRef> {
        let sizes = prop_oneof![Just(0u32), 1u32..100, 3000u32..50_000, 50_000u32..2_000_000];
        let gaps = prop::collection::vec((0u32..1000, 1u32..20), 0..12);
        (sizes, any::<u128>(), gaps, 0u64..1 << 20, any::<bool>()).prop_map(
            |(len, hash, gaps, tail, back)| {
                let (mut left, mut next, mut runs) = (whole_blocks(len), 1 << 20, Vec::new());
                for (gap, blocks) in gaps {
                    if blocks < left {
                        runs.push(run(next + gap, blocks));
                        next += gap + blocks;
                        left -= blocks;
                    }
                }
                if left > 0 {
                    runs.push(run(next, left));
                }
                if back {
                    runs.reverse();
                }
                ValueRef::new(len, hash, &runs, (shared_tail(len) > 0).then_some(tail)).unwrap()
            },
        )
    }

    #[test]
    fn the_bytes_are_those_of_the_format_document() {
        let hash: u128 = 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100;
        let with = |len: &[u8], location: &[u8]| [len, &hash.to_le_bytes(), location].concat();
        let tail = ValueRef::new(250, hash, &[], Some(8200)).unwrap();
        assert_eq!(encoded(&tail), with(&[0xfa, 1], &[0x88, 0x40]));
        let one = ValueRef::new(4000, hash, &[run(300, 1)], None).unwrap();
        assert_eq!(encoded(&one), with(&[0xa0, 0x1f], &[1, 0xac, 2]));
        let several = ValueRef::new(8200, hash, &[run(9, 1), run(3, 1)], Some(100)).unwrap();
        assert_eq!(encoded(&several), with(&[0x88, 0x40], &[2, 9, 1, 3, 100]));
        assert_eq!(encoded(&ValueRef::new(0, hash, &[], None).unwrap()), with(&[0], &[]));
    }

    #[test]
    fn segments_follow_the_bytes_of_the_value_and_leave_padding_out() {
        let value = ValueRef::new(8200, 0, &[run(9, 1), run(3, 1)], Some(100)).unwrap();
        let segments: Vec<_> = value.segments().collect();
        assert_eq!(segments, [9 * 4096..10 * 4096, 3 * 4096..4 * 4096, 100..108]);
        assert_eq!(value.offset(), 9 * 4096);
        let padded = ValueRef::new(45_000, 0, &[run(0, 4), run(100, 7)], None).unwrap();
        let segments: Vec<_> = padded.segments().collect();
        assert_eq!(segments, [0..16_384, 409_600..409_600 + 45_000 - 16_384]);
        assert!(padded.is_within(107 * 4096) && !padded.is_within(106 * 4096));
    }

    #[test]
    fn a_location_that_does_not_suit_the_length_or_overlaps_is_none() {
        let new = |len, runs: &[Run], tail| ValueRef::new(len, 0, runs, tail);
        assert!(new(5000, &[run(1, 1)], Some(0)).is_some());
        assert_eq!(new(5000, &[run(1, 1)], None), None, "no tail");
        assert_eq!(new(4096, &[run(1, 1)], Some(0)), None, "a tail");
        assert_eq!(new(4096, &[run(1, 2)], None), None, "a block too many");
        assert_eq!(new(8192, &[run(1, 1)], None), None, "a block too few");
        assert_eq!(new(8192, &[run(1, 2), run(5, 0)], None), None, "an empty run");
        assert_eq!(new(8192, &[run(1, 1), run(1, 1)], None), None, "one block twice");
        assert_eq!(new(12_288, &[run(1, 2), run(0, 2)], None), None, "too long");
        assert_eq!(new(12_288, &[run(1, 2), run(2, 1)], None), None, "runs overlap");
        assert_eq!(new(5000, &[run(1, 1)], Some(5000)), None, "the tail in its own block");
        assert_eq!(new(8192, &[run(u32::MAX, 2)], None), None, "an overflow");
        assert_eq!(new(100, &[], Some(u64::MAX - 5)), None, "an overflow of the tail");
    }

    #[test]
    fn any_bytes_decode_to_a_reference_or_to_nothing() {
        let several = ValueRef::new(8200, 7, &[run(9, 1), run(3, 1)], Some(100)).unwrap();
        cairn_fuzz::target!(
            "empty" => encoded(&ValueRef::new(0, 7, &[], None).unwrap()),
            "tail" => encoded(&ValueRef::contiguous(8200, 250, 7).unwrap()),
            "run" => encoded(&ValueRef::contiguous(8192, 50_000, 7).unwrap()),
            "several" => encoded(&several),
        )
        .for_each(|bytes| {
            let mut r = Reader::new(bytes);
            let decoded = cairn_fuzz::within(64 * bytes.len() + 256, || ValueRef::decode(&mut r));
            let Some(value) = decoded else { return };
            assert_eq!(encoded(&value), bytes[..bytes.len() - r.remaining()]);
            assert_eq!(value.segments().map(|s| s.end - s.start).sum::<u64>(), value.len.into());
        });
    }

    proptest! {
        #[test]
        fn references_round_trip_and_their_size_is_known(value in any_ref()) {
            let bytes = encoded(&value);
            prop_assert_eq!(bytes.len(), value.encoded_bytes());
            prop_assert!(bytes.len() as u64 <= ValueRef::encoded_bytes_max(value.len.into()));
            let mut r = Reader::new(&bytes);
            prop_assert_eq!(ValueRef::decode(&mut r), Some(value));
            prop_assert_eq!(r.remaining(), 0);
        }
    }
}
