//! Histories that must be accepted, and histories that must be rejected.

use super::*;
use crate::history::{
    Change, Condition, Item, Key, ListSpec, RangeSpec, Value, Version, WriteOperation,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

fn record(client: u32, invoked: u64, returned: u64, action: Action, outcome: Outcome) -> Record {
    Record { client, group: 0, action, synced: false, invoked, returned, outcome }
}

fn operation(key: Key, change: Change) -> WriteOperation {
    WriteOperation { key, change, condition: Condition::None }
}

fn put(
    invoked: u64,
    returned: u64,
    key: Key,
    value: Value,
    index: Version,
    previous: Option<Version>,
) -> Record {
    let outcome = Outcome::Applied { index, term: 1, previous: vec![previous] };
    record(1, invoked, returned, Action::Write(vec![operation(key, Change::Put(value))]), outcome)
}

fn open_put(invoked: u64, key: Key, value: Value) -> Record {
    record(
        2,
        invoked,
        invoked,
        Action::Write(vec![operation(key, Change::Put(value))]),
        Outcome::Unknown,
    )
}

fn get(invoked: u64, returned: u64, key: Key, found: Option<(Value, Version)>) -> Record {
    record(3, invoked, returned, Action::Get(key), Outcome::Found(found))
}

fn verdict(records: Vec<Record>) -> Vec<Violation> {
    check(&History::new(records), 100_000)
}

fn accepted(records: Vec<Record>) {
    assert_eq!(verdict(records), []);
}

fn rejected(records: Vec<Record>) {
    assert_eq!(verdict(records).len(), 1);
}

#[test]
fn a_read_during_a_write_may_see_either_state() {
    accepted(vec![put(0, 10, 0, 1, 5, None), get(2, 4, 0, None), get(5, 6, 0, Some((1, 5)))]);
    accepted(vec![put(0, 10, 0, 1, 5, None), get(2, 4, 0, None), get(11, 12, 0, Some((1, 5)))]);
}

/// The story: a correct history was rejected. The answer to a write did not show its version, but a
/// stale read did, and a condition named it.
#[test]
fn a_condition_may_name_a_version_that_only_a_stale_read_showed() {
    let stale = record(3, 2, 3, Action::StaleGet(0), Outcome::Found(Some((7, 5))));
    let named = |version| {
        let change = WriteOperation {
            condition: Condition::Version(version),
            ..operation(0, Change::Put(8))
        };
        let outcome = Outcome::Applied { index: 9, term: 1, previous: vec![Some(5)] };
        record(1, 4, 6, Action::Write(vec![change]), outcome)
    };
    accepted(vec![open_put(0, 0, 7), stale.clone(), named(5)]);
    rejected(vec![open_put(0, 0, 7), stale, named(4)]);
}

#[test]
fn a_check_of_unknown_outcome_does_not_count_as_a_delete() {
    let open = |invoked, change| {
        record(2, invoked, invoked, Action::Write(vec![operation(0, change)]), Outcome::Unknown)
    };
    let put = put(0, 1, 0, 1, 5, None);
    accepted(vec![
        put.clone(),
        open(2, Change::Check),
        open(3, Change::Delete),
        get(4, 5, 0, None),
    ]);
    rejected(vec![put, open(2, Change::Check), get(4, 5, 0, None)]);
}

#[test]
fn several_keys_are_read_at_one_moment() {
    let many = |found: [Option<(Value, Version)>; 2]| {
        let outcome = Outcome::FoundMany(found.to_vec(), 9);
        record(3, 2, 8, Action::GetMany(vec![0, 1]), outcome)
    };
    let writes = || [put(0, 4, 0, 1, 5, None), put(5, 9, 1, 2, 6, None)];
    let with = |found| writes().into_iter().chain([many(found)]).collect();
    accepted(with([None, None]));
    accepted(with([Some((1, 5)), None]));
    accepted(with([Some((1, 5)), Some((2, 6))]));
    rejected(with([None, Some((2, 6))]));
    rejected(with([Some((1, 4)), None]));
}

#[test]
fn a_scan_shows_all_keys_of_one_moment_and_leaves_none_out() {
    let scan = |found: Vec<Option<(Value, Version)>>| {
        record(3, 2, 8, Action::Scan, Outcome::FoundMany(found, 9))
    };
    let writes = || [put(0, 4, 0, 1, 5, None), put(5, 9, 1, 2, 6, None)];
    let with = |found| writes().into_iter().chain([scan(found)]).collect();
    accepted(with(vec![None; 4]));
    accepted(with(vec![Some((1, 5)), None, None, None]));
    accepted(with(vec![Some((1, 5)), Some((2, 6)), None, None]));
    rejected(with(vec![None, Some((2, 6)), None, None]));
    rejected(with(vec![Some((1, 5)), None, Some((2, 6)), None]));
    rejected(with(vec![Some((1, 5))]));
}

#[test]
fn a_stale_read_is_rejected() {
    rejected(vec![
        put(0, 1, 0, 1, 5, None),
        put(2, 3, 0, 2, 6, Some(5)),
        get(4, 5, 0, Some((1, 5))),
    ]);
}

/// A client learnt the version of a write of unknown outcome from a stale read, and used it as a
/// condition before any other read showed it.
#[test]
fn a_condition_may_use_a_version_that_only_a_stale_read_showed() {
    let stale = record(3, 4, 5, Action::StaleGet(0), Outcome::Found(Some((2, 6))));
    let condition =
        WriteOperation { key: 0, change: Change::Put(3), condition: Condition::Version(6) };
    let applied = Outcome::Applied { index: 7, term: 1, previous: vec![Some(6)] };
    let conditional = record(3, 6, 7, Action::Write(vec![condition]), applied);
    let first = put(0, 1, 0, 1, 5, None);
    accepted(vec![first.clone(), open_put(2, 0, 2), stale.clone(), conditional.clone()]);
    rejected(vec![first, stale, conditional]);
}

#[test]
fn two_reads_may_not_see_a_write_and_then_not() {
    rejected(vec![put(0, 10, 0, 1, 5, None), get(2, 3, 0, Some((1, 5))), get(4, 5, 0, None)]);
}

#[test]
fn a_lost_acknowledged_write_is_rejected() {
    rejected(vec![put(0, 1, 0, 1, 5, None), get(2, 3, 0, None)]);
    rejected(vec![put(0, 1, 0, 1, 5, None), put(2, 3, 0, 2, 9, None)]);
}

#[test]
fn a_write_applied_twice_is_rejected() {
    // The first application is seen at 5, then another value, then the first again at a later
    // version.
    rejected(vec![
        open_put(0, 0, 1),
        get(1, 2, 0, Some((1, 5))),
        put(3, 4, 0, 2, 6, Some(5)),
        get(5, 6, 0, Some((1, 7))),
    ]);
    rejected(vec![put(0, 1, 0, 1, 5, None), get(2, 3, 0, Some((1, 8)))]);
}

#[test]
fn a_failed_write_that_took_effect_is_rejected() {
    let action = Action::Write(vec![operation(0, Change::Put(1))]);
    rejected(vec![record(1, 0, 1, action, Outcome::NoEffect), get(2, 3, 0, Some((1, 5)))]);
}

#[test]
fn a_write_of_unknown_outcome_may_take_effect_late_or_never() {
    let history =
        |last| vec![open_put(0, 0, 1), get(1, 2, 0, None), get(3, 4, 0, None), get(5, 6, 0, last)];
    accepted(history(Some((1, 9))));
    accepted(history(None));
}

#[test]
fn an_unknown_delete_can_explain_an_absence_but_only_once() {
    let delete =
        record(2, 2, 2, Action::Write(vec![operation(0, Change::Delete)]), Outcome::Unknown);
    let first =
        vec![put(0, 1, 0, 1, 5, None), delete, get(3, 4, 0, Some((1, 5))), get(5, 6, 0, None)];
    accepted(first.clone());
    let mut twice = first;
    twice.extend([put(7, 8, 0, 2, 7, None), get(9, 10, 0, None)]);
    rejected(twice);
}

#[test]
fn a_silent_write_is_known_by_the_version_that_others_found() {
    accepted(vec![open_put(0, 0, 1), put(2, 3, 0, 2, 9, Some(4)), get(4, 5, 0, Some((2, 9)))]);
    rejected(vec![
        put(0, 1, 1, 7, 3, None),
        open_put(0, 0, 1),
        put(2, 3, 0, 2, 9, Some(3)),
        get(4, 5, 0, Some((2, 9))),
    ]);
}

#[test]
fn a_condition_may_name_the_version_of_a_silent_write_that_a_stale_read_has_shown() {
    let stale = record(3, 4, 5, Action::StaleGet(0), Outcome::Found(Some((7, 9))));
    let named = conditional(6, Condition::Version(9), 8, applied(11, Some(9)));
    accepted(vec![open_put(1, 0, 7), stale.clone(), named.clone()]);
    accepted(vec![open_put(1, 0, 7), named.clone()]);
    let other = record(3, 4, 5, Action::StaleGet(0), Outcome::Found(Some((7, 10))));
    rejected(vec![open_put(1, 0, 7), other, named]);
}

#[test]
fn versions_grow_with_the_order_of_writes() {
    rejected(vec![put(0, 1, 0, 1, 9, None), put(2, 3, 1, 2, 5, None)]);
}

fn conditional(invoked: u64, condition: Condition, value: Value, outcome: Outcome) -> Record {
    let operation = WriteOperation { key: 0, change: Change::Put(value), condition };
    record(4, invoked, invoked + 1, Action::Write(vec![operation]), outcome)
}

fn applied(index: Version, previous: Option<Version>) -> Outcome {
    Outcome::Applied { index, term: 1, previous: vec![previous] }
}

fn failed(index: Version, found: Option<Version>) -> Outcome {
    Outcome::ConditionFailed { index, failed: vec![(0, found)] }
}

#[test]
fn a_conditional_write_is_checked_against_the_state_it_found() {
    let base = put(0, 1, 0, 1, 5, None);
    accepted(vec![base.clone(), conditional(2, Condition::Version(5), 2, applied(6, Some(5)))]);
    accepted(vec![base.clone(), conditional(2, Condition::Absent, 2, failed(6, Some(5)))]);
    rejected(vec![base.clone(), conditional(2, Condition::Absent, 2, applied(6, Some(5)))]);
    rejected(vec![base.clone(), conditional(2, Condition::Version(5), 2, failed(6, Some(5)))]);
    rejected(vec![base.clone(), conditional(2, Condition::Exists, 2, failed(6, None))]);
    // Both of two exclusive writes may not win.
    rejected(vec![
        base,
        conditional(2, Condition::Version(5), 2, applied(6, Some(5))),
        conditional(4, Condition::Version(5), 3, applied(7, Some(5))),
    ]);
}

fn batch(invoked: u64, operations: Vec<WriteOperation>, outcome: Outcome) -> Record {
    record(5, invoked, invoked + 1, Action::Write(operations), outcome)
}

fn list(invoked: u64, items: &[(Key, Value, Version)]) -> Record {
    let spec = ListSpec {
        start_after: None,
        end: None,
        limit: 10,
        reverse: false,
        keys_only: false,
        max_bytes: u64::MAX,
    };
    let items = items.iter().map(|(key, value, version)| Item {
        key: *key,
        value: Some(*value),
        version: *version,
    });
    record(6, invoked, invoked + 1, Action::List(spec), Outcome::Listed(items.collect(), false))
}

#[test]
fn a_batch_is_seen_whole_or_not_at_all() {
    let operations = vec![operation(0, Change::Put(1)), operation(1, Change::Put(2))];
    let open = record(5, 0, 0, Action::Write(operations.clone()), Outcome::Unknown);
    accepted(vec![open.clone(), list(1, &[]), list(3, &[(0, 1, 4), (1, 2, 4)])]);
    rejected(vec![open.clone(), list(1, &[(0, 1, 4)])]);
    rejected(vec![open, get(1, 2, 0, Some((1, 4))), get(3, 4, 1, None)]);
    let both = Outcome::Applied { index: 4, term: 1, previous: vec![None, None] };
    accepted(vec![batch(0, operations, both), list(2, &[(0, 1, 4), (1, 2, 4)])]);
}

#[test]
fn a_list_shows_one_moment() {
    let writes = [put(0, 1, 0, 1, 5, None), put(2, 3, 1, 2, 6, None), put(4, 5, 0, 3, 7, Some(5))];
    let with = |list: Record| writes.iter().cloned().chain([list]).collect::<Vec<_>>();
    let overlapping =
        |items: &[(Key, Value, Version)]| Record { invoked: 0, returned: 9, ..list(0, items) };
    accepted(with(overlapping(&[(0, 1, 5), (1, 2, 6)])));
    accepted(with(overlapping(&[(0, 3, 7), (1, 2, 6)])));
    rejected(with(overlapping(&[(0, 3, 7)])));
    rejected(with(overlapping(&[(1, 2, 6)])));
}

#[test]
fn pages_respect_start_end_limit_and_direction() {
    let writes = [put(0, 1, 0, 1, 5, None), put(2, 3, 1, 2, 6, None), put(4, 5, 2, 3, 7, None)];
    let listed = |spec: ListSpec, keys: &[(Key, Version)], more| {
        let items =
            keys.iter().map(|(key, version)| Item { key: *key, value: None, version: *version });
        let list = record(6, 8, 9, Action::List(spec), Outcome::Listed(items.collect(), more));
        verdict(writes.iter().cloned().chain([list]).collect())
    };
    let capped = |start_after, limit, reverse, max_bytes, keys: &[(Key, Version)], more| {
        let spec = ListSpec { start_after, end: None, limit, reverse, keys_only: true, max_bytes };
        listed(spec, keys, more)
    };
    let before = |end, reverse, keys: &[(Key, Version)]| {
        let spec = ListSpec {
            start_after: None,
            end: Some(end),
            limit: 10,
            reverse,
            keys_only: true,
            max_bytes: u64::MAX,
        };
        listed(spec, keys, false)
    };
    assert_eq!(before(2, false, &[(0, 5), (1, 6)]), []);
    assert_eq!(before(2, true, &[(1, 6), (0, 5)]), []);
    assert_eq!(before(0, true, &[]), []);
    assert_ne!(before(2, false, &[(0, 5), (1, 6), (2, 7)]), []);
    assert_ne!(before(2, true, &[(2, 7), (1, 6), (0, 5)]), []);
    let page = |start_after, limit, reverse, keys: &[(Key, Version)], more| {
        capped(start_after, limit, reverse, u64::MAX, keys, more)
    };
    assert_eq!(page(Some(0), 10, false, &[(1, 6), (2, 7)], false), []);
    assert_eq!(page(Some(2), 1, true, &[(1, 6)], true), []);
    assert_ne!(page(Some(2), 1, true, &[(1, 6)], false), []);
    assert_ne!(page(Some(0), 10, false, &[(0, 5), (1, 6)], false), []);
    assert_ne!(page(None, 2, true, &[(1, 6), (2, 7)], true), []);
    let two = 2 * crate::workload::key_bytes(0, 0);
    assert_eq!(capped(None, 10, false, two, &[(0, 5), (1, 6)], true), []);
    assert_ne!(capped(None, 10, false, two, &[(0, 5), (1, 6), (2, 7)], false), []);
    assert_eq!(capped(None, 10, false, 1, &[(0, 5)], true), []);
    assert_ne!(capped(None, 10, false, 1, &[], true), []);
}

/// The story: a correct history was rejected. Of two writes of unknown outcome to one key only the
/// first was tried, whose value is short. The second one's long value, which no answer showed,
/// explained why a page ended early.
#[test]
fn a_page_may_end_before_a_long_value_that_nobody_has_seen() {
    let long = (0..).find(|value| value_bytes(*value) > 20_000).unwrap();
    let short = (0..).find(|value| value_bytes(*value) < 300).unwrap();
    let spec = |max_bytes| ListSpec {
        start_after: None,
        end: None,
        limit: 10,
        reverse: false,
        keys_only: false,
        max_bytes,
    };
    let page = |max_bytes| {
        let first = Item { key: 0, value: Some(9), version: 5 };
        record(6, 4, 5, Action::List(spec(max_bytes)), Outcome::Listed(vec![first], true))
    };
    let cap = value_bytes(9) + 10_000;
    let before = [put(0, 1, 0, 9, 5, None), open_put(2, 1, short), open_put(3, 1, long)];
    let with = |page: Record| before.iter().cloned().chain([page]).collect::<Vec<_>>();
    accepted(with(page(cap)));
    rejected(with(page(u64::MAX)));
}

#[test]
fn a_search_that_gives_up_says_so() {
    let violations = check(&History::new(generated(1, 6, 250)), 10);
    assert!(violations[0].detail.contains("gave up"), "{violations:?}");
}

/// Runs requests against a real map at random moments inside their intervals: such a history is
/// correct by construction.
fn generated(seed: u64, clients: u32, requests: u64) -> Vec<Record> {
    generated_with(seed, clients, requests, false)
}

/// The same, perhaps with deletions of ranges among them.
fn generated_with(seed: u64, clients: u32, requests: u64, ranges: bool) -> Vec<Record> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut clock = vec![0_u64; clients as usize];
    let mut moments: Vec<(u64, u64, u64, u32)> = Vec::new();
    for _ in 0..requests {
        let client = rng.random_range(0..clients);
        let invoked = clock[client as usize] + rng.random_range(1..20);
        let at = invoked + rng.random_range(1..50);
        let returned = at + rng.random_range(1..50);
        clock[client as usize] = returned;
        moments.push((at, invoked, returned, client));
    }
    moments.sort_unstable();
    let mut keys: [Option<(Value, Version)>; 4] = [None; 4];
    let mut records = Vec::new();
    for (index, (at, invoked, returned, client)) in (1..).zip(moments) {
        let key = rng.random_range(0..4);
        let unknown = rng.random_ratio(1, 15);
        if ranges && rng.random_ratio(1, 6) {
            let from = rng.random_range(0..4);
            let until = rng.random_range(from + 1..=4);
            let (most, whole) = (rng.random_range(1..=3), rng.random());
            let spec = RangeSpec { from, until, most, whole };
            let outcome = match unknown && rng.random_bool(0.5) {
                true => Outcome::Unknown,
                false => deleted(&mut keys, spec, index),
            };
            let outcome = if unknown { Outcome::Unknown } else { outcome };
            records.push(record(client, invoked, returned, Action::DeleteRange(spec), outcome));
            continue;
        }
        let (action, outcome) = match rng.random_range(0..4) {
            0 => (Action::Get(key), Outcome::Found(keys[key])),
            kind => {
                let change =
                    if kind == 1 { Change::Delete } else { Change::Put(at * 1000 + index) };
                let previous = vec![keys[key].map(|(_, version)| version)];
                if !unknown || rng.random_bool(0.5) {
                    keys[key] = match change {
                        Change::Put(value) => Some((value, index)),
                        _ => None,
                    };
                }
                (
                    Action::Write(vec![operation(key, change)]),
                    Outcome::Applied { index, term: 1, previous },
                )
            }
        };
        let outcome = if unknown { Outcome::Unknown } else { outcome };
        records.push(record(client, invoked, returned, action, outcome));
    }
    records
}

/// Deletes a range of a real map.
fn deleted(keys: &mut [Option<(Value, Version)>; 4], spec: RangeSpec, index: Version) -> Outcome {
    let mut there: Vec<Key> = spec.keys().filter(|key| keys[*key].is_some()).collect();
    let more = there.len() > spec.most;
    if more && spec.whole {
        return Outcome::RangeTooLarge { index };
    }
    there.truncate(spec.most);
    there.iter().for_each(|key| keys[*key] = None);
    Outcome::RangeDeleted { index, term: 1, deleted: there.len(), more }
}

#[test]
fn generated_histories_with_ranges_are_accepted() {
    let (mut told, mut refused, mut unknown) = (0, 0, 0);
    for seed in 0..20 {
        let records = generated_with(seed, 4, 100, true);
        for record in records.iter().filter(|r| matches!(r.action, Action::DeleteRange(_))) {
            match record.outcome {
                Outcome::RangeDeleted { .. } => told += 1,
                Outcome::RangeTooLarge { .. } => refused += 1,
                _ => unknown += 1,
            }
        }
        assert_eq!(check(&History::new(records), DEFAULT_BUDGET), [], "seed {seed}");
    }
    assert!(told > 100 && refused > 0 && unknown > 0, "{told}, {refused}, {unknown}");
}

fn range(
    invoked: u64,
    (from, until): (Key, Key),
    (most, whole): (usize, bool),
    outcome: Outcome,
) -> Record {
    let action = Action::DeleteRange(RangeSpec { from, until, most, whole });
    record(7, invoked, invoked + 1, action, outcome)
}

fn told(index: Version, deleted: usize, more: bool) -> Outcome {
    Outcome::RangeDeleted { index, term: 1, deleted, more }
}

#[test]
fn a_range_is_deleted_at_one_moment_with_the_keys_that_were_there() {
    let (all, ample) = ((0, 4), (4, false));
    let puts =
        || vec![put(0, 1, 0, 1, 5, None), put(2, 3, 1, 2, 6, None), put(4, 5, 3, 3, 7, None)];
    let then = |rest: &[Record]| puts().into_iter().chain(rest.iter().cloned()).collect::<Vec<_>>();
    accepted(then(&[range(6, all, ample, told(8, 3, false)), list(8, &[])]));
    rejected(then(&[range(6, all, ample, told(8, 3, false)), list(8, &[(3, 3, 7)])]));
    rejected(then(&[range(6, all, ample, told(8, 2, false)), list(8, &[])]));
    // The first two go, and not the last ones.
    let first = || range(6, all, (2, false), told(8, 2, true));
    accepted(then(&[first(), list(8, &[(3, 3, 7)])]));
    rejected(then(&[first(), list(8, &[(0, 1, 5)])]));
    rejected(then(&[range(6, all, (2, false), told(8, 2, false)), list(8, &[(3, 3, 7)])]));
    // All of them, or none.
    let too_large = || Outcome::RangeTooLarge { index: 8 };
    let kept = || list(8, &[(0, 1, 5), (1, 2, 6), (3, 3, 7)]);
    accepted(then(&[range(6, all, (2, true), too_large()), kept()]));
    rejected(then(&[range(6, all, (2, true), too_large()), list(8, &[(3, 3, 7)])]));
    rejected(then(&[range(6, all, (3, true), too_large()), kept()]));
    rejected(then(&[range(6, (0, 2), (2, true), too_large()), kept()]));
    // It sees every entry before it, and none behind it.
    rejected(then(&[range(6, all, ample, told(6, 3, false)), list(8, &[])]));
}

#[test]
fn a_range_of_unknown_outcome_may_be_deleted_late_or_never_and_only_once() {
    let open = || {
        record(7, 2, 2, range(2, (0, 2), (1, false), told(0, 0, false)).action, Outcome::Unknown)
    };
    let puts = || vec![put(0, 1, 0, 1, 5, None), put(0, 1, 1, 2, 6, None), open()];
    let then = |rest: &[Record]| puts().into_iter().chain(rest.iter().cloned()).collect::<Vec<_>>();
    accepted(then(&[list(4, &[(0, 1, 5), (1, 2, 6)]), list(6, &[(1, 2, 6)])]));
    accepted(then(&[list(4, &[(0, 1, 5), (1, 2, 6)])]));
    rejected(then(&[list(4, &[(0, 1, 5)])]));
    rejected(then(&[list(4, &[])]));
    // What was put before it took effect may be what went.
    accepted(then(&[put(4, 5, 0, 7, 9, None), list(6, &[(0, 7, 9), (1, 2, 6)])]));
    rejected(then(&[
        put(4, 5, 0, 7, 9, None),
        put(6, 7, 1, 8, 10, None),
        list(8, &[(0, 7, 9), (1, 8, 10)]),
    ]));
}

#[test]
fn generated_histories_are_accepted_and_their_corruptions_rejected() {
    let mut caught = 0;
    for seed in 0..40 {
        let records = generated(seed, 6, 250);
        assert_eq!(check(&History::new(records.clone()), 200_000), [], "seed {seed}");
        // Make one read see what its key held long before.
        let mut rng = StdRng::seed_from_u64(seed);
        let mut corrupted = records;
        let reads: Vec<usize> = (120..corrupted.len())
            .filter(|at| matches!(corrupted[*at].outcome, Outcome::Found(Some(_))))
            .collect();
        let at = reads[rng.random_range(0..reads.len())];
        let Action::Get(key) = corrupted[at].action else { panic!("a read") };
        let old = corrupted[..60].iter().find_map(|r| match (&r.action, &r.outcome) {
            (Action::Get(other), Outcome::Found(Some(found))) if *other == key => Some(*found),
            _ => None,
        });
        if let Some(old) = old {
            corrupted[at].outcome = Outcome::Found(Some(old));
            assert_eq!(check(&History::new(corrupted), 200_000).len(), 1, "seed {seed}");
            caught += 1;
        }
    }
    assert!(caught > 20, "only {caught} corruptions could be made");
}
