//! Numbers and byte strings as an entry's meta has them: LEB128.
//!
//! What holds here: a number has one spelling, and nothing is read behind the end.

use crate::core::error::Malformed;
use bytes::{Buf, BufMut, BytesMut};

/// Appends a number.
pub(super) fn put_varint(out: &mut BytesMut, mut number: u64) {
    while number >= 0x80 {
        out.put_u8(number as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8(number as u8);
}

/// The next byte.
pub(super) fn take_u8(rest: &mut &[u8]) -> Result<u8, Malformed> {
    rest.try_get_u8().map_err(|_| Malformed("cut short"))
}

/// The next bytes, which are behind their length.
pub(super) fn take_bytes<'m>(rest: &mut &'m [u8]) -> Result<&'m [u8], Malformed> {
    let length = usize::try_from(take_varint(rest)?).unwrap_or(usize::MAX);
    let (bytes, after) =
        rest.split_at_checked(length).ok_or(Malformed("a key longer than the entry"))?;
    *rest = after;
    Ok(bytes)
}

/// The next number.
pub(super) fn take_varint(rest: &mut &[u8]) -> Result<u64, Malformed> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = take_u8(rest)?;
        let part = u64::from(byte & 0x7f);
        if shift == 63 && part > 1 {
            return Err(Malformed("a number that does not fit"));
        }
        if shift > 0 && byte == 0 {
            return Err(Malformed("a number that is longer than it needs to be"));
        }
        number |= part << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Malformed("a number without an end"))
}
