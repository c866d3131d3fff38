//! Unsigned numbers in 7-bit groups, the lowest first (LEB128): the lengths and positions of an
//! index take the bytes that their value needs.

/// Appends a number.
pub(crate) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Bytes of a number.
pub(crate) fn len(number: u64) -> usize {
    (number | 1).ilog2() as usize / 7 + 1
}

/// Writes a number into exactly its bytes.
pub(crate) fn write(out: &mut [u8], mut number: u64) {
    if let Some((last, others)) = out.split_last_mut() {
        for byte in others {
            *byte = number as u8 | 0x80;
            number >>= 7;
        }
        *last = number as u8;
    }
}

/// Reads a number from the front; `None` if the bytes end early or the number exceeds 64 bits.
#[inline]
pub(crate) fn take(bytes: &mut &[u8]) -> Option<u64> {
    let (mut number, mut shift) = (0u64, 0);
    loop {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
        shift += 7;
        if shift > 63 {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_number_is_read_back_and_what_follows_it_stays(number: u64, shift in 0u32..64) {
            let number = number >> shift;
            let mut bytes = Vec::new();
            put(&mut bytes, number);
            prop_assert_eq!(bytes.len(), len(number));
            let mut written = vec![0; bytes.len()];
            write(&mut written, number);
            prop_assert_eq!(&written, &bytes);
            bytes.push(7);
            let mut rest = &bytes[..];
            prop_assert_eq!(take(&mut rest), Some(number));
            prop_assert_eq!(rest, &[7]);
        }
    }

    #[test]
    fn a_number_of_more_than_64_bits_is_none() {
        assert_eq!(take(&mut &[0xff; 9][..]), None);
        let most = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(take(&mut &most[..]), Some(u64::MAX));
        let more = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        assert_eq!(take(&mut &more[..]), None);
    }
}
