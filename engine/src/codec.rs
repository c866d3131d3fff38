//! Reading little-endian fields and varints, hashes and checksums.
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

    /// What is not read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    #[inline]
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

    /// A number as [`put_varint`] writes it. `None` for any longer form of the same number, so that
    /// what is read has one spelling.
    #[inline]
    pub(crate) fn varint(&mut self) -> Option<u64> {
        match self.rest.split_first()? {
            (byte, rest) if *byte < 0x80 => {
                self.rest = rest;
                Some(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            let shifted = bits << shift;
            if shifted >> shift != bits || (byte == 0 && shift > 0) {
                return None;
            }
            number |= shifted;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    /// A varint of at most 32 bits.
    #[inline]
    pub(crate) fn varint32(&mut self) -> Option<u32> {
        self.varint().and_then(|number| u32::try_from(number).ok())
    }
}

/// The longest varint, in bytes.
pub(crate) const VARINT_BYTES_MAX: usize = 10;

/// Appends a number: seven bits in each byte, the low ones first (LEB128).
pub(crate) fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Writes a number into exactly its bytes.
pub(crate) fn write_varint(out: &mut [u8], mut number: u64) {
    if let Some((last, others)) = out.split_last_mut() {
        for byte in others {
            *byte = number as u8 | 0x80;
            number >>= 7;
        }
        *last = number as u8;
    }
}

/// The bytes that [`put_varint`] appends.
pub(crate) const fn varint_bytes(number: u64) -> usize {
    let bits = u64::BITS - number.leading_zeros();
    if bits == 0 { 1 } else { bits.div_ceil(7) as usize }
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(number: u64) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, number);
        out
    }

    #[test]
    fn varints_are_those_of_the_format_document() {
        assert_eq!(encoded(0), [0]);
        assert_eq!(encoded(127), [0x7f]);
        assert_eq!(encoded(300), [0xac, 2]);
        assert_eq!(encoded(u64::MAX), [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]);
    }

    #[test]
    fn a_longer_form_and_an_overflow_are_no_number() {
        for bytes in [&[0x80, 0][..], &[0x80], &[], &[0xff; 10], &[0xff, 0xff, 0x80, 0]] {
            assert_eq!(Reader::new(bytes).varint(), None, "{bytes:?}");
        }
        let too_large = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2];
        assert_eq!(Reader::new(&too_large).varint(), None);
        assert_eq!(Reader::new(&encoded(1 << 32)).varint32(), None);
    }

    proptest! {
        #[test]
        fn varints_round_trip(number: u64, shift in 0u32..64) {
            let number = number >> shift;
            let bytes = encoded(number);
            prop_assert_eq!(bytes.len(), varint_bytes(number));
            prop_assert!(bytes.len() <= VARINT_BYTES_MAX);
            let mut written = vec![0; bytes.len()];
            write_varint(&mut written, number);
            prop_assert_eq!(&written, &bytes);
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(reader.varint(), Some(number));
            prop_assert_eq!(reader.remaining(), 0);
        }
    }
}
