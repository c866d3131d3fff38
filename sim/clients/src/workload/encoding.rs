//! Keys and values as bytes.
//!
//! A value's number determines its bytes and their length, so a value read back is checked
//! completely.

use crate::history::{GROUP_KEYS, Key, Value};
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

/// What the keys of all groups begin with.
pub(crate) const GROUPS_PREFIX: &str = "group-";

/// The bytes of a key. In some groups keys are so long that an entry's record spans several sectors
/// of its journal block, or goes to the data area.
pub fn encode_key(group: u32, key: Key) -> Bytes {
    let filler = match group % 3 {
        0 => 0,
        1 => 400,
        _ => 900,
    };
    Bytes::from(format!("{GROUPS_PREFIX}{group}/{:.<filler$}key-{key}", ""))
}

/// How many bytes a key has.
pub fn key_bytes(group: u32, key: Key) -> u64 {
    encode_key(group, key).len() as u64
}

/// The common prefix of a group's keys.
pub fn group_prefix(group: u32) -> Bytes {
    Bytes::from(format!("{GROUPS_PREFIX}{group}/"))
}

/// Decodes the group and the key of these bytes.
pub fn decode_key(bytes: &[u8]) -> Option<(u32, Key)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (group, key) = text.strip_prefix(GROUPS_PREFIX)?.split_once('/')?;
    let (group, key) =
        (group.parse().ok()?, key.trim_start_matches('.').strip_prefix("key-")?.parse().ok()?);
    (key < GROUP_KEYS && encode_key(group, key) == bytes).then_some((group, key))
}

/// How many bytes a value has. Most are small, some span blocks, a few are large.
pub fn value_bytes(value: Value) -> u64 {
    let hash = xxh3_64(&value.to_le_bytes());
    match hash % 20 {
        0..=9 => 8 + hash / 32 % 300,
        10..=15 => 300 + hash / 32 % 4000,
        16..=18 => 4000 + hash / 32 % 12_000,
        _ => 16_000 + hash / 32 % 70_000,
    }
}

/// The bytes of a value: its number, then filler.
pub fn encode_value(value: Value) -> Bytes {
    let len = value_bytes(value);
    let hash = xxh3_64(&value.to_le_bytes());
    let mut bytes = value.to_le_bytes().to_vec();
    let mut filler = hash | 1;
    while (bytes.len() as u64) < len {
        filler ^= filler << 13;
        filler ^= filler >> 7;
        filler ^= filler << 17;
        bytes.extend_from_slice(&filler.to_le_bytes());
    }
    bytes.truncate(usize::try_from(len.max(8)).unwrap_or(8));
    Bytes::from(bytes)
}

/// The number of a value, if these are exactly its bytes.
pub fn decode_value(bytes: &[u8]) -> Option<Value> {
    let value = Value::from_le_bytes(bytes.first_chunk().copied()?);
    (encode_value(value) == bytes).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_come_back_and_damaged_values_do_not() {
        for group in 0..7 {
            assert_eq!(decode_key(&encode_key(group, 3)), Some((group, 3)));
        }
        assert_eq!(decode_key(b"group-7/key-99"), None);
        assert!(encode_key(7, 3).starts_with(&group_prefix(7)));
        for value in (0..200).map(|n| n * 7_919) {
            let bytes = encode_value(value);
            assert_eq!(decode_value(&bytes), Some(value));
            let mut damaged = bytes.to_vec();
            let last = damaged.len() - 1;
            damaged[last] ^= 1;
            assert_ne!(decode_value(&damaged), Some(value));
            assert_eq!(decode_value(&bytes[..last]), None);
        }
    }
}
