//! Looks at each applied entry once, and notes for which watches it has changes.
//!
//! ```text
//! applied entries ──► hub ──► ranges: who has this key ──► a watch: the entries that it has to be told
//!                                                          or, once these are many: from where it is behind
//! ```
//!
//! What holds here:
//! - The hub tells nothing and keeps no change: a watch has the positions of 64 entries at most. Its stream reads the
//!   entries again when it tells them, behind a barrier. A watch that has more to be told is behind: it reads the log
//!   itself, from the first of them on, until it has come to where the hub is.
//! - Where the history of this member has a hole for the hub, or another history took its place, all watches are behind:
//!   each finds out by its own position whether it has missed something.
//! - One task does it, while there are watches.

use super::ranges::{Range, Ranges};
use crate::metrics::WatchMetrics;
use cairn_engine::LogId;
use cairn_engine::io::yield_once;
use cairn_raft::{EntryChanges, GROUP, HistoryError, Replica};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Entries that a watch may have to be told before it counts as behind.
pub(super) const PENDING: usize = 64;
/// Entries that are looked at before others have their turn.
const ENTRIES: usize = 512;
/// The same in watches that have changes in them.
const NOTED: usize = 16_384;
/// How often the hub looks whether its position is still in the history, while nothing is applied behind it.
const LOOK: Duration = Duration::from_secs(1);

/// The hub of one node.
pub(super) struct Hub {
    state: Mutex<State>,
    metrics: WatchMetrics,
}

#[derive(Default)]
struct State {
    /// Every entry up to this one was looked at.
    head: LogId,
    /// How often all watches had to be made behind.
    breaks: u64,
    /// A task looks at entries.
    runs: bool,
    next: u64,
    ranges: Ranges,
    watches: BTreeMap<u64, Noted>,
    streams: BTreeMap<u64, Ready>,
}

/// What is noted of a watch.
struct Noted {
    stream: u64,
    range: Range,
    /// What it was told itself before it came to where the hub is.
    from: LogId,
    /// The entries that it has to be told, each by the position before it.
    pending: VecDeque<LogId>,
    /// It reads the log itself behind this.
    behind: Option<LogId>,
}

impl Noted {
    fn has_work(&self) -> bool {
        self.behind.is_some() || !self.pending.is_empty()
    }

    /// From where on it has to be told, if the hub has been up to `head`.
    fn untold(&self, head: LogId) -> LogId {
        let later = if self.from.index > head.index { self.from } else { head };
        self.pending.front().copied().unwrap_or(later)
    }
}

/// The watches of a stream that have to be told something.
struct Ready {
    watches: BTreeSet<u64>,
    /// The one that was told last: those behind it have their turn.
    last: u64,
    news: Arc<Notify>,
}

/// What a watch has to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// The entries behind these positions, one each.
    Entries(Vec<LogId>),
    /// Everything behind this position.
    Behind(LogId),
}

impl State {
    /// Notes that a watch may have to be told something, or has nothing to be told.
    fn settle(&mut self, watch: u64) {
        let Some(noted) = self.watches.get(&watch) else { return };
        let Some(ready) = self.streams.get_mut(&noted.stream) else { return };
        match noted.has_work() {
            true => {
                ready.watches.insert(watch);
                ready.news.notify_one();
            }
            false => {
                ready.watches.remove(&watch);
            }
        }
    }
}

impl Hub {
    pub(super) fn new(metrics: WatchMetrics) -> Arc<Hub> {
        Arc::new(Hub { state: Mutex::default(), metrics })
    }

    /// One more stream of watches.
    pub(super) fn open(self: &Arc<Hub>) -> OfStream {
        let mut state = self.state.lock();
        let (stream, news) = (state.next, Arc::<Notify>::default());
        state.next += 1;
        let ready = Ready { watches: BTreeSet::new(), last: 0, news: news.clone() };
        state.streams.insert(stream, ready);
        OfStream { hub: self.clone(), stream, news }
    }

    /// Looks at the entries that this member applies, if nobody does.
    fn start(self: &Arc<Hub>, replica: &Replica) {
        {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.runs, true) {
                return;
            }
            state.head = applied(replica);
        }
        tokio::spawn(run(self.clone(), replica.clone()));
    }

    /// Up to where all was looked at; `None`: nobody watches, and the task that asks ends.
    fn goes_on(&self) -> Option<LogId> {
        let mut state = self.state.lock();
        state.runs = !state.watches.is_empty();
        state.runs.then_some(state.head)
    }

    /// Notes the changes of the next entry. Returns for how many watches.
    fn note(&self, entry: &EntryChanges) -> usize {
        let mut keys: Vec<&[u8]> = entry.changes.iter().map(|change| &change.key[..]).collect();
        keys.sort_unstable();
        let mut state = self.state.lock();
        let before = std::mem::replace(&mut state.head, entry.id);
        let State { ranges, watches, streams, .. } = &mut *state;
        let mut count = 0;
        ranges.with_any(&keys, &mut |watch| {
            count += 1;
            let Some(noted) = watches.get_mut(&watch) else { return };
            if noted.behind.is_some() || entry.id.index <= noted.from.index {
                return;
            }
            if noted.pending.len() < PENDING {
                noted.pending.push_back(before);
            } else {
                noted.behind = noted.pending.front().copied();
                noted.pending = VecDeque::new();
                self.metrics.fell_behind(true);
            }
            if let Some(ready) = streams.get_mut(&noted.stream)
                && ready.watches.insert(watch)
            {
                ready.news.notify_one();
            }
        });
        count
    }

    /// What is behind the hub's position cannot be told: it goes on at `head`, and each watch from where it is.
    fn skip_to(&self, head: LogId) {
        let mut state = self.state.lock();
        let before = std::mem::replace(&mut state.head, head);
        state.breaks += 1;
        let State { watches, streams, .. } = &mut *state;
        for (watch, noted) in watches {
            if noted.behind.is_none() {
                noted.behind = Some(noted.untold(before));
                noted.pending = VecDeque::new();
                self.metrics.fell_behind(true);
            }
            if let Some(ready) = streams.get_mut(&noted.stream) {
                ready.watches.insert(*watch);
                ready.news.notify_one();
            }
        }
    }
}

/// The last applied entry.
pub(super) fn applied(replica: &Replica) -> LogId {
    replica.engine().applied(GROUP).unwrap_or_default()
}

async fn run(hub: Arc<Hub>, replica: Replica) {
    while let Some(head) = hub.goes_on() {
        let entries = match replica.applied_changes(head, ENTRIES) {
            Ok(entries) => entries,
            Err(HistoryError::Ahead { .. }) => Vec::new(),
            Err(error) => {
                tracing::debug!(%error, "watches look for their positions");
                hub.skip_to(applied(&replica));
                Vec::new()
            }
        };
        if entries.is_empty() {
            // Late or not, the position is looked at again: one of a discarded history has no entry behind it.
            tokio::time::timeout(LOOK, replica.applied_behind(head)).await.ok();
            // That may return at once without an entry to look at, and others have to run for there to be one.
            yield_once().await;
            continue;
        }
        let mut noted = 0;
        for entry in &entries {
            noted += hub.note(entry);
            if noted > NOTED {
                noted = 0;
                yield_once().await;
            }
        }
        yield_once().await;
    }
}

/// The watches of one stream.
pub(super) struct OfStream {
    hub: Arc<Hub>,
    stream: u64,
    news: Arc<Notify>,
}

impl Drop for OfStream {
    fn drop(&mut self) {
        self.hub.state.lock().streams.remove(&self.stream);
    }
}

/// A watch that the hub knows. It ends when this is dropped.
pub(super) struct Registered {
    hub: Arc<Hub>,
    watch: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut state = self.hub.state.lock();
        let Some(noted) = state.watches.remove(&self.watch) else { return };
        state.ranges.remove(self.watch, &noted.range);
        if let Some(ready) = state.streams.get_mut(&noted.stream) {
            ready.watches.remove(&self.watch);
        }
        drop(state);
        self.hub.metrics.opened(false);
        if noted.behind.is_some() {
            self.hub.metrics.fell_behind(false);
        }
    }
}

impl OfStream {
    /// One more watch, which is to be told everything behind `after`. Returns its number.
    pub(super) fn begin(&self, replica: &Replica, range: Range, after: LogId) -> (u64, Registered) {
        let registered = self.register(range, after);
        self.hub.start(replica);
        registered
    }

    fn register(&self, range: Range, after: LogId) -> (u64, Registered) {
        let mut state = self.hub.state.lock();
        let watch = state.next;
        state.next += 1;
        state.ranges.insert(watch, &range);
        let (pending, behind) = (VecDeque::new(), Some(after));
        let noted = Noted { stream: self.stream, range, from: after, pending, behind };
        state.watches.insert(watch, noted);
        state.settle(watch);
        drop(state);
        self.hub.metrics.opened(true);
        self.hub.metrics.fell_behind(true);
        (watch, Registered { hub: self.hub.clone(), watch })
    }

    /// Returns once a watch may have to be told something. May be cancelled.
    pub(super) async fn news(&self) {
        while self.ready(1).is_empty() {
            self.news.notified().await;
        }
    }

    /// At most so many watches that have to be told something, those first that were not for longest.
    pub(super) fn ready(&self, most: usize) -> Vec<u64> {
        let state = self.hub.state.lock();
        let Some(ready) = state.streams.get(&self.stream) else { return Vec::new() };
        let behind = ready.watches.range(ready.last.saturating_add(1)..);
        behind.chain(ready.watches.range(..=ready.last)).take(most).copied().collect()
    }

    /// What a watch has to be told, and how often all watches were made behind so far.
    pub(super) fn work(&self, watch: u64) -> Option<(Work, u64)> {
        let state = self.hub.state.lock();
        let noted = state.watches.get(&watch)?;
        let work = match noted.behind {
            Some(after) => Work::Behind(after),
            None => Work::Entries(noted.pending.iter().copied().collect()),
        };
        Some((work, state.breaks))
    }

    /// Whether the watch whose turn it is reads the log itself.
    pub(super) fn reads_log(&self) -> bool {
        let first = self.ready(1).first().copied();
        let work = first.and_then(|watch| self.work(watch));
        work.is_some_and(|(work, _)| matches!(work, Work::Behind(_)))
    }

    /// A watch was told everything up to `at`, by what [`OfStream::work`] said when there had been so many breaks.
    pub(super) fn told(&self, watch: u64, at: LogId, breaks: u64) {
        let mut state = self.hub.state.lock();
        let (head, is_same) = (state.head, state.breaks == breaks);
        let Some(noted) = state.watches.get_mut(&watch) else { return };
        match noted.behind {
            // The hub notes what is behind it.
            Some(_) if is_same && at.index >= head.index => {
                (noted.behind, noted.from) = (None, at);
                self.hub.metrics.fell_behind(false);
            }
            Some(after) if at.index > after.index => noted.behind = Some(at),
            Some(_) => {}
            None => {
                while noted.pending.front().is_some_and(|before| before.index < at.index) {
                    noted.pending.pop_front();
                }
            }
        }
        state.settle(watch);
        if let Some(ready) = state.streams.get_mut(&self.stream) {
            ready.last = watch;
        }
    }

    /// The position up to which every watch of the stream was told everything that was looked at; `None`: one has
    /// to be told something.
    pub(super) fn is_told(&self) -> Option<LogId> {
        let state = self.hub.state.lock();
        let ready = state.streams.get(&self.stream)?;
        ready.watches.is_empty().then_some(state.head)
    }

    /// At most so many of these watches that have nothing to be told, and the position up to which they were told
    /// everything.
    pub(super) fn idle(
        &self,
        watches: impl Iterator<Item = u64>,
        most: usize,
    ) -> (LogId, Vec<u64>) {
        let state = self.hub.state.lock();
        // What a watch that is ahead of the hub was told itself is not said again as less.
        let is_idle = |noted: &Noted| !noted.has_work() && noted.from.index <= state.head.index;
        let idle = watches.filter(|watch| state.watches.get(watch).is_some_and(is_idle));
        (state.head, idle.take(most).collect())
    }
}

#[cfg(test)]
mod tests;
