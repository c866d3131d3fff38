//! Reading the log: for replication with values; for apply, and at start, without them, since the
//! engine holds the values already.

use super::vote::stored_vote;
use crate::core::ids::GROUP;
use crate::core::types::{Entry, RaftLogId, TypeConfig, Vote, engine_log_id, raft_log_id};
use crate::core::{codec, runtime};
use crate::storage::repair::Repairer;
use bytes::Bytes;
use cairn_engine::{Engine, Entry as Stored, LogId, Value};
use futures::Stream;
use futures::future::ready;
use openraft::entry::RaftEntry;
use openraft::{OptionalSend, RaftLogReader};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

/// An append message holds entries of about this many bytes at most.
const APPEND_BYTES: u64 = 1 << 20;
/// Entries that are no longer in memory are read ahead, in reads of about this many bytes of
/// values. That much stays in memory for each follower that lags.
const AHEAD_BYTES: u64 = 4 << 20;
/// A read-ahead reads at most this many entries.
const AHEAD_ENTRIES: u64 = 16_384;
/// How often entries are read again after damaged ones among them were repaired.
const READ_ATTEMPTS: usize = 4;
/// The pause before an entry is read again that could be neither read nor repaired.
const UNREADABLE_RETRY: Duration = Duration::from_millis(250);
/// Apply reads this many entries at once.
const APPLY_ENTRIES: usize = 1024;

/// Reads entries.
pub(crate) struct LogReader {
    engine: Engine,
    repairer: Arc<Repairer>,
    /// Entries read ahead from the device: probably requested next.
    ahead: VecDeque<Stored>,
    /// No read-ahead before this index: an entry there could not be read.
    no_ahead_before: u64,
}

impl LogReader {
    pub(super) fn new(engine: Engine, repairer: Arc<Repairer>) -> LogReader {
        LogReader { engine, repairer, ahead: VecDeque::new(), no_ahead_before: 0 }
    }

    /// Entries from `range.start` on, for one append message.
    async fn read(&mut self, range: Range<u64>) -> cairn_engine::Result<Vec<Stored>> {
        if self.ahead.front().is_none_or(|next| next.id.index != range.start) {
            self.ahead.clear();
            let end = range.end.max(range.start.saturating_add(AHEAD_ENTRIES));
            if range.start < self.no_ahead_before || self.engine.is_in_memory(GROUP, range.start) {
                return self.engine.read_log(GROUP, range, APPEND_BYTES).await;
            }
            let read = self.engine.read_log(GROUP, range.start..end, AHEAD_BYTES).await;
            self.ahead = read.inspect_err(|_| self.no_ahead_before = end)?.into();
        }
        let mut bytes = 0u64;
        let too_many = self.ahead.iter().position(|entry| {
            bytes += (entry.meta.len()
                + entry.values.iter().map(|value| value.bytes().len()).sum::<usize>())
                as u64;
            entry.id.index >= range.end || bytes > APPEND_BYTES && entry.id.index > range.start
        });
        let entries: Vec<Stored> =
            self.ahead.drain(..too_many.unwrap_or(self.ahead.len())).collect();
        // If the log still holds the last of them, it holds the others.
        match entries.last() {
            Some(last) if self.engine.log_id_at(GROUP, last.id.index) == Some(last.id) => {
                Ok(entries)
            }
            _ => {
                self.ahead.clear();
                self.engine.read_log(GROUP, range, APPEND_BYTES).await
            }
        }
    }

    /// Entries without their values.
    fn metas(&self, range: Range<u64>, limit: usize) -> Result<Vec<Entry>, io::Error> {
        let metas = self.engine.read_metas(GROUP, range, limit);
        metas.into_iter().map(|(id, meta)| entry(id, meta, Vec::new())).collect()
    }

    /// The first index from `start` on that the log holds, since its beginning may be purged;
    /// `start` if it holds none.
    fn first_from(&self, start: u64) -> u64 {
        let missing = |index| self.engine.log_id_at(GROUP, index).is_none();
        let Some(last) =
            self.engine.log_bounds(GROUP).last.filter(|last| start < last.index && missing(start))
        else {
            return start;
        };
        // `absent` is not in the log, and the log has no holes; `present` is, unless the log is
        // empty.
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

fn entry(id: LogId, meta: Bytes, values: Vec<Value>) -> Result<Entry, io::Error> {
    let payload = codec::decode_payload(meta, values)
        .map_err(|error| io::Error::other(format!("log entry {id}: {error}")))?;
    Ok(Entry::new(raft_log_id(id), payload))
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
    /// Without values: openraft calls this at start, to re-apply entries and to find memberships.
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry>, io::Error> {
        let range = half_open(&range);
        self.metas(self.first_from(range.start)..range.end, usize::MAX)
    }

    /// With values, to be sent. Repairs damaged ones. An unrepairable entry must not return an
    /// error, which would stop openraft. Return the entries before it, then an empty result:
    /// openraft treats that as nothing to send yet, and retries. A leader that fails like this for
    /// some time hands leadership over.
    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<Entry>, io::Error> {
        let mut end = end;
        for _ in 0..READ_ATTEMPTS {
            match self.read(start..end).await {
                Ok(entries) => {
                    self.repairer.replicable(start, true);
                    let entries = entries.into_iter();
                    return entries
                        .map(|stored| entry(stored.id, stored.meta, stored.values))
                        .collect();
                }
                Err(cairn_engine::Error::Corrupt(_) | cairn_engine::Error::Io { .. }) => {
                    match self.repairer.repair_log(start..end, APPEND_BYTES).await {
                        Some(damaged) if damaged > start => end = damaged,
                        Some(_) => break,
                        None => {}
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        self.repairer.replicable(start, false);
        runtime::sleep(UNREADABLE_RETRY).await;
        Ok(Vec::new())
    }

    /// Without values, to be applied. Reads ahead a bounded number of entries, however long the
    /// range is. Ends at the end of the log; the state machine refuses a hole.
    async fn entries_stream<R>(
        &mut self,
        range: R,
    ) -> impl Stream<Item = Result<Entry, io::Error>> + OptionalSend
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let reader = LogReader::new(self.engine.clone(), self.repairer.clone());
        let state = (half_open(&range), VecDeque::new());
        futures::stream::unfold(state, move |(mut rest, mut buffer)| {
            if buffer.is_empty() {
                match reader.metas(rest.clone(), APPLY_ENTRIES) {
                    Ok(entries) => buffer = VecDeque::from(entries),
                    // The stream ends with this error.
                    Err(error) => return ready(Some((Err(error), (0..0, buffer)))),
                }
            }
            let Some(entry) = buffer.pop_front() else {
                return ready(None);
            };
            rest.start = entry.log_id.index().saturating_add(1);
            ready(Some((Ok(entry), (rest, buffer))))
        })
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        stored_vote(&self.engine)
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
            // Terms never fall along a log, so bisection finds the term's end: `same` has the term,
            // `other` has a later one.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::repair::NoPeers;
    use crate::storage::tests::engine_with;
    use cairn_engine::{NewEntry, Promise};

    /// A command with one value.
    fn command(term: u64, index: u64) -> NewEntry {
        let command = crate::Command {
            synced: false,
            session: None,
            operations: vec![crate::Operation::Put {
                key: Bytes::from(format!("k{index}")),
                value: format!("{term}-{index}").repeat(100).into(),
                condition: crate::Condition::None,
            }],
        };
        let proposal = codec::encode_command(command, 1);
        NewEntry { id: LogId { term, index }, meta: proposal.meta, values: proposal.values }
    }

    async fn append(engine: &Engine, entries: Vec<NewEntry>) {
        engine.append(GROUP, entries, Promise::Mode, Box::new(|done| done.unwrap())).await.unwrap();
        engine.barrier().await.unwrap();
    }

    async fn read(reader: &mut LogReader, range: Range<u64>) -> Vec<(u64, Bytes)> {
        let entries = reader.limited_get_log_entries(range.start, range.end).await.unwrap();
        let value = |entry: &Entry| match &entry.payload {
            crate::core::types::Payload::Normal(proposal) => proposal.values[0].bytes().clone(),
            _ => panic!("a command"),
        };
        entries.iter().map(|entry| (entry.log_id.index(), value(entry))).collect()
    }

    /// An engine that keeps no more than the newest entry in memory, and a reader of its log.
    async fn opened(folder: &tempfile::TempDir) -> (Engine, LogReader) {
        let engine = engine_with(folder, |options| options.log_cache_bytes = 0).await;
        let repairer = Arc::new(Repairer::new(engine.clone(), Arc::new(NoPeers)));
        (engine.clone(), LogReader::new(engine, repairer))
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn read_ahead_entries_come_in_order_and_within_the_requested_range() {
        let folder = tempfile::tempdir().unwrap();
        let (engine, mut reader) = opened(&folder).await;
        append(&engine, (1..=1000).map(|index| command(1, index)).collect()).await;
        let mut next = 1;
        while next <= 1000 {
            let found = read(&mut reader, next..(next + 70).min(1001)).await;
            let expected = (next..(next + 70).min(1001))
                .map(|index| (index, command(1, index).values[0].bytes().clone()));
            assert!(found.iter().cloned().eq(expected), "from {next}");
            next += 70;
        }
        // Backwards, as after a follower's conflict.
        assert_eq!(read(&mut reader, 500..502).await.len(), 2);
    }

    /// The story: a reader holds entries that it read ahead; the log is truncated and then holds
    /// others.
    #[tokio::test(flavor = "multi_thread")]
    async fn entries_read_ahead_are_not_sent_after_the_log_was_truncated() {
        let folder = tempfile::tempdir().unwrap();
        let (engine, mut reader) = opened(&folder).await;
        append(&engine, (1..=100).map(|index| command(1, index)).collect()).await;
        assert_eq!(read(&mut reader, 1..11).await.len(), 10);
        engine.truncate_after(GROUP, Some(20)).await.unwrap();
        append(&engine, (21..=100).map(|index| command(2, index)).collect()).await;
        let found = read(&mut reader, 11..31).await;
        let expected = (11..31).map(|index| {
            (index, command(1 + u64::from(index > 20), index).values[0].bytes().clone())
        });
        assert!(found.into_iter().eq(expected));
    }
}
