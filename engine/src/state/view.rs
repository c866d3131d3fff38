//! A consistent view of a group's keys.

use super::Shared;
use crate::error::Result;
use crate::group::Keys;
use crate::types::{GroupId, KeyEntry, ListPage, ListQuery, LogId, SharedImage};
use bytes::Bytes;
use std::sync::Arc;

/// A consistent view of one group's keys, made in O(1). While it lives, no extent that it can reach
/// is reused, so keep it no longer than a read, a page or a snapshot needs it.
#[derive(Clone)]
pub struct View {
    keys: Keys,
    applied: Option<LogId>,
    image: Option<SharedImage>,
    pin: Arc<Pin>,
}

struct Pin {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.shared.state.lock().space.view_ends(self.number);
    }
}

impl View {
    pub(crate) fn new(shared: &Arc<Shared>, group: GroupId) -> View {
        let mut state = shared.state.lock();
        let number = state.space.view_begins();
        let group = state.groups.get(&group);
        View {
            keys: group.map(|g| g.keys.clone()).unwrap_or_default(),
            applied: group.and_then(|g| g.applied),
            image: group.and_then(|g| g.image.clone()),
            pin: Arc::new(Pin { shared: shared.clone(), number }),
        }
    }

    /// The applied position of this view.
    pub fn applied(&self) -> Option<LogId> {
        self.applied
    }

    /// The machine image at that position; empty if there never was one.
    pub fn machine(&self) -> Vec<u8> {
        self.image.as_ref().map(|image| image.encode()).unwrap_or_default()
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.keys.len() == 0
    }

    /// A key's state.
    pub fn get(&self, key: &[u8]) -> Option<KeyEntry> {
        self.keys.get(key)
    }

    /// Every key with its state, in order; no I/O.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], KeyEntry)> {
        self.keys.iter()
    }

    /// A page of keys; no I/O.
    pub fn list(&self, query: &ListQuery) -> ListPage {
        self.keys.list(query)
    }

    /// Reads a value of this view and checks it against its hash.
    ///
    /// # Errors
    /// `Corrupt`, with the location and the entry; `Io`.
    pub async fn read(&self, entry: &KeyEntry) -> Result<Bytes> {
        self.pin.shared.read(&entry.value, entry.version).await
    }

    /// Reads many values of this view, with adjacent ones in one read. Each has its own result, in
    /// the order of the entries.
    ///
    /// # Errors
    /// As [`View::read`], for each.
    pub async fn read_all(
        &self,
        entries: impl IntoIterator<Item = KeyEntry>,
    ) -> Vec<Result<Bytes>> {
        let values: Vec<_> =
            entries.into_iter().map(|entry| (entry.value, entry.version)).collect();
        self.pin.shared.read_all(&values).await
    }

    /// Whether each of these values is intact. Adjacent ones are read together. Damage is not
    /// counted.
    pub(crate) async fn are_intact(&self, entries: &[KeyEntry]) -> Vec<bool> {
        let values: Vec<_> =
            entries.iter().map(|entry| (entry.value.clone(), entry.version)).collect();
        self.pin.shared.read_all_quietly(&values, |read| read.is_ok()).await
    }
}
