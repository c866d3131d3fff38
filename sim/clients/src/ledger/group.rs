//! What is known of one group: the values of the last listing, the earlier writes that may still
//! take effect, and the records since.

use crate::Violation;
use crate::check::acknowledged::FinalKeys;
use crate::check::linearizable::DEFAULT_BUDGET;
use crate::check::{acknowledged, linearizable, provenance};
use crate::history::{
    Action, Change, Condition, GROUP_KEYS, History, Item, Key, Outcome, Record, Version,
    WriteOperation,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The property's name of a fault found after an unsafe recovery.
const NEWEST_ONLY: &str = "an unsafe recovery discards only the newest writes";

pub(super) struct Group {
    /// Writes whose effect is what the last listing showed.
    base: Vec<Record>,
    /// Writes of unknown outcome from before that listing: one set for each way to explain the
    /// answers up to it.
    open: Vec<Vec<Record>>,
    /// The records since the listing.
    records: Vec<Record>,
}

impl Default for Group {
    fn default() -> Group {
        Group { base: Vec::new(), open: vec![Vec::new()], records: Vec::new() }
    }
}

impl Group {
    pub(super) fn add(&mut self, record: Record) {
        self.records.push(record);
    }

    /// How many writes from before the last listing may still take effect.
    pub(super) fn open(&self) -> usize {
        self.open.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// The greatest index of a write that must not be lost, if writes acknowledged since `since`
    /// may be.
    pub(super) fn newest_safe(&self, since: u64) -> Option<Version> {
        let safe =
            self.records.iter().filter(|record| record.is_applied() && is_safe(record, since));
        self.base.iter().chain(safe).filter_map(Record::index).max()
    }

    /// Checks the answers alone.
    pub(super) fn check(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for open in &self.open {
            let history = self.history(open, &self.records, &[]);
            found = linearizable::check(&history, DEFAULT_BUDGET);
            found.extend(provenance::check(&history));
            if found.is_empty() {
                break;
            }
        }
        found
    }

    /// Checks the answers, and a read of all keys that followed them.
    pub(super) fn compare(&mut self, read: &Record) -> Vec<Violation> {
        self.explain(&self.records, read).map_or_else(
            |found| found,
            |open| {
                self.begin_next_piece(read, open, |_| true);
                Vec::new()
            },
        )
    }

    /// Like [`Group::compare`], if the end of the log may be lost, from any write on whose index is
    /// greater than `safe`. Returns how many keys lost something.
    pub(super) fn compare_after_unsafe_recovery(
        &mut self,
        read: &Record,
        since: u64,
        safe: Option<Version>,
    ) -> Result<u64, Vec<Violation>> {
        let before = self.check();
        if !before.is_empty() {
            return Err(before);
        }
        // Even if nothing is missing: a lost write may have left no trace.
        let stays_assigned = |index: Version| Some(index) <= safe;
        if let Ok(open) = self.explain(&self.records, read) {
            self.begin_next_piece(read, open, stays_assigned);
            return Ok(0);
        }
        let may_be_lost = |record: &Record| {
            record.is_applied() && !is_safe(record, since) && record.index() > safe
        };
        let mut young: Vec<Record> =
            self.records.iter().filter(|r| may_be_lost(r)).cloned().collect();
        young.sort_by_key(Record::index);
        // Reads since then may have seen what is lost; they were checked above.
        let stays =
            |r: &Record| r.is_open() || is_safe(r, since) || r.is_applied() && !may_be_lost(r);
        let mut kept: Vec<Record> =
            self.records.iter().filter(|record| stays(record)).cloned().collect();
        let (mut open, mut lost, mut unexplained) = (Vec::new(), None, None);
        for survivors in 0..=young.len() {
            match self.explain(&kept, read) {
                Ok(sets) => {
                    open.extend(sets);
                    let keys =
                        young.iter().skip(survivors).flat_map(written).collect::<BTreeSet<Key>>();
                    // If there is none, the loss is a write of unknown outcome that a client had
                    // read.
                    lost = Some(keys.len().max(1) as u64);
                }
                Err(found) => drop(unexplained.get_or_insert(found)),
            }
            kept.extend(young.get(survivors).cloned());
        }
        let discarded = |found: Violation| Violation::new(NEWEST_ONLY, found.to_string());
        let wrong = || unexplained.into_iter().flatten().map(discarded).collect::<Vec<_>>();
        let lost = lost.ok_or_else(wrong)?;
        self.begin_next_piece(read, widest(open), stays_assigned);
        Ok(lost)
    }

    fn history(&self, open: &[Record], records: &[Record], read: &[Record]) -> History {
        History::new([&self.base, open, records, read].concat())
    }

    /// For each way to explain these answers and the following read of all keys, the writes that
    /// may still take effect.
    fn explain(
        &self,
        records: &[Record],
        read: &Record,
    ) -> Result<Vec<Vec<Record>>, Vec<Violation>> {
        let (mut sets, mut found) = (Vec::new(), Vec::new());
        for open in &self.open {
            let history = self.history(open, records, std::slice::from_ref(read));
            let mut wrong = acknowledged::check(&history, &end(read));
            wrong.extend(provenance::check(&history));
            match linearizable::open_after(&history, DEFAULT_BUDGET) {
                Ok(more) if wrong.is_empty() => sets.extend(more),
                Ok(_) => {}
                Err(violation) => wrong.push(violation),
            }
            found = wrong;
        }
        if sets.is_empty() { Err(found) } else { Ok(widest(sets)) }
    }

    /// Begins the group's next piece with the result of this read, and drops what is not needed any
    /// more. An index that does not stay assigned may be that of a lost write.
    fn begin_next_piece(
        &mut self,
        read: &Record,
        open: Vec<Vec<Record>>,
        stays_assigned: impl Fn(Version) -> bool,
    ) {
        let mut writes = BTreeMap::<Version, Vec<(WriteOperation, Option<Version>)>>::new();
        let operation = |key, change| WriteOperation { key, change, condition: Condition::None };
        for Item { key, value, version } in listed(read) {
            let put = value.map(|value| (operation(*key, Change::Put(value)), None));
            writes.entry(*version).or_default().extend(put);
        }
        // Later writes have greater indexes than all earlier ones, also than a delete's, which
        // leaves no key.
        let shown =
            |record: &Record| record.seen().into_iter().map(|(_, _, version)| version).max();
        let known =
            self.base.iter().chain(&self.records).map(|record| record.index().max(shown(record)));
        let newest = known.flatten().filter(|index| stays_assigned(*index)).max();
        if let Some(newest) = newest.filter(|newest| writes.keys().all(|version| version < newest))
        {
            let first = listed(read).iter().find(|item| item.key == 0).map(|item| item.version);
            writes.insert(newest, vec![(operation(0, Change::Check), first)]);
        }
        let base = writes.into_iter().map(|(index, writes)| {
            let (operations, previous) = writes.into_iter().unzip();
            Record {
                action: Action::Write(operations),
                invoked: 0,
                returned: 0,
                outcome: Outcome::Applied { index, term: 0, previous },
                ..read.clone()
            }
        });
        self.base = base.collect();
        self.open = open;
        self.records.clear();
    }
}

/// Whether this was answered before `since`, or asked for a sync before its answer.
fn is_safe(record: &Record, since: u64) -> bool {
    record.returned < since || record.synced && record.is_applied()
}

/// The keys that a write may change.
fn written(record: &Record) -> Vec<Key> {
    match &record.action {
        Action::Write(operations) => {
            operations.iter().filter(|one| one.change != Change::Check).map(|one| one.key).collect()
        }
        Action::DeleteRange(spec) => spec.keys().collect(),
        _ => Vec::new(),
    }
}

fn listed(read: &Record) -> &[Item] {
    match &read.outcome {
        Outcome::Listed(items, _) => items,
        _ => &[],
    }
}

/// The result of a read of all keys, as the end of a history.
fn end(read: &Record) -> FinalKeys {
    let found = |key| listed(read).iter().find(|item| item.key == key).map(|item| item.version);
    (0..GROUP_KEYS).map(|key| ((read.group, key), found(key))).collect()
}

/// The sets that are contained in no other.
fn widest(mut sets: Vec<Vec<Record>>) -> Vec<Vec<Record>> {
    sets.sort_by_key(|set| Reverse(set.len()));
    let mut widest: Vec<Vec<Record>> = Vec::new();
    for set in sets {
        if !widest.iter().any(|other| set.iter().all(|record| other.contains(record))) {
            widest.push(set);
        }
    }
    widest
}
