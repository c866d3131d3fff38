//! Buffers of completed writes, for the next ones. Fresh memory costs as much as the copy into it.

use crate::io::AlignedBuf;

/// The most buffers kept, and the most bytes of one.
const BUFFERS: usize = 8;
const BUFFER_BYTES: usize = 2 << 20;

/// Buffers that no write uses.
#[derive(Default)]
pub(super) struct SpareBuffers {
    buffers: Vec<AlignedBuf>,
}

impl SpareBuffers {
    /// A buffer of at least `bytes`, rounded up to whole blocks. It holds bytes of earlier writes.
    pub(super) fn take(&mut self, bytes: usize) -> AlignedBuf {
        let fits = |buf: &AlignedBuf| buf.capacity() >= bytes;
        let found = self.buffers.iter().position(fits);
        let spare = found.map(|at| self.buffers.swap_remove(at));
        spare.unwrap_or_else(|| AlignedBuf::zeroed(0)).resized(bytes)
    }

    /// Keeps a buffer, if there is room for it.
    pub(super) fn put(&mut self, buf: AlignedBuf) {
        if self.buffers.len() < BUFFERS && (1..=BUFFER_BYTES).contains(&buf.capacity()) {
            self.buffers.push(buf);
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
        let buf = spare.take(3 * BLOCK);
        let at = buf.as_ptr();
        spare.put(buf);
        assert_ne!(spare.take(4 * BLOCK).as_ptr(), at);
        let again = spare.take(BLOCK + 1);
        assert_eq!((again.as_ptr(), again.len()), (at, 2 * BLOCK));
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let mut spare = SpareBuffers::default();
        spare.put(AlignedBuf::zeroed(BUFFER_BYTES + 1));
        (0..2 * BUFFERS).for_each(|_| spare.put(AlignedBuf::zeroed(BLOCK)));
        assert!(spare.buffers.len() == BUFFERS);
        assert!(spare.buffers.iter().all(|buf| buf.capacity() <= BUFFER_BYTES));
    }
}
