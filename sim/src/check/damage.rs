//! A checksum failure is never "not found" and never other bytes: a read of a damaged value returns
//! the right bytes, or an error that names the damage.

use bytes::Bytes;
use cairn_clients::Violation;
use cairn_engine::{Error, KeyEntry};
use xxhash_rust::xxh3::xxh3_128;

/// The property's name.
pub const NAME: &str = "damage is never absence";

/// Checks a read of a key whose state was looked up before and after it.
pub fn check(
    slot: u16,
    key: &[u8],
    before: Option<KeyEntry>,
    read: &Result<Option<(KeyEntry, Bytes)>, Error>,
    after: Option<KeyEntry>,
) -> Option<Violation> {
    let wrong = match read {
        Ok(Some((entry, bytes)))
            if bytes.len() == entry.value.len as usize && xxh3_128(bytes) == entry.value.hash =>
        {
            return None;
        }
        Ok(Some((entry, bytes))) => {
            format!("{} bytes that are not those of {entry:?}", bytes.len())
        }
        // The key was there all the time.
        Ok(None) if before.is_some() && before == after => "absent".to_owned(),
        Ok(None) | Err(Error::Corrupt(_) | Error::Failed { .. } | Error::Closed) => return None,
        Err(error) => error.to_string(),
    };
    let key = key.escape_ascii();
    Some(Violation::new(
        NAME,
        format!("node {slot}, key `{key}`, {before:?} before, {after:?} after: {wrong}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_engine::{LogId, ValueRef};

    fn entry(bytes: &[u8]) -> KeyEntry {
        let value = ValueRef::contiguous(0, bytes.len() as u32, xxh3_128(bytes)).unwrap();
        KeyEntry { version: LogId { term: 1, index: 2 }, value }
    }

    #[test]
    fn right_bytes_and_true_absence_are_fine_and_nothing_else_is() {
        let held = || entry(b"value");
        let judge = |before, read, after| check(1, b"key", before, &read, after).is_some();
        assert!(!judge(
            Some(held()),
            Ok(Some((held(), Bytes::from_static(b"value")))),
            Some(held())
        ));
        assert!(!judge(None, Ok(None), None));
        assert!(!judge(Some(held()), Ok(None), None), "it was deleted meanwhile");
        assert!(!judge(Some(held()), Err(Error::Closed), Some(held())));
        assert!(judge(Some(held()), Ok(None), Some(held())));
        assert!(judge(
            Some(held()),
            Ok(Some((held(), Bytes::from_static(b"valu!")))),
            Some(held())
        ));
        assert!(judge(Some(held()), Ok(Some((held(), Bytes::from_static(b"val")))), Some(held())));
        let io = Error::Io { location: "d".into(), operation: "read", reason: "r".into() };
        assert!(
            judge(Some(held()), Err(io), Some(held())),
            "an unreadable block is damage, not a failure of the node"
        );
    }
}
