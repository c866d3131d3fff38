//! What watchers heard in a run, and how far each of them is.

use crate::check::logs::Logs;
use cairn_client::Position;
use cairn_clients::Violation;
use cairn_clients::check::state::SentState;
use cairn_clients::check::watched::{self, Begins, End, Left, Mark, Told, Watched};
use cairn_clients::history::{History, Version};
use cairn_clients::workload::encode_value;
use cairn_engine::LogId;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use xxhash_rust::xxh3::xxh3_128;

/// The events.
const BEGUN: &str = "watches begun";
const TOLD: &str = "changes told by watches";
const RESUMED: &str = "watches begun at a kept position";
const LISTED: &str = "watches begun behind a list";
const COMPACTED: &str = "watches ended: history no longer kept";
const DISCARDED: &str = "watches ended: position discarded";

/// Counted where they are started, and where it is checked.
pub(super) const TOGETHER: &str = "clients of several watchers";
pub(super) const BESIDE_A_MAJORITY: &str =
    "checks of watchers beside a majority left alone for long";

/// The events that many runs must have. A discarded position takes an unsafe recovery, which a scenario has.
pub const WATCH_EVENTS: [&str; 7] =
    [BEGUN, TOLD, RESUMED, LISTED, COMPACTED, TOGETHER, BESIDE_A_MAJORITY];

/// More that is wrong with a log tells nothing new.
const WRONG_MOST: usize = 5;

/// What watchers heard.
#[derive(Default)]
pub(super) struct Watches {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    watches: Vec<Watched>,
    watchers: BTreeMap<u32, Standing>,
}

/// How far a watcher is.
#[derive(Clone, Copy, Default)]
struct Standing {
    /// It knows everything up to this index.
    index: Version,
    /// Since when it reads, or tries to; `None`: it does not want to.
    awake_since: Option<u64>,
}

impl Kept {
    fn is_at(&mut self, watcher: u32, position: Position) {
        let standing = self.watchers.entry(watcher).or_default();
        standing.index = standing.index.max(position.index);
    }
}

impl Watches {
    /// Somebody asked for a watch. Returns its number.
    pub(super) fn asks(&self, watched: Watched) -> usize {
        let mut kept = self.kept.lock();
        if let Begins::Listed(position, _) = &watched.begins {
            kept.is_at(watched.watcher, *position);
        }
        kept.watches.push(watched);
        kept.watches.len() - 1
    }

    /// It began.
    pub(super) fn begins(&self, number: usize, at: Position) {
        self.change(number, |watched| watched.began = Some(at));
    }

    /// It told something.
    pub(super) fn tells(&self, number: usize, told: Told) {
        self.change(number, |watched| watched.told.push(told));
    }

    /// It says to be there.
    pub(super) fn is_at(&self, number: usize, through: Position, when: u64) {
        let mut kept = self.kept.lock();
        let Some(watched) = kept.watches.get_mut(number) else { return };
        if watched.through() == Some(through) {
            return;
        }
        watched.marks.push(Mark { told: watched.told.len(), through, when });
        let watcher = watched.watcher;
        kept.is_at(watcher, through);
    }

    /// It was told to end.
    pub(super) fn ends(&self, number: usize, end: End, when: u64) {
        self.change(number, |watched| watched.end = Some((end, when)));
    }

    fn change(&self, number: usize, change: impl FnOnce(&mut Watched)) {
        if let Some(watched) = self.kept.lock().watches.get_mut(number) {
            change(watched);
        }
    }

    /// A watcher reads from now on.
    pub(super) fn wakes(&self, watcher: u32, now: u64) {
        self.kept.lock().watchers.entry(watcher).or_default().awake_since = Some(now);
    }

    /// A watcher does not read any more.
    pub(super) fn sleeps(&self, watcher: u32) {
        self.kept.lock().watchers.entry(watcher).or_default().awake_since = None;
    }

    /// The watchers that read since this time or before and are not at this index, each with its own.
    pub(super) fn behind(&self, index: Version, since: u64) -> Vec<(u32, Version)> {
        let kept = self.kept.lock();
        let reads = |one: &Standing| one.awake_since.is_some_and(|awake| awake <= since);
        let behind = kept.watchers.iter().filter(|(_, one)| reads(one) && one.index < index);
        behind.map(|(watcher, one)| (*watcher, one.index)).collect()
    }

    /// All watches so far.
    pub(super) fn all(&self) -> Vec<Watched> {
        self.kept.lock().watches.clone()
    }

    /// Whether this holds for one of them.
    pub(super) fn any(&self, holds: impl Fn(&Watched) -> bool) -> bool {
        self.kept.lock().watches.iter().any(holds)
    }

    /// Whether so many watchers have asked for a watch, and this holds for the last one of each.
    pub(super) fn all_last(&self, watchers: usize, holds: impl Fn(&Watched) -> bool) -> bool {
        let kept = self.kept.lock();
        let mut seen = BTreeSet::new();
        let last = kept.watches.iter().rev().filter(|watch| seen.insert(watch.watcher));
        let held: Vec<bool> = last.map(holds).collect();
        held.len() >= watchers && held.into_iter().all(|held| held)
    }

    /// What happened, by event.
    pub(super) fn events(&self) -> BTreeMap<&'static str, u64> {
        let mut events: BTreeMap<&'static str, u64> = BTreeMap::new();
        let kept = self.kept.lock();
        for watch in kept.watches.iter().filter(|watch| watch.began.is_some()) {
            *events.entry(BEGUN).or_default() += 1;
            *events.entry(TOLD).or_default() += watch.told.len() as u64;
            match watch.begins {
                Begins::Now => {}
                Begins::Kept(_) => *events.entry(RESUMED).or_default() += 1,
                Begins::Listed(..) => *events.entry(LISTED).or_default() += 1,
            }
        }
        for (end, _) in kept.watches.iter().filter_map(|watch| watch.end) {
            let event = match end {
                End::Compacted { .. } => COMPACTED,
                End::Discarded => DISCARDED,
            };
            *events.entry(event).or_default() += 1;
        }
        events
    }

    /// Checks them against what clients were told, and against states that were taken meanwhile.
    pub(super) fn check(&self, history: &History, states: &[SentState]) -> Vec<Violation> {
        watched::check(history, states, &self.all())
    }

    /// Checks what they told against what the logs of the members hold.
    pub(super) fn check_logs(&self, logs: &Logs) -> Vec<Violation> {
        let kept = self.kept.lock();
        let told = kept.watches.iter().flat_map(|watch| &watch.told);
        let wrong = told.filter_map(|told| {
            let id = LogId { term: told.at.term, index: told.at.index };
            let hash = match told.left {
                Left::Put(value) => value.map(|value| xxh3_128(&encode_value(value))),
                Left::Deleted => None,
            };
            logs.sent("a watch", id, hash)
        });
        wrong.take(WRONG_MOST).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_clients::check::watched::Scope;

    fn position(index: Version) -> Position {
        Position { term: 1, index }
    }

    fn asks(watches: &Watches, watcher: u32, begins: Begins) -> usize {
        watches.asks(Watched::new(watcher, Scope::All, 0, begins))
    }

    #[test]
    fn a_watcher_that_reads_is_behind_until_a_watch_or_a_list_of_it_is_there() {
        let watches = Watches::default();
        let first = asks(&watches, 1, Begins::Now);
        watches.wakes(1, 10);
        watches.wakes(2, 20);
        assert_eq!(watches.behind(5, 10), [(1, 0)], "the other one reads since later");
        watches.begins(first, position(3));
        watches.is_at(first, position(4), 30);
        assert_eq!(watches.behind(5, 30), [(1, 4), (2, 0)]);
        asks(&watches, 2, Begins::Listed(position(5), BTreeMap::new()));
        watches.sleeps(1);
        assert!(watches.behind(5, 30).is_empty(), "one has listed it, one does not read");
    }

    #[test]
    fn watches_are_counted_by_their_beginning_and_their_end() {
        let watches = Watches::default();
        assert!(watches.events().is_empty());
        let numbers = [
            asks(&watches, 1, Begins::Now),
            asks(&watches, 1, Begins::Kept(position(3))),
            asks(&watches, 2, Begins::Listed(position(3), BTreeMap::new())),
        ];
        for number in numbers {
            watches.begins(number, position(3));
        }
        let told = Told {
            key: (0, 0),
            at: position(4),
            left: Left::Deleted,
            previous: Some(2),
            last_of_entry: true,
            when: 5,
        };
        watches.tells(numbers[1], told);
        let end = End::Compacted { oldest: position(5), now: position(6) };
        watches.ends(numbers[1], end, 7);
        watches.ends(numbers[2], End::Discarded, 7);
        let expected = [(BEGUN, 3), (TOLD, 1), (RESUMED, 1), (LISTED, 1), (COMPACTED, 1)];
        let expected: BTreeMap<&str, u64> = expected.into_iter().chain([(DISCARDED, 1)]).collect();
        assert_eq!(watches.events(), expected);
        let tells = |watch: &Watched| watch.told.len() == 1;
        assert!(!watches.all_last(2, tells), "the other one told nothing");
        assert!(watches.any(tells));
    }

    /// The story: a scenario waited until all watchers were told something, and went on before any had asked. So it
    /// was cut short in every seed, and nobody watched over a leader's death.
    #[test]
    fn nothing_holds_for_all_watchers_before_each_has_asked_for_a_watch() {
        let watches = Watches::default();
        assert!(!watches.all_last(2, |_| true));
        asks(&watches, 1, Begins::Now);
        asks(&watches, 1, Begins::Kept(position(3)));
        assert!(!watches.all_last(2, |_| true), "both are of one watcher");
        asks(&watches, 2, Begins::Now);
        assert!(watches.all_last(2, |_| true));
        assert!(!watches.all_last(2, |watch| watch.begins == Begins::Now));
    }

    #[test]
    fn a_position_is_noted_once_with_what_was_told_before_it() {
        let watches = Watches::default();
        let number = asks(&watches, 1, Begins::Now);
        watches.begins(number, position(3));
        for (through, when) in [(3, 1), (4, 2), (4, 3), (6, 4)] {
            watches.is_at(number, position(through), when);
        }
        let noted: Vec<(Version, u64)> = watches.all()[number]
            .marks
            .iter()
            .map(|mark| (mark.through.index, mark.when))
            .collect();
        assert_eq!(noted, [(4, 2), (6, 4)]);
    }
}
