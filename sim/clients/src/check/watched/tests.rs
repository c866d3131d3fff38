//! Each test takes a history and a watch that fit, and then one that does not.

use super::*;
use crate::history::{Action, Change, Condition, Outcome, RangeSpec, Record, WriteOperation};

const GROUP: u32 = 0;

/// Operations on key 0, or on the key given, sent at a time and answered five later.
fn write(operations: &[(Key, Change)], sent: u64, outcome: Outcome) -> Record {
    let operation = |(key, change): &(Key, Change)| WriteOperation {
        key: *key,
        change: *change,
        condition: Condition::None,
    };
    let action = Action::Write(operations.iter().map(operation).collect());
    let (invoked, returned) = (sent, sent + 5);
    Record { client: 0, group: GROUP, action, synced: false, invoked, returned, outcome }
}

fn applied(index: Version, previous: &[Option<Version>]) -> Outcome {
    Outcome::Applied { index, term: 1, previous: previous.to_vec() }
}

fn position(index: Version) -> Position {
    Position { term: 1, index }
}

fn put(value: Value) -> Left {
    Left::Put(Some(value))
}

/// A change of key 0, the only one of its entry, told at ten times its index.
fn told(index: Version, left: Left, previous: Option<Version>) -> Told {
    let (at, when) = (position(index), index * 10);
    Told { key: (GROUP, 0), at, left, previous, last_of_entry: true, when }
}

/// A watch of the group that began behind entry 1, and said behind each change that all of it was told.
fn watch(told: Vec<Told>) -> Watched {
    let marks = told.iter().enumerate().map(|(number, told)| Mark {
        told: number + 1,
        through: told.at,
        when: told.when,
    });
    Watched {
        began: Some(position(1)),
        marks: marks.collect(),
        told,
        ..Watched::new(7, Scope::group(GROUP), 0, Begins::Kept(position(1)))
    }
}

/// Puts 1 at 3 and 2 at 5, deletes at 7, and a refused put of 3 at 9.
fn history() -> Vec<Record> {
    let refused = Outcome::ConditionFailed { index: 9, failed: vec![(0, None)] };
    vec![
        write(&[(0, Change::Put(1))], 20, applied(3, &[None])),
        write(&[(0, Change::Put(2))], 40, applied(5, &[Some(3)])),
        write(&[(0, Change::Delete)], 60, applied(7, &[Some(5)])),
        write(&[(0, Change::Put(3))], 80, refused),
    ]
}

/// What a watch tells of it.
fn all() -> Vec<Told> {
    vec![told(3, put(1), None), told(5, put(2), Some(3)), told(7, Left::Deleted, Some(5))]
}

fn details(records: Vec<Record>, states: &[SentState], watches: &[Watched]) -> Vec<String> {
    let found = check(&History::new(records), states, watches);
    found.into_iter().map(|violation| violation.detail).collect()
}

/// A watch must be found wrong with these words, beside a history in which it should have told `all`.
fn wrong(watch: Watched, words: &str) {
    let found = details(history(), &[], &[watch]);
    assert!(found.iter().any(|detail| detail.contains(words)), "{words}: {found:?}");
}

/// A watch that tells `all` with this done to it.
fn after(change: impl FnOnce(&mut Watched)) -> Watched {
    let mut watch = watch(all());
    change(&mut watch);
    watch
}

#[test]
fn a_watch_that_tells_all_of_it_is_right_also_of_a_part_and_of_keys_alone() {
    let keys = after(|watch| {
        let puts = watch.told.iter_mut().filter(|told| told.left != Left::Deleted);
        puts.for_each(|told| told.left = Left::Put(None));
    });
    let later = Watched {
        began: Some(position(4)),
        begins: Begins::Kept(position(4)),
        ..watch(all().split_off(1))
    };
    let unfinished = watch(all().into_iter().take(1).collect());
    let other_keys = Watched {
        scope: Scope::Keys { group: GROUP, from: 1, until: 3 },
        marks: vec![Mark { told: 0, through: position(9), when: 90 }],
        ..watch(Vec::new())
    };
    let watches = [watch(all()), keys, later, unfinished, other_keys];
    assert_eq!(details(history(), &[], &watches), Vec::<String>::new());
}

#[test]
fn a_lost_change_is_found_by_its_answer_by_a_read_and_by_another_watch() {
    for number in 0..all().len() - 1 {
        wrong(
            after(|watch| {
                watch.told.remove(number);
                watch.marks.truncate(2);
                if let Some(last) = watch.marks.last_mut() {
                    last.through = position(7);
                }
                watch.marks.iter_mut().for_each(|mark| mark.told = 2);
                watch.marks.remove(0);
            }),
            "did not tell",
        );
    }
    // Nobody was told what became of this put, which a client read, or another watch told.
    let open = || write(&[(0, Change::Put(4))], 90, Outcome::Unknown);
    let lost = after(|watch| {
        watch.marks.push(Mark { told: 3, through: position(12), when: 130 });
    });
    let alone = [history(), vec![open()]].concat();
    assert_eq!(details(alone.clone(), &[], std::slice::from_ref(&lost)), Vec::<String>::new());
    let read = Record {
        action: Action::Get(0),
        outcome: Outcome::Found(Some((4, 11))),
        ..write(&[], 120, Outcome::Unknown)
    };
    let with_read = details([alone.clone(), vec![read]].concat(), &[], std::slice::from_ref(&lost));
    assert!(with_read.iter().any(|one| one.contains("did not tell")), "{with_read:?}");
    let other = Watched { watcher: 8, ..watch([all(), vec![told(11, put(4), None)]].concat()) };
    let with_other = details(alone, &[], &[other, lost]);
    assert!(with_other.iter().any(|one| one.contains("by watcher 8")), "{with_other:?}");
}

#[test]
fn a_change_that_is_told_twice_is_found() {
    wrong(
        after(|watch| {
            watch.told.insert(1, told(3, put(1), None));
            watch.marks.iter_mut().skip(1).for_each(|mark| mark.told += 1);
        }),
        "and then tells",
    );
    wrong(
        after(|watch| {
            watch.told.insert(1, told(3, put(1), None));
            watch.marks.clear();
        }),
        "twice",
    );
    // The write was sent a second time, and changed nothing there.
    wrong(
        after(|watch| {
            watch.told.insert(1, told(4, put(1), Some(3)));
            watch.marks.clear();
        }),
        "another outcome",
    );
    let twice = watch([all(), vec![told(11, put(1), None)]].concat());
    wrong(twice, "value 1");
}

#[test]
fn changes_out_of_order_and_half_an_entry_are_found() {
    wrong(
        after(|watch| {
            watch.told.swap(0, 1);
            watch.marks.clear();
        }),
        "behind Some(5)",
    );
    let unfinished = |watch: &mut Watched| {
        if let Some(first) = watch.told.first_mut() {
            first.last_of_entry = false;
        }
    };
    wrong(after(unfinished), "before all of that entry");
    wrong(
        after(|watch| {
            unfinished(watch);
            watch.marks.clear();
        }),
        "before the rest",
    );
}

#[test]
fn a_wrong_value_a_wrong_previous_version_and_a_wrong_term_are_found() {
    let first = |change: fn(&mut Told)| {
        after(move |watch| watch.told.iter_mut().skip(1).take(1).for_each(change))
    };
    wrong(first(|told| told.left = put(1)), "left something else");
    wrong(first(|told| told.left = put(99)), "left something else");
    wrong(first(|told| told.left = Left::Deleted), "left something else");
    wrong(first(|told| told.previous = None), "another version before");
    wrong(first(|told| told.previous = Some(4)), "another version before");
    wrong(first(|told| told.at.term = 2), "of term 2");
    wrong(first(|told| told.key = (GROUP, 1)), "does not change the key");
    wrong(first(|told| told.key = (3, 0)), "not in its range");
}

#[test]
fn what_no_request_explains_is_found() {
    let told_too = |extra: Told| watch([all(), vec![extra]].concat());
    wrong(told_too(told(9, put(3), None)), "nothing was changed there");
    wrong(told_too(told(11, put(3), None)), "another outcome");
    wrong(told_too(told(11, put(50), None)), "no client put");
    wrong(told_too(told(11, Left::Deleted, None)), "no request explains");
    // A write of unknown outcome does, if it was sent before.
    let with = |record: Record, extra: Told| {
        details([history(), vec![record]].concat(), &[], &[told_too(extra)])
    };
    let open = |change, sent| write(&[(0, change)], sent, Outcome::Unknown);
    assert!(with(open(Change::Put(4), 90), told(11, put(4), None)).is_empty());
    assert!(!with(open(Change::Put(4), 111), told(11, put(4), None)).is_empty());
    assert!(with(open(Change::Put(4), 90), told(11, Left::Put(None), None)).is_empty());
    let failed = write(&[(0, Change::Put(4))], 90, Outcome::NoEffect);
    assert!(!with(failed, told(11, put(4), None)).is_empty(), "it was refused");
    let overwritten = write(&[(0, Change::Put(4)), (0, Change::Put(5))], 90, Outcome::Unknown);
    assert!(!with(overwritten, told(11, put(4), None)).is_empty(), "its last put stays");
}

#[test]
fn a_delete_of_nothing_is_not_told() {
    let nothing = || write(&[(0, Change::Delete)], 100, applied(11, &[None]));
    let records = || [history(), vec![nothing()]].concat();
    let quiet = after(|watch| {
        watch.marks.push(Mark { told: 3, through: position(11), when: 115 });
    });
    assert_eq!(details(records(), &[], &[quiet]), Vec::<String>::new());
    let told = watch([all(), vec![told(11, Left::Deleted, None)]].concat());
    let found = details(records(), &[], &[told]);
    assert!(found.iter().any(|one| one.contains("nothing to delete")), "{found:?}");
}

#[test]
fn all_puts_of_a_write_are_told_together() {
    let both = write(&[(0, Change::Put(4)), (1, Change::Put(5))], 90, Outcome::Unknown);
    let half = watch([all(), vec![told(11, put(4), None)]].concat());
    let found = details([history(), vec![both]].concat(), &[], &[half]);
    assert!(found.iter().any(|one| one.contains("another put of its write")), "{found:?}");
}

#[test]
fn as_many_keys_of_a_range_are_told_as_were_deleted() {
    let range = |deleted| {
        let spec = RangeSpec { from: 0, until: 3, most: 1, whole: false };
        let outcome = Outcome::RangeDeleted { index: 4, term: 1, deleted, more: true };
        Record { action: Action::DeleteRange(spec), ..write(&[], 30, outcome) }
    };
    let put_before = || write(&[(0, Change::Put(1))], 20, applied(3, &[None]));
    let of_range = || watch(vec![told(3, put(1), None), told(4, Left::Deleted, Some(3))]);
    let found = |deleted| details(vec![put_before(), range(deleted)], &[], &[of_range()]);
    assert_eq!(found(1), Vec::<String>::new());
    assert!(found(2).iter().any(|one| one.contains("1 deleted keys")));
    let a_put = watch(vec![told(3, put(1), None), told(4, put(1), Some(3))]);
    assert!(!details(vec![put_before(), range(1)], &[], &[a_put]).is_empty());
}

#[test]
fn two_watches_that_disagree_are_found() {
    let open = || write(&[(0, Change::Put(4))], 90, Outcome::Unknown);
    let records = || [history(), vec![open()]].concat();
    let other = |extra: Told| Watched { watcher: 8, ..watch([all(), vec![extra]].concat()) };
    let one = watch([all(), vec![told(11, put(4), None)]].concat());
    let found = |extra| details(records(), &[], &[one.clone(), other(extra)]);
    assert_eq!(found(told(11, put(4), None)), Vec::<String>::new());
    assert!(!found(told(12, put(4), None)).is_empty(), "at another entry");
    assert!(!found(told(11, Left::Deleted, None)).is_empty(), "another change");
    assert!(!found(told(11, put(4), Some(7))).is_empty(), "another version before");
}

#[test]
fn a_position_before_the_last_change_or_of_later_is_found() {
    wrong(
        after(|watch| {
            if let Some(first) = watch.marks.first_mut() {
                first.through = position(5);
            }
        }),
        "was at 1.5, and then tells",
    );
    wrong(
        after(|watch| {
            watch.marks.push(Mark { told: 3, through: position(4), when: 80 });
        }),
        "goes back",
    );
    let later = || write(&[(0, Change::Put(4))], 200, applied(11, &[None]));
    let ahead = after(|watch| {
        watch.marks.push(Mark { told: 3, through: position(11), when: 150 });
    });
    let found = details([history(), vec![later()]].concat(), &[], &[ahead]);
    assert!(found.iter().any(|one| one.contains("was sent after that")), "{found:?}");
}

#[test]
fn a_watch_begins_behind_what_was_acknowledged_and_where_it_was_to() {
    let begins_now = |asked: u64| Watched {
        began: Some(position(4)),
        begins: Begins::Now,
        asked,
        ..watch(all().split_off(1))
    };
    assert_eq!(details(history(), &[], &[begins_now(40)]), Vec::<String>::new());
    wrong(begins_now(46), "5 was acknowledged before");
    wrong(after(|watch| watch.begins = Begins::Kept(position(2))), "was to begin");
}

#[test]
fn a_watch_is_compacted_only_before_the_oldest_and_none_is_discarded() {
    let ended = |oldest, now| {
        let end = End::Compacted { oldest: position(oldest), now: position(now) };
        after(|watch| watch.end = Some((end, 90)))
    };
    assert_eq!(details(history(), &[], &[ended(8, 9)]), Vec::<String>::new());
    wrong(ended(7, 9), "ends at");
    wrong(ended(8, 7), "ends at");
    let refused = Watched { began: None, ..ended(2, 9) };
    let refused = Watched { told: Vec::new(), marks: Vec::new(), ..refused };
    assert_eq!(details(history(), &[], std::slice::from_ref(&refused)), Vec::<String>::new());
    wrong(Watched { begins: Begins::Kept(position(2)), ..refused }, "ends at");
    wrong(after(|watch| watch.end = Some((End::Discarded, 90))), "discarded");
}

/// A list behind entry 5, with which a watch begins that tells the rest.
fn listed(versions: &[(Key, Version)]) -> Watched {
    let versions = versions.iter().map(|(key, version)| ((GROUP, *key), *version)).collect();
    Watched {
        began: Some(position(5)),
        begins: Begins::Listed(position(5), versions),
        ..watch(all().split_off(2))
    }
}

#[test]
fn a_list_joins_what_follows_without_a_hole() {
    assert_eq!(details(history(), &[], &[listed(&[(0, 5)])]), Vec::<String>::new());
    let beside = |list: Watched| {
        let found = details(history(), &[], &[list]);
        found.iter().any(|one| one.contains("the list of watcher 7"))
    };
    assert!(beside(listed(&[(0, 3)])), "an older version");
    assert!(beside(listed(&[(0, 5), (1, 9)])), "a version behind the list");
    let covered = details(history(), &[], &[watch(all()), listed(&[])]);
    assert!(covered.iter().any(|one| one.contains("None behind 5")), "a key is missing");
}

#[test]
fn a_state_that_was_taken_has_what_was_told_up_to_its_index() {
    let state = |index, key: Option<(Value, Version)>| SentState {
        asked: 0,
        begun: 200,
        index,
        keys: key.into_iter().map(|found| ((GROUP, 0), found)).collect(),
    };
    let found = |state| details(history(), &[state], &[watch(all())]);
    assert_eq!(found(state(4, Some((1, 3)))), Vec::<String>::new());
    assert_eq!(found(state(7, None)), Vec::<String>::new());
    assert!(!found(state(6, Some((1, 3)))).is_empty(), "an older value");
    assert!(!found(state(6, None)).is_empty(), "a key is missing");
    assert!(!found(state(8, Some((2, 5)))).is_empty(), "a key that was deleted");
}

#[test]
fn a_scope_has_its_keys_and_asks_for_their_range() {
    let some = Scope::Keys { group: 1, from: 1, until: 3 };
    for group in 0..3 {
        for key in 0..GROUP_KEYS {
            let bytes = encode_key(group, key);
            for scope in [some, Scope::All, Scope::group(1)] {
                let range = scope.range();
                let within = *range.start() <= bytes && range.end().is_none_or(|end| bytes < *end);
                assert_eq!(within, scope.has((group, key)), "{scope:?} {group}/{key}");
            }
        }
    }
}
