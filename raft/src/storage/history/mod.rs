//! What the applied entries changed: with it the log reads as changes.
//!
//! The log has keys and new values. It does not say which entries changed nothing, since a condition
//! did not hold or a session repeated a write, which versions keys had before, and which keys of a range
//! an entry deleted. That is kept here, in memory: 24 bytes for an entry, 8 for each operation of one that
//! has several, and of a range each deleted key and 40 bytes. An entry deletes 4,096 keys of 2,048 bytes
//! at most, which take 8.2 MiB.
//!
//! What holds here:
//! - behind the entry at which it begins there is each applied entry, without a hole. It begins anew
//!   at an open and behind a snapshot, neither of which says what came before;
//! - what is kept of an entry follows from the log, so it is the same on every member. How much is
//!   kept is each member's own affair, and part of no state;
//! - it is bounded in bytes of the log, to which the deleted keys of ranges are added, in entries and in
//!   time; those keys are bounded by themselves, too. The log waits for it, unless the log has to give way:
//!   then it begins later.

mod changes;

pub(crate) use changes::changes_of;
pub use changes::{KeyChange, LoggedValue};

use crate::core::command::Version;
use crate::core::error::HistoryError;
use crate::core::runtime;
use bytes::Bytes;
use cairn_engine::LogId;
use parking_lot::Mutex;
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// What an operation found that changed nothing.
pub(crate) const UNCHANGED: u64 = u64::MAX;

/// The time to keep is measured in so many steps.
const TIME_STEPS: u32 = 256;
/// The log waits for one part in this many of the entries and bytes more than are kept, so that it is
/// purged in steps.
const HELD_PART: u64 = 8;
/// The deleted keys of ranges take no more memory than this, whatever is retained of the log: an entry that
/// is a hundred bytes there may have deleted thousands of keys. It is more than one entry takes.
const DELETED_BYTES_MOST: u64 = 64 << 20;

/// What an entry changed. A pointer leads to what is longer than a number, so that most entries take no
/// more than one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The version of its only operation's key before the entry: 0 if there was none, [`UNCHANGED`]
    /// if the entry changed nothing.
    One(u64),
    /// The same for each operation.
    Each(Arc<Vec<u64>>),
    /// The keys of a range that it deleted, in order, and the version of each before. Their bytes lie in
    /// one buffer.
    Keys(Arc<Vec<(Bytes, Version)>>),
}

impl Default for Effect {
    /// That of an entry that changed nothing.
    fn default() -> Effect {
        Effect::One(UNCHANGED)
    }
}

impl Effect {
    /// That of an entry whose operations found these versions, or [`UNCHANGED`].
    pub(crate) fn of(mut found: impl ExactSizeIterator<Item = u64>) -> Effect {
        if found.len() == 1 {
            return found.next().map_or_else(Effect::default, Effect::One);
        }
        let each: Vec<u64> = found.collect();
        match each.iter().all(|found| *found == UNCHANGED) {
            true => Effect::default(),
            false => Effect::Each(Arc::new(each)),
        }
    }

    /// That of an entry that deleted these keys of a range, which had these versions.
    pub(crate) fn of_range(deleted: Vec<(Bytes, Version)>) -> Effect {
        match deleted.is_empty() {
            true => Effect::default(),
            false => Effect::Keys(Arc::new(deleted)),
        }
    }

    /// The memory of the keys that the log does not have.
    fn deleted_bytes(&self) -> u64 {
        let Effect::Keys(deleted) = self else { return 0 };
        let of_key = |key: &Bytes| (key.len() + size_of::<(Bytes, Version)>()) as u64;
        deleted.iter().map(|(key, _)| of_key(key)).sum()
    }

    fn is_nothing(&self) -> bool {
        *self == Effect::default()
    }
}

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retention {
    /// Bytes of keys and values in the log, and of deleted keys of ranges.
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    /// Since they were applied here.
    pub(crate) time: Duration,
}

/// How far back changes can be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryStatus {
    /// The changes behind this entry can be told; `None`: all, or nothing is applied yet.
    pub oldest: Option<LogId>,
    /// How many entries that are.
    pub entries: u64,
    /// Their bytes of keys and values in the log, and those of the keys of ranges that they deleted.
    pub bytes: u64,
    /// The time since the oldest of them was applied here, at most; zero if there is none.
    pub age: Duration,
}

/// The history of one member. Shared by the state machine, which adds to it, and those who read it.
#[derive(Default)]
pub(crate) struct History {
    kept: Mutex<Kept>,
}

/// What is kept of an entry.
struct Recorded {
    effect: Effect,
    bytes: u64,
}

struct Kept {
    /// Everything behind this entry is kept; `None`: everything.
    start: Option<LogId>,
    /// The last applied entry, which is the last recorded one, if there is any.
    end: Option<LogId>,
    recorded: VecDeque<Recorded>,
    /// The first entry of each term, from that of the first recorded entry on.
    terms: VecDeque<LogId>,
    /// Of all that is recorded.
    bytes: u64,
    /// That part of them which is no bytes of the log, but memory for deleted keys of ranges.
    deleted_bytes: u64,
    /// Everything up to an index was applied at a time. The oldest first.
    marks: VecDeque<(runtime::Instant, u64)>,
    /// Everything recorded was applied after this.
    since: runtime::Instant,
    /// The log behind this index should be kept: `start`, or a little before it.
    held: Option<u64>,
    /// Bytes that were let go since that moved: the log still has them.
    let_go: u64,
}

impl Default for Kept {
    fn default() -> Kept {
        Kept {
            start: None,
            end: None,
            recorded: VecDeque::new(),
            terms: VecDeque::new(),
            bytes: 0,
            deleted_bytes: 0,
            marks: VecDeque::new(),
            since: runtime::now(),
            held: None,
            let_go: 0,
        }
    }
}

impl History {
    /// Begins anew behind this entry, the last that is applied.
    pub(crate) fn restart(&self, at: Option<LogId>) {
        *self.kept.lock() = Kept { start: at, end: at, ..Kept::default() };
    }

    /// These entries were applied, in order: what each changed, and its bytes in the log. Call it
    /// before anybody is told that they are applied.
    pub(crate) fn applied(&self, entries: impl IntoIterator<Item = (LogId, Effect, u64)>) {
        let mut kept = self.kept.lock();
        for (id, effect, bytes) in entries {
            let bytes = bytes.saturating_add(effect.deleted_bytes());
            kept.push(id, Recorded { effect, bytes });
        }
        while kept.deleted_bytes > DELETED_BYTES_MOST && kept.recorded.len() > 1 {
            kept.drop_first();
        }
        kept.forget_marks();
    }

    /// The log no longer has the entries up to this one, or not their values.
    pub(crate) fn cut(&self, gone: LogId) {
        let mut kept = self.kept.lock();
        while kept.first().is_some_and(|first| first.index <= gone.index) {
            kept.drop_first();
        }
        if kept.start.is_none_or(|start| start.index < gone.index) {
            kept.start = Some(gone);
        }
        kept.forget_marks();
    }

    /// Lets go what is more than this.
    pub(crate) fn retain(&self, most: &Retention, now: runtime::Instant) {
        let mut kept = self.kept.lock();
        kept.mark(now, most.time / TIME_STEPS);
        let old = kept.take_older(now, most.time);
        while let Some(first) = kept.first() {
            let count = u64::try_from(kept.recorded.len()).unwrap_or(u64::MAX);
            // The newest one stays: whoever follows closely is told of a large value, too.
            let is_much = count > 1 && (kept.bytes > most.bytes || count > most.entries);
            if !is_much && old.is_none_or(|old| first.index > old) {
                break;
            }
            kept.drop_first();
        }
        kept.forget_marks();
        kept.hold();
    }

    /// The log behind this index should be kept; `None`: the log need not wait.
    pub(crate) fn held_after(&self) -> Option<u64> {
        self.kept.lock().held
    }

    pub(crate) fn status(&self, now: runtime::Instant) -> HistoryStatus {
        let kept = self.kept.lock();
        HistoryStatus {
            oldest: kept.start,
            entries: u64::try_from(kept.recorded.len()).unwrap_or(u64::MAX),
            bytes: kept.bytes,
            age: if kept.recorded.is_empty() { Duration::ZERO } else { now - kept.since },
        }
    }

    /// At most so many entries behind `after`, in order, and what each changed. `there` is the applied
    /// entry that the log has at that index, if it is known. `recovered` are entries of the log at the
    /// unsafe recoveries, as far as the state names them; none: there was no unsafe recovery. An `after`
    /// of term 0 names the entry at its index, whatever its term; no entry, once there was an unsafe
    /// recovery.
    ///
    /// # Errors
    /// `Compacted`, `Discarded`, `Ahead`.
    pub(crate) fn behind(
        &self,
        after: LogId,
        most: usize,
        there: Option<LogId>,
        recovered: &[LogId],
    ) -> Result<Vec<(LogId, Effect)>, HistoryError> {
        let kept = self.kept.lock();
        let known = [kept.start, kept.at(after.index), kept.end, there].into_iter().flatten();
        let mut known = known.chain(recovered.iter().copied());
        let is_discarded = match after.term {
            // It may be of either history: the discarded one may have had any index.
            0 => !recovered.is_empty(),
            _ => known.any(|known| contradict(known, after)),
        };
        if is_discarded {
            return Err(HistoryError::Discarded { after });
        }
        let end = kept.end.filter(|end| after.index <= end.index);
        let end = end.ok_or(HistoryError::Ahead { after })?;
        if let Some(oldest) = kept.start.filter(|start| after.index < start.index) {
            return Err(HistoryError::Compacted { after, oldest, now: end.max(oldest) });
        }
        let Some(first) = kept.first() else {
            return Ok(Vec::new());
        };
        let next = first.index.max(after.index.saturating_add(1));
        let skipped = usize::try_from(next - first.index).unwrap_or(usize::MAX);
        let effects = kept.recorded.iter().skip(skipped).take(most);
        let ids = (next..).map_while(|index| kept.at(index));
        Ok(ids.zip(effects).map(|(id, recorded)| (id, recorded.effect.clone())).collect())
    }
}

/// Whether no log has both entries: an index has one entry, and terms never fall along a log.
fn contradict(one: LogId, other: LogId) -> bool {
    match one.index.cmp(&other.index) {
        Ordering::Less => one.term > other.term,
        Ordering::Equal => one.term != other.term,
        Ordering::Greater => one.term < other.term,
    }
}

impl Kept {
    fn push(&mut self, id: LogId, recorded: Recorded) {
        let before = self.end.replace(id);
        if self.start.is_some_and(|start| id.index <= start.index) {
            // It was purged before a restart, and had to be applied again.
            return;
        }
        let last = [before, self.start].into_iter().flatten().map(|id| id.index).max();
        match last {
            // The first entry of all forms the cluster. To begin behind it tells as much, and names
            // an entry.
            None if recorded.effect.is_nothing() => {
                self.start = Some(id);
                return;
            }
            // Entries are missing before it.
            Some(last) if last.checked_add(1) != Some(id.index) => {
                *self = Kept { start: Some(id), end: Some(id), ..Kept::default() };
                return;
            }
            _ => {}
        }
        if self.terms.back().is_none_or(|first| first.term != id.term) {
            self.terms.push_back(id);
        }
        self.bytes = self.bytes.saturating_add(recorded.bytes);
        self.deleted_bytes = self.deleted_bytes.saturating_add(recorded.effect.deleted_bytes());
        self.recorded.push_back(recorded);
    }

    /// The first recorded entry.
    fn first(&self) -> Option<LogId> {
        let count = u64::try_from(self.recorded.len()).ok().filter(|count| *count > 0)?;
        self.at(self.end?.index.checked_sub(count - 1)?)
    }

    /// The applied entry of this index, if it is recorded, or the one before.
    fn at(&self, index: u64) -> Option<LogId> {
        if let Some(start) = self.start.filter(|start| index <= start.index) {
            return (start.index == index).then_some(start);
        }
        self.end.filter(|end| index <= end.index)?;
        let first = self.terms.iter().rev().find(|first| first.index <= index)?;
        Some(LogId { term: first.term, index })
    }

    /// Begins behind the first recorded entry.
    fn drop_first(&mut self) {
        let Some((first, recorded)) = self.first().zip(self.recorded.pop_front()) else { return };
        self.start = Some(first);
        self.bytes = self.bytes.saturating_sub(recorded.bytes);
        self.let_go = self.let_go.saturating_add(recorded.bytes);
        self.deleted_bytes = self.deleted_bytes.saturating_sub(recorded.effect.deleted_bytes());
        let next = first.index.saturating_add(1);
        while self.terms.get(1).is_some_and(|later| later.index <= next) {
            self.terms.pop_front();
        }
    }

    /// Notes when the entries since the last mark were applied, if that is so long ago.
    fn mark(&mut self, now: runtime::Instant, step: Duration) {
        let Some(end) = self.end else { return };
        let is_due =
            |(at, through): &(runtime::Instant, u64)| *through < end.index && now - *at >= step;
        if self.marks.back().is_none_or(is_due) {
            self.marks.push_back((now, end.index));
        }
    }

    /// Drops the marks that are older than this. Everything up to the returned index is older, too.
    fn take_older(&mut self, now: runtime::Instant, than: Duration) -> Option<u64> {
        let mut old = None;
        while let Some((at, through)) = self.marks.front().copied()
            && now - at > than
        {
            self.marks.pop_front();
            self.since = at;
            old = Some(through);
        }
        old
    }

    /// Drops the marks of what is no longer recorded.
    fn forget_marks(&mut self) {
        let start = self.start.map(|start| start.index);
        while let Some((at, through)) = self.marks.front().copied()
            && Some(through) <= start
        {
            self.marks.pop_front();
            self.since = at;
        }
    }

    /// Lets the log be purged further, once that is worth it: few entries may be most of the bytes.
    fn hold(&mut self) {
        let start = self.start.map(|start| start.index);
        let slack = u64::try_from(self.recorded.len()).unwrap_or(u64::MAX) / HELD_PART;
        let are_many = |held: u64| start.is_none_or(|start| start.saturating_sub(held) > slack);
        if self.let_go > self.bytes / HELD_PART || self.held.is_none_or(are_many) {
            (self.held, self.let_go) = (start, 0);
        }
    }
}

#[cfg(test)]
mod tests;
