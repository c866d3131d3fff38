//! The key namespace: an ordered map with an O(1) copy, so that views and checkpoints never stop
//! writers.

use crate::codec::{Reader, VARINT_BYTES_MAX, put_varint, varint_bytes};
use crate::index::{Builder, Encoded, Index, Item, Remains, Unordered};
use crate::io::yield_once;
use crate::types::{KeyEntry, ListItem, ListPage, ListQuery, LogId, ValueRef};
use bytes::Bytes;
use std::ops::Bound;

/// Nodes of the index that are freed before the task yields.
pub(crate) const DROPPED_AT_ONCE: usize = 1024;
/// The most bytes that a checkpoint needs for a key beside the key itself and the reference to its
/// value.
pub(crate) const KEY_FIXED_BYTES_MAX: u64 = 3 * VARINT_BYTES_MAX as u64;

/// Bytes that a checkpoint needs for a key.
fn checkpoint_bytes(key_len: usize, entry: &KeyEntry) -> u64 {
    let LogId { term, index } = entry.version;
    let numbers = varint_bytes(key_len as u64) + varint_bytes(term) + varint_bytes(index);
    (numbers + key_len + entry.value.encoded_bytes()) as u64
}

/// Term and index as varints, then the reference: about 28 bytes.
impl Encoded for KeyEntry {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.version.term);
        put_varint(out, self.version.index);
        self.value.encode(out);
    }

    fn decode(bytes: &[u8]) -> Option<KeyEntry> {
        let mut r = Reader::new(bytes);
        let entry = entry(&mut r)?;
        (r.remaining() == 0).then_some(entry)
    }
}

fn entry(r: &mut Reader<'_>) -> Option<KeyEntry> {
    let version = LogId { term: r.varint()?, index: r.varint()? };
    Some(KeyEntry { version, value: ValueRef::decode(r)? })
}

/// A group's keys. Cloning shares the tree; writers then copy only the path that they change.
#[derive(Clone, Default)]
pub(crate) struct Keys {
    map: Index<KeyEntry>,
    key_bytes: u64,
    value_bytes: u64,
    checkpoint_bytes: u64,
}

impl Keys {
    /// Keys from an iterator in ascending order.
    pub(crate) fn builder() -> KeysBuilder {
        KeysBuilder { map: Builder::new(), key_bytes: 0, value_bytes: 0, checkpoint_bytes: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Bytes of keys and values.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.key_bytes + self.value_bytes
    }

    /// Bytes of values.
    pub(crate) fn value_bytes(&self) -> u64 {
        self.value_bytes
    }

    /// Bytes of the keys in a checkpoint.
    pub(crate) fn checkpoint_bytes(&self) -> u64 {
        self.checkpoint_bytes
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<KeyEntry> {
        self.map.get(key)
    }

    /// Sets a key. Returns its old state.
    pub(crate) fn insert(&mut self, key: &[u8], entry: KeyEntry) -> Option<KeyEntry> {
        let old = self.map.insert(key, &entry);
        self.value_bytes += u64::from(entry.value.len);
        self.checkpoint_bytes += checkpoint_bytes(key.len(), &entry);
        match &old {
            Some(old) => self.subtract(key, old),
            None => self.key_bytes += key.len() as u64,
        }
        old
    }

    /// Sets the key at the front of `r`, as a checkpoint holds it. `None` if there is no whole key.
    pub(crate) fn insert_read(&mut self, r: &mut Reader<'_>) -> Option<()> {
        let key = r.varint().and_then(|len| r.bytes(usize::try_from(len).ok()?))?;
        let entry = entry(r)?;
        self.insert(key, entry);
        Some(())
    }

    /// Removes a key. Returns its old state.
    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<KeyEntry> {
        let old = self.map.remove(key)?;
        self.key_bytes -= key.len() as u64;
        self.subtract(key, &old);
        Some(old)
    }

    fn subtract(&mut self, key: &[u8], old: &KeyEntry) {
        self.value_bytes -= u64::from(old.value.len);
        self.checkpoint_bytes -= checkpoint_bytes(key.len(), old);
    }

    /// Every key with its entry, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], KeyEntry)> {
        self.map.iter().filter_map(pair)
    }

    /// Every key above `after`, or every key, with its entry, in order.
    pub(crate) fn iter_after(
        &self,
        after: Option<&[u8]>,
    ) -> impl Iterator<Item = (&[u8], KeyEntry)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.map.range(from, false).filter_map(pair)
    }

    /// Every key from `start` on and before `end`, with its entry, in order. An empty `end` is behind
    /// every key.
    pub(crate) fn iter_between(
        &self,
        start: &[u8],
        end: &[u8],
    ) -> impl Iterator<Item = (&[u8], KeyEntry)> {
        let items = self.map.range(Bound::Included(start), false);
        items.take_while(move |item| end.is_empty() || item.key() < end).filter_map(pair)
    }

    /// Frees what nobody else shares, in pieces of less than a millisecond.
    pub(crate) async fn drop_in_pieces(self) {
        if let Some(remains) = self.drop_first_piece() {
            drop_in_pieces(remains).await;
        }
    }

    /// Frees one such piece. Returns the rest.
    pub(crate) fn drop_first_piece(self) -> Option<Remains> {
        let mut remains = self.map.into_remains();
        remains.drop_some(DROPPED_AT_ONCE).then_some(remains)
    }

    /// Watches the nodes.
    #[cfg(test)]
    pub(crate) fn watch(&self) -> crate::index::Watch {
        self.map.watch()
    }

    /// A page of keys; see [`ListQuery`].
    pub(crate) fn list(&self, query: &ListQuery) -> ListPage {
        let from: &[u8] = &query.from;
        let until = query.until.as_deref();
        let after = query.start_after.as_deref();
        let begin = if query.reverse {
            let upper = [after, until].into_iter().flatten().min();
            upper.map_or(Bound::Unbounded, Bound::Excluded)
        } else {
            match after {
                Some(after) if after >= from => Bound::Excluded(after),
                _ => Bound::Included(from),
            }
        };
        let is_in = |key: &[u8]| match query.reverse {
            true => key >= from,
            false => until.is_none_or(|until| key < until),
        };
        let items = self.map.range(begin, query.reverse);
        let mut page = ListPage::default();
        let mut bytes = 0u64;
        let items = items.take_while(|item| is_in(item.key()));
        for (key, entry) in items.filter_map(pair) {
            let value_bytes = if query.keys_only { 0 } else { u64::from(entry.value.len) };
            bytes = bytes.saturating_add(key.len() as u64 + value_bytes);
            let over = page.items.len() >= query.limit
                || (bytes > query.max_bytes && !page.items.is_empty());
            if over {
                page.more = true;
                break;
            }
            page.items.push(ListItem { key: Bytes::copy_from_slice(key), entry });
        }
        page
    }
}

/// Frees what is left of keys, in pieces of less than a millisecond.
pub(crate) async fn drop_in_pieces(mut remains: Remains) {
    while remains.drop_some(DROPPED_AT_ONCE) {
        yield_once().await;
    }
}

fn pair<'a>(item: Item<'a, KeyEntry>) -> Option<(&'a [u8], KeyEntry)> {
    Some((item.key(), item.entry()?))
}

/// [`Keys`] in the making.
pub(crate) struct KeysBuilder {
    map: Builder<KeyEntry>,
    key_bytes: u64,
    value_bytes: u64,
    checkpoint_bytes: u64,
}

impl KeysBuilder {
    /// Appends the key at the front of `r`, as a checkpoint holds it: its length, the key, the
    /// encoded entry. `None` if there is no whole key, and `r` has moved; `Err` if it is not above
    /// the key before it.
    pub(crate) fn push_read(&mut self, r: &mut Reader<'_>) -> Option<Result<(), Unordered>> {
        let record = r.rest();
        let key = r.varint().and_then(|len| r.bytes(usize::try_from(len).ok()?))?;
        let entry_and_more = r.rest();
        let entry = entry(r)?;
        let left = r.remaining();
        // A number has one spelling, so these are the bytes that the entry would be encoded to.
        let encoded = entry_and_more.get(..entry_and_more.len() - left)?;
        let pushed = self.map.push_encoded(key, encoded);
        if pushed.is_ok() {
            self.key_bytes += key.len() as u64;
            self.value_bytes += u64::from(entry.value.len);
            self.checkpoint_bytes += (record.len() - left) as u64;
        }
        Some(pushed)
    }

    pub(crate) fn finish(self) -> Keys {
        let KeysBuilder { map, key_bytes, value_bytes, checkpoint_bytes } = self;
        Keys { map: map.finish(), key_bytes, value_bytes, checkpoint_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::prefix_end;
    use crate::value_ref::tests::any_ref;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn entry(len: u32) -> KeyEntry {
        KeyEntry {
            version: LogId { term: 1, index: 1 },
            value: ValueRef::contiguous(0, len, 0).unwrap(),
        }
    }

    fn query(prefix: &[u8]) -> ListQuery {
        ListQuery {
            from: Bytes::copy_from_slice(prefix),
            until: prefix_end(prefix),
            limit: 100,
            max_bytes: u64::MAX,
            ..Default::default()
        }
    }

    #[test]
    fn the_byte_cap_ends_a_page_but_never_before_its_first_item() {
        let mut keys = Keys::default();
        for key in [b"a", b"b", b"c"] {
            keys.insert(key, entry(100));
        }
        let page = keys.list(&ListQuery { max_bytes: 1, ..query(b"") });
        assert_eq!((page.items.len(), page.more), (1, true));
        let page = keys.list(&ListQuery { max_bytes: 202, ..query(b"") });
        assert_eq!((page.items.len(), page.more), (2, true));
        let page = keys.list(&ListQuery { max_bytes: 3, keys_only: true, ..query(b"") });
        assert_eq!((page.items.len(), page.more), (3, false));
    }

    #[test]
    fn byte_counts_follow_inserts_overwrites_and_removals() {
        let mut keys = Keys::default();
        keys.insert(b"ab", entry(10));
        keys.insert(b"ab", entry(30));
        keys.insert(b"c", entry(5));
        assert_eq!(keys.live_bytes(), 2 + 30 + 1 + 5);
        keys.remove(b"ab");
        keys.remove(b"missing");
        assert_eq!((keys.live_bytes(), keys.len()), (6, 1));
    }

    #[test]
    fn a_range_has_its_start_and_not_its_end_and_an_empty_end_is_behind_every_key() {
        let mut keys = Keys::default();
        for key in [&b"a"[..], b"b", b"b\xff", b"c", b"\xff\xff"] {
            keys.insert(key, entry(1));
        }
        let between = |start: &[u8], end: &[u8]| {
            keys.iter_between(start, end).map(|(key, _)| key.to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(between(b"b", b"c"), [&b"b"[..], b"b\xff"]);
        assert_eq!(between(b"", b"b"), [b"a"]);
        assert_eq!(between(b"c", b""), [&b"c"[..], b"\xff\xff"]);
        assert_eq!(between(b"", b"").len(), keys.len());
        for (start, end) in [(&b"b"[..], &b"b"[..]), (b"c", b"a"), (b"d", b"e")] {
            assert!(between(start, end).is_empty(), "{start:?}..{end:?}");
        }
    }

    proptest! {
        #[test]
        fn an_entry_is_read_back_and_nothing_shorter_or_longer_is_one(
            term: u64, index: u64, value in any_ref(),
        ) {
            let entry = KeyEntry { version: LogId { term, index }, value };
            let mut bytes = Vec::new();
            entry.encode(&mut bytes);
            prop_assert_eq!(KeyEntry::decode(&bytes), Some(entry));
            prop_assert!((0..bytes.len()).all(|len| KeyEntry::decode(&bytes[..len]).is_none()));
            bytes.push(0);
            prop_assert_eq!(KeyEntry::decode(&bytes), None);
        }

        /// The sums of a built map are those of the inserts.
        #[test]
        fn keys_are_built_with_their_sums(
            names in prop::collection::btree_map(prop::collection::vec(any::<u8>(), 0..20), any::<u32>(), 0..40),
        ) {
            let (mut keys, mut builder, mut records) = (Keys::default(), Keys::builder(), Vec::new());
            for (name, len) in &names {
                keys.insert(name, entry(*len));
                put_varint(&mut records, name.len() as u64);
                records.extend_from_slice(name);
                entry(*len).encode(&mut records);
            }
            let mut r = Reader::new(&records);
            while r.remaining() > 0 {
                prop_assert_eq!(builder.push_read(&mut r), Some(Ok(())));
            }
            let built = builder.finish();
            prop_assert!(built.iter().eq(keys.iter()));
            prop_assert_eq!(built.live_bytes(), keys.live_bytes());
            prop_assert_eq!(built.checkpoint_bytes(), keys.checkpoint_bytes());
        }

        /// Pages chained by their last key equal a plain scan, in both directions.
        #[test]
        fn chained_pages_are_a_scan(
            names in prop::collection::btree_set(prop::collection::vec(prop::sample::select(vec![0u8, 1, 254, 255]), 0..4), 0..40),
            prefix in prop::collection::vec(prop::sample::select(vec![0u8, 1, 254, 255]), 0..3),
            start in prop::option::of(prop::collection::vec(prop::sample::select(vec![0u8, 1, 254, 255]), 0..4)),
            end in prop::option::of(prop::collection::vec(prop::sample::select(vec![0u8, 1, 254, 255]), 0..4)),
            limit in 1usize..5, reverse: bool,
        ) {
            let mut keys = Keys::default();
            for name in &names { keys.insert(name, entry(1)); }
            let plain: BTreeMap<_, _> = names.iter().map(|n| (n.clone(), ())).collect();
            let mut expected: Vec<Vec<u8>> = plain.into_keys()
                .filter(|k| k.starts_with(&prefix))
                .filter(|k| end.as_ref().is_none_or(|end| k < end))
                .filter(|k| start.as_ref().is_none_or(|s| if reverse { k < s } else { k > s }))
                .collect();
            if reverse { expected.reverse(); }
            let until = [prefix_end(&prefix), end.clone().map(Bytes::from)].into_iter().flatten().min();
            let mut found: Vec<Vec<u8>> = Vec::new();
            let mut after = start.clone();
            loop {
                let page = keys.list(&ListQuery {
                    limit, reverse, start_after: after.clone().map(Bytes::from), until: until.clone(), ..query(&prefix)
                });
                found.extend(page.items.iter().map(|i| i.key.to_vec()));
                if !page.more { break; }
                after = found.last().cloned();
            }
            prop_assert_eq!(found, expected);
        }
    }
}
