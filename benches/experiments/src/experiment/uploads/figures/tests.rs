//! Sentences and figures of made-up replays.

use super::super::replay::{Batch, Synced};
use super::*;
use crate::report::Outcome;

/// A path whose batches of 10,000 events take so many seconds, and their syncs nothing.
fn path(name: &str, seconds: &[f64]) -> Measured {
    owing(name, seconds, 0.0)
}

/// The same, with so many seconds for a sync after all batches.
fn owing(name: &str, seconds: &[f64], sync: f64) -> Measured {
    let batch = |seconds: &f64| Batch {
        events: 10_000,
        elapsed: Duration::from_secs_f64(*seconds),
        whole: true,
    };
    let batches = seconds.iter().map(batch).collect();
    let (events, elapsed) = (10_000 * seconds.len(), Duration::from_secs_f64(sync));
    let syncs = vec![Synced { events, elapsed }];
    Measured::new(name, "disk", Replayed { batches, syncs, waits: 0 })
}

#[test]
fn a_row_has_mean_and_deviation_and_the_first_and_the_last_batch() {
    let rows =
        [owing("a", &[1.0, 2.0, 6.0], 1.5), path("b", &[4.0]), Measured::not_made("c", "no")];
    let found = table("t", &rows);
    for (column, meant) in [(TIME, 3.0), ("first batch", 1.0), ("last batch", 6.0)] {
        assert_eq!(found.value("a", column), Some(meant), "{column}");
    }
    let deviation = found.value("a", DEVIATION).unwrap();
    assert!((deviation - 7.0f64.sqrt()).abs() < 1e-9, "{deviation}");
    assert_eq!(found.value("a", "events"), Some(5000.0));
    assert_eq!((found.value("a", SYNC), found.value("a", WITH_SYNC)), (Some(0.5), Some(3.5)));
    assert_eq!(found.value("b", TIME), Some(4.0));
    assert_eq!(found.value("b", DEVIATION).or(found.value("b", "last batch")), None);
    assert_eq!(found.rows[2].outcome, Outcome::NotMade("no".into()));
}

#[test]
fn what_a_path_owes_counts_in_every_comparison() {
    let rows = [
        owing(files_row(FileSync::Nothing), &[1.0], 7.0),
        path(files_row(FileSync::FileAndFolder), &[4.0]),
        owing(engine_row(Mode::Sync), &[1.0], 0.2),
        path(engine_row(Mode::Replicated), &[2.0]),
    ];
    let found = table("t", &rows);
    let said = sentences(&found);
    let times = ["folder: 0.500 ×", "The engine, as durable: 0.300 ×", "the answer: 0.250 ×"];
    assert_eq!(said.len(), times.len(), "{said:?}");
    assert!(said.iter().zip(times).all(|(one, times)| one.contains(times)), "{said:?}");
    let plot = plot(&found, &rows).unwrap();
    assert!(plot.sentence.contains("4.00 ×"), "without the sync: {}", plot.sentence);
    let none = [Measured::not_made("a", "no")];
    assert!(sentences(&table("t", &none)).is_empty());
    assert!(super::plot(&table("t", &none), &none).is_none());
}

#[test]
fn an_interval_that_a_row_did_not_reach_is_not_compared() {
    let of = |seconds: &[(u32, &[f64])]| {
        let row = |(at, all): &(u32, &[f64])| owing(&unsynced(*at), all, f64::from(*at));
        let rows: Vec<_> = seconds.iter().map(row).collect();
        (own_sentences(&table("t", &rows), &rows), commit_note(&rows))
    };
    let (found, note) = of(&[(1, &[3.0]), (5, &[6.0]), (30, &[9.0])]);
    assert!(found.len() == 1 && found[0].contains("2.75 ×"), "with what they owe: {found:?}");
    assert!(note.unwrap().ends_with("commit=30, empty."));
    assert_eq!(of(&[(1, &[2.0])]), (Vec::new(), None));
}

#[test]
fn the_path_that_a_full_filesystem_slows_most_is_named() {
    let row = |commit, state| Kind::Files(FileSync::Nothing, commit).row(state);
    // The last one has no empty filesystem beside it.
    let rows = [
        owing(&row(1, State::Empty), &[0.5], 1.5),
        owing(&row(1, State::Full), &[2.0], 2.0),
        owing(&row(5, State::Empty), &[1.0], 1.0),
        owing(&row(5, State::Full), &[1.5], 6.5),
        owing(&row(30, State::Full), &[99.0], 0.0),
    ];
    let found = own_sentences(&table("t", &rows), &rows);
    assert!(found.len() == 1 && found[0].contains("4.00 ×"), "with what it owes: {found:?}");
    assert!(found[0].contains("“files without fsync, commit=5, 90 % full” 8.00"), "{found:?}");
    let same = [State::Empty, State::Full].map(|state| path(&row(1, state), &[2.0]));
    assert!(own_sentences(&table("t", &same), &same).is_empty(), "nothing is slower");
}

#[test]
fn an_engine_that_was_too_small_is_noted() {
    let mut row = path("engine sync", &[1.0]);
    assert!(waits_notes(std::slice::from_ref(&row), 64 << 20).is_empty());
    row.replayed.as_mut().unwrap().waits = 3;
    let found = waits_notes(&[row, Measured::not_made("a", "no")], 64 << 20);
    assert!(found.len() == 1 && found[0].starts_with("engine sync: 3 waits"), "{found:?}");
    assert!(found[0].contains("64 MiB") && !found[0].contains("--size"), "{found:?}");
}

#[test]
fn a_row_that_was_cut_is_noted() {
    let mut cut = path("a", &[1.0, 1.0]);
    let first = |row: &mut Measured, events| {
        if let Ok(replayed) = &mut row.replayed {
            replayed.batches.truncate(1);
            replayed.batches[0] = Batch { events, whole: false, ..replayed.batches[0] };
        }
    };
    assert!(cut_notes(std::slice::from_ref(&cut), 2).is_empty());
    assert!(cut_notes(std::slice::from_ref(&cut), 3)[0].ends_with("after 2 of 3 batches."));
    first(&mut cut, 7);
    assert!(cut_notes(std::slice::from_ref(&cut), 3)[0].ends_with("after 7 events."));
    first(&mut cut, 0);
    assert!(cut_notes(&[cut], 3)[0].contains("no event"));
}
