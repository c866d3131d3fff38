//! The experiment in a temporary directory, and what it must say.

use super::rows::{DELETES, PARTS, PARTS_ONLY, PUTS};
use super::*;
use crate::experiment::tests::{Silent, run_alone, settings};
use crate::measure::Samples;
use crate::measure::Stop;
use crate::place::{FOLDER, Place};
use crate::report::{Outcome, PlotData};
use crate::subject::Subject;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const SHORT: Pace = Pace {
    rounds: 1,
    limit: Limit::Time { warm_up: Duration::from_millis(20), measured: Duration::from_millis(100) },
};

/// The buffered rows only, in fewer and shorter rounds.
const WITHOUT_DIRECT: Definition = Definition {
    run: |context| Box::pin(run(context, SHORT, Err("no O_DIRECT here".to_owned()))),
    ..DEFINITION
};

fn rows(experiment: &Experiment, title: &str) -> Vec<(String, bool)> {
    let table = experiment.table(title).unwrap();
    let made = |outcome: &Outcome| matches!(outcome, Outcome::Measured(_));
    table.rows.iter().map(|row| (row.name.clone(), made(&row.outcome))).collect()
}

#[test]
fn every_row_is_there_measured_or_with_its_reason_in_bounded_space() {
    let settings = settings();
    let (found, peak) = run_watched(&settings);
    assert!(peak > 0 && peak <= bounds(&settings).bytes, "{peak} {:?}", bounds(&settings));
    let puts = rows(&found, PUTS);
    assert_eq!(puts.len(), 6 + 3 + 3, "{puts:?}");
    for name in ["Cairn, device", "Cairn, replicated", "Cairn, sync"] {
        let measured = name != "Cairn, device";
        assert!(puts.contains(&(name.to_owned(), measured)), "{puts:?}");
    }
    assert_eq!(rows(&found, PARTS).len(), PARTS_ONLY.len() + 3);
    let deletes = rows(&found, DELETES);
    assert_eq!(deletes.len(), 4);
    assert!(deletes[2].0.starts_with("Cairn, sync"), "as durable as the files beside it");
    for title in [PUTS, PARTS, DELETES] {
        let table = found.table(title).unwrap();
        for row in &table.rows {
            match &row.outcome {
                Outcome::Measured(_) => assert!(!row.answered_by.is_empty(), "{}", row.name),
                Outcome::NotMade(reason) => assert!(!reason.is_empty(), "{}", row.name),
            }
        }
    }
    assert!(found.notes.iter().any(|note| note.contains("79 requests")));
    assert!(!found.checks.is_empty() && !found.sentences.is_empty());
    for plot in &found.plots {
        let (table, column) = match &*plot.file {
            "objects-puts.svg" => (PUTS, "rate"),
            _ => (DELETES, "p99"),
        };
        let PlotData::Bars { bars, .. } = &plot.data else { panic!("bars") };
        let table = found.table(table).unwrap();
        for (name, bar) in bars {
            assert_eq!(table.value(name, column), Some(bar.median), "{name}");
        }
        if column == "rate" {
            let on_disk = table.rows.iter().filter(|row| row.answered_by == "disk");
            let fastest = on_disk.max_by(|a, b| {
                let rate = |name| table.value(name, "rate").unwrap_or(0.0);
                rate(&a.name).total_cmp(&rate(&b.name))
            });
            assert!(plot.sentence.contains(&fastest.unwrap().name), "{}", plot.sentence);
        }
    }
}

#[test]
fn without_direct_writes_the_buffered_rows_are_there() {
    let found = run_alone(&WITHOUT_DIRECT, &settings());
    let made = |title| rows(&found, title).into_iter().filter(|row| row.1).count();
    assert_eq!((made(PUTS), made(PARTS), made(DELETES)), (3, 1, 2));
    let refused = found.table(PUTS).unwrap().rows.iter().filter_map(|row| match &row.outcome {
        Outcome::NotMade(reason) => Some(reason.as_str()),
        Outcome::Measured(_) => None,
    });
    // The reason of a mode that is not justified counts before the place's.
    assert_eq!(refused.filter(|reason| *reason == "no O_DIRECT here").count(), 3 + 2 + 3);
}

fn bytes_below(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()) + metadata.blocks() * 512,
        Ok(metadata) => metadata.blocks() * 512 + 512,
        Err(_) => 0,
    };
    entries.filter_map(Result::ok).map(bytes).sum()
}

/// Runs the experiment while the space in its folder is watched.
fn run_watched(settings: &Settings) -> (Experiment, u64) {
    let directory = tempfile::tempdir().unwrap();
    let place = Place::make(directory.path(), 0).unwrap();
    let context = Context { settings, place: &place, observer: &Silent, stop: Stop::default() };
    let folder = directory.path().join(FOLDER);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let ended = AtomicBool::new(false);
    let (found, peak) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut peak = 0;
            while !ended.load(Ordering::Relaxed) {
                peak = bytes_below(&folder).max(peak);
                std::thread::yield_now();
            }
            peak
        });
        let found = runtime.block_on(run(&context, SHORT, place.direct()));
        ended.store(true, Ordering::Relaxed);
        (found.unwrap(), watcher.join().unwrap())
    });
    let left: Vec<_> = std::fs::read_dir(&folder).unwrap().collect();
    assert_eq!(left.len(), 1, "the mark only: {left:?}");
    (found, peak)
}

#[test]
fn the_bounds_keep_the_budget_even_with_all_modes() {
    let all = settings().modes.into_iter().map(|(mode, _)| (mode, None)).collect();
    let quick = Settings { size_bytes: Settings::QUICK_SIZE, modes: all, ..settings() };
    let found = bounds(&quick);
    assert!(found.time <= Duration::from_secs(30), "{found:?}");
    assert!(found.bytes <= 2 * Settings::QUICK_SIZE, "{found:?}");
    let full = Settings { size_bytes: Settings::DEFAULT_SIZE, quick: false, ..quick };
    let found = bounds(&full);
    assert!(found.time <= Duration::from_secs(420), "{found:?}");
    assert!(found.bytes <= 2 * Settings::DEFAULT_SIZE, "{found:?}");
}

#[test]
fn rounds_end_when_their_time_is_over_but_not_before_the_first() {
    let directory = tempfile::tempdir().unwrap();
    let place = Place::make(directory.path(), 0).unwrap();
    let settings = settings();
    let context =
        Context { settings: &settings, place: &place, observer: &Silent, stop: Stop::default() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let mut sizes = Sizes::new(&settings);
    sizes.files_time = Duration::from_millis(100);
    let none = || Err("none".to_owned());
    let mut made = runtime.block_on(cases::make(&context, &sizes, none())).unwrap();
    let pace = Pace { rounds: 3, ..SHORT };
    let made_rounds = runtime.block_on(rounds(&context, &mut made.beside, pace, Instant::now()));
    assert_eq!(made_rounds.unwrap(), 1);
    assert!(made.beside.iter().filter(|case| case.subject.is_ok()).all(|c| c.rounds.len() == 1));
}

struct Noting(&'static str, Arc<Mutex<Vec<&'static str>>>);

impl Subject for Noting {
    fn round<'a>(&'a mut self, _: &'a Load) -> BoxFuture<'a, anyhow::Result<Samples>> {
        self.1.lock().unwrap().push(self.0);
        Box::pin(async { Samples::new() })
    }
}

#[test]
fn every_second_round_runs_the_rows_in_the_reverse_order() {
    let directory = tempfile::tempdir().unwrap();
    let place = Place::make(directory.path(), 0).unwrap();
    let settings = settings();
    let context =
        Context { settings: &settings, place: &place, observer: &Silent, stop: Stop::default() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let ran = Arc::default();
    let mut cases: Vec<Case> =
        ["a", "b", "c"].map(|name| Case::new(name, "x", Noting(name, Arc::clone(&ran)))).into();
    let pace = Pace { rounds: 3, ..SHORT };
    let until = Instant::now() + Duration::from_secs(3600);
    assert_eq!(runtime.block_on(rounds(&context, &mut cases, pace, until)).unwrap(), 3);
    assert_eq!(ran.lock().unwrap().concat(), "abccbaabc");
    assert_eq!(cases.iter().map(|case| &*case.name).collect::<String>(), "abc");
}
