//! The specification: the state of one group's keys, and which answers a request may get from it.
//!
//! A key's state names the *request* that wrote it, since a client may never see a request's
//! version. When an answer shows a version of a key whose writer's version was not known, the pair
//! is remembered, and later answers must agree.

use crate::history::{
    Action, Change, Condition, GROUP_KEYS, Item, Key, ListSpec, Outcome, RangeSpec, Record, Value,
    Version, WriteOperation,
};
use crate::workload::{key_bytes, value_bytes};
use std::collections::BTreeMap;

/// The number of a request within the checked history.
pub type Request = u32;

/// One key's state: the request that wrote it and the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    pub writer: Request,
    pub value: Value,
}

/// The keys of a group, and the versions learnt of requests whose own answers showed none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    pub keys: [Option<Entry>; GROUP_KEYS],
    learnt: BTreeMap<Request, Version>,
}

/// The versions that the history itself shows: in the writer's answer, or in an answer with its
/// unique value.
#[derive(Debug, Default)]
pub struct Versions {
    of: BTreeMap<Request, Version>,
    owner: BTreeMap<Version, Request>,
}

impl Versions {
    /// Collects the versions. An error if two requests have one version or one request has two.
    /// Stale reads are not checked here, but the versions that they show count: a client may use
    /// one as a condition.
    pub fn collect(checked: &[&Record], all: &[&Record]) -> Result<Versions, String> {
        let mut versions = Versions::default();
        let mut writers = BTreeMap::new();
        for (request, record) in (0..).zip(checked) {
            for (_, value) in record.puts() {
                writers.insert(value, request);
            }
            if let Some(index) = record.index() {
                versions.claim(request, index, record)?;
            }
        }
        for record in all {
            for (_, value, version) in record.seen() {
                if let Some(writer) = writers.get(&value) {
                    versions.claim(*writer, version, record)?;
                }
            }
        }
        Ok(versions)
    }

    fn claim(&mut self, request: Request, version: Version, by: &Record) -> Result<(), String> {
        let known = *self.of.entry(request).or_insert(version);
        let owner = *self.owner.entry(version).or_insert(request);
        if known != version {
            return Err(format!(
                "request {request} has version {known} and version {version}: {by}"
            ));
        }
        if owner != request {
            return Err(format!("requests {owner} and {request} share version {version}: {by}"));
        }
        Ok(())
    }

    /// A request's version, if any client saw it.
    pub fn of(&self, request: Request) -> Option<Version> {
        self.of.get(&request).copied()
    }
}

impl State {
    /// Whether an answer may show `key` at `version` (`None`: absent). Remembers what that shows.
    fn agrees(&mut self, key: Key, version: Option<Version>, versions: &Versions) -> bool {
        let entry = self.keys.get(key).copied().flatten();
        let (entry, version) = match (entry, version) {
            (None, None) => return true,
            (Some(entry), Some(version)) => (entry, version),
            _ => return false,
        };
        match versions.of(entry.writer) {
            Some(known) => known == version,
            None if versions.owner.contains_key(&version) => false,
            None => {
                let other = self
                    .learnt
                    .iter()
                    .any(|(writer, learnt)| *learnt == version && *writer != entry.writer);
                !other && *self.learnt.entry(entry.writer).or_insert(version) == version
            }
        }
    }

    fn holds(&self, operation: &WriteOperation, versions: &Versions) -> bool {
        let entry = self.keys.get(operation.key).copied().flatten();
        match operation.condition {
            Condition::None => true,
            Condition::Absent => entry.is_none(),
            Condition::Exists => entry.is_some(),
            Condition::Version(version) => entry.is_some_and(|entry| {
                let known =
                    versions.of(entry.writer).or_else(|| self.learnt.get(&entry.writer).copied());
                known == Some(version)
            }),
        }
    }

    fn apply(&mut self, request: Request, operations: &[WriteOperation]) {
        for operation in operations {
            let Some(slot) = self.keys.get_mut(operation.key) else {
                continue;
            };
            match operation.change {
                Change::Put(value) => *slot = Some(Entry { writer: request, value }),
                Change::Delete => *slot = None,
                Change::Check => {}
            }
        }
    }

    /// The keys that the deletion of this range deletes here, and whether it has more.
    fn of_range(&self, spec: RangeSpec) -> (Vec<Key>, bool) {
        let is_there = |key: &Key| self.keys.get(*key).copied().flatten().is_some();
        let mut keys: Vec<Key> = spec.keys().filter(is_there).collect();
        let more = keys.len() > spec.most;
        keys.truncate(spec.most);
        (keys, more)
    }

    /// Whether the deletion of a range may have this answer here. What it deletes is gone then.
    fn deletes_range(&mut self, spec: RangeSpec, outcome: &Outcome) -> bool {
        let (keys, has_more) = self.of_range(spec);
        let holds = !(spec.whole && has_more);
        let agreed = match outcome {
            Outcome::RangeDeleted { deleted, more, .. } => {
                holds && *deleted == keys.len() && *more == has_more
            }
            Outcome::RangeTooLarge { .. } => !holds,
            _ => true,
        };
        for key in keys.into_iter().filter(|_| holds) {
            if let Some(slot) = self.keys.get_mut(key) {
                *slot = None;
            }
        }
        agreed
    }

    /// The state after `record` took effect here, or `None` if its answer contradicts this state.
    pub fn step(&self, request: Request, record: &Record, versions: &Versions) -> Option<State> {
        let mut next = self.clone();
        match (&record.action, &record.outcome) {
            (Action::Write(operations), Outcome::Applied { previous, .. }) => {
                let agreed = operations.len() == previous.len()
                    && operations
                        .iter()
                        .zip(previous)
                        .all(|(o, version)| next.agrees(o.key, *version, versions));
                // The answer may be the first to show a version that a condition names.
                let held = operations.iter().all(|operation| next.holds(operation, versions));
                next.apply(request, operations);
                (held && agreed).then_some(next)
            }
            (Action::Write(operations), Outcome::ConditionFailed { failed, .. }) => {
                let reported = |position: usize| failed.iter().find(|(at, _)| *at == position);
                let agreed = operations.iter().enumerate().all(|(position, operation)| {
                    match reported(position) {
                        Some((_, version)) => {
                            next.agrees(operation.key, *version, versions)
                                && !next.holds(operation, versions)
                        }
                        None => self.holds(operation, versions),
                    }
                });
                (agreed && !failed.is_empty()).then_some(next)
            }
            (Action::Write(operations), Outcome::Unknown) => {
                if operations.iter().all(|operation| self.holds(operation, versions)) {
                    next.apply(request, operations);
                }
                Some(next)
            }
            (Action::DeleteRange(spec), outcome) => {
                next.deletes_range(*spec, outcome).then_some(next)
            }
            (Action::Get(key), Outcome::Found(found)) => {
                let value = self.keys.get(*key).copied().flatten().map(|entry| entry.value);
                let agreed = next.agrees(*key, found.map(|(_, version)| version), versions);
                (agreed && value == found.map(|(value, _)| value)).then_some(next)
            }
            (Action::GetMany(keys), Outcome::FoundMany(found, _)) => {
                next.reads(keys, found, versions).then_some(next)
            }
            (Action::Scan, Outcome::FoundMany(found, _)) => {
                let keys: Vec<Key> = (0..GROUP_KEYS).collect();
                next.reads(&keys, found, versions).then_some(next)
            }
            (Action::Version(key), Outcome::FoundVersion(found)) => {
                next.agrees(*key, *found, versions).then_some(next)
            }
            (Action::List(spec), Outcome::Listed(items, more)) => {
                next.lists(record.group, spec, (items, *more), versions).then_some(next)
            }
            _ => Some(next),
        }
    }

    /// Whether these keys have what was found, all of it now.
    fn reads(
        &mut self,
        keys: &[Key],
        found: &[Option<(Value, Version)>],
        versions: &Versions,
    ) -> bool {
        let agreed = keys.iter().zip(found).all(|(key, found)| {
            let value = self.keys.get(*key).copied().flatten().map(|entry| entry.value);
            value == found.map(|(value, _)| value)
                && self.agrees(*key, found.map(|(_, version)| version), versions)
        });
        agreed && keys.len() == found.len()
    }

    fn lists(
        &mut self,
        group: u32,
        spec: &ListSpec,
        (items, more): (&[Item], bool),
        versions: &Versions,
    ) -> bool {
        let present =
            (0..GROUP_KEYS).filter(|key| self.keys.get(*key).copied().flatten().is_some());
        let mut expected: Vec<Key> = present.collect();
        if spec.reverse {
            expected.reverse();
        }
        expected.retain(|key| match spec.start_after {
            Some(after) if spec.reverse => *key < after,
            Some(after) => *key > after,
            None => true,
        });
        expected.retain(|key| spec.end.is_none_or(|end| *key < end));
        let (all, mut bytes) = (expected.len(), 0);
        let mut first = true;
        let fits = expected.iter().take(spec.limit).take_while(|key| {
            let entry = self.keys.get(**key).copied().flatten().filter(|_| !spec.keys_only);
            bytes += key_bytes(group, **key) + entry.map_or(0, |entry| value_bytes(entry.value));
            std::mem::take(&mut first) || bytes <= spec.max_bytes
        });
        let fits = fits.count();
        expected.truncate(fits);
        more == (fits < all)
            && expected.len() == items.len()
            && expected.iter().zip(items).all(|(key, item)| {
                let value = self.keys.get(*key).copied().flatten().map(|entry| entry.value);
                let same_value = spec.keys_only || item.value == value;
                item.key == *key && same_value && self.agrees(*key, Some(item.version), versions)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_loses_its_first_keys_or_all_of_them_and_its_answer_says_so() {
        let full = || {
            let mut state = State::default();
            for key in [0, 1, 3] {
                let change = Change::Put(key as Value + 7);
                state.apply(3, &[WriteOperation { key, change, condition: Condition::None }]);
            }
            state
        };
        let told = |deleted, more| Outcome::RangeDeleted { index: 9, term: 1, deleted, more };
        let too_large = Outcome::RangeTooLarge { index: 9 };
        let (all, few) = ((0, 4, 4), (0, 4, 2));
        for ((from, until, most), whole, outcome, agreed, left) in [
            (all, false, told(3, false), true, 0),
            (all, true, told(3, false), true, 0),
            (all, false, told(2, false), false, 0),
            (all, true, too_large.clone(), false, 0),
            (few, false, told(2, true), true, 1),
            (few, false, told(2, false), false, 1),
            (few, true, too_large.clone(), true, 3),
            (few, true, told(2, true), false, 3),
            (few, true, Outcome::Unknown, true, 3),
            (few, false, Outcome::Unknown, true, 1),
            ((2, 3, 1), true, told(0, false), true, 3),
            ((1, 3, 1), true, told(1, false), true, 2),
        ] {
            let (mut state, spec) = (full(), RangeSpec { from, until, most, whole });
            assert_eq!(state.deletes_range(spec, &outcome), agreed, "{spec:?} {outcome:?}");
            let found = state.keys.iter().flatten().count();
            assert_eq!(found, left, "{spec:?} {outcome:?}");
        }
        let mut state = full();
        state.deletes_range(RangeSpec { from: 0, until: 4, most: 2, whole: false }, &told(2, true));
        assert!(state.keys[3].is_some(), "the first ones go");
    }

    #[test]
    fn a_version_learnt_of_a_silent_writer_must_be_repeated() {
        let versions = Versions::default();
        let mut state = State::default();
        state.apply(
            3,
            &[WriteOperation { key: 0, change: Change::Put(5), condition: Condition::None }],
        );
        assert!(state.agrees(0, Some(9), &versions));
        assert!(state.agrees(0, Some(9), &versions));
        assert!(!state.agrees(0, Some(10), &versions));
        assert!(!state.agrees(0, None, &versions));
    }
}
