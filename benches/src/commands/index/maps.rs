//! The maps, behind one interface.

use cairn_engine::KeyEntry;
use cairn_engine::index::{Builder, Index};
use concread::bptree::{BptreeMap, BptreeMapReadTxn, BptreeMapWriteTxn};
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Nodes that the engine drops before it yields.
const NODES_AT_ONCE: usize = 1024;
/// Operations in a transaction of a map that has transactions.
const TRANSACTION: usize = 100;

/// An ordered map from keys to entries.
pub trait Map: Default {
    /// What a cheap copy is.
    type Snapshot;

    /// Sets a key. Returns whether it was there.
    fn put(&mut self, key: &[u8], entry: KeyEntry) -> bool;

    /// A key's entry.
    fn get(&self, key: &[u8]) -> Option<KeyEntry>;

    /// Up to `limit` keys that begin with `prefix`.
    fn list(&self, prefix: &[u8], limit: usize) -> Vec<(Vec<u8>, KeyEntry)>;

    /// A copy that stays as it is; `None` if the map has none that is cheap.
    fn snapshot(&self) -> Option<Self::Snapshot>;

    /// A map of keys that come in ascending order.
    fn build<K: AsRef<[u8]>>(sorted: impl Iterator<Item = (K, KeyEntry)>) -> Self;

    /// Makes earlier puts visible.
    fn settle(&mut self) {}

    /// Drops a snapshot piece by piece, and calls `piece` after each; `false` if it cannot.
    fn drop_in_pieces(_snapshot: &mut Option<Self::Snapshot>, _piece: impl FnMut()) -> bool {
        false
    }
}

fn page<'a, K: AsRef<[u8]> + 'a>(
    items: impl Iterator<Item = (K, KeyEntry)>,
    prefix: &[u8],
    limit: usize,
) -> Vec<(Vec<u8>, KeyEntry)> {
    let of_prefix = items.take_while(|(key, _)| key.as_ref().starts_with(prefix));
    of_prefix.take(limit).map(|(key, entry)| (key.as_ref().to_vec(), entry)).collect()
}

impl Map for Index<KeyEntry> {
    type Snapshot = Index<KeyEntry>;

    fn put(&mut self, key: &[u8], entry: KeyEntry) -> bool {
        self.insert(key, &entry).is_some()
    }

    fn get(&self, key: &[u8]) -> Option<KeyEntry> {
        Index::get(self, key)
    }

    fn list(&self, prefix: &[u8], limit: usize) -> Vec<(Vec<u8>, KeyEntry)> {
        let items = self.range(Bound::Included(prefix), false);
        page(items.filter_map(|item| Some((item.key(), item.entry()?))), prefix, limit)
    }

    fn snapshot(&self) -> Option<Index<KeyEntry>> {
        Some(self.clone())
    }

    fn build<K: AsRef<[u8]>>(sorted: impl Iterator<Item = (K, KeyEntry)>) -> Self {
        let mut builder = Builder::new();
        for (key, entry) in sorted {
            assert!(builder.push(key.as_ref(), &entry).is_ok(), "keys ascend");
        }
        builder.finish()
    }

    fn drop_in_pieces(snapshot: &mut Option<Index<KeyEntry>>, mut piece: impl FnMut()) -> bool {
        let mut remains = snapshot.take().unwrap_or_default().into_remains();
        while remains.drop_some(NODES_AT_ONCE) {
            piece();
        }
        true
    }
}

/// The engine's map before the index.
pub type Imbl<K> = imbl::OrdMap<K, KeyEntry>;

impl<K> Map for Imbl<K>
where
    K: Ord + Clone + Borrow<[u8]> + for<'a> From<&'a [u8]> + AsRef<[u8]>,
{
    type Snapshot = Imbl<K>;

    fn put(&mut self, key: &[u8], entry: KeyEntry) -> bool {
        self.insert(K::from(key), entry).is_some()
    }

    fn get(&self, key: &[u8]) -> Option<KeyEntry> {
        Imbl::get(self, key).cloned()
    }

    fn list(&self, prefix: &[u8], limit: usize) -> Vec<(Vec<u8>, KeyEntry)> {
        let items = self.range::<_, [u8]>((Bound::Included(prefix), Bound::Unbounded));
        page(items.map(|(key, entry)| (key, entry.clone())), prefix, limit)
    }

    fn snapshot(&self) -> Option<Imbl<K>> {
        Some(self.clone())
    }

    fn build<B: AsRef<[u8]>>(sorted: impl Iterator<Item = (B, KeyEntry)>) -> Self {
        sorted.map(|(key, entry)| (K::from(key.as_ref()), entry)).collect()
    }
}

/// rpds' map for threads.
pub type Rpds = rpds::RedBlackTreeMapSync<Box<[u8]>, KeyEntry>;

impl Map for Rpds {
    type Snapshot = Rpds;

    fn put(&mut self, key: &[u8], entry: KeyEntry) -> bool {
        // Its insert does not return what it replaces.
        let old = self.contains_key(key);
        self.insert_mut(Box::from(key), entry);
        old
    }

    fn get(&self, key: &[u8]) -> Option<KeyEntry> {
        Rpds::get(self, key).cloned()
    }

    fn list(&self, prefix: &[u8], limit: usize) -> Vec<(Vec<u8>, KeyEntry)> {
        let items = self.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded));
        page(items.map(|(key, entry)| (key, entry.clone())), prefix, limit)
    }

    fn snapshot(&self) -> Option<Rpds> {
        Some(self.clone())
    }

    fn build<K: AsRef<[u8]>>(sorted: impl Iterator<Item = (K, KeyEntry)>) -> Self {
        let mut map = Rpds::new_sync();
        sorted.for_each(|(key, entry)| map.insert_mut(Box::from(key.as_ref()), entry));
        map
    }
}

type Transaction = BptreeMapWriteTxn<'static, Box<[u8]>, KeyEntry>;

/// concread's map. Its transactions borrow it, so it lives as long as the process.
pub struct Concread {
    map: &'static BptreeMap<Box<[u8]>, KeyEntry>,
    open: Option<(Transaction, usize)>,
}

impl Default for Concread {
    fn default() -> Concread {
        Concread { map: Box::leak(Box::default()), open: None }
    }
}

impl Map for Concread {
    type Snapshot = BptreeMapReadTxn<'static, Box<[u8]>, KeyEntry>;

    fn put(&mut self, key: &[u8], entry: KeyEntry) -> bool {
        let (mut open, count) = self.open.take().unwrap_or_else(|| (self.map.write(), 0));
        let old = open.insert(Box::from(key), entry);
        if count + 1 == TRANSACTION {
            open.commit();
        } else {
            self.open = Some((open, count + 1));
        }
        old.is_some()
    }

    fn get(&self, key: &[u8]) -> Option<KeyEntry> {
        self.map.read().get(key).cloned()
    }

    fn list(&self, prefix: &[u8], limit: usize) -> Vec<(Vec<u8>, KeyEntry)> {
        let read = self.map.read();
        let items = read.range::<_, [u8]>((Bound::Included(prefix), Bound::Unbounded));
        page(items.map(|(key, entry)| (key, entry.clone())), prefix, limit)
    }

    fn snapshot(&self) -> Option<Self::Snapshot> {
        Some(self.map.read())
    }

    fn build<K: AsRef<[u8]>>(sorted: impl Iterator<Item = (K, KeyEntry)>) -> Self {
        let map = Concread::default();
        let mut open = map.map.write();
        for (key, entry) in sorted {
            open.insert(Box::from(key.as_ref()), entry);
        }
        open.commit();
        map
    }

    fn settle(&mut self) {
        if let Some((open, _)) = self.open.take() {
            open.commit();
        }
    }
}

/// std's map.
pub type Std = BTreeMap<Box<[u8]>, KeyEntry>;

impl Map for Std {
    type Snapshot = ();

    fn put(&mut self, key: &[u8], entry: KeyEntry) -> bool {
        self.insert(Box::from(key), entry).is_some()
    }

    fn get(&self, key: &[u8]) -> Option<KeyEntry> {
        Std::get(self, key).cloned()
    }

    fn list(&self, prefix: &[u8], limit: usize) -> Vec<(Vec<u8>, KeyEntry)> {
        let items = self.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded));
        page(items.map(|(key, entry)| (key, entry.clone())), prefix, limit)
    }

    fn snapshot(&self) -> Option<()> {
        None
    }

    fn build<K: AsRef<[u8]>>(sorted: impl Iterator<Item = (K, KeyEntry)>) -> Self {
        sorted.map(|(key, entry)| (Box::from(key.as_ref()), entry)).collect()
    }
}

/// A key of at most 30 bytes without an allocation.
#[derive(Clone)]
pub enum InlineKey {
    /// The key lies in the node.
    Short { bytes: [u8; 30], len: u8 },
    /// The key has an allocation.
    Long(Arc<[u8]>),
}

impl From<&[u8]> for InlineKey {
    fn from(key: &[u8]) -> InlineKey {
        let mut bytes = [0; 30];
        match bytes.get_mut(..key.len()) {
            Some(part) => {
                part.copy_from_slice(key);
                InlineKey::Short { bytes, len: key.len() as u8 }
            }
            None => InlineKey::Long(key.into()),
        }
    }
}

impl AsRef<[u8]> for InlineKey {
    fn as_ref(&self) -> &[u8] {
        match self {
            InlineKey::Short { bytes, len } => bytes.get(..usize::from(*len)).unwrap_or_default(),
            InlineKey::Long(key) => key,
        }
    }
}

impl Borrow<[u8]> for InlineKey {
    fn borrow(&self) -> &[u8] {
        self.as_ref()
    }
}

impl PartialEq for InlineKey {
    fn eq(&self, other: &InlineKey) -> bool {
        self.as_ref() == other.as_ref()
    }
}

impl Eq for InlineKey {}

impl PartialOrd for InlineKey {
    fn partial_cmp(&self, other: &InlineKey) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for InlineKey {
    fn cmp(&self, other: &InlineKey) -> Ordering {
        self.as_ref().cmp(other.as_ref())
    }
}
