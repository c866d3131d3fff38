//! A read within a bound lacks nothing that was acknowledged before it: no longer ago than the bound, by the
//! clock of the member that answered, which runs at a rate of its own.
//!
//! What holds here: the times are true ones. A read is judged by the last write of its key that was
//! acknowledged early enough, by the log index that clients were told. A write of unknown outcome may be seen, and
//! excuses a key that is absent if it deletes.

use crate::Violation;
use crate::history::{
    Action, Change, History, Key, Outcome, Record, Value, Version, WriteOperation,
};

/// The property's name.
pub const NAME: &str = "a bounded read is no older than its bound";

/// Parts of the true rate.
const TRUE_RATE: u64 = 1_000_000;
const NS_PER_MS: u64 = 1_000_000;

/// Checks every read within a bound. Clocks run slower than true time by at most `slow_ppm` parts per million.
pub fn check(history: &History, slow_ppm: u32) -> Vec<Violation> {
    let of_group = |records: Vec<&Record>| {
        let reads = records.iter().filter_map(|read| older(read, &records, slow_ppm));
        reads.collect::<Vec<_>>()
    };
    let found = history.by_group().into_values().flat_map(of_group);
    found.map(|detail| Violation::new(NAME, detail)).collect()
}

/// What the read lacks, if it lacks something.
fn older(read: &Record, records: &[&Record], slow_ppm: u32) -> Option<String> {
    match (&read.action, &read.outcome) {
        (Action::BoundedGet(key, most_ms), Outcome::Found(found)) => {
            lacks(read, *key, *found, horizon(read, *most_ms, slow_ppm)?, records)
        }
        (Action::BoundedGetMany(keys, most_ms), Outcome::FoundMany(found, _)) => {
            let horizon = horizon(read, *most_ms, slow_ppm)?;
            let mut found = keys.iter().zip(found);
            found.find_map(|(key, found)| lacks(read, *key, *found, horizon, records))
        }
        _ => None,
    }
}

/// A read within this bound lacks nothing that was acknowledged before this time; `None` if the run had not begun.
pub(super) fn horizon(read: &Record, most_ms: u64, slow_ppm: u32) -> Option<u64> {
    let rate = TRUE_RATE.saturating_sub(u64::from(slow_ppm)).max(1);
    let most = most_ms.saturating_mul(NS_PER_MS).saturating_mul(TRUE_RATE) / rate;
    read.invoked.checked_sub(most)
}

/// The write that what was `found` of a key lacks, if it is older than what was acknowledged before `horizon`.
fn lacks(
    read: &Record,
    key: Key,
    found: Option<(Value, Version)>,
    horizon: u64,
    records: &[&Record],
) -> Option<String> {
    let early = records.iter().filter(|record| record.returned < horizon);
    let early = early.filter_map(|record| Some((changed(record, key)?, record)));
    let ((index, change), write) = early.max_by_key(|((index, _), _)| *index)?;
    let fine = match (found, change) {
        (Some((_, version)), Change::Put(_)) => version >= index,
        (Some((_, version)), _) => version > index,
        (None, Change::Put(_)) => records.iter().any(|one| may_delete(one, key, index, read)),
        (None, _) => true,
    };
    (!fine).then(|| format!("{read} lacks {write}"))
}

/// The index of a write that was applied, and what it left of the key; `None` if it did not change it, or
/// nobody was told whether it did.
fn changed(record: &Record, key: Key) -> Option<(Version, Change)> {
    let (_, index) = record.log_id()?;
    if record.surely_deleted().contains(&key) {
        return Some((index, Change::Delete));
    }
    let Action::Write(operations) = &record.action else { return None };
    // The last operation of a write on a key is the one that stays.
    let mut changes = operations.iter().filter(|one| one.key == key && one.change != Change::Check);
    changes.next_back().map(|one| (index, one.change))
}

/// Whether the write may have deleted the key behind this index, before the read ended.
fn may_delete(record: &Record, key: Key, behind: Version, read: &Record) -> bool {
    if record.invoked > read.returned {
        return false;
    }
    if let Some((index, change)) = changed(record, key) {
        return index > behind && change == Change::Delete;
    }
    match &record.action {
        Action::Write(operations) => {
            let deletes = |one: &WriteOperation| one.key == key && one.change == Change::Delete;
            record.is_open() && operations.iter().any(deletes)
        }
        Action::DeleteRange(_) => {
            let later = record.index().is_none_or(|index| index > behind);
            later && record.perhaps_deleted().contains(&key)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Condition, RangeSpec, Value};

    fn write(invoked_ms: u64, change: Change, index: Option<Version>) -> Record {
        let outcome = match index {
            Some(index) => Outcome::Applied { index, term: 1, previous: vec![None] },
            None => Outcome::Unknown,
        };
        let operation = WriteOperation { key: 0, change, condition: Condition::None };
        let (invoked, returned) = (invoked_ms * NS_PER_MS, (invoked_ms + 1) * NS_PER_MS);
        let action = Action::Write(vec![operation]);
        Record { client: 0, group: 0, action, synced: false, invoked, returned, outcome }
    }

    /// A read within a second.
    fn read(invoked_ms: u64, found: Option<(Value, Version)>) -> Record {
        let action = Action::BoundedGet(0, 1000);
        let (invoked, returned) = (invoked_ms * NS_PER_MS, (invoked_ms + 1) * NS_PER_MS);
        let outcome = Outcome::Found(found);
        Record { client: 1, group: 0, action, synced: false, invoked, returned, outcome }
    }

    /// The deletion of first keys of a range, which begins with the key.
    fn range(invoked_ms: u64, outcome: Outcome) -> Record {
        let action = Action::DeleteRange(RangeSpec { from: 0, until: 2, most: 1, whole: false });
        Record { action, outcome, ..write(invoked_ms, Change::Check, None) }
    }

    /// That it deleted one key, and whether the range had more.
    fn told(index: Version, more: bool) -> Outcome {
        Outcome::RangeDeleted { index, term: 1, deleted: 1, more }
    }

    fn is_fine(writes: &[Record], read: Record, slow_ppm: u32) -> bool {
        check(&History::new([writes, &[read]].concat()), slow_ppm).is_empty()
    }

    #[test]
    fn a_read_may_lack_what_was_acknowledged_within_its_bound_and_nothing_before() {
        let two = [write(0, Change::Put(1), Some(5)), write(2000, Change::Put(2), Some(6))];
        let old = || Some((1, 5));
        assert!(is_fine(&two, read(3000, old()), 0));
        assert!(!is_fine(&two, read(3002, old()), 0), "acknowledged at 2001");
        assert!(is_fine(&two, read(3002, Some((2, 6))), 0));
        assert!(is_fine(&two, read(3250, old()), 200_000), "its clock may be slow");
        assert!(!is_fine(&two, read(3252, old()), 200_000));
        assert!(is_fine(&two, read(500, None), 0));
        assert!(!is_fine(&two, read(1500, None), 0));
        let many = |found| Record {
            action: Action::BoundedGetMany(vec![3, 0], 1000),
            outcome: Outcome::FoundMany(vec![None, found], 9),
            ..read(3002, None)
        };
        assert!(!is_fine(&two, many(old()), 0), "one of several keys");
        assert!(is_fine(&two, many(Some((2, 6))), 0));
    }

    #[test]
    fn a_key_is_absent_only_where_a_delete_may_have_come_behind_what_must_be_there() {
        let put = write(0, Change::Put(1), Some(5));
        for (delete, fine) in [
            (write(1500, Change::Delete, Some(6)), true),
            (write(1500, Change::Delete, None), true),
            (write(1500, Change::Check, None), false),
            (write(9000, Change::Delete, None), false),
            (write(0, Change::Delete, Some(4)), false),
        ] {
            assert_eq!(
                is_fine(&[put.clone(), delete.clone()], read(2000, None), 0),
                fine,
                "{delete}"
            );
        }
        let ranges = [
            (1500, told(6, false), true),
            (1500, told(6, true), true),
            (1500, Outcome::Unknown, true),
            (9000, Outcome::Unknown, false),
            (0, told(4, true), false),
            (0, told(4, false), false),
            (1500, Outcome::RangeTooLarge { index: 6 }, false),
        ];
        for (invoked_ms, outcome, fine) in ranges {
            let deleted = range(invoked_ms, outcome);
            let is_fine = is_fine(&[put.clone(), deleted.clone()], read(2000, None), 0);
            assert_eq!(is_fine, fine, "{deleted}");
        }
        let without = Record { outcome: told(6, false), ..range(0, Outcome::Unknown) };
        assert!(!is_fine(&[put.clone(), without], read(2000, Some((1, 5))), 0), "it was deleted");
        let deleted = [put, write(100, Change::Delete, Some(6))];
        assert!(is_fine(&deleted, read(2000, None), 0));
        assert!(!is_fine(&deleted, read(2000, Some((1, 5))), 0), "it was deleted");
        assert!(is_fine(&deleted, read(2000, Some((7, 9))), 0), "by a write of unknown outcome");
    }
}
