//! Runs checked piece by piece: which faults must be reported, and which answers must not.

use super::*;
use crate::check::linearizable;
use crate::history::{Change, Condition, History, Item, Key, Value, Version, WriteOperation};
use crate::workload::{encode_key, encode_value};
use bytes::Bytes;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A group, a key in it, and the value and version found there.
type Found = (u32, Key, Value, Version);

/// Between two readings of the clock there is time for a piece of a run.
#[derive(Default)]
struct Ticks(AtomicU64);

impl Timeline for Ticks {
    fn now(&self) -> u64 {
        self.0.fetch_add(1_000, Ordering::Relaxed) + 1_000
    }

    fn event(&self, _: fmt::Arguments<'_>) {}
}

fn ledger() -> Ledger {
    Ledger::new(Ticks::default(), 1)
}

fn write(group: u32, operations: &[(Key, Change)], outcome: Outcome) -> Record {
    let operation = |(key, change): &(Key, Change)| WriteOperation {
        key: *key,
        change: *change,
        condition: Condition::None,
    };
    let action = Action::Write(operations.iter().map(operation).collect());
    Record { client: 1, group, action, synced: false, invoked: 0, returned: 0, outcome }
}

fn applied(index: Version, previous: Option<Version>) -> Outcome {
    Outcome::Applied { index, term: 1, previous: vec![previous] }
}

fn put(group: u32, key: Key, value: Value, index: Version, previous: Option<Version>) -> Record {
    write(group, &[(key, Change::Put(value))], applied(index, previous))
}

fn get(key: Key, found: Option<(Value, Version)>) -> Record {
    Record { action: Action::Get(key), ..write(0, &[], Outcome::Found(found)) }
}

fn open(change: Change) -> Record {
    write(0, &[(0, change)], Outcome::Unknown)
}

/// These answers came one after the other.
fn answered(ledger: &mut Ledger, records: impl IntoIterator<Item = Record>) {
    for record in records {
        let (invoked, returned) = (ledger.recorder.now(), ledger.recorder.now());
        ledger.recorder.push(Record { invoked, returned, ..record });
    }
    assert_eq!(ledger.collect().wrong, Vec::<String>::new());
}

fn item(group: u32, key: Key, value: Value, version: Version) -> (Bytes, Bytes, Version) {
    (encode_key(group, key), encode_value(value), version)
}

fn listing(items: &[Found]) -> Listing {
    let mut listing = Listing::default();
    let items =
        items.iter().map(|(group, key, value, version)| item(*group, *key, *value, *version));
    assert_eq!(listing.page(items.collect(), false), None);
    listing
}

fn right(ledger: &mut Ledger, items: &[Found]) {
    assert_eq!(ledger.compare(&listing(items)), Vec::<String>::new());
}

fn wrong(ledger: &mut Ledger, items: &[Found]) {
    assert_ne!(ledger.compare(&listing(items)), Vec::<String>::new());
}

#[test]
fn a_lost_acknowledged_write_of_a_resting_group_is_reported() {
    let mut ledger = ledger();
    answered(&mut ledger, [put(0, 0, 1, 5, None), put(0, 0, 2, 6, Some(5)), put(1, 3, 3, 7, None)]);
    right(&mut ledger, &[(0, 0, 2, 6), (1, 3, 3, 7)]);
    for _ in 0..3 {
        right(&mut ledger, &[(0, 0, 2, 6), (1, 3, 3, 7)]);
    }
    wrong(&mut ledger, &[(1, 3, 3, 7)]);
    wrong(&mut ledger, &[(0, 0, 1, 5), (1, 3, 3, 7)]);
    wrong(&mut ledger, &[(0, 0, 2, 8), (1, 3, 3, 7)]);
    wrong(&mut ledger, &[(0, 1, 2, 6), (1, 3, 3, 7)]);
    let delete = write(0, &[(0, Change::Delete)], applied(9, Some(6)));
    answered(&mut ledger, [delete]);
    right(&mut ledger, &[(1, 3, 3, 7)]);
    wrong(&mut ledger, &[(0, 0, 2, 6), (1, 3, 3, 7)]);
    // A later write must not have an index from before the delete either.
    answered(&mut ledger, [put(0, 0, 4, 8, None)]);
    wrong(&mut ledger, &[(0, 0, 4, 8), (1, 3, 3, 7)]);
}

#[test]
fn answers_are_checked_if_nothing_can_be_listed() {
    let mut ledger = ledger();
    answered(&mut ledger, [put(0, 0, 1, 5, None)]);
    right(&mut ledger, &[(0, 0, 1, 5)]);
    answered(&mut ledger, [get(0, Some((1, 5)))]);
    assert!(ledger.check().is_empty());
    answered(&mut ledger, [get(0, None)]);
    assert_eq!(ledger.check().len(), 1);
    wrong(&mut ledger, &[(0, 0, 1, 5)]);
}

#[test]
fn a_write_of_unknown_outcome_may_be_there_or_not_and_once_seen_stays() {
    let mut ledger = ledger();
    answered(&mut ledger, [put(0, 0, 1, 5, None), open(Change::Put(2))]);
    right(&mut ledger, &[(0, 0, 1, 5)]);
    right(&mut ledger, &[(0, 0, 1, 5)]);
    right(&mut ledger, &[(0, 0, 2, 9)]);
    wrong(&mut ledger, &[(0, 0, 1, 5)]);
    wrong(&mut ledger, &[(0, 0, 2, 10)]);
    answered(&mut ledger, [put(0, 0, 3, 11, Some(9))]);
    right(&mut ledger, &[(0, 0, 3, 11)]);
    wrong(&mut ledger, &[(0, 0, 2, 9)]);
}

#[test]
fn a_delete_of_unknown_outcome_explains_one_absence() {
    let mut ledger = ledger();
    answered(&mut ledger, [put(0, 0, 1, 5, None), open(Change::Delete)]);
    right(&mut ledger, &[(0, 0, 1, 5)]);
    right(&mut ledger, &[]);
    answered(&mut ledger, [put(0, 0, 2, 8, None)]);
    wrong(&mut ledger, &[]);
    right(&mut ledger, &[(0, 0, 2, 8)]);
}

#[test]
fn either_of_two_writes_may_be_the_one_that_was_found_unseen() {
    for late in [2, 3] {
        let mut ledger = ledger();
        answered(
            &mut ledger,
            [open(Change::Put(2)), open(Change::Put(3)), put(0, 0, 4, 9, Some(7))],
        );
        right(&mut ledger, &[(0, 0, 4, 9)]);
        right(&mut ledger, &[(0, 0, late, 12)]);
        wrong(&mut ledger, &[(0, 0, 5 - late, 14)]);
    }
}

#[test]
fn what_no_client_wrote_is_reported() {
    let mut ledger = ledger();
    answered(&mut ledger, [put(0, 0, 1, 5, None)]);
    wrong(&mut ledger, &[(0, 0, 1, 5), (0, 1, 9, 6)]);
    assert_eq!(
        ledger.compare(&listing(&[(0, 0, 1, 5), (7, 1, 9, 6)])),
        ["group 7 has 1 keys, and no client ever wrote there"]
    );
    let (key, value, version) = item(0, 0, 1, 5);
    let mut foreign = Listing::default();
    foreign.page(
        vec![
            (Bytes::from_static(b"ghost"), value.clone(), 3),
            (key.clone(), value.clone(), version),
        ],
        false,
    );
    assert_eq!(ledger.compare(&foreign), ["no client ever wrote key `ghost`"]);
    let mut damaged = Listing::default();
    let mut bytes = value.to_vec();
    bytes[11] ^= 1;
    damaged.page(vec![(key, bytes.into(), version)], false);
    assert_eq!(
        ledger.compare(&damaged),
        [format!("key 0/0 holds {} bytes that no client wrote", value.len())]
    );
    right(&mut ledger, &[(0, 0, 1, 5)]);
}

#[test]
fn a_group_that_is_incomplete_on_a_page_is_left_for_the_next_page() {
    let mut listing = Listing::default();
    let page = vec![item(0, 0, 1, 5), item(0, 1, 2, 6), item(1, 0, 3, 7)];
    assert_eq!(listing.page(page.clone(), true), Some(encode_key(0, 1)));
    assert_eq!(listing.groups.len(), 1);
    let mut listing = Listing::default();
    assert_eq!(
        listing.page(page[..2].to_vec(), true),
        Some(encode_key(0, 1)),
        "every page makes progress"
    );
    assert_eq!(listing.page(vec![], false), None);
}

/// Clients wrote, and a complete listing came before each cut.
fn lossy(records: impl IntoIterator<Item = Record>) -> (Ledger, Duration) {
    let mut ledger = ledger();
    answered(&mut ledger, [put(0, 0, 1, 5, None), put(1, 0, 2, 6, None)]);
    right(&mut ledger, &[(0, 0, 1, 5), (1, 0, 2, 6)]);
    let since = Duration::from_nanos(ledger.recorder.now());
    answered(&mut ledger, records);
    (ledger, since)
}

fn after_unsafe_recovery(ledger: &mut Ledger, since: Duration, items: &[Found]) -> Option<u64> {
    let (wrong, lost) = ledger.compare_after_unsafe_recovery(&listing(items), since);
    wrong.is_empty().then_some(lost)
}

const BEFORE: [Found; 2] = [(0, 0, 1, 5), (1, 0, 2, 6)];

#[test]
fn a_discarded_write_may_be_gone_if_it_is_young_enough() {
    let young = || [put(0, 0, 3, 7, Some(5)), put(0, 1, 4, 8, None), put(0, 0, 5, 9, Some(7))];
    let cases: [(&[Found], Option<u64>); 7] = [
        (&[(0, 0, 5, 9), (0, 1, 4, 8), BEFORE[1]], Some(0)),
        (&[(0, 0, 3, 7), (0, 1, 4, 8), BEFORE[1]], Some(1)),
        (&[(0, 0, 3, 7), BEFORE[1]], Some(2)),
        (&BEFORE, Some(2)),
        // A later write is there without an earlier one; a write that a listing showed is gone.
        (&[(0, 0, 5, 9), BEFORE[1]], None),
        (&[BEFORE[1]], None),
        (&[BEFORE[0]], None),
    ];
    for (items, lost) in cases {
        let (mut ledger, since) = lossy(young());
        assert_eq!(after_unsafe_recovery(&mut ledger, since, items), lost, "{items:?}");
        let later = Duration::from_nanos(ledger.recorder.now());
        let (mut ledger, _) = lossy(young());
        assert_eq!(
            after_unsafe_recovery(&mut ledger, later, items),
            lost.filter(|lost| *lost == 0),
            "{items:?}"
        );
    }
}

#[test]
fn what_is_lost_stays_lost_and_its_indexes_are_assigned_again() {
    let (mut ledger, since) = lossy([put(0, 0, 3, 7, Some(5))]);
    assert_eq!(after_unsafe_recovery(&mut ledger, since, &BEFORE), Some(1));
    wrong(&mut ledger, &[(0, 0, 3, 7), BEFORE[1]]);
    answered(&mut ledger, [put(1, 0, 4, 7, Some(6))]);
    right(&mut ledger, &[BEFORE[0], (1, 0, 4, 7)]);
}

/// The story: a key that was put and deleted was lost with both writes, so the listing showed no
/// loss. The next write got the delete's index, and that counted as a fault.
#[test]
fn indexes_of_lost_writes_that_left_no_trace_are_assigned_again() {
    let delete = write(0, &[(1, Change::Delete)], applied(8, Some(7)));
    let (mut ledger, since) = lossy([put(0, 1, 3, 7, None), delete]);
    assert_eq!(after_unsafe_recovery(&mut ledger, since, &BEFORE), Some(0));
    answered(&mut ledger, [put(0, 2, 4, 7, None), put(0, 3, 5, 8, None)]);
    right(&mut ledger, &[BEFORE[0], (0, 2, 4, 7), (0, 3, 5, 8), BEFORE[1]]);
}

#[test]
fn a_write_that_asked_for_a_sync_and_all_before_it_in_the_log_may_not_be_lost() {
    let synced = |record| Record { synced: true, ..record };
    let records =
        || [put(0, 0, 3, 7, Some(5)), synced(put(1, 0, 4, 8, Some(6))), put(1, 1, 5, 9, None)];
    let cases: [(&[Found], Option<u64>); 4] = [
        (&[(0, 0, 3, 7), (1, 0, 4, 8), (1, 1, 5, 9)], Some(0)),
        (&[(0, 0, 3, 7), (1, 0, 4, 8)], Some(1)),
        (&[(0, 0, 3, 7), BEFORE[1]], None),
        (&[BEFORE[0], (1, 0, 4, 8)], None),
    ];
    for (items, lost) in cases {
        let (mut ledger, since) = lossy(records());
        assert_eq!(after_unsafe_recovery(&mut ledger, since, items), lost, "{items:?}");
    }
}

#[test]
fn a_write_of_unknown_outcome_that_was_read_counts_as_acknowledged_when_it_was_read() {
    for (young, lost) in [(true, Some(1)), (false, None)] {
        let (mut ledger, since) = lossy([open(Change::Put(3)), get(0, Some((3, 7)))]);
        let since = if young { since } else { Duration::from_nanos(ledger.recorder.now()) };
        assert_eq!(after_unsafe_recovery(&mut ledger, since, &BEFORE), lost);
    }
}

#[test]
fn answers_from_before_a_loss_are_checked_though_the_writes_they_show_are_gone() {
    let (mut ledger, since) = lossy([put(0, 0, 3, 7, Some(5)), put(0, 0, 4, 8, Some(5))]);
    assert_eq!(after_unsafe_recovery(&mut ledger, since, &BEFORE), None);
}

/// A part of one group's run, up to a listing.
#[derive(Debug)]
struct Piece {
    records: Vec<Record>,
    /// What the group holds at first, and after each write that takes effect.
    states: Vec<Vec<Item>>,
    /// What the listing shows.
    listed: Vec<Item>,
}

/// One group's run, correct by construction: a write of unknown outcome takes effect in its own
/// piece, in a later one, or never.
fn generated(rng: &mut StdRng) -> Vec<Piece> {
    let (mut index, mut time, mut value) = (0, 0, 0);
    let mut late: Vec<Vec<WriteOperation>> = Vec::new();
    let mut held: Vec<Item> = Vec::new();
    let mut apply = |held: &mut Vec<Item>, operations: &[WriteOperation]| {
        index += 1;
        for WriteOperation { key, change, .. } in operations {
            held.retain(|item| item.key != *key);
            if let Change::Put(value) = change {
                held.push(Item { key: *key, value: Some(*value), version: index });
            }
        }
        held.sort_by_key(|item| item.key);
        index
    };
    let mut piece = || {
        let (mut records, mut states) = (Vec::new(), vec![held.clone()]);
        for _ in 0..rng.random_range(0..8) {
            if !late.is_empty() && rng.random_ratio(1, 4) {
                let operations = late.swap_remove(rng.random_range(0..late.len()));
                apply(&mut held, &operations);
                states.push(held.clone());
            }
            let key = rng.random_range(0..2);
            let find = |key| held.iter().find(|item| item.key == key);
            let record = if rng.random_ratio(1, 4) {
                get(key, find(key).and_then(|item| Some((item.value?, item.version))))
            } else {
                let keys = [key, 1 - key].into_iter().take(rng.random_range(1..=2));
                let changes: Vec<(Key, Change)> = keys
                    .map(|key| {
                        value += 1;
                        (
                            key,
                            if rng.random_ratio(1, 3) {
                                Change::Delete
                            } else {
                                Change::Put(value)
                            },
                        )
                    })
                    .collect();
                let mut record = write(0, &changes, Outcome::Unknown);
                let Action::Write(operations) = &record.action else { panic!("a write") };
                if rng.random_ratio(1, 3) {
                    late.push(operations.clone());
                } else {
                    let previous = changes
                        .iter()
                        .map(|(key, _)| find(*key).map(|item| item.version))
                        .collect();
                    let index = apply(&mut held, operations);
                    states.push(held.clone());
                    record.outcome = Outcome::Applied { index, term: 1, previous };
                }
                record
            };
            time += 2;
            records.push(Record { invoked: time, returned: time + 1, ..record });
        }
        Piece { records, listed: held.clone(), states }
    };
    vec![piece(), piece(), piece()]
}

impl Piece {
    /// The records of this piece, at the present time, and the listing after it.
    fn play(&self, ledger: &mut Ledger) -> (Vec<Record>, Listing) {
        let at = ledger.recorder.now();
        let later = |record: &Record| {
            let (invoked, returned) = (record.invoked + at, record.returned + at);
            Record { invoked, returned, ..record.clone() }
        };
        let records: Vec<Record> = self.records.iter().map(later).collect();
        records.iter().for_each(|record| ledger.recorder.push(record.clone()));
        ledger.collect();
        (records, shown(&self.listed))
    }
}

fn shown(items: &[Item]) -> Listing {
    let groups = Some((0, items.to_vec())).filter(|_| !items.is_empty());
    Listing { groups: groups.into_iter().collect(), ..Listing::default() }
}

/// Whether the pieces pass, and whether the whole run passes.
fn verdicts(pieces: &[Piece]) -> (bool, bool) {
    let (mut ledger, mut whole, mut right) = (ledger(), Vec::new(), true);
    for piece in pieces {
        let (records, listing) = piece.play(&mut ledger);
        whole.extend(records);
        whole.extend(
            reads(&mut ledger.groups, &listing, ledger.recorder.now()).map(|(read, _)| read),
        );
        right &= ledger.compare(&listing).is_empty();
    }
    (right, linearizable::check(&History::new(whole), 1_000_000).is_empty())
}

#[test]
fn a_run_checked_piece_by_piece_is_checked_like_the_whole() {
    let (mut rejected, mut missed) = (0, 0);
    for seed in 0..1_000 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut pieces = generated(&mut rng);
        assert_eq!(verdicts(&pieces), (true, true), "seed {seed}: {pieces:?}");
        // A listing shows what an earlier one showed, or lacks a key.
        let at = rng.random_range(1..3);
        match rng.random() {
            true => pieces[at].listed = pieces[0].listed.clone(),
            false => drop(pieces[at].listed.pop()),
        }
        let (piecewise, whole) = verdicts(&pieces);
        assert!(piecewise || !whole, "seed {seed}: {pieces:?}");
        rejected += usize::from(!whole);
        missed += usize::from(piecewise && !whole);
    }
    // A later piece does not know all versions that an earlier one showed, and may take one of them
    // for that of a silent write.
    assert!(rejected > 500 && missed * 200 < rejected, "{missed} of {rejected}");
}

#[test]
fn any_state_of_the_last_piece_may_be_left_by_a_loss_in_it_and_no_other_by_one_that_came_after_it()
{
    let mut lost = 0;
    for seed in 0..1_000 {
        let mut rng = StdRng::seed_from_u64(seed);
        let pieces = generated(&mut rng);
        let [first, second, _] = pieces.as_slice() else { panic!("three pieces") };
        let states = &second.states;
        let survived = shown(&states[rng.random_range(0..states.len())]);
        let until_loss = || {
            let mut ledger = ledger();
            let (_, listing) = first.play(&mut ledger);
            assert!(ledger.compare(&listing).is_empty());
            let since = ledger.recorder.now();
            second.play(&mut ledger);
            (ledger, Duration::from_nanos(since))
        };
        let (mut ledger, since) = until_loss();
        let (wrong, keys) = ledger.compare_after_unsafe_recovery(&survived, since);
        assert_eq!(wrong, Vec::<String>::new(), "seed {seed}: {survived:?} of {pieces:?}");
        lost += usize::from(keys > 0);
        let (mut ledger, _) = until_loss();
        let right = ledger.compare(&survived).is_empty();
        assert_eq!(right, keys == 0, "seed {seed}");
        let (mut ledger, _) = until_loss();
        let later = Duration::from_nanos(ledger.recorder.now());
        let (wrong, _) = ledger.compare_after_unsafe_recovery(&survived, later);
        assert_eq!(wrong.is_empty(), right, "seed {seed}: {survived:?} of {pieces:?}");
    }
    assert!(lost > 300, "only {lost} runs lost something");
}
