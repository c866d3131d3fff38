//! Bytes and time between two syncs: of a file that one thread writes, and of the engine.
//!
//! The first table is made after jolynch, "Wait Before You Sync". The second one asks the same of
//! Cairn's own settings, and says whether their defaults are right for this disk.
//!
//! What holds here: a row whose length depends on the disk is cut by a time limit. A row that is
//! answered without a sync says so.

mod file;
mod file_verdict;
mod mixed;
mod plan;
mod sweep;
mod sweep_verdict;

use super::{Bounds, Context, Definition, Settings};
use crate::report::Experiment;
use anyhow::Result;
use futures::future::BoxFuture;

/// What the folders and the filesystem's own blocks take.
const OTHER_BYTES: u64 = 1 << 20;

pub(super) const DEFINITION: Definition = Definition {
    name: "intervals",
    question: "How often can a file be synced before it costs throughput, and are Cairn's sync \
               settings right for this disk?",
    source: "jolynch, \"Wait Before You Sync\"",
    bounds,
    run: |context| -> BoxFuture<'_, _> {
        Box::pin(async {
            let (file, sweep) = plans(context.settings);
            run(context, &file, &sweep).await
        })
    },
};

fn plans(settings: &Settings) -> (file::Plan, plan::Plan) {
    (file::Plan::new(settings), plan::Plan::new(settings))
}

/// The file is removed before the engine is made. A quick run assumes a disk that writes 200 MiB/s.
fn bounds(settings: &Settings) -> Bounds {
    let (file, sweep) = plans(settings);
    let fill = |bytes: u64| settings.fill_time(bytes);
    Bounds {
        bytes: file.bytes.max(sweep.bytes) + OTHER_BYTES,
        time: file.bound(fill) + sweep.bound(fill),
    }
}

async fn run(context: &Context<'_>, file: &file::Plan, sweep: &plan::Plan) -> Result<Experiment> {
    let (written, mut notes) = file::measure(context, file).await?;
    let cells = sweep::measure(context, sweep).await?;
    let direct = context.place.direct().is_ok();
    let swept = sweep::table(sweep, context.settings, &cells, direct);
    let mut sentences = file_verdict::sentences(&written);
    sentences.extend(sweep_verdict::sentences(&swept, sweep));
    notes.extend(sweep.notes());
    notes.extend(sweep::waits_notes(&cells, sweep.bytes));
    notes.extend(sweep_verdict::left_out(&swept, sweep));
    let plots = [file_verdict::plot(&written, file), sweep_verdict::plot(&swept, sweep)];
    Ok(Experiment {
        plots: plots.into_iter().flatten().collect(),
        tables: vec![written, swept],
        sentences,
        notes,
        checks: sweep::checks(&cells),
        ..Experiment::default()
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Bench, run_alone, run_watched, settings};
    use super::*;
    use crate::report::{Outcome, PlotData};
    use cairn_engine::Mode;
    use std::time::Duration;

    /// The least plans in which every row is measured.
    fn short(settings: &Settings) -> (file::Plan, plan::Plan) {
        let (file, sweep) = plans(settings);
        let ms = Duration::from_millis;
        (
            file::Plan { bytes: 2 << 20, limit: ms(200), ..file },
            plan::Plan { warm_up: ms(20), window: ms(150), long_window: ms(150), ..sweep },
        )
    }

    const SHORT: Definition = Definition {
        run: |context| -> BoxFuture<'_, _> {
            Box::pin(async {
                let (file, sweep) = short(context.settings);
                run(context, &file, &sweep).await
            })
        },
        ..DEFINITION
    };

    #[test]
    fn all_rows_are_measured_or_have_a_reason() {
        let settings = settings();
        let found = run_alone(&SHORT, &settings);
        let (file, sweep) = short(&settings);
        let [written, swept] = found.tables.as_slice() else { panic!("two tables") };
        let names: Vec<&str> = written.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, file::ROWS.map(file::Syncs::name));
        assert_eq!(written.title, file.title());
        assert_eq!(written.rows[0].answered_by, "page cache");
        let measured = |row: &&crate::report::Row| matches!(row.outcome, Outcome::Measured(_));
        // The file of this test is shorter than the longest two intervals.
        assert_eq!(written.rows.iter().filter(measured).count(), 5);
        assert_eq!(swept.rows.len(), sweep.settings.len() * sweep.clients.len());
        assert_eq!(swept.rows.iter().filter(measured).count(), swept.rows.len());
        assert_eq!(found.checks.len(), swept.rows.len());
        // A slow disk may answer too little in so short rounds for sentences about the engine.
        assert!((3..=9).contains(&found.sentences.len()), "{:?}", found.sentences);
        for plot in &found.plots {
            let PlotData::Lines { lines, .. } = &plot.data else { panic!("lines") };
            let above = |(x, y): &(f64, f64)| *x > 0.0 && *y > 0.0;
            assert!(lines.iter().all(|(_, points)| points.iter().all(above)), "{plot:?}");
        }
    }

    #[test]
    fn a_mode_that_is_not_justified_is_there_with_its_reason() {
        let refused = Some("the disk lies".to_owned());
        let modes = vec![(Mode::Replicated, refused)];
        let found = run_alone(&SHORT, &Settings { modes, ..settings() });
        let swept = &found.tables[1];
        assert_eq!(swept.rows.len(), 12);
        for row in &swept.rows {
            let Outcome::NotMade(reason) = &row.outcome else { panic!("{row:?}") };
            assert_eq!(reason == "the disk lies", row.name.starts_with("replicated"));
        }
        assert_eq!((found.plots.len(), found.sentences.len()), (1, 3), "the file's alone");
    }

    #[test]
    fn the_space_stays_within_the_bound_and_is_free_at_the_end() {
        let (_, sweep) = plans(&settings());
        assert!(run_watched(&SHORT, &settings()).1 >= sweep.bytes);
    }

    #[test]
    fn a_stopped_run_ends_before_its_next_step() {
        let bench = Bench::new(settings());
        bench.stop.set();
        assert!(bench.run(&SHORT).unwrap_err().is::<crate::Stopped>());
    }
}
