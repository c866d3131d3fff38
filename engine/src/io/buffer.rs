//! Memory for direct I/O: aligned to 4 KiB, a multiple of 4 KiB long, zeroed at creation.
//!
//! It consists of whole aligned blocks, so the alignment needs no `unsafe`.

use super::BLOCK;
use std::ops::{Deref, DerefMut};

#[derive(Clone)]
#[repr(C, align(4096))]
struct Block([u8; BLOCK]);

/// An owned buffer of whole, aligned 4 KiB blocks.
#[derive(Clone)]
pub struct AlignedBuf {
    blocks: Vec<Block>,
}

impl AlignedBuf {
    /// A zeroed buffer that holds at least `bytes`, rounded up to whole blocks.
    pub fn zeroed(bytes: usize) -> AlignedBuf {
        AlignedBuf { blocks: vec![Block([0; BLOCK]); bytes.div_ceil(BLOCK)] }
    }

    /// A buffer of at least `bytes`, rounded up to whole blocks, in the memory of this one. It holds
    /// the bytes of this one, and zeros behind them.
    #[must_use]
    pub fn resized(mut self, bytes: usize) -> AlignedBuf {
        self.blocks.resize(bytes.div_ceil(BLOCK), Block([0; BLOCK]));
        self
    }

    /// Bytes that it can hold without new memory.
    pub fn capacity(&self) -> usize {
        self.blocks.capacity() * BLOCK
    }

    /// A buffer that begins with `bytes`, followed by zeros up to the end of the last block.
    pub fn copied_from(bytes: &[u8]) -> AlignedBuf {
        let mut buf = AlignedBuf::zeroed(bytes.len());
        if let Some(head) = buf.get_mut(..bytes.len()) {
            head.copy_from_slice(bytes);
        }
        buf
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `Block` is `repr(C)` around a byte array whose size equals its alignment, so the
        // vector's elements are contiguous initialised bytes; the lifetime is that of `self`.
        unsafe {
            std::slice::from_raw_parts(self.blocks.as_ptr().cast::<u8>(), self.blocks.len() * BLOCK)
        }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes the slice unique, and every byte pattern is a
        // valid `Block`.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.blocks.as_mut_ptr().cast::<u8>(),
                self.blocks.len() * BLOCK,
            )
        }
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len())
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Whether all bytes are zeros, as those of a place that was never written are.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    // A loop that may end at each byte looks at them one by one, thirty times slower.
    let (chunks, rest) = bytes.as_chunks::<64>();
    let all = |bytes: &[u8]| bytes.iter().fold(0, |all, byte| all | byte) == 0;
    chunks.iter().all(|chunk| all(chunk)) && all(rest)
}

#[cfg(test)]
mod tests {
    use super::is_zero;

    /// Whatever the length and wherever it is, one bit makes the difference.
    #[test]
    fn one_bit_in_any_place_is_seen() {
        for length in 0..=200 {
            let mut bytes = vec![0; length];
            assert!(is_zero(&bytes), "{length}");
            for place in 0..length {
                bytes[place] = 1 << (place % 8);
                assert!(!is_zero(&bytes), "{place} of {length}");
                bytes[place] = 0;
            }
        }
    }
}
