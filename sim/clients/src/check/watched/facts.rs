//! What is known of changes, whoever says so, and what contradicts it.
//!
//! What holds here: an entry that is known to have changed a key did so. Where something says which version a
//! key had behind an entry, no change that is known lies between the two. A key that somebody found missing
//! behind a put may have been deleted by a request of which nobody knows whether it took effect: that counts
//! as wrong only where a watch told all changes in between.

use super::{Begins, Left, Scope, TOLD_MOST, Told, Watched, at, name};
use crate::check::state::SentState;
use crate::history::{Action, Change, History, Key, Outcome, Record, Value, Version};
use cairn_client::Position;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A key with its group.
type GroupKey = (u32, Key);

/// Who says so.
#[derive(Clone, Copy)]
enum Source {
    /// The answer to a client's request.
    Answer,
    /// A state of this index that was taken.
    State(Version),
    /// The list with which a watcher began.
    Listed(u32),
    /// A watcher.
    Told(u32),
    /// Another change of the same write.
    SameWrite,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Answer => write!(f, "an answer"),
            Source::State(index) => write!(f, "the state of {index}"),
            Source::Listed(watcher) => write!(f, "the list of watcher {watcher}"),
            Source::Told(watcher) => write!(f, "watcher {watcher}"),
            Source::SameWrite => write!(f, "another put of its write"),
        }
    }
}

/// Somebody says which version a key had behind an entry.
struct Claim {
    key: GroupKey,
    index: Version,
    version: Option<Version>,
    source: Source,
}

/// Everything that is known.
#[derive(Default)]
pub(super) struct Facts<'h> {
    changes: BTreeMap<GroupKey, BTreeMap<Version, (Left, Source)>>,
    claims: Vec<Claim>,
    terms: BTreeMap<Version, (u64, Source)>,
    /// The request that puts each value.
    writers: BTreeMap<Value, &'h Record>,
    /// The writes whose answers tell an index, by that.
    answered: BTreeMap<Version, &'h Record>,
    /// The writes of which nobody knows whether they took effect.
    open: Vec<&'h Record>,
    /// What was found wrong meanwhile.
    wrong: Vec<String>,
}

impl<'h> Facts<'h> {
    pub(super) fn of(history: &'h History, states: &[SentState], watches: &[Watched]) -> Facts<'h> {
        let mut facts = Facts::default();
        for record in history.records() {
            facts.answer(record);
        }
        for watch in watches {
            facts.watch(watch);
        }
        for (state, (key, (value, version))) in
            states.iter().flat_map(|state| state.keys.iter().map(move |found| (state, found)))
        {
            let (left, source) = (Left::Put(Some(*value)), Source::State(state.index));
            facts.change(*key, *version, left, source);
        }
        facts.whole_writes();
        // Now all keys are known, also those that a list or a state does not have.
        for watch in watches {
            if let Begins::Listed(position, versions) = &watch.begins {
                let source = Source::Listed(watch.watcher);
                facts.all_keys(watch.scope, position.index, versions, source);
            }
        }
        for state in states {
            let versions = state.keys.iter().map(|(key, (_, version))| (*key, *version)).collect();
            facts.all_keys(Scope::All, state.index, &versions, Source::State(state.index));
        }
        facts
    }

    /// Adds what the answer to a request shows.
    fn answer(&mut self, record: &'h Record) {
        if record.action.is_write() && record.is_open() {
            self.open.push(record);
        }
        for (_, value) in record.puts() {
            self.writers.insert(value, record);
        }
        for (key, value, version) in record.seen() {
            let left = Left::Put(Some(value));
            self.change((record.group, key), version, left, Source::Answer);
        }
        if let Some(index) = record.index() {
            self.answered.insert(index, record);
        }
        let Some((term, index)) = record.log_id() else { return };
        self.term(Position { term, index }, Source::Answer);
        for key in record.surely_deleted() {
            self.claim((record.group, key), index, None, Source::Answer);
        }
        let Outcome::Applied { previous, .. } = &record.outcome else { return };
        for (key, (left, number)) in last_changes(record) {
            let Some(before) = previous.get(number).copied() else { continue };
            let key = (record.group, key);
            self.claim(key, index.saturating_sub(1), before, Source::Answer);
            if left != Left::Deleted || before.is_some() {
                self.change(key, index, left, Source::Answer);
            }
        }
    }

    /// Adds what a watch told.
    fn watch(&mut self, watch: &Watched) {
        if let Begins::Listed(position, versions) = &watch.begins {
            let source = Source::Listed(watch.watcher);
            self.term(*position, source);
            for (key, version) in versions {
                self.change(*key, *version, Left::Put(None), source);
            }
        }
        let source = Source::Told(watch.watcher);
        let positions = watch.began.into_iter().chain(watch.marks.iter().map(|mark| mark.through));
        for position in positions {
            self.term(position, source);
        }
        for told in &watch.told {
            self.term(told.at, source);
            self.change(told.key, told.at.index, told.left, source);
            self.claim(told.key, told.at.index.saturating_sub(1), told.previous, source);
        }
    }

    /// Adds what somebody found behind an index: these versions, and no other key in the scope.
    fn all_keys(
        &mut self,
        scope: Scope,
        index: Version,
        versions: &BTreeMap<GroupKey, Version>,
        source: Source,
    ) {
        let known = self.changes.keys().chain(versions.keys()).copied();
        let keys: BTreeSet<GroupKey> = known.filter(|key| scope.has(*key)).collect();
        for key in keys {
            self.claim(key, index, versions.get(&key).copied(), source);
        }
    }

    /// Of a write of which one put is known to be there, all puts are.
    fn whole_writes(&mut self) {
        let mut others = Vec::new();
        let known = self.changes.values().flatten();
        for (index, (left, _)) in known {
            let Left::Put(Some(value)) = left else { continue };
            let Some(writer) = self.writers.get(value).filter(|writer| writer.is_open()) else {
                continue;
            };
            let puts = last_changes(writer).into_iter().filter(|(_, (left, _))| is_put(*left));
            others.extend(puts.map(|(key, (left, _))| ((writer.group, key), *index, left)));
        }
        for (key, index, left) in others {
            self.change(key, index, left, Source::SameWrite);
        }
    }

    fn change(&mut self, key: GroupKey, index: Version, left: Left, source: Source) {
        let of_key = self.changes.entry(key).or_default();
        let (known, by) = of_key.entry(index).or_insert((left, source));
        match (*known, left) {
            (Left::Put(None), Left::Put(Some(_))) => *known = left,
            (Left::Put(Some(_)), Left::Put(None)) => {}
            (one, other) if one == other => {}
            (one, other) => {
                let (group, key) = key;
                self.wrong.push(format!(
                    "{index} left {one:?} of key {group}/{key} by {by}, and {other:?} by {source}"
                ));
            }
        }
    }

    fn claim(&mut self, key: GroupKey, index: Version, version: Option<Version>, source: Source) {
        if let Some(version) = version {
            if version > index {
                let (group, key) = key;
                self.wrong.push(format!(
                    "key {group}/{key} has version {version} behind {index} by {source}"
                ));
                return;
            }
            self.change(key, version, Left::Put(None), source);
        }
        self.claims.push(Claim { key, index, version, source });
    }

    fn term(&mut self, position: Position, source: Source) {
        let Position { term, index } = position;
        // A member that has applied nothing has no entry to name.
        if index == 0 {
            return;
        }
        let (known, by) = *self.terms.entry(index).or_insert((term, source));
        if known != term {
            self.wrong.push(format!(
                "entry {index} is of term {known} by {by}, and of term {term} by {source}"
            ));
        }
    }

    /// What cannot be true together.
    pub(super) fn contradictions(&self, watches: &[Watched]) -> Vec<String> {
        let mut found: Vec<String> = self.wrong.iter().take(TOLD_MOST).cloned().collect();
        let terms = self.terms.iter().zip(self.terms.iter().skip(1));
        let falling = terms.filter(|((_, (before, _)), (_, (after, _)))| after < before);
        found.extend(falling.take(TOLD_MOST).map(|((earlier, _), (later, (_, by)))| {
            format!("the term falls from entry {earlier} to entry {later}, by {by}")
        }));
        found.extend(self.values_at_two_entries().into_iter().take(TOLD_MOST));
        let untrue = self.claims.iter().filter_map(|claim| self.why_untrue(claim, watches));
        found.extend(untrue.take(TOLD_MOST));
        found
    }

    /// A write that was applied, or told, twice.
    fn values_at_two_entries(&self) -> Vec<String> {
        let mut first = BTreeMap::new();
        let mut wrong = Vec::new();
        for (key, changes) in &self.changes {
            for (index, (left, source)) in changes {
                let Left::Put(Some(value)) = left else { continue };
                let known = *first.entry(*value).or_insert((*key, *index));
                if known != (*key, *index) {
                    let ((group, number), (other, earlier)) = (key, known);
                    wrong.push(format!(
                        "value {value} of key {other:?} at {earlier} is that of {group}/{number} at {index}, too, by {source}"
                    ));
                }
            }
        }
        wrong
    }

    fn why_untrue(&self, claim: &Claim, watches: &[Watched]) -> Option<String> {
        let Claim { key, index, version, source } = claim;
        let (last, (left, by)) = self.changes.get(key)?.range(..=*index).next_back()?;
        let untrue = match version {
            Some(version) => last > version,
            None => is_put(*left) && watches.iter().any(|watch| watch.covers(*key, *last, *index)),
        };
        let (group, key) = key;
        untrue.then(|| {
            format!(
                "key {group}/{key} has version {version:?} behind {index} by {source}, and {last} left {left:?} by {by}"
            )
        })
    }

    /// What a watch did not tell, though it says to be behind that.
    pub(super) fn missed(&self, watch: &Watched) -> Vec<String> {
        let (Some(began), Some(through)) = (watch.began, watch.through()) else {
            return Vec::new();
        };
        if through.index <= began.index {
            return Vec::new();
        }
        let within = began.index.saturating_add(1)..=through.index;
        let told: BTreeSet<(GroupKey, Version)> =
            watch.told.iter().map(|told| (told.key, told.at.index)).collect();
        let mut found = Vec::new();
        for (key, changes) in self.changes.iter().filter(|(key, _)| watch.scope.has(**key)) {
            for (index, (left, by)) in changes.range(within.clone()) {
                if !told.contains(&(*key, *index)) {
                    let ((group, key), through) = (key, at(through));
                    found.push(format!(
                        "{} is at {through} and did not tell {left:?} of key {group}/{key} at {index}, by {by}",
                        name(watch)
                    ));
                }
            }
        }
        for record in self.answered.range(within).map(|(_, record)| *record) {
            found.extend(wrong_count(record, watch, &told));
        }
        found
    }

    /// Why nothing explains what was told.
    pub(super) fn why_wrong(&self, told: &Told) -> Option<String> {
        if let Some(record) = self.answered.get(&told.at.index) {
            return contradiction(record, told).map(|why| format!("{why}: {record}"));
        }
        let known = self.changes.get(&told.key).and_then(|of_key| of_key.get(&told.at.index));
        let left = known.map_or(told.left, |(left, _)| *left);
        if let Left::Put(Some(value)) = left {
            match self.writers.get(&value) {
                None => return Some("no client put that value".to_owned()),
                Some(writer) if !writer.is_open() => {
                    return Some(format!("its write has another outcome: {writer}"));
                }
                Some(_) => {}
            }
        }
        let is_explained = self.open.iter().any(|record| may_leave(record, told, left));
        (!is_explained).then(|| "no request explains it".to_owned())
    }
}

fn is_put(left: Left) -> bool {
    matches!(left, Left::Put(_))
}

/// What a write leaves of each key that it puts or deletes, by its last operation on the key, and the number of
/// that operation.
fn last_changes(record: &Record) -> BTreeMap<Key, (Left, usize)> {
    let Action::Write(operations) = &record.action else { return BTreeMap::new() };
    let changes = operations.iter().enumerate().filter_map(|(number, operation)| {
        let left = match operation.change {
            Change::Put(value) => Left::Put(Some(value)),
            Change::Delete => Left::Deleted,
            Change::Check => return None,
        };
        Some((operation.key, (left, number)))
    });
    changes.collect()
}

/// Whether a write of unknown outcome, sent before this was told, may have left this.
fn may_leave(record: &Record, told: &Told, left: Left) -> bool {
    let (group, key) = told.key;
    let by_operation = last_changes(record).get(&key).is_some_and(|(may, _)| match left {
        Left::Put(None) => is_put(*may),
        _ => *may == left,
    });
    let by_range = left == Left::Deleted && record.perhaps_deleted().contains(&key);
    record.group == group && record.invoked < told.when && (by_operation || by_range)
}

/// What contradicts the answer to the write at the same index.
fn contradiction(record: &Record, told: &Told) -> Option<&'static str> {
    let (group, key) = told.key;
    if record.group != group {
        return Some("that entry is of another group");
    }
    match (&record.action, &record.outcome) {
        (Action::DeleteRange(spec), Outcome::RangeDeleted { .. }) => {
            let is_one = spec.keys().contains(&key) && told.left == Left::Deleted;
            (!is_one).then_some("that entry deleted a range")
        }
        (_, Outcome::Applied { previous, .. }) => {
            let changes = last_changes(record);
            let Some((left, number)) = changes.get(&key) else {
                return Some("that entry does not change the key");
            };
            let before = previous.get(*number).copied().flatten();
            match (told.left, left) {
                (Left::Put(None), Left::Put(_)) => {}
                (one, other) if one == *other => {}
                _ => return Some("that entry left something else"),
            }
            if *left == Left::Deleted && before.is_none() {
                return Some("there was nothing to delete");
            }
            (before != told.previous).then_some("the key had another version before")
        }
        _ => Some("nothing was changed there"),
    }
}

/// Whether a watch told other keys of a deleted range than its answer counts.
fn wrong_count(
    record: &Record,
    watch: &Watched,
    told: &BTreeSet<(GroupKey, Version)>,
) -> Option<String> {
    let (Action::DeleteRange(spec), Outcome::RangeDeleted { index, deleted, .. }) =
        (&record.action, &record.outcome)
    else {
        return None;
    };
    let in_range = |key: &Key| watch.scope.has((record.group, *key));
    let count = spec.keys().filter(|key| told.contains(&((record.group, *key), *index))).count();
    let wrong = match spec.keys().all(|key| in_range(&key)) {
        true => count != *deleted,
        false => count > *deleted,
    };
    wrong.then(|| format!("{} tells {count} deleted keys of {record}", name(watch)))
}
