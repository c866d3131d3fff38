//! An acknowledged write is there at the end of the run, unless a later write replaced it.
//!
//! Linearizability of the final reads implies this. The check is kept because it needs no search
//! and names the lost write.

use crate::Violation;
use crate::history::{Action, Change, History, Key, Record, Version, WriteOperation};
use std::collections::BTreeMap;

/// The property's name.
pub const NAME: &str = "acknowledged";

/// What the cluster answered for every key after the faults: its version, or `None` if it is
/// absent.
pub type FinalKeys = BTreeMap<(u32, Key), Option<Version>>;

/// Checks the history against the final reads.
pub fn check(history: &History, end: &FinalKeys) -> Vec<Violation> {
    let mut violations = Vec::new();
    for ((group, key), (version, change, record)) in last_acknowledged(history) {
        let Some(found) = end.get(&(group, key)) else {
            violations
                .push(Violation::new(NAME, format!("key {group}/{key} was not read at the end")));
            continue;
        };
        let fine = match (change, found) {
            (Change::Put(_), Some(found)) => *found >= version,
            (_, Some(found)) => *found > version,
            (Change::Put(_), None) => perhaps_deleted(history, group, key, version),
            (_, None) => true,
        };
        if !fine {
            violations.push(Violation::new(
                NAME,
                format!("{record} is lost: the key's end is {found:?}"),
            ));
        }
    }
    violations
}

/// Per key, the acknowledged change with the highest log index.
fn last_acknowledged(history: &History) -> BTreeMap<(u32, Key), (Version, Change, &Record)> {
    let mut last: BTreeMap<(u32, Key), (Version, Change, &Record)> = BTreeMap::new();
    for record in history.records() {
        let Some((_, index)) = record.log_id() else { continue };
        let operations: &[WriteOperation] = match &record.action {
            Action::Write(operations) => operations,
            _ => &[],
        };
        let changes = operations.iter().map(|operation| (operation.key, operation.change));
        let deleted = record.surely_deleted().map(|key| (key, Change::Delete));
        for (key, change) in changes.chain(deleted).filter(|(_, change)| *change != Change::Check) {
            let at = (record.group, key);
            if last.get(&at).is_none_or(|(version, _, _)| *version <= index) {
                last.insert(at, (index, change, record));
            }
        }
    }
    last
}

/// Whether a delete of unknown outcome may have removed the key after this version, or the deletion of a
/// range of which nobody was told which keys went.
fn perhaps_deleted(history: &History, group: u32, key: Key, version: Version) -> bool {
    let mut records = history.records().iter().filter(|record| record.group == group);
    records.any(|record| match &record.action {
        Action::Write(operations) if record.is_open() => operations
            .iter()
            .any(|operation| operation.key == key && operation.change == Change::Delete),
        Action::DeleteRange(_) => {
            let later = record.index().is_none_or(|index| index > version);
            later && record.perhaps_deleted().contains(&key)
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Condition, Outcome, RangeSpec};

    fn write(change: Change, index: Option<Version>) -> Record {
        let outcome = match index {
            Some(index) => Outcome::Applied { index, term: 1, previous: vec![None] },
            None => Outcome::Unknown,
        };
        let action =
            Action::Write(vec![WriteOperation { key: 0, change, condition: Condition::None }]);
        Record { client: 0, group: 0, action, synced: false, invoked: 0, returned: 1, outcome }
    }

    fn lost(records: Vec<Record>, end: Option<Version>) -> bool {
        let end = BTreeMap::from([((0, 0), end), ((0, 1), None), ((0, 2), None)]);
        !check(&History::new(records), &end).is_empty()
    }

    #[test]
    fn an_acknowledged_put_is_there_or_was_replaced() {
        assert!(!lost(vec![write(Change::Put(1), Some(5))], Some(5)));
        assert!(!lost(vec![write(Change::Put(1), Some(5))], Some(8)));
        assert!(lost(vec![write(Change::Put(1), Some(5))], Some(4)));
        assert!(lost(vec![write(Change::Put(1), Some(5))], None));
        assert!(!lost(vec![write(Change::Put(1), Some(5)), write(Change::Delete, None)], None));
        assert!(!lost(vec![write(Change::Put(1), Some(5)), write(Change::Delete, Some(6))], None));
        assert!(lost(
            vec![write(Change::Put(1), Some(5)), write(Change::Delete, Some(6))],
            Some(5)
        ));
    }

    /// The deletion of a range with key 0 in it, and whether it says that there were more keys.
    fn range(index: Option<Version>, more: bool) -> Record {
        let outcome = match index {
            Some(index) => Outcome::RangeDeleted { index, term: 1, deleted: 1, more },
            None => Outcome::Unknown,
        };
        let action = Action::DeleteRange(RangeSpec { from: 0, until: 3, most: 1, whole: false });
        Record { action, outcome, ..write(Change::Check, None) }
    }

    #[test]
    fn a_deleted_range_leaves_none_of_its_keys_and_first_keys_of_one_excuse_a_missing_key() {
        let put = || write(Change::Put(1), Some(5));
        assert!(lost(vec![put(), range(Some(6), false)], Some(5)));
        assert!(!lost(vec![put(), range(Some(6), false)], None));
        assert!(!lost(vec![put(), range(Some(6), false)], Some(7)));
        assert!(!lost(vec![put(), range(Some(6), true)], None));
        assert!(!lost(vec![put(), range(Some(6), true)], Some(5)));
        assert!(lost(vec![put(), range(Some(4), true)], None), "it was before the put");
        assert!(lost(vec![put(), range(Some(4), false)], None), "it was before the put");
        assert!(!lost(vec![put(), range(None, true)], None));
    }
}
