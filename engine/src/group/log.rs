//! The log namespace: entries without holes. The values of the newest ones are cached for
//! replication and apply.

use crate::journal::{Body, VALUE_REF_BYTES, decode_body, encode_body};
use crate::types::{LogBounds, LogId, ValueRef};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of an entry in a checkpoint, without its value references and its meta.
const ENTRY_RECORD_BYTES: usize = 4 + 16 + 1 + VALUE_REF_BYTES + 2;

/// An entry's record in memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LogEntry {
    pub id: LogId,
    pub meta: Bytes,
    pub values: Box<[ValueRef]>,
    /// Where the body is, if it was too long for its journal record.
    pub spilled: Option<ValueRef>,
}

impl LogEntry {
    /// The body as the journal and checkpoints hold it.
    pub(crate) fn body(&self) -> Body {
        match self.spilled {
            Some(at) => Body::Spilled(at),
            None => Body::Inline(encode_body(&self.values, &self.meta).into()),
        }
    }

    /// The entry of an inline body; `None` if the body cannot be read.
    pub(crate) fn from_body(id: LogId, body: &[u8], spilled: Option<ValueRef>) -> Option<LogEntry> {
        let (values, meta) = decode_body(body)?;
        Some(LogEntry { id, meta, values, spilled })
    }

    /// Every extent that the entry refers to.
    pub(crate) fn extents(&self) -> impl Iterator<Item = &ValueRef> {
        self.values.iter().chain(self.spilled.as_ref())
    }

    /// Bytes that a checkpoint needs for it.
    pub(crate) fn checkpoint_bytes(&self) -> u64 {
        checkpoint_bytes(self.values.len(), self.meta.len())
    }

    /// Bytes of its values and meta.
    pub(crate) fn bytes(&self) -> u64 {
        self.meta.len() as u64 + self.values.iter().map(|v| u64::from(v.len)).sum::<u64>()
    }
}

/// Bytes that a checkpoint needs for an entry with this many values and such a meta.
pub(crate) fn checkpoint_bytes(values: usize, meta_len: usize) -> u64 {
    (ENTRY_RECORD_BYTES + values * VALUE_REF_BYTES + meta_len) as u64
}

/// A group's log. No other type computes positions from indexes.
#[derive(Default)]
pub(crate) struct Log {
    purged: Option<LogId>,
    /// The index of the first entry in `entries`.
    first: u64,
    entries: VecDeque<Arc<LogEntry>>,
    bytes: u64,
    checkpoint_bytes: u64,
    /// Values of the last entries, the last one at the back.
    cache: VecDeque<Arc<[Bytes]>>,
    cache_bytes: u64,
}

impl Log {
    pub(crate) fn bounds(&self) -> LogBounds {
        LogBounds { purged: self.purged, last: self.entries.back().map(|e| e.id).or(self.purged) }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
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

    /// The values of an entry, if they are cached.
    pub(crate) fn cached(&self, index: u64) -> Option<Arc<[Bytes]>> {
        let from_end = self.entries.len().checked_sub(self.position(index)?)?;
        self.cache.get(self.cache.len().checked_sub(from_end)?).cloned()
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
        self.checkpoint_bytes += entry.checkpoint_bytes();
        match values {
            Some(values) => {
                self.cache_bytes += entry.bytes();
                self.cache.push_back(values);
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
        while let Some(entry) =
            self.entries.pop_back_if(|e| last.is_none_or(|last| e.id.index > last))
        {
            self.bytes -= entry.bytes();
            self.checkpoint_bytes -= entry.checkpoint_bytes();
            if self.cache.pop_back().is_some() {
                self.cache_bytes -= entry.bytes();
            }
            removed.push(entry);
        }
        removed
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
            self.bytes -= entry.bytes();
            self.checkpoint_bytes -= entry.checkpoint_bytes();
            self.first = entry.id.index + 1;
            removed.push(entry);
        }
        if self.purged.is_none_or(|purged| purged.index < through.index) {
            self.purged = Some(through);
        }
        removed
    }

    fn drop_oldest_cached(&mut self) {
        let oldest = self.entries.len() - self.cache.len();
        if self.cache.pop_front().is_some() {
            self.cache_bytes -= self.entries.get(oldest).map_or(0, |e| e.bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64) -> Arc<LogEntry> {
        let values = vec![ValueRef { offset: index, len: 10, hash: 0 }].into();
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
        assert_eq!(log.checkpoint_bytes(), 4 * super::checkpoint_bytes(1, 0));
        log.truncate_after(None);
        assert_eq!(log.bounds().last.unwrap().index, 3);
        assert_eq!(log.next_index(), Some(4));
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
