//! How far back a history goes, and what it says of positions.

use super::*;
use crate::core::codec;
use crate::core::command::{Command, Condition, Operation, RANGE_KEYS_MAX};

fn id(term: u64, index: u64) -> LogId {
    LogId { term, index }
}

const UNBOUNDED: Retention =
    Retention { bytes: u64::MAX, entries: u64::MAX, time: Duration::from_secs(3600) };

/// Entries of ten bytes each. The one with index `i` found version `i + 1000`.
fn add(history: &History, term: u64, indexes: std::ops::Range<u64>) {
    history.applied(indexes.map(|index| (id(term, index), Effect::One(index + 1000), 10)));
}

/// A history that begins behind entry 1-9, and has 1-10 to 1-14 and 2-15 to 2-19.
fn of_two_terms() -> History {
    let history = History::default();
    history.restart(Some(id(1, 9)));
    add(&history, 1, 10..15);
    add(&history, 2, 15..20);
    history
}

/// The entries behind this one.
fn told(history: &History, after: LogId) -> Result<Vec<LogId>, HistoryError> {
    let behind = history.behind(after, usize::MAX, None, &[])?;
    for (id, effect) in &behind {
        assert_eq!(*effect, Effect::One(id.index + 1000), "that of {id}");
    }
    Ok(behind.into_iter().map(|(id, _)| id).collect())
}

fn status(history: &History) -> (Option<LogId>, u64, u64) {
    let HistoryStatus { oldest, entries, bytes, .. } = history.status(runtime::now());
    (oldest, entries, bytes)
}

#[test]
fn an_entry_of_one_operation_takes_24_bytes() {
    assert_eq!(size_of::<Recorded>(), 24);
    assert_eq!(Effect::of([7].into_iter()), Effect::One(7));
    let each = |found: &[u64]| Effect::Each(Arc::new(found.to_vec()));
    assert_eq!(Effect::of([7, UNCHANGED].into_iter()), each(&[7, UNCHANGED]));
    assert!(Effect::of([UNCHANGED; 3].into_iter()).is_nothing(), "not one for each operation");
    assert!(Effect::of([0; 0].into_iter()).is_nothing());
    assert!(Effect::of_range(vec![]).is_nothing());
}

#[test]
fn each_entry_behind_a_position_is_told_in_order_with_its_term() {
    let history = of_two_terms();
    let all = || (10..15).map(|index| id(1, index)).chain((15..20).map(|index| id(2, index)));
    for (number, after) in [id(1, 9)].into_iter().chain(all()).enumerate() {
        assert_eq!(told(&history, after), Ok(all().skip(number).collect()), "behind {after}");
        let by_index = told(&history, id(0, after.index));
        assert_eq!(by_index, told(&history, after), "whichever entry has that index");
    }
    let some = history.behind(id(1, 12), 3, None, &[]).unwrap();
    let some: Vec<LogId> = some.into_iter().map(|(id, _)| id).collect();
    assert_eq!(some, [id(1, 13), id(1, 14), id(2, 15)]);
}

#[test]
fn a_position_that_is_no_longer_kept_and_one_of_another_history_are_told_apart() {
    let history = of_two_terms();
    let compacted =
        |after| Err(HistoryError::Compacted { after, oldest: id(1, 9), now: id(2, 19) });
    let discarded = |after| Err(HistoryError::Discarded { after });
    for after in [id(1, 8), id(1, 0), id(0, 3)] {
        assert_eq!(told(&history, after), compacted(after), "behind {after}");
    }
    // Terms never fall along a log.
    for after in [id(2, 8), id(2, 9), id(2, 14), id(1, 15), id(3, 19), id(1, 20), id(1, 500)] {
        assert_eq!(told(&history, after), discarded(after), "behind {after}");
    }
    for after in [id(2, 20), id(3, 20), id(2, 500), id(0, 20)] {
        assert_eq!(told(&history, after), Err(HistoryError::Ahead { after }), "behind {after}");
    }
    // The log still has what the history let go.
    let behind = |after, there| history.behind(after, 1, there, &[]).map(|_| Vec::new());
    assert_eq!(behind(id(1, 5), Some(id(1, 5))), compacted(id(1, 5)));
    assert_eq!(behind(id(1, 5), Some(id(2, 5))), discarded(id(1, 5)));
}

/// The story: an unsafe recovery gave indexes to other entries. A version that somebody had noted
/// before, without its term, may be of either history. It was taken for an entry of the new one as soon
/// as that had its index, which may be far behind the recovery's record.
#[test]
fn an_index_alone_is_no_position_once_there_was_an_unsafe_recovery() {
    let history = of_two_terms();
    let behind = |after, recovered: &[LogId]| history.behind(after, 1, None, recovered).map(drop);
    let recovered = [id(2, 16)];
    for after in [id(0, 3), id(0, 12), id(0, 16), id(0, 17), id(0, 19), id(0, 500)] {
        let discarded = Err(HistoryError::Discarded { after });
        assert_eq!(behind(after, &recovered), discarded, "behind {after}");
        assert_ne!(behind(after, &[]), discarded, "there is one history");
    }
    for after in [id(1, 12), id(2, 17)] {
        assert_eq!(behind(after, &recovered), Ok(()), "a term says which history it is");
    }
}

/// The story: there were two unsafe recoveries, and only the record of the second one was looked at. What
/// the first one had discarded was told to be no longer kept, as was what lay between the end of the
/// second one's log and its record.
#[test]
fn a_position_before_all_that_is_kept_is_told_apart_by_the_records_of_all_unsafe_recoveries() {
    let history = History::default();
    history.restart(Some(id(9, 99)));
    // For each: what it kept, the beginning of its term, and its record.
    let recovered = [id(2, 40), id(5, 41), id(5, 43), id(6, 90), id(8, 91), id(8, 92)];
    let behind = |after| history.behind(after, 1, None, &recovered).map(drop);
    let (oldest, now) = (id(9, 99), id(9, 99));
    let history_kept =
        [id(1, 10), id(2, 40), id(5, 42), id(5, 60), id(6, 90), id(8, 91), id(8, 95)];
    for after in history_kept {
        assert_eq!(behind(after), Err(HistoryError::Compacted { after, oldest, now }), "{after}");
    }
    let first = [id(2, 41), id(3, 39), id(3, 42), id(4, 60)];
    let second = [id(6, 91), id(7, 92), id(5, 91), id(7, 98), id(8, 90)];
    for after in first.into_iter().chain(second) {
        assert_eq!(behind(after), Err(HistoryError::Discarded { after }), "{after}");
    }
}

#[test]
fn more_bytes_or_entries_than_are_retained_make_it_begin_later() {
    let history = of_two_terms();
    let now = runtime::now();
    history.retain(&UNBOUNDED, now);
    assert_eq!(status(&history), (Some(id(1, 9)), 10, 100));
    history.retain(&Retention { bytes: 79, ..UNBOUNDED }, now);
    assert_eq!(status(&history), (Some(id(1, 12)), 7, 70));
    history.retain(&Retention { entries: 3, ..UNBOUNDED }, now);
    assert_eq!(status(&history), (Some(id(2, 16)), 3, 30));
    assert_eq!(told(&history, id(2, 16)), Ok((17..20).map(|index| id(2, index)).collect()));
    let after = id(2, 15);
    let compacted = HistoryError::Compacted { after, oldest: id(2, 16), now: id(2, 19) };
    assert_eq!(told(&history, after), Err(compacted));
    // A value that is larger than all that is retained is told to those who follow closely.
    history.retain(&Retention { bytes: 1, entries: 0, ..UNBOUNDED }, now);
    assert_eq!(status(&history), (Some(id(2, 18)), 1, 10));
}

#[test]
fn what_was_applied_longer_ago_than_is_retained_goes() {
    let history = of_two_terms();
    let begin = runtime::now();
    let at = |seconds| begin + Duration::from_secs(seconds);
    let most = Retention { time: Duration::from_secs(256), ..UNBOUNDED };
    history.retain(&most, at(0));
    add(&history, 2, 20..30);
    history.retain(&most, at(100));
    add(&history, 3, 30..40);
    history.retain(&most, at(250));
    assert_eq!(status(&history), (Some(id(1, 9)), 30, 300));
    assert!(history.status(at(250)).age >= Duration::from_secs(250), "since it began");
    history.retain(&most, at(257));
    assert_eq!(status(&history), (Some(id(2, 19)), 20, 200));
    assert_eq!(
        history.status(at(260)).age,
        Duration::from_secs(260),
        "applied after the first look"
    );
    history.retain(&most, at(357));
    assert_eq!(status(&history), (Some(id(2, 29)), 10, 100));
    // Nothing comes any more.
    for seconds in [507, 2000, 4000] {
        history.retain(&most, at(seconds));
        assert_eq!(status(&history), (Some(id(3, 39)), 0, 0));
        assert_eq!(history.status(at(seconds)).age, Duration::ZERO);
        assert_eq!(told(&history, id(3, 39)), Ok(Vec::new()), "it goes on from there");
    }
    add(&history, 3, 40..42);
    assert_eq!(told(&history, id(3, 39)), Ok(vec![id(3, 40), id(3, 41)]));
    assert!(history.kept.lock().marks.len() <= 2);
}

/// One look is as good as many: marks are made for steps of time, and not for each look.
#[test]
fn marks_of_time_are_few_however_often_it_is_looked_at() {
    let history = of_two_terms();
    let begin = runtime::now();
    let most = Retention { time: Duration::from_secs(256), ..UNBOUNDED };
    for tenth in 0..10_000 {
        add(&history, 2, 20 + tenth..21 + tenth);
        history.retain(&most, begin + Duration::from_millis(tenth * 100));
    }
    let marks = history.kept.lock().marks.len();
    assert!(marks <= 258, "{marks}");
    let (_, entries, _) = status(&history);
    assert!((2560..2600).contains(&entries), "{entries}");
}

#[test]
fn it_begins_no_earlier_than_the_log_which_waits_for_it_in_steps() {
    let history = of_two_terms();
    let now = runtime::now();
    history.retain(&UNBOUNDED, now);
    assert_eq!(history.held_after(), Some(9));
    history.cut(id(1, 8));
    assert_eq!(status(&history), (Some(id(1, 9)), 10, 100), "the log has more");
    history.cut(id(1, 10));
    history.retain(&UNBOUNDED, now);
    assert_eq!(status(&history), (Some(id(1, 10)), 9, 90));
    assert_eq!(history.held_after(), Some(9), "one entry is worth no purge");
    history.retain(&Retention { entries: 7, ..UNBOUNDED }, now);
    assert_eq!(history.held_after(), Some(12));
    // All of it, and more than is applied again yet.
    history.cut(id(2, 22));
    assert_eq!(status(&history), (Some(id(2, 22)), 0, 0));
    history.retain(&UNBOUNDED, now);
    assert_eq!(history.held_after(), Some(22));
    let after = id(2, 22);
    assert_eq!(told(&history, after), Err(HistoryError::Ahead { after }));
    add(&history, 2, 20..25);
    assert_eq!(told(&history, after), Ok(vec![id(2, 23), id(2, 24)]));
}

/// The story: large values were followed by many small ones. The log waited for an eighth of the entries
/// more than were kept, which were all of the large ones: twice the bytes that it should have.
#[test]
fn the_log_waits_for_an_eighth_of_the_bytes_more_at_most_whatever_the_entries_have() {
    let history = History::default();
    history.restart(Some(id(1, 9)));
    let apply = |indexes: std::ops::Range<u64>, bytes| {
        history.applied(indexes.map(|index| (id(1, index), Effect::One(0), bytes)));
    };
    let most = Retention { bytes: 256 << 20, ..UNBOUNDED };
    let now = runtime::now();
    apply(10..266, 1 << 20);
    history.retain(&most, now);
    assert_eq!(history.held_after(), Some(9));
    let mut moves = 0;
    for round in 1..=256 {
        let held = history.held_after().unwrap();
        apply(266 + (round - 1) * 1024..266 + round * 1024, 1 << 10);
        history.retain(&most, now);
        let now_held = history.held_after().unwrap();
        moves += u64::from(now_held > held);
        let large = 265_u64.saturating_sub(now_held) << 20;
        let small = (265 + round * 1024 - now_held.max(265)) << 10;
        assert!(large + small <= (256 + 32) << 20, "after {round}: {large} and {small} bytes");
    }
    assert!((2..=9).contains(&moves), "{moves} steps");
}

/// The story: entries were purged before a restart, and had to be applied again. Nothing is recorded of
/// them, nor where their terms begin.
#[test]
fn nothing_is_known_of_entries_that_are_applied_again_after_their_purge() {
    let history = History::default();
    history.restart(Some(id(3, 9)));
    add(&history, 3, 10..12);
    history.cut(id(5, 20));
    add(&history, 4, 12..16);
    add(&history, 5, 16..23);
    let (oldest, now) = (id(5, 20), id(5, 22));
    for after in [id(4, 13), id(5, 19), id(3, 11)] {
        assert_eq!(told(&history, after), Err(HistoryError::Compacted { after, oldest, now }));
    }
    assert_eq!(told(&history, oldest), Ok(vec![id(5, 21), id(5, 22)]));
}

#[test]
fn it_begins_anew_behind_a_snapshot_and_where_entries_are_missing() {
    let history = of_two_terms();
    history.restart(Some(id(4, 12)));
    assert_eq!(status(&history), (Some(id(4, 12)), 0, 0));
    add(&history, 4, 13..15);
    assert_eq!(told(&history, id(4, 12)), Ok(vec![id(4, 13), id(4, 14)]));
    let after = id(2, 19);
    assert_eq!(
        told(&history, after),
        Err(HistoryError::Discarded { after }),
        "of what it replaced"
    );
    add(&history, 4, 20..22);
    assert_eq!(status(&history), (Some(id(4, 20)), 1, 10), "nobody knows what 15 to 19 changed");
}

#[test]
fn the_history_of_a_new_cluster_begins_with_its_first_change() {
    let history = History::default();
    assert_eq!(history.held_after(), None);
    let first = |effect| [(id(1, 0), effect, 10)];
    history.applied(first(Effect::default()));
    add(&history, 1, 1..4);
    assert_eq!(status(&history), (Some(id(1, 0)), 3, 30));
    assert_eq!(told(&history, id(1, 0)), Ok((1..4).map(|index| id(1, index)).collect()));
    // An engine that is used without Raft's first entry.
    let history = History::default();
    history.applied(first(Effect::One(1000)));
    add(&history, 1, 1..4);
    assert_eq!(status(&history), (None, 4, 40));
    assert_eq!(told(&history, id(1, 0)), Ok((1..4).map(|index| id(1, index)).collect()));
    history.retain(&UNBOUNDED, runtime::now());
    assert_eq!(history.held_after(), None);
}

fn put(key: &'static str, value: &'static str) -> Operation {
    Operation::Put { key: key.into(), value: value.into(), condition: Condition::None }
}

fn delete(key: &'static str) -> Operation {
    Operation::Delete { key: key.into(), condition: Condition::None }
}

fn range(start: &'static str, end: &'static str) -> Operation {
    Operation::DeleteRange { start: start.into(), end: end.into(), most: 10, whole: false }
}

/// Key, number of the value, version before.
type Told = (&'static str, Option<usize>, Option<u64>);

#[track_caller]
fn assert_changes(operations: Vec<Operation>, effect: &Effect, expected: &[Told]) {
    let lengths: Vec<u32> = operations
        .iter()
        .filter_map(Operation::value)
        .map(|value| value.bytes().len() as u32)
        .collect();
    let command = Command { synced: false, session: None, operations };
    let meta = codec::encode_command(command, 1).meta;
    let changes = changes_of(&meta, &lengths, effect).unwrap();
    let expected: Vec<KeyChange> = expected
        .iter()
        .map(|(key, number, previous)| KeyChange {
            key: (*key).into(),
            value: number.map(|number| LoggedValue { number, bytes: lengths[number] }),
            previous: *previous,
        })
        .collect();
    assert_eq!(changes, expected);
}

#[test]
fn an_entry_tells_each_key_once_by_its_last_operation() {
    let check = Operation::Check { key: "c".into(), condition: Condition::Absent };
    let each = |found: &[u64]| Effect::Each(Arc::new(found.to_vec()));
    assert_changes(vec![put("a", "1")], &Effect::One(0), &[("a", Some(0), None)]);
    assert_changes(vec![delete("a")], &Effect::One(7), &[("a", None, Some(7))]);
    assert_changes(vec![put("a", "1")], &Effect::default(), &[]);
    assert_changes(
        vec![put("b", "1"), check, put("a", "22"), delete("b"), put("d", "333")],
        &each(&[5, UNCHANGED, 0, 5, 6]),
        &[("a", Some(1), None), ("b", None, Some(5)), ("d", Some(2), Some(6))],
    );
    // It was not there, and is not there.
    assert_changes(vec![put("a", "1"), delete("a")], &each(&[0, UNCHANGED]), &[]);
    assert_changes(
        vec![delete("a"), put("a", "1"), put("a", "2")],
        &each(&[UNCHANGED, 0, 0]),
        &[("a", Some(1), None)],
    );
}

#[test]
fn an_entry_tells_each_key_of_a_range_that_it_deleted() {
    let check = Operation::Check { key: "z".into(), condition: Condition::Absent };
    let deleted = |keys: &[(&'static str, u64)]| {
        Effect::of_range(keys.iter().map(|(key, version)| ((*key).into(), *version)).collect())
    };
    assert_changes(
        vec![check, range("a", "c")],
        &deleted(&[("a", 7), ("b", 5), ("ba", 6)]),
        &[("a", None, Some(7)), ("b", None, Some(5)), ("ba", None, Some(6))],
    );
    assert_changes(vec![range("", "")], &deleted(&[("a", 7)]), &[("a", None, Some(7))]);
    assert_changes(vec![range("a", "c")], &deleted(&[]), &[]);
}

/// As many keys of such a length as one entry deletes.
fn of_many_keys(key_bytes: usize) -> Effect {
    let keys = Bytes::from(vec![b'k'; key_bytes]);
    Effect::of_range(vec![(keys, 1); RANGE_KEYS_MAX as usize])
}

#[test]
fn the_deleted_keys_of_a_range_count_like_bytes_of_the_log_and_take_8_2_mib_of_an_entry() {
    let most = of_many_keys(2048).deleted_bytes();
    assert_eq!(most, 4096 * (2048 + 40));
    assert_eq!((most * 10).div_ceil(1 << 20), 82, "tenths of a MiB");
    let history = of_two_terms();
    history.applied([(id(2, 20), of_many_keys(60), 10)]);
    assert_eq!(status(&history), (Some(id(1, 9)), 11, 110 + 4096 * 100));
    history.retain(&Retention { bytes: 4096 * 100 + 30, ..UNBOUNDED }, runtime::now());
    assert_eq!(status(&history), (Some(id(2, 17)), 3, 30 + 4096 * 100));
    add(&history, 2, 21..23);
    history.cut(id(2, 20));
    assert_eq!(status(&history), (Some(id(2, 20)), 2, 20), "they went with their entry");
    assert_eq!(history.kept.lock().deleted_bytes, 0);
}

/// Entries of a hundred bytes delete thousands of keys each. The bytes of the log that are retained may be many:
/// as many of keys would not fit into memory.
#[test]
fn the_deleted_keys_of_ranges_are_bounded_whatever_is_retained_of_the_log() {
    let history = History::default();
    history.restart(Some(id(1, 9)));
    let each = of_many_keys(2048).deleted_bytes();
    let fit = DELETED_BYTES_MOST / each;
    for index in 10..10 + fit {
        history.applied([(id(1, index), of_many_keys(2048), 0)]);
    }
    assert_eq!(status(&history), (Some(id(1, 9)), fit, fit * each));
    for index in 10 + fit..20 + fit {
        history.applied([(id(1, index), of_many_keys(2048), 0)]);
        assert_eq!(status(&history), (Some(id(1, index - fit)), fit, fit * each));
    }
    // Entries that are applied together.
    let more = (20 + fit..20 + 3 * fit).map(|index| (id(1, index), of_many_keys(2048), 0));
    history.applied(more);
    assert_eq!(status(&history), (Some(id(1, 19 + 2 * fit)), fit, fit * each));
}

#[test]
fn a_record_that_does_not_fit_what_was_applied_is_an_error() {
    let command = Command { synced: false, session: None, operations: vec![put("a", "1")] };
    let meta = codec::encode_command(command, 1).meta;
    let each = Effect::of([1, 2].into_iter());
    assert!(changes_of(&meta, &[1], &each).is_err(), "other operations");
    assert!(changes_of(&meta, &[], &Effect::One(1)).is_err(), "no value");
    let record = codec::encode_version(2).meta;
    assert!(changes_of(&record, &[], &Effect::One(1)).is_err(), "no command");
    assert_eq!(changes_of(&record, &[], &Effect::default()), Ok(Vec::new()));
    let deleted = Effect::of_range(vec![("b".into(), 1)]);
    assert!(changes_of(&meta, &[1], &deleted).is_err(), "no range");
    assert!(changes_of(&record, &[], &deleted).is_err(), "no command");
    let of_range = |start, end| {
        let operations = vec![range(start, end)];
        let command = Command { synced: false, session: None, operations };
        codec::encode_command(command, 1).meta
    };
    for (start, end) in [("a", "b"), ("ba", ""), ("c", "d")] {
        assert!(changes_of(&of_range(start, end), &[], &deleted).is_err(), "{start}..{end}");
    }
    assert!(changes_of(&of_range("b", "c"), &[], &deleted).is_ok());
    assert!(changes_of(&of_range("a", "b"), &[], &Effect::One(1)).is_err(), "no single keys");
}
