//! A consistent view of a group's keys.

use super::{Ended, Shared};
use crate::error::Result;
use crate::group::Keys;
use crate::types::{GroupId, KeyEntry, ListPage, ListQuery, LogId, SharedImage};
use bytes::Bytes;
use std::sync::Arc;

/// The most that waits to be freed. Of a view beyond it all keys are freed at once.
const ENDED_VIEWS: usize = 64;

/// A consistent view of one group's keys, made in O(1). While it lives, no extent that it can reach
/// is reused, so keep it no longer than a read, a page or a snapshot needs it.
#[derive(Clone)]
pub struct View {
    applied: Option<LogId>,
    image: Option<SharedImage>,
    pin: Arc<Pin>,
}

struct Pin {
    shared: Arc<Shared>,
    number: u64,
    keys: Keys,
}

impl Drop for Pin {
    /// Frees one piece of what the view alone held, and leaves the rest to [`free_what_ended`]:
    /// the caller shares its thread with others.
    ///
    /// [`free_what_ended`]: super::free_what_ended
    fn drop(&mut self) {
        let remains = std::mem::take(&mut self.keys).drop_first_piece();
        let room = {
            let mut state = self.shared.state.lock();
            state.space.view_ends(self.number);
            state.ended.len() < ENDED_VIEWS
        };
        if let Some(remains) = remains.filter(|_| room) {
            self.shared.free(Ended::View(remains));
        }
    }
}

impl View {
    pub(crate) fn new(shared: &Arc<Shared>, group: GroupId) -> View {
        let mut state = shared.state.lock();
        let number = state.space.view_begins();
        let group = state.groups.get(&group);
        let keys = group.map(|g| g.keys.clone()).unwrap_or_default();
        View {
            applied: group.and_then(|g| g.applied),
            image: group.and_then(|g| g.image.clone()),
            pin: Arc::new(Pin { shared: shared.clone(), number, keys }),
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
        self.pin.keys.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.pin.keys.len() == 0
    }

    /// A key's state.
    pub fn get(&self, key: &[u8]) -> Option<KeyEntry> {
        self.pin.keys.get(key)
    }

    /// Every key with its state, in order; no I/O.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], KeyEntry)> {
        self.pin.keys.iter()
    }

    /// Every key above `after`, or every key, with its state, in order; no I/O.
    pub fn entries_after(&self, after: Option<&[u8]>) -> impl Iterator<Item = (&[u8], KeyEntry)> {
        self.pin.keys.iter_after(after)
    }

    /// Every key from `start` on and before `end`, with its state, in order; no I/O. An empty `end` is
    /// behind every key.
    pub fn entries_between(
        &self,
        start: &[u8],
        end: &[u8],
    ) -> impl Iterator<Item = (&[u8], KeyEntry)> {
        self.pin.keys.iter_between(start, end)
    }

    /// A page of keys; no I/O.
    pub fn list(&self, query: &ListQuery) -> ListPage {
        self.pin.keys.list(query)
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

#[cfg(test)]
mod tests {
    use crate::group::DROPPED_AT_ONCE;
    use crate::index::Watch;
    use crate::io::memory::MemoryDirectory;
    use crate::state::{Engine, View};
    use crate::types::{
        Change, Geometry, GroupId, Identity, KernelBootId, LogId, Mode, NewEntry, Options, Promise,
        Transition,
    };
    use bytes::Bytes;
    use std::sync::Arc;

    const GROUP: GroupId = GroupId(0);
    /// Keys so long that few share a leaf.
    const KEYS: usize = 9_000;
    const KEY_BYTES: usize = 600;

    async fn apply(engine: &Engine, index: u64, values: usize, changes: Vec<Change>) {
        let id = LogId { term: 1, index };
        let entry = NewEntry::new(id, Bytes::new(), vec![Bytes::new(); values]);
        engine.append(GROUP, vec![entry], Promise::Mode, Box::new(|_| ())).await.unwrap();
        engine
            .apply(GROUP, vec![Transition { applied: id, changes }], Arc::new(Vec::new()))
            .unwrap();
    }

    /// A view of keys that are all deleted since, and its nodes.
    async fn view_of_deleted_keys() -> (Engine, View, Watch) {
        let geometry =
            Geometry { journal_bytes: 2 << 20, checkpoint_bytes: 16 << 20, data_bytes: 4 << 20 };
        let identity = Identity { cluster: "test".into(), slot: 1, incarnation: 7 };
        let directory = MemoryDirectory::new(&geometry);
        Engine::format(&directory, geometry, &identity).await.unwrap();
        let options = Options::new(Mode::Replicated, KernelBootId(1), 1);
        let engine = Engine::open(Arc::new(directory), None, options).await.unwrap();
        let key = |number: usize| Bytes::from(format!("{number:0KEY_BYTES$}"));
        let at_once = 1000;
        for (first, index) in (0..KEYS).step_by(at_once).zip(1..) {
            let put = |value| Change::Put { key: key(first + value), value };
            apply(&engine, index, at_once, (0..at_once).map(put).collect()).await;
        }
        let view = engine.view(GROUP);
        let nodes = view.pin.keys.watch();
        let delete = |number| Change::Delete { key: key(number) };
        apply(&engine, (KEYS / at_once) as u64 + 1, 0, (0..KEYS).map(delete).collect()).await;
        assert!(nodes.alive() > 2 * DROPPED_AT_ONCE, "{} nodes", nodes.alive());
        (engine, view, nodes)
    }

    /// The story: a reader held a view while all keys were overwritten. When it ended, the view
    /// freed its tree at once: 35 ms for ten million keys, in which the thread served nobody else.
    #[tokio::test]
    async fn what_an_ended_view_alone_held_is_freed_in_bounded_pieces() {
        let (_engine, view, nodes) = view_of_deleted_keys().await;
        let all = nodes.alive();
        drop(view.clone());
        assert_eq!(nodes.alive(), all, "another copy of the view is left");
        drop(view);
        let (mut alive, mut pieces) = (nodes.alive(), 1);
        assert_eq!(alive, all - DROPPED_AT_ONCE);
        for _ in 0..100 {
            tokio::task::yield_now().await;
            let before = std::mem::replace(&mut alive, nodes.alive());
            assert!(before - alive <= DROPPED_AT_ONCE, "{} nodes at once", before - alive);
            pieces += usize::from(before > alive);
        }
        assert_eq!((alive, pieces), (0, all.div_ceil(DROPPED_AT_ONCE)));
    }

    #[tokio::test]
    async fn a_view_that_outlives_its_engine_leaves_nothing() {
        let (engine, view, nodes) = view_of_deleted_keys().await;
        engine.close().await.unwrap();
        drop(view);
        assert_eq!(nodes.alive(), 0);
    }
}
