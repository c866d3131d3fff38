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
fn sentences_follow_the_figures_both_ways() {
    let of = |without: f64, synced: f64, engine: f64| {
        let rows = [
            path(files_row(FileSync::Nothing), &[without]),
            path(files_row(FileSync::FileAndFolder), &[synced]),
            path(engine_row(Mode::Sync), &[engine]),
        ];
        sentences(&table("t", &rows))
    };
    let found = of(2.0, 8.0, 4.0);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].ends_with(": 4.0 times as long."), "{found:?}");
    assert!(found[1].ends_with("the engine is 2.0 times as fast."), "{found:?}");
    let found = of(8.0, 2.0, 8.0);
    assert!(found[0].ends_with("fsync does not slow them here."), "{found:?}");
    assert!(found[1].ends_with("the engine is 4.0 times as slow."), "{found:?}");
    let found = of(2.0, 2.1, 2.0);
    assert!(found.iter().all(|one| one.contains("differ by less than 10 %")), "{found:?}");
    assert!(sentences(&table("t", &[Measured::not_made("a", "no")])).is_empty());
}

#[test]
fn what_a_path_owes_counts_in_every_comparison() {
    let rows = [
        owing(files_row(FileSync::Nothing), &[1.0], 7.0),
        path(files_row(FileSync::FileAndFolder), &[4.0]),
        path(engine_row(Mode::Replicated), &[4.0]),
    ];
    let found = sentences(&table("t", &rows));
    assert!(found[0].contains("take 8.0 s") && found[0].contains("does not slow"), "{found:?}");
    assert!(found[1].ends_with("the engine is 2.0 times as fast."), "{found:?}");
    let name = |commit| Kind::Files(FileSync::Nothing, commit).row(State::Empty);
    let rows = [path(&name(1), &[4.0, 4.1]), owing(&name(5), &[4.0, 4.1], 8.0)];
    let found = own_sentences(&table("t", &rows), &rows);
    assert!(found[0].contains("8.1 s (commit=5)") && found[0].contains(": more apart"));
}

#[test]
fn an_interval_that_a_row_did_not_reach_is_not_judged() {
    let of = |seconds: &[(u32, &[f64])]| {
        let name = |commit| Kind::Files(FileSync::Nothing, commit).row(State::Empty);
        let rows: Vec<_> = seconds.iter().map(|(at, all)| path(&name(*at), all)).collect();
        own_sentences(&table("t", &rows), &rows)
    };
    let found = of(&[(1, &[0.3, 0.3]), (5, &[0.6, 0.6]), (30, &[9.0, 9.0])]);
    assert!(found.len() == 1 && found[0].contains("no row of files"), "{found:?}");
    let found = of(&[(1, &[0.6, 0.6]), (5, &[2.4, 2.4])]);
    assert!(found.len() == 1 && found[0].contains("only commit=1 "), "{found:?}");
    let found = of(&[(1, &[3.0, 3.2]), (5, &[2.9, 2.9]), (30, &[9.0, 9.0])]);
    assert!(found[0].contains("2.9 s (commit=5)") && found[0].contains("3.1 s (commit=1)"));
    assert!(found[0].contains("less than 10 %") && !found[0].contains("commit=30"));
    assert!(of(&[]).is_empty());
}

#[test]
fn an_engine_that_was_too_small_is_noted() {
    let mut row = path("engine sync", &[1.0]);
    assert!(waits_notes(std::slice::from_ref(&row), 64 * MIB).is_empty());
    if let Ok(replayed) = &mut row.replayed {
        replayed.waits = 3;
    }
    let found = waits_notes(&[row, Measured::not_made("a", "no")], 64 * MIB);
    assert!(found.len() == 1 && found[0].starts_with("engine sync: 3 times"), "{found:?}");
    assert!(found[0].contains("64 MiB"), "{found:?}");
}

#[test]
fn an_interval_and_a_full_filesystem_are_compared_beyond_the_deviation() {
    let of = |slow: &[f64], full: &[f64]| {
        let row = |commit, state| Kind::Files(FileSync::Nothing, commit).row(state);
        let rows = [
            path(&row(1, State::Empty), slow),
            path(&row(5, State::Empty), &[3.0, 3.2]),
            path(&row(5, State::Full), full),
        ];
        own_sentences(&table("t", &rows), &rows)
    };
    let found = of(&[5.0, 5.2], &[5.0, 5.2]);
    assert!(found[0].ends_with(": more apart than single batches deviate by."), "{found:?}");
    assert!(found[1].contains("90 % full: files without fsync, commit=5, 3.1 s"), "{found:?}");
    assert!(found.iter().all(|one| one.starts_with("In one run each")), "{found:?}");
    let found = of(&[2.0, 6.0], &[2.9, 3.2]);
    assert!(found[0].contains("within what") && found[1].contains("none of the 1 paths"));
    let found = of(&[3.0], &[5.0]);
    assert!(found[0].contains("too few batches"), "{found:?}");
}

#[test]
fn the_plots_sentence_names_the_path_that_changes_most() {
    let sentence = |paths: &[Measured]| plot(paths).map(|plot| plot.sentence);
    let found = sentence(&[path("a", &[1.0, 1.5]), path("b", &[1.0, 7.0, 3.0])]).unwrap();
    assert!(found.contains("slows down: b, from 1.0 s") && found.contains("3.0 s in batch 3"));
    let found = sentence(&[path("a", &[4.0, 1.0]), path("b", &[1.0, 3.0])]).unwrap();
    assert!(found.contains("becomes faster: a, from 4.0 s"), "{found}");
    let found = sentence(&[path("a", &[1.0, 1.05])]).unwrap();
    assert!(found.contains("less than 10 %: a"), "{found}");
    assert!(sentence(&[path("a", &[1.0])]).unwrap().contains("No path replayed more"));
    assert_eq!(sentence(&[Measured::not_made("a", "no")]), None);
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
