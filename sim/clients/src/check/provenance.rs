//! Every value read, also by stale reads, was put by a request that began before the read ended,
//! and has one version only. A write that was applied twice shows here as one value with two
//! versions.

use crate::Violation;
use crate::history::{History, Key, Value, Version};
use std::collections::BTreeMap;

/// The property's name.
pub const NAME: &str = "provenance";

/// Checks every read.
pub fn check(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut writers: BTreeMap<Value, (u32, Key, u64)> = BTreeMap::new();
    for record in history.records() {
        for (key, value) in record.puts() {
            writers.insert(value, (record.group, key, record.invoked));
        }
    }
    let mut versions: BTreeMap<Value, Version> = BTreeMap::new();
    for record in history.records() {
        for (key, value, version) in record.seen() {
            match writers.get(&value) {
                Some((group, home, begun))
                    if (*group, *home) == (record.group, key) && *begun <= record.returned => {}
                Some(writer) => violations
                    .push(Violation::new(NAME, format!("{record} saw a value of {writer:?}"))),
                None => violations.push(Violation::new(
                    NAME,
                    format!("{record} saw a value that no client wrote"),
                )),
            }
            let first = *versions.entry(value).or_insert(version);
            if first != version {
                let detail = format!(
                    "{record} saw value {value} at version {version}, elsewhere at {first}"
                );
                violations.push(Violation::new(NAME, detail));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Action, Change, Condition, Outcome, Record, WriteOperation};

    fn put(value: Value) -> Record {
        let operation =
            WriteOperation { key: 0, change: Change::Put(value), condition: Condition::None };
        let action = Action::Write(vec![operation]);
        Record {
            client: 1,
            group: 0,
            action,
            synced: false,
            invoked: 5,
            returned: 5,
            outcome: Outcome::Unknown,
        }
    }

    fn stale(invoked: u64, key: Key, value: Value, version: Version) -> Record {
        let outcome = Outcome::Found(Some((value, version)));
        Record {
            client: 2,
            group: 0,
            action: Action::StaleGet(key),
            synced: false,
            invoked,
            returned: invoked + 1,
            outcome,
        }
    }

    fn count(records: Vec<Record>) -> usize {
        check(&History::new(records)).len()
    }

    #[test]
    fn values_come_from_their_writers_and_keep_one_version() {
        assert_eq!(count(vec![put(7), stale(6, 0, 7, 3), stale(9, 0, 7, 3)]), 0);
        assert_eq!(count(vec![put(7), stale(6, 0, 8, 3)]), 1, "no client wrote it");
        assert_eq!(count(vec![put(7), stale(6, 1, 7, 3)]), 1, "another key's value");
        assert_eq!(count(vec![put(7), stale(1, 0, 7, 3)]), 1, "read before it was written");
        assert_eq!(count(vec![put(7), stale(6, 0, 7, 3), stale(9, 0, 7, 4)]), 1, "applied twice");
    }
}
