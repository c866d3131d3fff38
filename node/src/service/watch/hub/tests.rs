//! What the hub notes, for whom, and what it says of it.

use super::*;
use cairn_raft::KeyChange;
use futures::FutureExt;

fn id(index: u64) -> LogId {
    LogId { term: 1, index }
}

fn entry(index: u64, keys: &[&'static str]) -> EntryChanges {
    let change = |key: &&'static str| KeyChange { key: (*key).into(), value: None, previous: None };
    EntryChanges { id: id(index), changes: keys.iter().map(change).collect() }
}

fn range(start: &'static str, end: &'static str) -> Range {
    Range { start: start.into(), end: Some(end.into()) }
}

/// A hub that has been up to entry 10.
fn hub() -> (Arc<Hub>, WatchMetrics) {
    let metrics = WatchMetrics::default();
    let hub = Hub::new(metrics.clone());
    hub.state.lock().head = id(10);
    (hub, metrics)
}

/// A watch that has come to where the hub is.
fn live(stream: &OfStream, range: Range) -> (u64, Registered) {
    let (watch, registered) = stream.register(range, id(10));
    let (_, breaks) = stream.work(watch).expect("there");
    stream.told(watch, id(10), breaks);
    (watch, registered)
}

#[test]
fn an_entry_is_noted_for_the_watches_that_have_a_key_of_it_and_wakes_their_stream_alone() {
    let (hub, metrics) = hub();
    let (one, other) = (hub.open(), hub.open());
    let (a, _a) = live(&one, range("a", "b"));
    let (ab, _ab) = live(&one, range("a", "c"));
    let (c, c_ends) = live(&other, range("c", "d"));
    assert_eq!((one.is_told(), metrics.counts()), (Some(id(10)), (3, 0)));
    assert!(other.news().now_or_never().is_none());
    assert_eq!(hub.note(&entry(11, &["b1", "a1"])), 2);
    assert_eq!(hub.note(&entry(12, &["b1"])), 1);
    assert_eq!(hub.note(&entry(13, &["z"])), 0);
    assert!(other.news().now_or_never().is_none() && one.news().now_or_never().is_some());
    assert_eq!(one.ready(9), [a, ab]);
    assert_eq!(one.work(a), Some((Work::Entries(vec![id(10)]), 0)));
    assert_eq!(one.work(ab), Some((Work::Entries(vec![id(10), id(11)]), 0)));
    assert_eq!((one.is_told(), other.is_told()), (None, Some(id(13))));
    one.told(a, id(11), 0);
    one.told(ab, id(11), 0);
    assert_eq!(one.ready(9), [ab]);
    assert_eq!(one.work(ab), Some((Work::Entries(vec![id(11)]), 0)));
    one.told(ab, id(12), 0);
    assert_eq!(one.is_told(), Some(id(13)));
    drop(c_ends);
    assert_eq!(hub.note(&entry(14, &["c1"])), 0);
    assert_eq!((other.work(c), metrics.counts()), (None, (2, 0)));
}

#[test]
fn a_watch_that_is_not_told_keeps_a_bounded_number_of_entries_and_reads_the_log_from_the_first() {
    let (hub, metrics) = hub();
    let stream = hub.open();
    let (watch, _ends) = live(&stream, range("a", "b"));
    let last = 10 + PENDING as u64;
    for index in 11..=last {
        hub.note(&entry(index, &["a"]));
    }
    assert!(matches!(stream.work(watch), Some((Work::Entries(all), 0)) if all.len() == PENDING));
    assert!(!stream.reads_log());
    for index in last + 1..last + 100 {
        hub.note(&entry(index, &["a"]));
    }
    assert_eq!(stream.work(watch), Some((Work::Behind(id(10)), 0)));
    assert!(stream.reads_log() && metrics.counts() == (1, 1));
    stream.told(watch, id(50), 0);
    assert_eq!(stream.work(watch), Some((Work::Behind(id(50)), 0)));
    let head = id(last + 99);
    stream.told(watch, head, 0);
    assert_eq!((stream.is_told(), metrics.counts()), (Some(head), (1, 0)));
    hub.note(&entry(last + 100, &["a"]));
    assert_eq!(stream.work(watch), Some((Work::Entries(vec![head]), 0)));
}

/// What it read itself, the hub may come to only later.
#[test]
fn a_watch_that_is_ahead_of_the_hub_is_not_told_an_entry_twice() {
    let (hub, _) = hub();
    let stream = hub.open();
    let (watch, _ends) = stream.register(range("a", "b"), id(12));
    stream.told(watch, id(12), 0);
    for index in 11..=12 {
        assert!(stream.idle([watch].into_iter(), 9).1.is_empty(), "the hub is before it");
        hub.note(&entry(index, &["a"]));
    }
    assert_eq!(stream.idle([watch].into_iter(), 9), (id(12), vec![watch]));
    assert_eq!(stream.is_told(), Some(id(12)));
    hub.note(&entry(13, &["a"]));
    assert_eq!(stream.work(watch), Some((Work::Entries(vec![id(12)]), 0)));
}

/// The story: a member got the snapshot of another history while a watch read the old one to its end, and the
/// watch went on with the new one as if it had missed nothing.
#[test]
fn behind_a_hole_each_watch_goes_on_from_where_it_was_and_none_joins_the_hub_unseen() {
    let (hub, metrics) = hub();
    let stream = hub.open();
    let (idle, _idle) = live(&stream, range("x", "y"));
    let (noted, _noted) = live(&stream, range("a", "b"));
    let (reads, _reads) = stream.register(range("a", "b"), id(3));
    let (_, breaks) = stream.work(reads).expect("there");
    hub.note(&entry(11, &["a"]));
    hub.note(&entry(12, &["b"]));
    hub.skip_to(LogId { term: 2, index: 7 });
    for (watch, after) in [(idle, id(12)), (noted, id(10)), (reads, id(3))] {
        assert_eq!(stream.work(watch), Some((Work::Behind(after), 1)));
    }
    stream.told(reads, id(12), breaks);
    assert_eq!(stream.work(reads), Some((Work::Behind(id(12)), 1)), "it is of the old history");
    assert_eq!(metrics.counts(), (3, 3));
}

/// Beside one that always has something to be told.
#[test]
fn watches_without_anything_to_be_told_are_where_the_hub_is() {
    let (hub, _) = hub();
    let stream = hub.open();
    let (busy, _busy) = live(&stream, range("a", "b"));
    let idle: Vec<_> = (0..3).map(|_| live(&stream, range("x", "y"))).collect();
    let (reads, _reads) = stream.register(range("x", "y"), id(3));
    hub.note(&entry(11, &["a"]));
    assert_eq!(stream.is_told(), None);
    let numbers: Vec<u64> = idle.iter().map(|(watch, _)| *watch).collect();
    let all = || [busy, reads].into_iter().chain(numbers.iter().copied());
    assert_eq!(stream.idle(all(), 9), (id(11), numbers.clone()));
    assert_eq!(stream.idle(all(), 2), (id(11), numbers[..2].to_vec()), "no more than asked for");
}

#[test]
fn watches_have_their_turn_one_after_the_other_and_a_stream_that_is_gone_leaves_nothing() {
    let (hub, metrics) = hub();
    let stream = hub.open();
    let all: Vec<_> = (0..3).map(|_| live(&stream, range("a", "b"))).collect();
    let numbers: Vec<u64> = all.iter().map(|(watch, _)| *watch).collect();
    for index in 11..14 {
        hub.note(&entry(index, &["a"]));
    }
    assert_eq!(stream.ready(2), numbers[..2]);
    stream.told(numbers[0], id(11), 0);
    assert_eq!(stream.ready(3), [numbers[1], numbers[2], numbers[0]]);
    drop((stream, all));
    let state = hub.state.lock();
    assert!(state.watches.is_empty() && state.streams.is_empty());
    assert_eq!(metrics.counts(), (0, 0));
}
