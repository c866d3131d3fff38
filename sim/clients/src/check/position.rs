//! A read of several keys tells its log index: it has everything that was acknowledged before it began,
//! in whichever group, and nothing that was sent after its answer.
//!
//! That its values are of one moment is a part of `linearizable`. This check needs no search, and sees what the
//! keys of one group cannot tell.

use crate::Violation;
use crate::history::{History, Outcome, Record};

/// The property's name.
pub const NAME: &str = "a read of several keys is of the index that it tells";

/// Checks every read of several keys.
pub fn check(history: &History) -> Vec<Violation> {
    let writes: Vec<&Record> =
        history.records().iter().filter(|record| record.is_applied()).collect();
    let found = history.records().iter().filter_map(|read| contradiction(read, &writes));
    found.map(|detail| Violation::new(NAME, detail)).collect()
}

fn contradiction(read: &Record, writes: &[&Record]) -> Option<String> {
    let Outcome::FoundMany(found, at) = &read.outcome else { return None };
    if found.iter().flatten().any(|(_, version)| version > at) {
        return Some(format!("{read} has a value of later"));
    }
    writes.iter().find_map(|write| {
        let index = write.index()?;
        if write.returned < read.invoked && index > *at {
            return Some(format!("{read} was asked for after it was acknowledged: {write}"));
        }
        (write.invoked > read.returned && index <= *at)
            .then(|| format!("{read} was answered before it was sent: {write}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Action, Change, Condition, Version, WriteOperation};

    fn write(invoked: u64, index: Version) -> Record {
        let operation =
            WriteOperation { key: 0, change: Change::Put(index), condition: Condition::None };
        let outcome = Outcome::Applied { index, term: 1, previous: vec![None] };
        let (returned, action) = (invoked + 1, Action::Write(vec![operation]));
        Record { client: 0, group: 7, action, synced: false, invoked, returned, outcome }
    }

    fn read(invoked: u64, version: Version, at: Version) -> Record {
        let outcome = Outcome::FoundMany(vec![None, Some((1, version))], at);
        let (returned, action) = (invoked + 1, Action::GetMany(vec![0, 1]));
        Record { client: 1, group: 0, action, synced: false, invoked, returned, outcome }
    }

    #[test]
    fn its_index_lies_between_what_was_acknowledged_before_and_what_was_sent_later() {
        let fine =
            |read: Record| check(&History::new(vec![write(10, 5), write(20, 6), read])).is_empty();
        assert!(fine(read(15, 3, 5)));
        assert!(!fine(read(15, 3, 4)), "it lacks what another group has");
        assert!(!fine(read(15, 3, 6)), "it has what was not sent");
        assert!(fine(read(20, 3, 5)) && fine(read(20, 3, 6)), "at the same time");
        assert!(!fine(read(15, 6, 5)), "a value behind its index");
    }
}
