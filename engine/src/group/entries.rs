//! The entries of a log, in chunks that copies share: a copy costs one reference for each chunk,
//! so taking a checkpoint does not stop writers for as long as the log is long.

use super::entry::LogEntry;
use std::collections::VecDeque;
use std::sync::Arc;

/// Entries of a chunk. After a copy, the next change of a chunk copies so many references.
const CHUNK: usize = 256;

/// Entries, the oldest first. Clones share the chunks.
#[derive(Clone, Default)]
pub(crate) struct Entries {
    /// All but the last are full.
    chunks: VecDeque<Arc<Vec<Arc<LogEntry>>>>,
    /// Entries of the first chunk that are removed.
    skipped: usize,
}

impl Entries {
    pub(crate) fn len(&self) -> usize {
        let last = self.chunks.back().map_or(0, |chunk| chunk.len());
        self.chunks.len().saturating_sub(1) * CHUNK + last - self.skipped
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry at this position from the front.
    pub(crate) fn get(&self, position: usize) -> Option<&Arc<LogEntry>> {
        let position = position.checked_add(self.skipped)?;
        self.chunks.get(position / CHUNK)?.get(position % CHUNK)
    }

    /// The same, to be replaced.
    pub(crate) fn get_mut(&mut self, position: usize) -> Option<&mut Arc<LogEntry>> {
        let position = position.checked_add(self.skipped)?;
        Arc::make_mut(self.chunks.get_mut(position / CHUNK)?).get_mut(position % CHUNK)
    }

    pub(crate) fn front(&self) -> Option<&Arc<LogEntry>> {
        self.get(0)
    }

    pub(crate) fn back(&self) -> Option<&Arc<LogEntry>> {
        self.get(self.len().checked_sub(1)?)
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<LogEntry>> {
        let behind = |number: usize| if number == 0 { self.skipped } else { 0 };
        let chunks = self.chunks.iter().enumerate();
        chunks.flat_map(move |(number, chunk)| chunk.get(behind(number)..).unwrap_or_default())
    }

    pub(crate) fn push_back(&mut self, entry: Arc<LogEntry>) {
        match self.chunks.back_mut() {
            Some(last) if last.len() < CHUNK => Arc::make_mut(last).push(entry),
            _ => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(entry);
                self.chunks.push_back(Arc::new(chunk));
            }
        }
    }

    /// Removes the newest entry.
    pub(crate) fn pop_back(&mut self) -> Option<Arc<LogEntry>> {
        if self.is_empty() {
            return None;
        }
        let entry = Arc::make_mut(self.chunks.back_mut()?).pop();
        if self.is_empty() || self.chunks.back().is_some_and(|chunk| chunk.is_empty()) {
            self.chunks.pop_back();
        }
        if self.chunks.is_empty() {
            self.skipped = 0;
        }
        entry
    }

    /// Removes the oldest entry. Its chunk keeps it in memory until all of the chunk is removed.
    pub(crate) fn pop_front(&mut self) -> Option<Arc<LogEntry>> {
        let entry = self.front()?.clone();
        self.skipped += 1;
        if self.chunks.front().is_some_and(|chunk| chunk.len() == self.skipped) {
            self.chunks.pop_front();
            self.skipped = 0;
        }
        Some(entry)
    }

    /// The entries whose index is above `index`; all for `None`.
    pub(crate) fn above(&self, index: Option<u64>) -> Entries {
        let mut kept = self.clone();
        while index.is_some_and(|index| kept.front().is_some_and(|e| e.id.index <= index)) {
            let chunk = kept.chunks.front().map_or(0, |chunk| chunk.len());
            let last = kept.get(chunk.saturating_sub(kept.skipped + 1));
            match last.is_some_and(|last| index.is_some_and(|index| last.id.index <= index)) {
                true => {
                    kept.chunks.pop_front();
                    kept.skipped = 0;
                }
                false => drop(kept.pop_front()),
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::LogId;
    use bytes::Bytes;
    use proptest::prelude::*;

    fn entry(index: u64) -> Arc<LogEntry> {
        let (id, meta, values) = (LogId { term: 1, index }, Bytes::new(), Box::default());
        Arc::new(LogEntry { id, meta, values, spilled: None })
    }

    fn indexes(entries: &Entries) -> Vec<u64> {
        entries.iter().map(|entry| entry.id.index).collect()
    }

    proptest! {
        /// Whatever is done, the entries are those of a plain queue, and a copy stays as it was.
        #[test]
        fn entries_are_a_queue_and_copies_do_not_change(
            steps in prop::collection::vec((0u8..6, 1usize..600), 1..40),
        ) {
            let (mut entries, mut plain) = (Entries::default(), VecDeque::new());
            let (mut next, mut copy) = (0, None);
            for (what, count) in steps {
                match what {
                    0 | 1 => for _ in 0..count {
                        entries.push_back(entry(next));
                        plain.push_back(next);
                        next += 1;
                    },
                    2 => for _ in 0..count {
                        let popped = entries.pop_front().map(|entry| entry.id.index);
                        prop_assert_eq!(popped, plain.pop_front());
                    },
                    3 => for _ in 0..count {
                        let popped = entries.pop_back().map(|entry| entry.id.index);
                        prop_assert_eq!(popped, plain.pop_back());
                    },
                    4 => if let Some(place) = entries.get_mut(count) {
                        prop_assert_eq!(place.id.index, plain[count]);
                        *place = entry(place.id.index);
                    },
                    _ => copy = Some((entries.clone(), plain.clone())),
                }
                next = plain.back().map_or(next, |last| last + 1);
                prop_assert_eq!(entries.len(), plain.len());
                prop_assert!(indexes(&entries).iter().eq(&plain));
                let from = plain.get(count).copied();
                let above: Vec<u64> =
                    plain.iter().copied().filter(|i| from.is_none_or(|from| from < *i)).collect();
                prop_assert_eq!(indexes(&entries.above(from)), above);
                prop_assert_eq!(entries.get(count).map(|entry| entry.id.index), from);
                prop_assert_eq!(entries.back().map(|entry| entry.id.index), plain.back().copied());
                if let Some((copy, as_it_was)) = &copy {
                    prop_assert!(indexes(copy).iter().eq(as_it_was));
                }
            }
        }
    }
}
