//! The log namespace: entries without holes. The values of the newest ones are cached for
//! replication and apply.

use super::entries::Entries;
use super::entry::LogEntry;
use crate::types::{LogBounds, LogId};
use crate::value_ref::ValueRef;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;

/// A group's log. No other type computes positions from indexes.
#[derive(Default)]
pub(crate) struct Log {
    purged: Option<LogId>,
    /// The index of the first entry in `entries`.
    first: u64,
    entries: Entries,
    bytes: u64,
    extent_bytes: u64,
    checkpoint_bytes: u64,
    /// Bytes of each entry's values to which keys refer as well.
    linked: VecDeque<u64>,
    linked_bytes: u64,
    /// Values of the last entries, the last one at the back, and the bytes of each entry.
    cache: VecDeque<(Arc<[Bytes]>, u64)>,
    cache_bytes: u64,
}

impl Log {
    pub(crate) fn bounds(&self) -> LogBounds {
        LogBounds { purged: self.purged, last: self.entries.back().map(|e| e.id).or(self.purged) }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many entries it has.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of extents to which no key refers.
    pub(crate) fn unlinked_bytes(&self) -> u64 {
        self.extent_bytes - self.linked_bytes
    }

    /// A key refers to a value of this length of entry `id` from now on, or (`up` is false) no
    /// longer. Nothing happens if the log does not hold the entry.
    pub(crate) fn count_link(&mut self, id: LogId, len: u32, up: bool) {
        let Some(position) = self.position(id.index) else { return };
        if self.entries.get(position).is_none_or(|entry| entry.id != id) {
            return;
        }
        if let Some(linked) = self.linked.get_mut(position) {
            for count in [linked, &mut self.linked_bytes] {
                *count = if up { *count + u64::from(len) } else { *count - u64::from(len) };
            }
        }
    }

    /// The value of an entry at `from` is at `to` from now on. Returns whether there was one.
    pub(crate) fn value_moved(&mut self, id: LogId, from: &ValueRef, to: &ValueRef) -> bool {
        let position = self.position(id.index);
        let entry = position.and_then(|position| self.entries.get_mut(position));
        let Some(entry) = entry.filter(|entry| entry.id == id) else { return false };
        let Some(moved) = entry.with_moved(from, to) else { return false };
        self.checkpoint_bytes -= entry.checkpoint_bytes();
        self.checkpoint_bytes += moved.checkpoint_bytes();
        *entry = Arc::new(moved);
        true
    }

    /// Bytes that a checkpoint needs for it.
    pub(crate) fn checkpoint_bytes(&self) -> u64 {
        self.checkpoint_bytes
    }

    /// The index that the next entry must have; `None` if any index will do.
    pub(crate) fn next_index(&self) -> Option<u64> {
        self.bounds().last.map(|id| id.index + 1)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Arc<LogEntry>> {
        self.entries.iter()
    }

    /// The entries above `index`; all for `None`. Made from one reference for each chunk.
    pub(crate) fn entries_above(&self, index: Option<u64>) -> Entries {
        self.entries.above(index)
    }

    fn position(&self, index: u64) -> Option<usize> {
        usize::try_from(index.checked_sub(self.first)?).ok()
    }

    pub(crate) fn get(&self, index: u64) -> Option<&Arc<LogEntry>> {
        self.entries.get(self.position(index)?)
    }

    /// The id of the entry number `count` of the log, if it lies before `through`.
    pub(crate) fn id_after(&self, count: usize, through: LogId) -> Option<LogId> {
        let id = self.entries.get(count.checked_sub(1)?)?.id;
        (id.index < through.index).then_some(id)
    }

    /// Bytes of the values that are cached.
    pub(crate) fn cache_bytes(&self) -> u64 {
        self.cache_bytes
    }

    /// The values of an entry, if they are cached.
    pub(crate) fn cached(&self, index: u64) -> Option<Arc<[Bytes]>> {
        let from_end = self.entries.len().checked_sub(self.position(index)?)?;
        let (values, _) = self.cache.get(self.cache.len().checked_sub(from_end)?)?;
        Some(Arc::clone(values))
    }

    /// Appends the entry at [`Log::next_index`]. The first entry of all may have any index.
    pub(crate) fn push(
        &mut self,
        entry: Arc<LogEntry>,
        values: Option<Arc<[Bytes]>>,
        cache_limit: u64,
    ) {
        match self.next_index() {
            Some(next) => assert_eq!(next, entry.id.index, "a hole in the log"),
            None => self.first = entry.id.index,
        }
        if self.entries.is_empty() {
            self.first = entry.id.index;
        }
        self.bytes += entry.bytes();
        self.extent_bytes += entry.extent_bytes();
        self.checkpoint_bytes += entry.checkpoint_bytes();
        self.linked.push_back(0);
        match values {
            Some(values) => {
                self.cache_bytes += entry.bytes();
                self.cache.push_back((values, entry.bytes()));
            }
            None => {
                self.cache.clear();
                self.cache_bytes = 0;
            }
        }
        self.entries.push_back(entry);
        while self.cache_bytes > cache_limit && self.cache.len() > 1 {
            self.drop_oldest_cached();
        }
    }

    /// Removes entries above `last`, newest first; `None` removes all.
    pub(crate) fn truncate_after(&mut self, last: Option<u64>) -> Vec<Arc<LogEntry>> {
        let mut removed = Vec::new();
        let above = |entry: &Arc<LogEntry>| last.is_none_or(|last| entry.id.index > last);
        while self.entries.back().is_some_and(above) {
            let Some(entry) = self.entries.pop_back() else {
                break;
            };
            let linked = self.linked.pop_back();
            self.gone(&entry, linked);
            self.cache_bytes -= self.cache.pop_back().map_or(0, |(_, bytes)| bytes);
            removed.push(entry);
        }
        removed
    }

    /// Removes all entries.
    pub(crate) fn clear(&mut self) -> Entries {
        let emptied = Log { purged: self.purged, first: self.first, ..Log::default() };
        std::mem::replace(self, emptied).entries
    }

    /// Removes entries up to `through`, oldest first, and records the position.
    pub(crate) fn purge(&mut self, through: LogId) -> Vec<Arc<LogEntry>> {
        let mut removed = Vec::new();
        while self.entries.front().is_some_and(|e| e.id.index <= through.index) {
            if self.cache.len() == self.entries.len() {
                self.drop_oldest_cached();
            }
            let Some(entry) = self.entries.pop_front() else {
                break;
            };
            let linked = self.linked.pop_front();
            self.gone(&entry, linked);
            self.first = entry.id.index + 1;
            removed.push(entry);
        }
        if self.purged.is_none_or(|purged| purged.index < through.index) {
            self.purged = Some(through);
        }
        removed
    }

    /// Subtracts what a removed entry counted.
    fn gone(&mut self, entry: &LogEntry, linked: Option<u64>) {
        self.bytes -= entry.bytes();
        self.extent_bytes -= entry.extent_bytes();
        self.checkpoint_bytes -= entry.checkpoint_bytes();
        self.linked_bytes -= linked.unwrap_or(0);
    }

    fn drop_oldest_cached(&mut self) {
        self.cache_bytes -= self.cache.pop_front().map_or(0, |(_, bytes)| bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::checkpoint_bytes_max;

    fn entry(index: u64) -> Arc<LogEntry> {
        let values = vec![ValueRef::contiguous(0, 10, 0).unwrap()].into();
        Arc::new(LogEntry {
            id: LogId { term: 1, index },
            meta: Bytes::new(),
            values,
            spilled: None,
        })
    }

    fn values(index: u64) -> Option<Arc<[Bytes]>> {
        Some(Arc::from(vec![Bytes::from(vec![index as u8; 10])]))
    }

    fn log(indexes: std::ops::Range<u64>, cache_limit: u64) -> Log {
        let mut log = Log::default();
        for index in indexes {
            log.push(entry(index), values(index), cache_limit);
        }
        log
    }

    #[test]
    fn the_cache_keeps_the_newest_values_within_its_limit() {
        let log = log(5..15, 30);
        let cached: Vec<u64> = (0..20).filter(|i| log.cached(*i).is_some()).collect();
        assert_eq!(cached, [12, 13, 14]);
        assert_eq!(log.cached(13).unwrap()[0][0], 13);
        assert_eq!(log.bytes(), 100);
    }

    #[test]
    fn truncation_and_purge_keep_entries_and_cache_in_step() {
        let mut log = log(0..10, 1000);
        assert_eq!(
            log.truncate_after(Some(6)).iter().map(|e| e.id.index).collect::<Vec<_>>(),
            [9, 8, 7]
        );
        assert_eq!(log.purge(LogId { term: 1, index: 3 }).len(), 4);
        assert_eq!(log.cached(3), None);
        assert_eq!((4..7).filter(|i| log.cached(*i).unwrap()[0][0] == *i as u8).count(), 3);
        log.push(entry(7), values(7), 1000);
        assert_eq!(log.bounds().purged.unwrap().index, 3);
        assert_eq!(log.bounds().last.unwrap().index, 7);
        assert_eq!(log.bytes(), 40);
        let kept = log.entries().map(|entry| entry.checkpoint_bytes()).sum();
        assert_eq!(log.checkpoint_bytes(), kept);
        assert!(kept <= 4 * checkpoint_bytes_max([10], 0));
        log.truncate_after(None);
        assert_eq!(log.bounds().last.unwrap().index, 3);
        assert_eq!(log.next_index(), Some(4));
    }

    #[test]
    fn bytes_that_keys_refer_to_are_counted_by_entry() {
        let mut log = log(0..10, 1000);
        assert_eq!(log.unlinked_bytes(), 100);
        for index in [2, 3, 8] {
            log.count_link(LogId { term: 1, index }, 10, true);
        }
        log.count_link(LogId { term: 2, index: 5 }, 10, true);
        log.count_link(LogId { term: 1, index: 77 }, 10, true);
        assert_eq!(log.unlinked_bytes(), 70);
        log.count_link(LogId { term: 1, index: 3 }, 10, false);
        assert_eq!(log.unlinked_bytes(), 80);
        log.purge(LogId { term: 1, index: 4 });
        assert_eq!(log.unlinked_bytes(), 40);
        log.truncate_after(Some(7));
        assert_eq!(log.unlinked_bytes(), 30);
    }

    #[test]
    fn purging_past_the_end_moves_the_log() {
        let mut log = log(0..3, 1000);
        log.purge(LogId { term: 2, index: 50 });
        assert_eq!(log.next_index(), Some(51));
        log.push(entry(51), values(51), 1000);
        assert_eq!(log.get(51).unwrap().id.index, 51);
        assert_eq!(log.entries().count(), 1);
    }
}
