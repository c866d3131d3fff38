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

    /// The blocks in which its shared tail lies.
    pub(crate) fn tail_blocks(&self) -> Range<u32> {
        let tail = self.tail().unwrap_or(0..0);
        let number = |at: u64| u32::try_from(at).unwrap_or(u32::MAX);
        number(tail.start / BLOCK_BYTES)..number(tail.end.div_ceil(BLOCK_BYTES))
    }

    /// The same, with the bytes of the tail in each.
    pub(crate) fn tail_parts(&self) -> impl Iterator<Item = (u32, u64)> {
        let tail = self.tail().unwrap_or(0..0);
        self.tail_blocks().map(move |block| {
            let (start, end) =
                (u64::from(block) * BLOCK_BYTES, (u64::from(block) + 1) * BLOCK_BYTES);
            (block, end.min(tail.end).saturating_sub(start.max(tail.start)))
        })
    }

    /// The same value with its shared tail at another byte. `None` if it has no tail, or the tail
    /// would overlap the rest.
    pub(crate) fn with_tail(&self, offset: u64) -> Option<ValueRef> {
        let runs: Vec<Run> = self.runs().collect();
        self.tail().and_then(|_| ValueRef::new(self.len, self.hash, &runs, Some(offset)))
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
        if self.runs.is_none() && (self.tail().is_none() || whole_blocks(self.len) == 0) {
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
pub(crate) mod tests;
