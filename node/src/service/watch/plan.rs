//! What the next message of a stream has, before any value of it is read.
//!
//! What holds here:
//! - A plan is made of what the member has applied at one moment, and changes nothing. It keeps no more than the keys
//!   of its changes, in memory of their own: it may be dropped while memory for its values is waited for.
//! - It has no more changes and bytes than a message, but for a first change that is longer alone. What does not fit of an
//!   entry comes with the next one: the watch knows how many of the entry's changes it was told.
//! - A plan looks at a bounded number of entries and changes, whatever the watches have to be told.
//! - Watches have their turn in order: a plan that may not read the log ends before the first watch that has to.

use super::hub::Work;
use super::ranges::Range;
use bytes::Bytes;
use cairn_engine::LogId;
use cairn_raft::{EntryChanges, HistoryError, LoggedValue};
use std::collections::BTreeSet;

/// Bytes of keys and values in a message, unless a single change has more.
const MESSAGE_BYTES: usize = 1 << 20;
/// Changes in a message.
const CHANGES: usize = 1024;
/// Watches that are told something in a message.
pub(super) const WATCHES: usize = 1024;
/// Entries that a plan looks at, and of these so many at once for a watch that is behind.
const ENTRIES: usize = 512;
const READ: usize = 64;
/// So many changes are as much work as an entry.
const CHANGES_OF_ENTRY: usize = 64;

/// How far a watch was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// Everything up to this entry.
    pub(super) at: LogId,
    /// Of the entry behind it, so many changes of those in the range.
    pub(super) part: Option<(LogId, usize)>,
}

/// A change that is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) at: LogId,
    pub(super) key: Bytes,
    pub(super) deleted: bool,
    /// The value to read.
    pub(super) value: Option<LoggedValue>,
    pub(super) previous: u64,
}

/// What a watch is told.
pub(super) struct Part {
    pub(super) watch: u64,
    /// By [`Work`].
    pub(super) breaks: u64,
    pub(super) changes: Vec<Planned>,
    /// How far it was told then.
    pub(super) told: Told,
}

/// What the watch is that a plan is made for.
pub(super) struct Watched<'a> {
    pub(super) range: &'a Range,
    pub(super) keys_only: bool,
    /// What it was told of an entry, if not all.
    pub(super) part: Option<(LogId, usize)>,
}

/// The changes behind a position, of so many entries at most.
pub(super) type History<'h> = dyn Fn(LogId, usize) -> Result<Vec<EntryChanges>, HistoryError> + 'h;

/// What a message has so far.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) parts: Vec<Part>,
    /// Of keys and values.
    pub(super) bytes: usize,
    pub(super) changes: usize,
    /// Looked at so far. An entry of many changes counts as several.
    entries: usize,
    /// It may not read the log for watches that are behind.
    leaves_log: bool,
    /// The entry that was looked at last, by the position before it: others may have to be told of the same.
    latest: Option<(LogId, EntryChanges)>,
    is_full: bool,
}

impl Plan {
    /// One that reads the log for watches that are behind, or ends before the first of these.
    pub(super) fn new(reads_log: bool) -> Plan {
        Plan { leaves_log: !reads_log, ..Plan::default() }
    }

    /// Whether there is no space for more, or enough was looked at.
    pub(super) fn is_full(&self) -> bool {
        self.is_full || self.entries >= ENTRIES || self.parts.len() >= WATCHES
    }

    /// The plan, once it has all that it gets.
    pub(super) fn made(mut self) -> Plan {
        self.latest = None;
        self
    }

    /// The last entries that are told of, in whole or in part.
    pub(super) fn last_entries(&self) -> BTreeSet<LogId> {
        let parts = self.parts.iter().filter(|part| !part.changes.is_empty());
        parts.map(|part| part.told.part.map_or(part.told.at, |(entry, _)| entry)).collect()
    }

    /// Adds what a watch has to be told, as far as there is space.
    ///
    /// # Errors
    /// Why that cannot be told. The plan has nothing of this watch then, but may count some of its bytes.
    pub(super) fn add(
        &mut self,
        (watch, breaks): (u64, u64),
        watched: &Watched<'_>,
        work: &Work,
        history: &History<'_>,
    ) -> Result<(), HistoryError> {
        let first = match work {
            Work::Entries(positions) => positions.first(),
            Work::Behind(after) => Some(after),
        };
        let Some(at) = first.copied() else { return Ok(()) };
        if self.leaves_log && matches!(work, Work::Behind(_)) {
            // Those after it would be told again and again before it, since it only waits for its turn to read.
            self.is_full = true;
            return Ok(());
        }
        let told = Told { at, part: watched.part };
        let mut part = Part { watch, breaks, changes: Vec::new(), told };
        match work {
            Work::Entries(positions) => self.noted(watched, positions, &mut part, history)?,
            Work::Behind(_) => self.logged(watched, &mut part, history)?,
        }
        // One that got no space keeps its turn.
        if !self.is_full || part.told != told {
            self.parts.push(part);
        }
        Ok(())
    }

    /// The entries behind these positions, one each.
    fn noted(
        &mut self,
        watched: &Watched<'_>,
        positions: &[LogId],
        part: &mut Part,
        history: &History<'_>,
    ) -> Result<(), HistoryError> {
        for before in positions {
            let (behind, entry) = match self.latest.take() {
                Some(latest) if latest.0 == *before => latest,
                _ if self.entries >= ENTRIES => break,
                _ => {
                    let entry = history(*before, 1)?.into_iter().next();
                    self.entries += entry.as_ref().map_or(1, cost);
                    let Some(entry) = entry else { break };
                    (*before, entry)
                }
            };
            let fits = self.entry(watched, &entry, part);
            self.latest = Some((behind, entry));
            if !fits {
                break;
            }
        }
        Ok(())
    }

    /// All entries behind where it is.
    fn logged(
        &mut self,
        watched: &Watched<'_>,
        part: &mut Part,
        history: &History<'_>,
    ) -> Result<(), HistoryError> {
        while self.entries < ENTRIES {
            let entries = match history(part.told.at, READ) {
                Err(HistoryError::Ahead { .. }) => break,
                entries => entries?,
            };
            if entries.is_empty() {
                break;
            }
            self.entries += entries.iter().map(cost).sum::<usize>();
            if !entries.iter().all(|entry| self.entry(watched, entry, part)) {
                break;
            }
        }
        Ok(())
    }

    /// Adds the changes of an entry. `false`: there is no space for all of them.
    fn entry(&mut self, watched: &Watched<'_>, entry: &EntryChanges, part: &mut Part) -> bool {
        let mut count = match part.told.part {
            Some((id, count)) if id == entry.id => count,
            _ => 0,
        };
        let own = entry.changes.iter().filter(|change| watched.range.has(&change.key));
        for change in own.skip(count) {
            let value = change.value.filter(|_| !watched.keys_only);
            let length =
                value.map_or(0, |value| usize::try_from(value.bytes).unwrap_or(usize::MAX));
            let bytes = change.key.len().saturating_add(length);
            let fits = self.changes < CHANGES && self.bytes.saturating_add(bytes) <= MESSAGE_BYTES;
            if !fits && self.changes > 0 {
                self.is_full = true;
                return false;
            }
            self.changes += 1;
            self.bytes = self.bytes.saturating_add(bytes);
            part.changes.push(Planned {
                at: entry.id,
                key: Bytes::copy_from_slice(&change.key),
                deleted: change.value.is_none(),
                value,
                previous: change.previous.unwrap_or(0),
            });
            count += 1;
            part.told.part = Some((entry.id, count));
        }
        // What was told of an entry further on stays told: a watch that fell behind comes to it again.
        let later = part.told.part.filter(|(id, _)| id.index > entry.id.index);
        part.told = Told { at: entry.id, part: later };
        true
    }
}

/// As how many entries it counts to look at this one.
fn cost(entry: &EntryChanges) -> usize {
    1 + entry.changes.len() / CHANGES_OF_ENTRY
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_raft::KeyChange;

    fn all() -> Range {
        Range { start: Bytes::new(), end: None }
    }

    fn id(index: u64) -> LogId {
        LogId { term: 1, index }
    }

    fn put(key: &str, number: usize, bytes: usize) -> KeyChange {
        let value = LoggedValue { number, bytes: u32::try_from(bytes).expect("short") };
        let key = Bytes::copy_from_slice(key.as_bytes());
        KeyChange { key, value: Some(value), previous: Some(1) }
    }

    /// Entries from 1 on.
    fn log(
        entries: Vec<Vec<KeyChange>>,
    ) -> impl Fn(LogId, usize) -> Result<Vec<EntryChanges>, HistoryError> {
        let entries = (1..).zip(entries);
        let log: Vec<_> =
            entries.map(|(index, changes)| EntryChanges { id: id(index), changes }).collect();
        move |after: LogId, most: usize| {
            let behind = log.iter().filter(|entry| entry.id.index > after.index);
            Ok(behind.take(most).cloned().collect())
        }
    }

    fn watched(range: &Range, part: Option<(LogId, usize)>) -> Watched<'_> {
        Watched { range, keys_only: false, part }
    }

    fn keys(plan: &Plan) -> Vec<(u64, String)> {
        let changes = plan.parts.iter().flat_map(|part| {
            part.changes
                .iter()
                .map(move |change| (part.watch, change.key.escape_ascii().to_string()))
        });
        changes.collect()
    }

    #[test]
    fn a_watch_is_told_the_noted_entries_and_one_that_is_behind_all_of_them() {
        let history = log(vec![
            vec![put("a", 0, 1), put("b", 1, 1)],
            vec![put("x", 0, 1)],
            vec![put("a", 0, 1)],
        ]);
        let range = Range { start: "a".into(), end: Some("b".into()) };
        let mut plan = Plan::new(true);
        let noted = Work::Entries(vec![id(2)]);
        plan.add((5, 0), &watched(&range, None), &noted, &history).expect("told");
        plan.add((6, 0), &watched(&range, None), &Work::Behind(id(0)), &history).expect("told");
        assert_eq!(keys(&plan), [(5, "a".to_owned()), (6, "a".to_owned()), (6, "a".to_owned())]);
        let told = plan.parts.iter().map(|part| part.told).collect::<Vec<_>>();
        assert_eq!(told, [Told { at: id(3), part: None }; 2]);
        assert_eq!((plan.changes, plan.bytes), (3, 6));
        assert!(plan.last_entries().into_iter().eq([id(3)]));
    }

    /// Otherwise a put that thousands watch is decoded for each of them.
    #[test]
    fn an_entry_that_many_are_told_of_is_looked_at_once() {
        let all_entries = log(vec![vec![put("a", 0, 1)], vec![put("b", 0, 1)]]);
        let looked = std::cell::Cell::new(0);
        let history = |after: LogId, most: usize| {
            looked.set(looked.get() + 1);
            all_entries(after, most)
        };
        let (range, mut plan) = (all(), Plan::new(true));
        for watch in 0..600 {
            let work = Work::Entries(vec![id(1)]);
            plan.add((watch, 0), &watched(&range, None), &work, &history).expect("told");
        }
        let plan = plan.made();
        assert_eq!((plan.changes, plan.parts.len(), looked.get()), (600, 600, 1));
        assert!(plan.parts.iter().all(|part| part.changes[0].key == "b"));
    }

    /// The story: an entry of many large values was told in two messages, and the second began with the first value.
    #[test]
    fn an_entry_that_is_longer_than_a_message_goes_on_where_the_last_one_ended() {
        let large = MESSAGE_BYTES / 2;
        let history = log(vec![
            vec![put("a", 0, 1)],
            (0..5).map(|number| put(&number.to_string(), number, large)).collect(),
            vec![put("z", 0, 1)],
        ]);
        let range = all();
        let (mut at, mut part, mut told_keys) = (id(0), None, Vec::new());
        for _ in 0..6 {
            let mut plan = Plan::new(true);
            let work = Work::Behind(at);
            plan.add((5, 0), &watched(&range, part), &work, &history).expect("told");
            assert!(plan.bytes <= MESSAGE_BYTES + 1, "{}", plan.bytes);
            let Some(told) = plan.parts.first().map(|part| part.told) else { break };
            told_keys.extend(keys(&plan).into_iter().map(|(_, key)| key));
            (at, part) = (told.at, told.part);
        }
        assert_eq!(told_keys, ["a", "0", "1", "2", "3", "4", "z"]);
        assert_eq!((at, part), (id(3), None));
    }

    /// The story: while a message had a part of an entry, so much was noted for its watch that it fell behind. It read
    /// the log from further back, passed an entry without its keys, and told the part again.
    #[test]
    fn a_watch_that_falls_behind_within_an_entry_is_not_told_a_part_of_it_twice() {
        let large = MESSAGE_BYTES / 2;
        let history = log(vec![
            vec![put("k0", 0, 1)],
            vec![put("x", 0, 1)],
            (1..6).map(|number| put(&format!("k{number}"), number, large)).collect(),
        ]);
        let range = Range { start: "k".into(), end: Some("l".into()) };
        let mut plan = Plan::new(true);
        let noted = Work::Entries(vec![id(0), id(2)]);
        plan.add((5, 0), &watched(&range, None), &noted, &history).expect("told");
        let told = plan.parts.first().expect("told").told;
        assert_eq!(told, Told { at: id(1), part: Some((id(3), 1)) });
        let mut plan = Plan::new(true);
        let behind = Work::Behind(told.at);
        plan.add((5, 0), &watched(&range, told.part), &behind, &history).expect("told");
        assert_eq!(keys(&plan), [(5, "k2".to_owned())]);
        assert_eq!(
            plan.parts.first().expect("told").told,
            Told { at: id(2), part: Some((id(3), 2)) }
        );
    }

    #[test]
    fn a_change_that_is_longer_than_a_message_is_told_alone_and_who_got_no_space_keeps_its_turn() {
        let history = log(vec![vec![put("a", 0, 3 * MESSAGE_BYTES)], vec![put("b", 0, 1)]]);
        let range = all();
        let mut plan = Plan::new(true);
        let work = Work::Behind(id(0));
        plan.add((5, 0), &watched(&range, None), &work, &history).expect("told");
        assert!(plan.is_full() && plan.last_entries().into_iter().eq([id(1)]));
        plan.add((6, 0), &watched(&range, None), &work, &history).expect("told");
        assert_eq!(keys(&plan), [(5, "a".to_owned())]);
        assert_eq!(plan.parts.len(), 1);
        // Without values it has space.
        let mut plan = Plan::new(true);
        let watched = Watched { range: &range, keys_only: true, part: None };
        plan.add((5, 0), &watched, &work, &history).expect("told");
        assert_eq!((keys(&plan).len(), plan.bytes), (2, 2));
        assert!(plan.parts[0].changes.iter().all(|change| change.value.is_none()));
    }

    #[test]
    fn a_plan_looks_at_a_bounded_number_of_entries_although_none_is_in_the_range() {
        let history = log((0..5000).map(|_| vec![put("a", 0, 1)]).collect());
        let range = Range { start: "x".into(), end: None };
        let (mut at, mut plans) = (id(0), 0);
        while at.index < 5000 {
            let mut plan = Plan::new(true);
            plan.add((5, 0), &watched(&range, None), &Work::Behind(at), &history).expect("told");
            assert!(plan.changes == 0 && plan.entries < ENTRIES + READ && plan.parts.len() == 1);
            at = plan.parts[0].told.at;
            plans += 1;
        }
        assert!(plans >= 9, "{plans}");
    }

    /// The story: a plan looked at 512 deletions of ranges of a thousand keys each, none of which the watch had, and held up
    /// everything else on its thread for a second.
    #[test]
    fn a_plan_looks_at_a_bounded_number_of_changes_although_the_entries_are_few() {
        const OF_ENTRY: usize = 10 * CHANGES_OF_ENTRY;
        let changes = vec![put("a", 0, 1); OF_ENTRY];
        let history = log(vec![changes; 200]);
        let looked = std::cell::Cell::new(0);
        let counted = |after: LogId, most: usize| {
            history(after, most).inspect(|entries| looked.set(looked.get() + entries.len()))
        };
        let range = Range { start: "x".into(), end: None };
        let noted = Work::Entries((0..60).map(id).collect());
        for work in [Work::Behind(id(0)), noted] {
            looked.set(0);
            let mut plan = Plan::new(true);
            for watch in 0..4 {
                plan.add((watch, 0), &watched(&range, None), &work, &counted).expect("told");
            }
            let most = ENTRIES / 11 + 1;
            assert!(looked.get() <= most.max(READ), "{} entries", looked.get());
            assert!(plan.is_full());
        }
    }

    /// The story: a watch read the log, and on each side of it was one that always had something to be told. While others read
    /// the log, both were told in its place, and when they had been, it was not its turn again.
    #[test]
    fn a_plan_that_may_not_read_the_log_ends_before_the_first_watch_that_has_to() {
        let history = log(vec![vec![put("a", 0, 1)], vec![put("b", 0, 1)]]);
        let (range, noted) = (all(), Work::Entries(vec![id(1)]));
        for (reads_log, told) in [(false, 1), (true, 4)] {
            let mut plan = Plan::new(reads_log);
            for (watch, work) in [(5, &noted), (6, &Work::Behind(id(0))), (7, &noted)] {
                if !plan.is_full() {
                    plan.add((watch, 0), &watched(&range, None), work, &history).expect("told");
                }
            }
            assert_eq!((plan.changes, plan.is_full()), (told, !reads_log));
            assert_eq!(plan.parts.first().map(|part| part.watch), Some(5));
        }
    }

    #[test]
    fn a_position_of_which_nothing_can_be_told_is_an_error_and_one_that_is_not_applied_yet_is_none()
    {
        type Told = Result<Vec<EntryChanges>, HistoryError>;
        fn discarded(after: LogId, _: usize) -> Told {
            Err(HistoryError::Discarded { after })
        }
        fn ahead(after: LogId, _: usize) -> Told {
            Err(HistoryError::Ahead { after })
        }
        let range = all();
        let mut plan = Plan::new(true);
        for work in [Work::Behind(id(7)), Work::Entries(vec![id(7)])] {
            let told = plan.add((5, 0), &watched(&range, None), &work, &discarded);
            assert_eq!(told, Err(HistoryError::Discarded { after: id(7) }));
        }
        assert!(plan.parts.is_empty());
        plan.add((5, 0), &watched(&range, None), &Work::Behind(id(7)), &ahead).expect("it waits");
        assert_eq!((plan.parts[0].told.at, plan.parts[0].told.part), (id(7), None));
    }
}
