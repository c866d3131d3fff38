//! Each change is read once and in order, over nodes that are left in the middle of an entry, and nothing else is taken.

use super::*;

fn at(index: u64) -> proto::Position {
    proto::Position { term: 3, index }
}

fn put(key: &'static str, index: u64) -> proto::Change {
    let value = "value".into();
    proto::Change { key: key.into(), at: Some(at(index)), deleted: false, value, previous: 0 }
}

fn told(changes: &[proto::Change], through: Option<u64>) -> proto::WatchChanges {
    proto::WatchChanges { changes: changes.to_vec(), through: through.map(at) }
}

/// Of the keys from `a` on and before `x`, behind entry 10.
fn inbox() -> Inbox {
    let range = proto::Range { start: "a".into(), end: "x".into() };
    let inbox = Inbox::new(range, false, Some(at(10).into()));
    begin(&inbox);
    inbox
}

/// The next node begins where it is asked to.
fn begin(inbox: &Inbox) {
    let (turn, after) = inbox.restart();
    inbox.began(turn, after.unwrap()).unwrap();
}

/// Which node tells now.
fn turn(inbox: &Inbox) -> Turn {
    inbox.state.lock().turn
}

/// The node whose turn it is tells this.
fn tell(inbox: &Inbox, told: proto::WatchChanges) -> Result<Taken, Over> {
    inbox.changes(turn(inbox), told)
}

/// What no node may tell, as a sentence.
fn sentence(over: Over) -> String {
    match over {
        Over::Breach(breach) => breach,
        Over::Said(error) => panic!("{error}"),
    }
}

/// The keys of what can be read, with a dot behind the last one of each entry.
fn read(inbox: &Inbox) -> String {
    let mut keys = String::new();
    while let Some(Ok(change)) = inbox.next() {
        keys += std::str::from_utf8(&change.key).unwrap();
        keys += if change.last_of_version { "." } else { "" };
    }
    keys
}

fn position(inbox: &Inbox) -> u64 {
    inbox.position().index
}

#[test]
fn a_position_is_given_out_once_everything_up_to_it_was_read() {
    let inbox = inbox();
    assert_eq!(position(&inbox), 10);
    let changes = [put("a", 11), put("b", 13), put("c", 13)];
    assert_eq!(tell(&inbox, told(&changes, Some(15))), Ok(Taken::All));
    assert_eq!((position(&inbox), inbox.told()), (10, Some(at(15).into())));
    for (key, last, reaches) in [("a", true, 11), ("b", false, 11), ("c", true, 15)] {
        let change = inbox.next().unwrap().unwrap();
        assert_eq!((&change.key[..], change.last_of_version), (key.as_bytes(), last));
        assert_eq!(position(&inbox), reaches, "behind {key}");
    }
    inbox.through(turn(&inbox), at(19).into()).unwrap();
    assert_eq!((position(&inbox), inbox.is_ready()), (19, false));
    // The mark of a stream does not reach as far as a watch that began later.
    inbox.through(turn(&inbox), at(18).into()).unwrap();
    assert_eq!(position(&inbox), 19);
}

#[test]
fn a_change_is_read_once_it_shows_whether_it_is_the_last_one_of_its_entry() {
    let inbox = inbox();
    tell(&inbox, told(&[put("a", 11)], None)).unwrap();
    assert_eq!((read(&inbox), inbox.is_ready()), (String::new(), false));
    tell(&inbox, told(&[put("b", 11)], None)).unwrap();
    assert_eq!(read(&inbox), "a");
    tell(&inbox, told(&[put("c", 12)], None)).unwrap();
    assert_eq!(read(&inbox), "b.");
    tell(&inbox, told(&[], Some(12))).unwrap();
    assert_eq!((read(&inbox), position(&inbox)), ("c.".to_owned(), 12));
}

/// The story: a node told two of three changes of an entry, and broke off. Told anew by another one, the entry must not give
/// the first change twice, nor leave the third one out.
#[test]
fn an_entry_that_was_told_in_part_is_told_anew_and_read_once() {
    let entry = [put("a", 12), put("b", 12), put("c", 12), put("d", 12)];
    for told_before in 0..=4 {
        for read_before in 0..=4 {
            let inbox = inbox();
            tell(&inbox, told(&[put("w", 11)], Some(11))).unwrap();
            tell(&inbox, told(&entry[..told_before], None)).unwrap();
            let first = (0..=read_before).map_while(|_| inbox.next()?.ok());
            let mut keys: Vec<_> = first.map(|change| change.key).collect();
            begin(&inbox);
            assert_eq!(inbox.told(), Some(at(11).into()), "behind the last whole entry");
            for part in entry.chunks(3) {
                tell(&inbox, told(part, None)).unwrap();
            }
            tell(&inbox, told(&[], Some(12))).unwrap();
            keys.extend(std::iter::from_fn(|| inbox.next()?.ok()).map(|change| change.key));
            assert_eq!(keys, ["w", "a", "b", "c", "d"], "{told_before} told, {read_before} read");
            assert_eq!(position(&inbox), 12);
        }
    }
}

/// The story: a message had more changes than were taken at once, so a watch that was behind ended at each message.
#[test]
fn a_deleted_range_is_taken_as_a_whole_as_it_comes_in_messages_of_a_node() {
    let inbox = inbox();
    let entry: Vec<proto::Change> = (0..4096).map(|_| put("a", 12)).collect();
    for message in entry.chunks(1024) {
        assert_eq!(tell(&inbox, told(message, None)), Ok(Taken::All));
    }
    tell(&inbox, told(&[], Some(12))).unwrap();
    assert_eq!((read(&inbox).len(), position(&inbox)), (4097, 12), "each key, and the dot");
}

#[test]
fn what_is_not_read_is_bounded_and_an_entry_of_any_length_is_read_whole() {
    let inbox = inbox();
    let entry: Vec<proto::Change> = (0..16_000).map(|_| put("a", 12)).collect();
    let (mut count, mut begun) = (0, 0);
    loop {
        begun += 1;
        let mut taken = Taken::All;
        for part in entry.chunks(100) {
            taken = tell(&inbox, told(part, None)).unwrap();
            assert!(inbox.state.lock().changes <= MOST_CHANGES);
            if taken == Taken::Full {
                break;
            }
        }
        if taken == Taken::All {
            tell(&inbox, told(&[], Some(12))).unwrap();
        }
        count += read(&inbox).chars().filter(|key| *key == 'a').count();
        if position(&inbox) == 12 {
            break;
        }
        begin(&inbox);
    }
    assert_eq!((count, begun), (16_000, 4));
    // Values of any length get through, one at a time.
    let large = |index| proto::Change { value: vec![7; MOST_BYTES].into(), ..put("a", index) };
    for index in [13, 15] {
        let both = told(&[large(index), large(index + 1)], Some(index + 1));
        assert_eq!(tell(&inbox, both), Ok(Taken::Full));
        assert_eq!((read(&inbox), position(&inbox)), ("a.".to_owned(), index));
        begin(&inbox);
        assert_eq!(tell(&inbox, told(&[large(index + 1)], Some(index + 1))), Ok(Taken::All));
        assert_eq!(read(&inbox), "a.");
    }
    assert_eq!(inbox.state.lock().bytes, 0);
}

#[test]
fn what_no_node_may_tell_is_refused_with_a_sentence() {
    let later = |term, index| proto::Position { term, index };
    let of_term = |term, index| proto::Change { at: Some(later(term, index)), ..put("a", index) };
    let entryless = proto::Change { at: None, ..put("a", 12) };
    let previous = proto::Change { previous: 12, ..put("a", 12) };
    let nameless = proto::Change { key: "".into(), ..put("a", 12) };
    for (changes, through, says) in [
        (vec![put("a", 10)], None, "behind entry 3.10"),
        (vec![put("a", 12), put("a", 11)], None, "entry 3.11 behind entry 3.12"),
        (vec![of_term(2, 12)], None, "entry 2.12 behind entry 3.10"),
        (vec![of_term(4, 12), of_term(3, 12)], None, "entry 3.12 behind entry 4.12"),
        (vec![put("A", 12)], None, "outside of the range"),
        (vec![put("x", 12)], None, "outside of the range"),
        (vec![nameless], None, "outside of the range"),
        (vec![entryless], None, "without its entry"),
        (vec![previous], None, "followed version 12"),
        (vec![], Some(later(3, 9)), "up to entry 3.9 behind entry 3.10"),
        (vec![], Some(later(2, 11)), "up to entry 2.11 behind entry 3.10"),
        (vec![put("a", 12)], Some(later(3, 11)), "up to entry 3.11 behind entry 3.12"),
    ] {
        let inbox = inbox();
        let over = tell(&inbox, proto::WatchChanges { changes, through }).unwrap_err();
        let breach = sentence(over);
        assert!(breach.contains(says), "{breach}");
    }
    let again = inbox();
    let twice = again.began(turn(&again), at(10).into()).unwrap_err();
    assert!(sentence(twice).contains("twice"));
    for (term, index) in [(3, 9), (3, 11), (2, 10)] {
        let inbox = inbox();
        let (turn, _) = inbox.restart();
        let breach = sentence(inbox.began(turn, later(term, index).into()).unwrap_err());
        assert!(breach.contains("began behind"), "{breach}");
        let breach = sentence(tell(&inbox, told(&[], None)).unwrap_err());
        assert!(breach.contains("had not begun"), "{breach}");
    }
}

/// The story: an unsafe recovery discarded entries that a watch had been told. The next node told what the cluster has at their
/// indexes since, in a later term, and the watch ended as if that node lied.
#[test]
fn an_entry_of_a_later_term_at_a_known_index_shows_that_history_was_discarded() {
    let later = |index| proto::Position { term: 4, index };
    let of_later = |index| proto::Change { at: Some(later(index)), ..put("a", index) };
    let discarded = Over::Said(Error::HistoryDiscarded);
    let began = || {
        let inbox = inbox();
        tell(&inbox, told(&[put("a", 12)], Some(12))).unwrap();
        inbox
    };
    for (changes, through) in [
        (vec![of_later(12)], None),
        (vec![of_later(11)], None),
        (vec![put("a", 13), of_later(13)], None),
        (vec![], Some(later(12))),
        (vec![], Some(later(11))),
        (vec![put("a", 13)], Some(later(13))),
    ] {
        let told = proto::WatchChanges { changes, through };
        assert_eq!(tell(&began(), told.clone()), Err(discarded.clone()), "{told:?}");
    }
    let inbox = began();
    assert_eq!(inbox.through(turn(&inbox), later(12).into()), Err(discarded.clone()));
    let inbox = began();
    let (turn, _) = inbox.restart();
    assert_eq!(inbox.began(turn, later(12).into()), Err(discarded.clone()));
    // The same of an entry that was read in part.
    for (changes, through) in [
        (vec![of_later(13)], None),
        (vec![of_later(14)], None),
        (vec![], Some(later(13))),
        (vec![], Some(later(14))),
    ] {
        let inbox = began();
        tell(&inbox, told(&[put("a", 13), put("b", 13)], None)).unwrap();
        assert_eq!(read(&inbox), "a.a");
        begin(&inbox);
        let told = proto::WatchChanges { changes, through };
        assert_eq!(tell(&inbox, told.clone()), Err(discarded.clone()), "{told:?}");
    }
    // What follows in a later term is history as it goes on.
    let inbox = began();
    assert_eq!(tell(&inbox, told(&[of_later(13)], None)), Ok(Taken::All));
}

#[test]
fn a_node_that_tells_a_known_entry_otherwise_is_not_believed() {
    let entry = [put("a", 12), put("b", 12), put("c", 12)];
    let half_read = || {
        let inbox = inbox();
        tell(&inbox, told(&entry, None)).unwrap();
        assert_eq!(read(&inbox), "ab");
        begin(&inbox);
        inbox
    };
    for (changes, through) in [
        (vec![put("a", 11)], None),
        (vec![put("a", 13)], None),
        (vec![put("a", 12), put("b", 12)], Some(12)),
        (vec![put("a", 12), put("b", 12), put("c", 13)], None),
        (vec![], Some(12)),
    ] {
        let inbox = half_read();
        assert!(tell(&inbox, told(&changes, through)).is_err(), "{changes:?} {through:?}");
    }
    let inbox = half_read();
    tell(&inbox, told(&[], Some(11))).unwrap();
    tell(&inbox, told(&entry, Some(12))).unwrap();
    assert_eq!((read(&inbox), position(&inbox)), ("c.".to_owned(), 12));
}

/// The story: a node did not begin a watch in time, and another one was asked. The first one began late, and both told.
#[test]
fn what_a_node_tells_after_it_was_left_is_not_taken() {
    let inbox = inbox();
    let late = turn(&inbox);
    begin(&inbox);
    inbox.began(late, at(10).into()).unwrap();
    assert_eq!(inbox.changes(late, told(&[put("a", 11)], Some(11))), Ok(Taken::All));
    inbox.through(late, at(12).into()).unwrap();
    assert_eq!((read(&inbox), position(&inbox)), (String::new(), 10));
    tell(&inbox, told(&[put("b", 11)], Some(11))).unwrap();
    assert_eq!(read(&inbox), "b.");
}

#[test]
fn what_was_told_whole_is_read_before_the_reason_why_nothing_follows() {
    let inbox = inbox();
    tell(&inbox, told(&[put("a", 11), put("b", 12), put("c", 12)], None)).unwrap();
    inbox.fail(Error::HistoryDiscarded);
    assert_eq!((read(&inbox), position(&inbox)), ("a.".to_owned(), 11));
    for _ in 0..2 {
        assert_eq!(inbox.next(), Some(Err(Error::HistoryDiscarded)));
    }
}

#[test]
fn a_watch_without_a_position_begins_where_the_first_node_says() {
    let inbox = Inbox::new(proto::Range::default(), true, None);
    let (turn, after) = inbox.restart();
    assert_eq!(after, None);
    inbox.began(turn, at(7).into()).unwrap();
    assert_eq!((position(&inbox), inbox.told()), (7, Some(at(7).into())));
    begin(&inbox);
    tell(&inbox, told(&[put("a", 8)], Some(8))).unwrap();
    assert_eq!(inbox.next().unwrap().unwrap().value, None, "keys only");
    // Of a position the index alone may be known.
    let inbox = Inbox::new(proto::Range::default(), true, Some(Position { term: 0, index: 7 }));
    let (turn, _) = inbox.restart();
    inbox.began(turn, at(7).into()).unwrap();
    assert_eq!(inbox.position(), Position::from(at(7)));
}
