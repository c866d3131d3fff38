//! Reading the log: for replication, for apply, and once at start.

use super::{io_error, vote};
use crate::GROUP;
use crate::codec;
use crate::types::{Entry, RaftLogId, TypeConfig, Vote, engine_log_id, raft_log_id};
use cairn_engine::{Engine, LogId};
use futures::Stream;
use openraft::entry::RaftEntry;
use openraft::{OptionalSend, RaftLogReader};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds, RangeInclusive};

/// Entries of one append message hold at most about this many bytes.
const APPEND_BYTES: u64 = 1 << 20;
/// Entries read at once for apply.
const APPLY_BYTES: u64 = 4 << 20;

/// Reads entries; cheap to clone.
#[derive(Clone)]
pub(crate) struct LogReader {
    engine: Engine,
}

impl LogReader {
    pub(super) fn new(engine: Engine) -> LogReader {
        LogReader { engine }
    }

    async fn read(&self, range: Range<u64>, max_bytes: u64) -> Result<Vec<Entry>, io::Error> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let entries = self.engine.read_log(GROUP, range, max_bytes).await.map_err(io_error)?;
        entries.into_iter().map(entry).collect()
    }

    /// The first index from `start` on that the log holds: its beginning may be purged. `start` where it holds none.
    fn first_from(&self, start: u64) -> u64 {
        let missing = |index| self.engine.log_id_at(GROUP, index).is_none();
        let Some(last) =
            self.engine.log_bounds(GROUP).last.filter(|last| start < last.index && missing(start))
        else {
            return start;
        };
        // `absent` is not in the log, and the log has no holes; `present` is, unless the log is empty.
        let (mut absent, mut present) = (start, last.index);
        while present - absent > 1 {
            let middle = absent + (present - absent) / 2;
            match missing(middle) {
                true => absent = middle,
                false => present = middle,
            }
        }
        present
    }

    fn log_id_at(&self, index: u64) -> Result<LogId, io::Error> {
        let missing = || io::Error::other(format!("the log has no entry {index}"));
        self.engine.log_id_at(GROUP, index).ok_or_else(missing)
    }
}

fn entry(stored: cairn_engine::Entry) -> Result<Entry, io::Error> {
    let payload = codec::decode_payload(stored.meta, stored.values)
        .map_err(|error| io::Error::other(format!("log entry {}: {error}", stored.id)))?;
    Ok(Entry::new(raft_log_id(stored.id), payload))
}

fn half_open<R: RangeBounds<u64>>(range: &R) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    start..end
}

impl RaftLogReader<TypeConfig> for LogReader {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry>, io::Error> {
        let range = half_open(&range);
        self.read(self.first_from(range.start)..range.end, u64::MAX).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        self.read(start..end, APPEND_BYTES).await
    }

    /// Reads ahead a bounded number of bytes, however long the range is. Ends where the log does; the state machine
    /// refuses what would leave a hole.
    async fn entries_stream<R>(
        &mut self,
        range: R,
    ) -> impl Stream<Item = Result<Entry, io::Error>> + OptionalSend
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let reader = self.clone();
        let state = (half_open(&range), VecDeque::new());
        futures::stream::try_unfold(state, move |(mut rest, mut buffer)| {
            let reader = reader.clone();
            async move {
                if buffer.is_empty() && !rest.is_empty() {
                    buffer = VecDeque::from(reader.read(rest.clone(), APPLY_BYTES).await?);
                }
                let Some(entry) = buffer.pop_front() else {
                    return Ok(None);
                };
                rest.start = entry.log_id.index().saturating_add(1);
                Ok(Some((entry, (rest, buffer))))
            }
        })
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        let stored = self.engine.vote(GROUP);
        stored.map(|bytes| vote::decode(&bytes).map_err(io::Error::other)).transpose()
    }

    /// The last entry of each term in the range, found without reading entries.
    async fn get_key_log_ids(
        &mut self,
        range: RangeInclusive<RaftLogId>,
    ) -> Result<Vec<RaftLogId>, io::Error> {
        let (first, last) = (engine_log_id(range.start()), engine_log_id(range.end()));
        let mut found = Vec::new();
        let mut current = first;
        while current.term != last.term {
            // Terms never fall, so the term's end can be bisected: `same` has the term, `other` has a later one.
            let (mut same, mut other) = (current.index, last.index);
            while other - same > 1 {
                let middle = same + (other - same) / 2;
                match self.log_id_at(middle)?.term == current.term {
                    true => same = middle,
                    false => other = middle,
                }
            }
            found.push(LogId { term: current.term, index: same });
            current = match other == last.index {
                true => last,
                false => self.log_id_at(other)?,
            };
        }
        found.push(last);
        Ok(found.into_iter().map(raft_log_id).collect())
    }
}
