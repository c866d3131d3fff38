//! The experiment in a temporary directory, and what it must say.

use super::rows::{DELETES, PARTS, PARTS_ONLY, PUTS};
use super::*;
use crate::experiment::tests::{run_alone, run_watched, settings};
use crate::report::{Outcome, PlotData};

const SHORT: Limit =
    Limit::Time { warm_up: Duration::from_millis(20), measured: Duration::from_millis(100) };

const ALL_ROWS: Definition = Definition {
    run: |context| Box::pin(run(context, SHORT, context.place.direct())),
    ..DEFINITION
};

/// The buffered rows only.
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
    let (found, peak) = run_watched(&ALL_ROWS, &settings);
    assert!(peak > 0);
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
    assert!(!found.checks.is_empty());
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
