//! Keys: their state, what applying an entry does to them, how they are listed and installed; and
//! what else of the state machine the engine keeps.

use super::log::LogId;
use crate::codec::hash;
use crate::value_ref::ValueRef;
use bytes::Bytes;
use std::sync::Arc;

/// A key's current state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEntry {
    /// The entry that wrote it; its index is the key's version.
    pub version: LogId,
    /// The value.
    pub value: ValueRef,
}

/// A key of a snapshot that is being installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotKey {
    pub(crate) key: Bytes,
    pub(crate) version: LogId,
    pub(crate) length: u32,
    pub(crate) hash: u128,
    /// `None`: the engine may hold the value already.
    pub(crate) value: Option<Bytes>,
}

impl SnapshotKey {
    /// A key with its value; entry `version` wrote it.
    pub fn with_value(key: Bytes, version: LogId, value: Bytes) -> SnapshotKey {
        let (length, hash) = (u32::try_from(value.len()).unwrap_or(u32::MAX), hash(&value));
        SnapshotKey { key, version, length, hash, value: Some(value) }
    }

    /// A key whose value has this length and hash. `value` is `None` if the engine may hold the
    /// value already. Returns `None` if the value does not match.
    pub fn checked(
        key: Bytes,
        version: LogId,
        length: u32,
        hash: u128,
        value: Option<Bytes>,
    ) -> Option<SnapshotKey> {
        match value.or_else(|| (length == 0).then(Bytes::new)) {
            None => Some(SnapshotKey { key, version, length, hash, value: None }),
            Some(value) => {
                let checked = SnapshotKey::with_value(key, version, value);
                (checked.hash == hash && checked.length == length).then_some(checked)
            }
        }
    }

    /// Its key.
    pub fn key(&self) -> &Bytes {
        &self.key
    }

    /// Whether `entry` has the same value, written by the same log entry.
    pub(crate) fn is(&self, entry: &KeyEntry) -> bool {
        (entry.version, entry.value.len, entry.value.hash) == (self.version, self.length, self.hash)
    }
}

/// A change to the key space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Link value number `value` of the applied entry under `key`.
    Put {
        /// The key.
        key: Bytes,
        /// Which of the entry's values.
        value: usize,
    },
    /// Remove `key`, if present.
    Delete {
        /// The key.
        key: Bytes,
    },
}

/// What applying one entry does.
#[derive(Clone, Debug)]
pub struct Transition {
    /// The entry.
    pub applied: LogId,
    /// Its effects, in order.
    pub changes: Vec<Change>,
}

/// The part of the state machine that is not keys (membership, sessions), immutable once handed
/// over; written into checkpoints.
pub trait MachineImage: Send + Sync + 'static {
    /// Its bytes, as [`View::machine`](crate::View::machine) returns them after a restart.
    fn encode(&self) -> Vec<u8>;

    /// Length of the encoding in bytes, or slightly more. Called often.
    fn encoded_bytes(&self) -> u64;
}

impl MachineImage for Vec<u8> {
    fn encode(&self) -> Vec<u8> {
        self.clone()
    }

    fn encoded_bytes(&self) -> u64 {
        self.len() as u64
    }
}

/// A shared machine image.
pub type SharedImage = Arc<dyn MachineImage>;

/// The least byte string above everything that begins with `prefix`; `None` if there is none. So the keys
/// that begin with a prefix are those from the prefix until its end.
pub fn prefix_end(prefix: &[u8]) -> Option<Bytes> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Some(end.into());
        }
    }
    None
}

/// Which keys to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Only this key and those behind it; empty: from the first key.
    pub from: Bytes,
    /// Only keys before this one; `None`: to the last key.
    pub until: Option<Bytes>,
    /// Only keys strictly after this one (before it, in reverse).
    pub start_after: Option<Bytes>,
    /// At most this many.
    pub limit: usize,
    /// Stop before the keys and values exceed this many bytes; at least one item is returned.
    pub max_bytes: u64,
    /// From the last key to the first.
    pub reverse: bool,
    /// Leave values out, and out of the byte count.
    pub keys_only: bool,
}

/// One listed key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListItem {
    /// The key.
    pub key: Bytes,
    /// Its state.
    pub entry: KeyEntry,
}

/// A page of listed keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// The items, in order.
    pub items: Vec<ListItem>,
    /// Whether keys remain after the last item.
    pub more: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Bytes at the ends of their range, since those have no successor.
        #[test]
        fn a_key_begins_with_a_prefix_if_it_is_not_before_it_and_before_its_end(
            prefix in prop::collection::vec(prop::sample::select(vec![0u8, 1, 254, 255]), 0..4),
            key in prop::collection::vec(prop::sample::select(vec![0u8, 1, 254, 255]), 0..5),
        ) {
            let until = prefix_end(&prefix);
            let between = key >= prefix && until.is_none_or(|end| key[..] < end[..]);
            prop_assert_eq!(key.starts_with(&prefix), between);
        }
    }
}
