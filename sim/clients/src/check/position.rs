//! A read of several keys, or a scan, tells its log index: it has everything that was acknowledged before it began, or before
//! its bound, in whichever group, and nothing that was sent after its answer.
//!
//! That its values are of one moment is a part of `linearizable`. This check needs no search, and sees what the
//! keys of one group cannot tell.

use super::bounded;
use crate::Violation;
use crate::history::{Action, History, Outcome, Record};

/// The property's name.
pub const NAME: &str = "a read of several keys is of the index that it tells";

/// Checks every read of several keys. Clocks run slower than true time by at most `slow_ppm` parts per million.
pub fn check(history: &History, slow_ppm: u32) -> Vec<Violation> {
    let writes = applied(history);
    let found = history.records().iter().filter_map(|read| contradiction(read, &writes, slow_ppm));
    found.map(|detail| Violation::new(NAME, detail)).collect()
}

/// How many reads within a bound relied on an earlier barrier, as far as their index shows: they lack what was
/// acknowledged before they were sent, which a barrier of their own would have waited for.
pub fn by_an_earlier_barrier(history: &History) -> usize {
    let writes = applied(history);
    let relied = |read: &&Record| {
        matches!(read.action, Action::BoundedGetMany(..))
            && writes.iter().any(|write| is_missed(write, read, read.invoked))
    };
    history.records().iter().filter(relied).count()
}

fn applied(history: &History) -> Vec<&Record> {
    history.records().iter().filter(|record| record.is_applied()).collect()
}

/// Whether a write was acknowledged before this time, and comes behind the index of the read.
fn is_missed(write: &Record, read: &Record, before: u64) -> bool {
    let Outcome::FoundMany(_, at) = &read.outcome else { return false };
    write.returned < before && write.index().is_some_and(|index| index > *at)
}

fn contradiction(read: &Record, writes: &[&Record], slow_ppm: u32) -> Option<String> {
    let Outcome::FoundMany(found, at) = &read.outcome else { return None };
    if found.iter().flatten().any(|(_, version)| version > at) {
        return Some(format!("{read} has a value of later"));
    }
    // The read lacks nothing that was acknowledged before this.
    let since = match &read.action {
        Action::BoundedGetMany(_, most_ms) => bounded::horizon(read, *most_ms, slow_ppm),
        _ => Some(read.invoked),
    };
    writes.iter().find_map(|write| {
        let index = write.index()?;
        if since.is_some_and(|since| is_missed(write, read, since)) {
            return Some(format!("{read} lacks what was acknowledged early enough: {write}"));
        }
        (write.invoked > read.returned && index <= *at)
            .then(|| format!("{read} was answered before it was sent: {write}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Change, Condition, Version, WriteOperation};

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
        let fine = |read: Record| {
            check(&History::new(vec![write(10, 5), write(20, 6), read]), 0).is_empty()
        };
        assert!(fine(read(15, 3, 5)));
        assert!(!fine(read(15, 3, 4)), "it lacks what another group has");
        assert!(!fine(read(15, 3, 6)), "it has what was not sent");
        assert!(fine(read(20, 3, 5)) && fine(read(20, 3, 6)), "at the same time");
        assert!(!fine(read(15, 6, 5)), "a value behind its index");
    }

    #[test]
    fn within_a_bound_it_may_lack_what_was_acknowledged_since_and_shows_it() {
        const MS: u64 = 1_000_000;
        let history = |invoked_ms: u64, at| {
            let action = Action::BoundedGetMany(vec![0, 1], 10);
            let read = Record { action, ..read(invoked_ms * MS, 3, at) };
            History::new(vec![write(2 * MS, 5), write(20 * MS, 6), read])
        };
        let judged = |invoked_ms, at, slow_ppm| {
            let history = history(invoked_ms, at);
            (check(&history, slow_ppm).is_empty(), by_an_earlier_barrier(&history))
        };
        assert_eq!(judged(30, 5, 0), (true, 1), "acknowledged at the bound");
        assert_eq!(judged(31, 5, 0), (false, 1), "acknowledged before the bound");
        assert_eq!(judged(31, 5, 200_000), (true, 1), "its clock may be slow");
        assert_eq!(judged(31, 6, 0), (true, 0));
        assert_eq!(judged(15, 4, 0), (false, 1));
        assert_eq!(judged(5, 4, 0), (true, 1), "the run began within the bound");
        assert_eq!(judged(15, 6, 0), (false, 0), "it has what was not sent");
    }
}
