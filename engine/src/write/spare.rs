//! Buffers of completed writes, for the next ones. Fresh memory costs as much as the copy into it.

use crate::io::AlignedBuf;
use std::collections::BTreeMap;

/// The most bytes of buffers that are kept, and of one.
const KEPT_BYTES: usize = 16 << 20;
const BUFFER_BYTES: usize = 2 << 20;

/// Buffers that no write uses, by their capacity.
#[derive(Default)]
pub(super) struct SpareBuffers {
    buffers: BTreeMap<usize, Vec<AlignedBuf>>,
    bytes: usize,
}

impl SpareBuffers {
    /// A buffer of at least `bytes`, rounded up to whole blocks. It holds bytes of earlier writes.
    pub(super) fn take(&mut self, bytes: usize) -> AlignedBuf {
        // Rounded up, so that a buffer serves writes of other lengths later.
        let capacity = bytes.next_power_of_two();
        let found = self.buffers.range_mut(capacity..=2 * capacity).next();
        let Some((capacity, buffers)) = found else {
            return AlignedBuf::zeroed(capacity).resized(bytes);
        };
        let capacity = *capacity;
        let spare = buffers.pop();
        if buffers.is_empty() {
            self.buffers.remove(&capacity);
        }
        self.bytes -= capacity;
        spare.unwrap_or_else(|| AlignedBuf::zeroed(capacity)).resized(bytes)
    }

    /// Keeps a buffer, if there is room for it. Larger ones make room: they were used by another
    /// load, or are too many.
    pub(super) fn put(&mut self, buf: AlignedBuf) {
        let capacity = buf.capacity();
        while self.bytes + capacity > KEPT_BYTES
            && let Some(mut larger) = self.buffers.last_entry()
            && *larger.key() > capacity
        {
            self.bytes -= *larger.key();
            larger.get_mut().pop();
            if larger.get().is_empty() {
                larger.remove();
            }
        }
        if (1..=BUFFER_BYTES).contains(&capacity) && self.bytes + capacity <= KEPT_BYTES {
            self.bytes += capacity;
            self.buffers.entry(capacity).or_default().push(buf);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::BLOCK;

    #[test]
    fn a_buffer_is_used_again_where_it_is_large_enough() {
        let mut spare = SpareBuffers::default();
        let buf = spare.take(4 * BLOCK);
        let at = buf.as_ptr();
        spare.put(buf);
        assert_ne!(spare.take(5 * BLOCK).as_ptr(), at);
        assert_ne!(spare.take(BLOCK).as_ptr(), at, "it is kept for larger writes");
        let again = spare.take(2 * BLOCK + 1);
        assert_eq!((again.as_ptr(), again.len()), (at, 3 * BLOCK));
        assert_eq!(spare.bytes, 0);
    }

    /// The story: after a burst of large writes, small ones found all the room taken for ever, and
    /// each had fresh memory.
    #[test]
    fn buffers_of_large_writes_make_room_for_those_of_small_ones() {
        let mut spare = SpareBuffers::default();
        let large = KEPT_BYTES / BUFFER_BYTES;
        (0..large).for_each(|_| spare.put(AlignedBuf::zeroed(BUFFER_BYTES)));
        let small = spare.take(BLOCK);
        let at = small.as_ptr();
        spare.put(small);
        assert_eq!(spare.take(BLOCK).as_ptr(), at);
        assert_eq!(spare.bytes, KEPT_BYTES - BUFFER_BYTES);
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let mut spare = SpareBuffers::default();
        spare.put(AlignedBuf::zeroed(BUFFER_BYTES + 1));
        assert_eq!(spare.bytes, 0);
        (0..KEPT_BYTES / BLOCK + 10).for_each(|_| spare.put(AlignedBuf::zeroed(BLOCK)));
        let kept: usize = spare.buffers.values().map(Vec::len).sum();
        assert_eq!((kept * BLOCK, spare.bytes), (KEPT_BYTES, KEPT_BYTES));
    }
}
