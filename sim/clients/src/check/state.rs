//! A state that a member sent is that of one log index: of each key it has what the last write up to
//! there left, nothing more and nothing less. It has every write that was acknowledged before somebody
//! asked for it, and none that was sent after its index was known.
//!
//! A write of unknown outcome may have taken effect at any index, or never. So a value of such a write
//! may be there in the place of an acknowledged one that is older, and such a delete excuses a key that
//! is missing. Of a range whose first keys were deleted nobody knows which keys went, but its index is known: it
//! excuses a missing key only if the key was put before, and not in a state of an earlier index.
//!
//! Two states tell more: what the later one has from before the earlier one's index, the earlier one must
//! have too.

use crate::Violation;
use crate::history::{Action, Change, History, Key, Outcome, Record, Value, Version};
use std::collections::{BTreeMap, BTreeSet};

/// The property's name.
pub const NAME: &str = "a state is that of one index";

/// A state that a member sent to its end. Times are those of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentState {
    /// When somebody asked for it.
    pub asked: u64,
    /// When its index was known.
    pub begun: u64,
    /// The log index.
    pub index: Version,
    /// The keys of the history, each with its value and version.
    pub keys: BTreeMap<(u32, Key), (Value, Version)>,
}

/// Checks every state against the history.
pub fn check(history: &History, states: &[SentState]) -> Vec<Violation> {
    if states.is_empty() {
        return Vec::new();
    }
    let writes = Writes::of(history);
    let found = states.iter().flat_map(|state| {
        let times = history.records().iter().filter_map(|record| out_of_time(record, state));
        times.chain(writes.unexplained(state)).collect::<Vec<_>>()
    });
    let mut found: Vec<String> = found.collect();
    found.extend(versions_of_one_value(history, states));
    found.extend(contradictions(states));
    found.into_iter().map(|detail| Violation::new(NAME, detail)).collect()
}

/// A write that the state must have by its time and has not, or the other way round.
fn out_of_time(record: &Record, state: &SentState) -> Option<String> {
    let (_, index) = record.log_id()?;
    if record.returned < state.asked && index > state.index {
        let of = state.index;
        return Some(format!(
            "the state of {of} was asked for after it was acknowledged: {record}"
        ));
    }
    if record.invoked > state.begun && index <= state.index {
        let of = state.index;
        return Some(format!("the state of {of} was there before it was sent: {record}"));
    }
    None
}

/// What clients know of the writes, by key.
#[derive(Default)]
struct Writes {
    /// What each acknowledged write left.
    acknowledged: BTreeMap<(u32, Key), BTreeMap<Version, Change>>,
    /// What writes may have left, where nobody knows whether they did.
    open: BTreeMap<(u32, Key), Vec<Open>>,
}

/// A change that may have taken effect, or not.
struct Open {
    sent: u64,
    /// Where, if that is known: of a range whose first keys were deleted.
    index: Option<Version>,
    change: Change,
}

impl Open {
    /// Whether the state may have this change, and behind the index `after`.
    fn may_be_in(&self, state: &SentState, after: Version) -> bool {
        let fits = |index: Version| after < index && index <= state.index;
        self.sent < state.begun && self.index.is_none_or(fits)
    }
}

impl Writes {
    fn of(history: &History) -> Writes {
        let mut writes = Writes::default();
        for record in history.records() {
            let deleted = |key: Key| ((record.group, key), record.invoked, Change::Delete);
            for (at, _, change) in record.surely_deleted().map(deleted) {
                let index = record.index().unwrap_or_default();
                writes.acknowledged.entry(at).or_default().insert(index, change);
            }
            for (at, sent, change) in record.perhaps_deleted().map(deleted) {
                let open = Open { sent, index: record.index(), change };
                writes.open.entry(at).or_default().push(open);
            }
            let Action::Write(operations) = &record.action else { continue };
            let changes = operations.iter().filter(|operation| operation.change != Change::Check);
            for operation in changes {
                let at = (record.group, operation.key);
                match record.outcome {
                    // The last operation of a write on a key is the one that stays.
                    Outcome::Applied { index, .. } => {
                        let of_key = writes.acknowledged.entry(at).or_default();
                        of_key.insert(index, operation.change);
                    }
                    Outcome::Unknown => {
                        let (sent, change) = (record.invoked, operation.change);
                        let open = Open { sent, index: None, change };
                        writes.open.entry(at).or_default().push(open);
                    }
                    _ => {}
                }
            }
        }
        writes
    }

    /// What the state has of each key, where no write explains it.
    fn unexplained(&self, state: &SentState) -> Vec<String> {
        let keys: BTreeSet<(u32, Key)> =
            self.acknowledged.keys().chain(state.keys.keys()).copied().collect();
        let wrong = keys.into_iter().filter_map(|at| {
            let found = state.keys.get(&at).copied();
            let why = self.why_wrong(at, found, state)?;
            let ((group, key), index) = (at, state.index);
            Some(format!("the state of {index} has {found:?} of key {group}/{key}: {why}"))
        });
        wrong.collect()
    }

    fn why_wrong(
        &self,
        at: (u32, Key),
        found: Option<(Value, Version)>,
        state: &SentState,
    ) -> Option<String> {
        let acknowledged = self.acknowledged.get(&at);
        let last = acknowledged.and_then(|of_key| of_key.range(..=state.index).next_back());
        let after = last.map(|(index, _)| *index).unwrap_or_default();
        let may_have = |change: Change| {
            let mut open = self.open.get(&at).into_iter().flatten();
            open.any(|open| open.change == change && open.may_be_in(state, after))
        };
        let Some((value, version)) = found else {
            return match last {
                Some((put, Change::Put(_))) if !may_have(Change::Delete) => {
                    Some(format!("the put of {put} is missing"))
                }
                _ => None,
            };
        };
        if version > state.index {
            return Some("that is of a later index".to_owned());
        }
        match last {
            Some((last, Change::Put(put))) if *last == version => {
                (*put != value).then(|| format!("{last} put {put}"))
            }
            Some((last, change)) if *last >= version => Some(format!("{last} left {change:?}")),
            _ => {
                let explained = may_have(Change::Put(value));
                (!explained).then(|| "no client put that there".to_owned())
            }
        }
    }
}

/// Values that the states, or the answers to clients, show with two versions.
fn versions_of_one_value(history: &History, states: &[SentState]) -> Vec<String> {
    let mut versions = BTreeMap::<Value, Version>::new();
    for (_, value, version) in history.records().iter().flat_map(Record::seen) {
        versions.entry(value).or_insert(version);
    }
    let mut wrong = Vec::new();
    for state in states {
        for (value, version) in state.keys.values() {
            let first = *versions.entry(*value).or_insert(*version);
            if first != *version {
                let of = state.index;
                wrong.push(format!(
                    "the state of {of} has value {value} at version {version}, elsewhere it is at {first}"
                ));
            }
        }
    }
    wrong
}

/// What a later state has from before an earlier one that the earlier one has not.
fn contradictions(states: &[SentState]) -> Vec<String> {
    let mut ordered: Vec<&SentState> = states.iter().collect();
    ordered.sort_by_key(|state| state.index);
    let mut wrong = Vec::new();
    for (earlier, later) in ordered.iter().zip(ordered.iter().skip(1)) {
        for (at, found) in later.keys.iter().filter(|(_, (_, version))| *version <= earlier.index) {
            if earlier.keys.get(at) != Some(found) {
                let ((group, key), had) = (at, earlier.keys.get(at));
                let (first, second) = (earlier.index, later.index);
                wrong.push(format!(
                    "key {group}/{key}: the state of {first} has {had:?}, that of {second} {found:?}"
                ));
            }
        }
        if earlier.index == later.index && earlier.keys != later.keys {
            wrong.push(format!("two states of {} have other keys", earlier.index));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Condition, RangeSpec, WriteOperation};

    /// A write of key 0 that was sent at a time and answered one later.
    fn write(change: Change, sent: u64, index: Option<Version>) -> Record {
        let outcome = match index {
            Some(index) => Outcome::Applied { index, term: 1, previous: vec![None] },
            None => Outcome::Unknown,
        };
        let operation = WriteOperation { key: 0, change, condition: Condition::None };
        let action = Action::Write(vec![operation]);
        let returned = sent + 1;
        Record { client: 0, group: 0, action, synced: false, invoked: sent, returned, outcome }
    }

    /// A state that was asked for at 100, and begun at 110.
    fn state(index: Version, key: Option<(Value, Version)>) -> SentState {
        let keys = key.into_iter().map(|found| ((0, 0), found)).collect();
        SentState { asked: 100, begun: 110, index, keys }
    }

    fn wrong(records: Vec<Record>, states: &[SentState]) -> usize {
        check(&History::new(records), states).len()
    }

    #[test]
    fn a_state_has_what_the_last_acknowledged_write_left() {
        let history = || {
            vec![
                write(Change::Put(1), 10, Some(5)),
                write(Change::Put(2), 20, Some(7)),
                write(Change::Delete, 30, Some(9)),
                write(Change::Put(3), 105, Some(12)),
            ]
        };
        assert_eq!(wrong(history(), &[state(9, None)]), 0);
        assert_eq!(wrong(history(), &[state(11, None)]), 0);
        assert_eq!(wrong(history(), &[state(12, Some((3, 12)))]), 0);
        assert_eq!(wrong(history(), &[state(11, Some((2, 7)))]), 1, "it was deleted");
        assert_eq!(wrong(history(), &[state(12, None)]), 1, "it was put again");
        assert_eq!(wrong(history(), &[state(12, Some((2, 7)))]), 1, "another one was put");
        assert_eq!(wrong(history(), &[state(12, Some((4, 12)))]), 1, "another value");
        assert_eq!(wrong(history(), &[state(11, Some((3, 12)))]), 1, "of a later index");
        assert_eq!(wrong(history(), &[state(11, Some((9, 10)))]), 1, "nobody put it");
    }

    #[test]
    fn a_state_has_what_was_acknowledged_before_and_nothing_that_was_sent_after() {
        let early = || vec![write(Change::Put(1), 50, Some(5))];
        assert_eq!(wrong(early(), &[state(5, Some((1, 5)))]), 0);
        assert_eq!(wrong(early(), &[state(4, None)]), 1, "acknowledged before");
        let late = || vec![write(Change::Put(1), 111, Some(5))];
        assert_eq!(wrong(late(), &[state(4, None)]), 0);
        assert_eq!(wrong(late(), &[state(5, Some((1, 5)))]), 1, "sent after");
        let meanwhile = || vec![write(Change::Put(1), 105, Some(5))];
        assert_eq!(wrong(meanwhile(), &[state(4, None)]), 0);
        assert_eq!(wrong(meanwhile(), &[state(5, Some((1, 5)))]), 0);
    }

    #[test]
    fn a_write_of_unknown_outcome_may_be_there_or_not() {
        let put =
            |sent| vec![write(Change::Put(1), 10, Some(5)), write(Change::Put(2), sent, None)];
        assert_eq!(wrong(put(20), &[state(8, Some((1, 5)))]), 0);
        assert_eq!(wrong(put(20), &[state(8, Some((2, 7)))]), 0);
        assert_eq!(wrong(put(20), &[state(8, Some((2, 4)))]), 1, "another one was put later");
        assert_eq!(wrong(put(111), &[state(8, Some((2, 7)))]), 1, "it was sent later");
        let delete = vec![write(Change::Put(1), 10, Some(5)), write(Change::Delete, 20, None)];
        assert_eq!(wrong(delete, &[state(8, None)]), 0);
    }

    #[test]
    fn a_state_has_no_key_of_a_deleted_range_and_may_lack_one_of_which_nobody_knows() {
        let range = |sent, index: Option<Version>, more| {
            let outcome = match index {
                Some(index) => Outcome::RangeDeleted { index, term: 1, deleted: 1, more },
                None => Outcome::Unknown,
            };
            let spec = RangeSpec { from: 0, until: 2, most: 1, whole: false };
            let action = Action::DeleteRange(spec);
            Record { action, outcome, ..write(Change::Check, sent, None) }
        };
        let put = || write(Change::Put(1), 10, Some(5));
        let sure = || vec![put(), range(20, Some(7), false)];
        assert_eq!(wrong(sure(), &[state(8, None)]), 0);
        assert_eq!(wrong(sure(), &[state(8, Some((1, 5)))]), 1, "it was deleted");
        assert_eq!(wrong(sure(), &[state(6, None)]), 2, "acknowledged before, and put");
        for perhaps in [range(20, Some(7), true), range(20, None, true)] {
            let records = || vec![put(), perhaps.clone()];
            assert_eq!(wrong(records(), &[state(8, None)]), 0);
            assert_eq!(wrong(records(), &[state(8, Some((1, 5)))]), 0);
        }
        let before = vec![put(), range(2, Some(4), true)];
        assert_eq!(wrong(before, &[state(8, None)]), 1, "it was put after the deletion");
        let behind = vec![put(), range(105, Some(9), true)];
        assert_eq!(wrong(behind, &[state(8, None)]), 1, "the deletion is of a later index");
    }

    #[test]
    fn states_agree_with_one_another_and_with_what_clients_read() {
        let open = || vec![write(Change::Put(1), 10, None), write(Change::Delete, 20, None)];
        assert_eq!(wrong(open(), &[state(5, Some((1, 4))), state(8, Some((1, 4)))]), 0);
        assert_eq!(wrong(open(), &[state(5, Some((1, 4))), state(8, None)]), 0);
        assert_eq!(wrong(open(), &[state(5, None), state(8, Some((1, 7)))]), 0);
        assert_eq!(wrong(open(), &[state(8, Some((1, 4))), state(5, None)]), 1, "lacks it");
        assert_eq!(wrong(open(), &[state(5, Some((1, 4))), state(5, None)]), 1, "of one index");
        assert_eq!(wrong(open(), &[state(5, Some((1, 4))), state(8, Some((1, 6)))]), 1, "twice");
        let mut read = open();
        let outcome = Outcome::Found(Some((1, 3)));
        read.push(Record { action: Action::Get(0), outcome, ..write(Change::Check, 40, None) });
        assert_eq!(wrong(read, &[state(5, Some((1, 4)))]), 1, "a client read it at 3");
    }
}
