//! Reading little-endian fields, hashes and checksums.
//!
//! Bytes come from a disk and are untrusted: every read is bounds-checked and returns `None` past
//! the end.

/// Reads fields from the front of a slice.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.rest.split_at_checked(n)?;
        self.rest = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[b]| b)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn u128(&mut self) -> Option<u128> {
        self.array().map(u128::from_le_bytes)
    }
}

/// XXH3-128, the hash of values and blocks. It detects damage and identifies content. It does not
/// protect against somebody who can write to the device.
pub(crate) fn hash(bytes: &[u8]) -> u128 {
    xxhash_rust::xxh3::xxh3_128(bytes)
}

/// A 4 KiB block with its checksum at `offset`, computed with that field zeroed.
pub(crate) mod sealed {
    use crate::codec::hash;

    const LEN: usize = 16;

    /// Computes and stores the checksum. Returns it.
    pub(crate) fn seal(block: &mut [u8], offset: usize) -> u128 {
        if let Some(field) = block.get_mut(offset..offset + LEN) {
            field.fill(0);
        }
        let sum = hash(block);
        if let Some(field) = block.get_mut(offset..offset + LEN) {
            field.copy_from_slice(&sum.to_le_bytes());
        }
        sum
    }

    /// The checksum, if it matches.
    pub(crate) fn verify(block: &[u8], offset: usize) -> Option<u128> {
        let stored = u128::from_le_bytes(block.get(offset..offset + LEN)?.try_into().ok()?);
        let mut copy = block.to_vec();
        (seal(&mut copy, offset) == stored).then_some(stored)
    }

    /// The first block of `bytes`, filled up with zeros, beginning with `head` and with a matching
    /// checksum: hostile bytes that a decoder looks into.
    #[cfg(test)]
    pub(crate) fn forge(head: &[u8], bytes: &[u8], offset: usize) -> Vec<u8> {
        let mut block = bytes.to_vec();
        block.resize(4096, 0);
        block.splice(..head.len(), head.iter().copied());
        seal(&mut block, offset);
        block
    }
}
