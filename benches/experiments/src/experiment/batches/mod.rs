//! How many writes a sync is shared by: after fsync-cost, one writer that syncs after every so many
//! writes; and beside it group commit, in which many clients share a sync.

mod group;
mod text;
mod writer;

use super::{
    Bounds, Case, Context, Definition, Settings, close, little_check, load_figures, rounds,
};
use crate::measure::{Limit, Samples, median, spread};
use crate::report::{Check, Experiment, Table};
use crate::subject::{Content, fill_file};
use anyhow::Result;
use cairn_engine::io::BLOCK;
use futures::future::BoxFuture;
use group::{Kind, clients};
use std::path::PathBuf;
use std::time::Duration;
use writer::{Call, FileWrites, Manner, SyncTimes};

pub(super) const DEFINITION: Definition = Definition {
    name: "batches",
    question: "How many writes must share one fsync until it costs little, and who can share one?",
    source: "fsync-cost (one fdatasync per 1, 10, 100 and 1,000 writes; O_DIRECT; fsync)",
    bounds,
    run: |context| -> BoxFuture<'_, _> { Box::pin(run(context)) },
};

pub(super) const ONE_WRITER: &str = "One writer";

/// The row without any sync.
const NO_SYNC: &str = "no sync at all";
/// The rows with a sync per so many writes.
const PER: [(f64, &str); 4] = [
    (1.0, "fdatasync per write"),
    (10.0, "fdatasync per 10 writes"),
    (100.0, "fdatasync per 100 writes"),
    (1000.0, "fdatasync per 1,000 writes"),
];
pub(super) const DIRECT: &str = "O_DIRECT, no sync";
pub(super) const FDATASYNC_DIRECT: &str = "O_DIRECT, fdatasync per write";
const FSYNC: &str = "fsync per write";
const FDATASYNC_GROWING: &str = "fdatasync per write, growing file";
const FSYNC_GROWING: &str = "fsync per write, growing file";

/// Below this mean latency the loop's own work is more than the 10 % that Little's law leaves.
const LITTLE_FROM_US: f64 = 5.0;

const PLAIN: Manner = Manner { direct: false, dsync: false, sync: None, growing: false };

/// The rows of one writer: the name, what has the data at the answer, and how it writes.
fn one_writer() -> Vec<(&'static str, &'static str, Manner)> {
    let fdatasync = |every| Manner { sync: Some((Call::Fdatasync, every)), ..PLAIN };
    let fsync = Manner { sync: Some((Call::Fsync, 1)), ..PLAIN };
    let direct = |manner| Manner { direct: true, ..manner };
    let [(_, per_1), (_, per_10), (_, per_100), (_, per_1000)] = PER;
    vec![
        (per_1, "disk", fdatasync(1)),
        (per_10, "page cache; disk at each 10th", fdatasync(10)),
        (per_100, "page cache; disk at each 100th", fdatasync(100)),
        (per_1000, "page cache; disk at each 1,000th", fdatasync(1000)),
        (FSYNC, "disk", fsync),
        (FDATASYNC_GROWING, "disk", Manner { growing: true, ..fdatasync(1) }),
        (FSYNC_GROWING, "disk", Manner { growing: true, ..fsync }),
        ("O_DSYNC", "disk", Manner { dsync: true, ..PLAIN }),
        (DIRECT, "device", direct(PLAIN)),
        (FDATASYNC_DIRECT, "disk", direct(fdatasync(1))),
        ("O_DIRECT and O_DSYNC", "disk", direct(Manner { dsync: true, ..PLAIN })),
        (NO_SYNC, "page cache", PLAIN),
    ]
}

/// What the rows are given.
#[derive(Debug)]
struct Sizes {
    file: u64,
    engine: u64,
    one_writer: Limit,
    group_commit: Limit,
}

fn sizes(settings: &Settings) -> Sizes {
    let limit = |warm_up, measured| Limit::Time {
        warm_up: Duration::from_millis(warm_up),
        measured: Duration::from_millis(measured),
    };
    if settings.quick {
        let (one_writer, group_commit) = (limit(15, 80), limit(50, 200));
        return Sizes { file: 8 << 20, engine: 64 << 20, one_writer, group_commit };
    }
    let engine = (settings.size_bytes / 8).clamp(64 << 20, 256 << 20) >> 20 << 20;
    let both = limit(200, 1000);
    Sizes { file: 64 << 20, engine, one_writer: both, group_commit: both }
}

/// Time: all rounds, and what is made before them at 200 MiB/s (quick) or at
/// [`Settings::fill_time`]. A round of one writer, and its warm-up, each end with the writes that
/// share a sync: their transfer comes on top. Space: the files of the first table, or the two
/// engines and one file of the second.
fn bounds(settings: &Settings) -> Bounds {
    const INODES: u64 = 64 << 10;
    let sizes = sizes(settings);
    let bytes = (3 * sizes.file).max(2 * sizes.engine + sizes.file) + INODES;
    let round = |limit: Limit| limit.time().unwrap_or_default();
    let rounds = settings.rounds() as u32;
    let rows = one_writer();
    let shared = rows.iter().filter_map(|(_, _, manner)| Some(manner.sync?.1 * BLOCK as u64));
    let completed = 2 * u64::from(rounds) * shared.sum::<u64>();
    let made = 4 * sizes.file + 2 * sizes.engine + completed;
    let other = Duration::from_millis(if settings.quick { 700 } else { 10_000 });
    let making = settings.fill_time(made) + other;
    let kinds: usize = clients(settings.quick)
        .iter()
        .map(|clients| Kind::ALL.iter().filter(|kind| *clients <= kind.most_clients()).count())
        .sum();
    let time = making
        + round(sizes.one_writer) * rounds * rows.len() as u32
        + round(sizes.group_commit) * rounds * kinds as u32;
    Bounds { bytes, time }
}

async fn run(context: &Context<'_>) -> Result<Experiment> {
    let sizes = sizes(context.settings);
    let (first, mut checks) = measure_one_writer(context, &sizes).await?;
    let (second, group_checks) = group::measure_group_commit(context, &sizes).await?;
    checks.extend(group_checks);
    let plots = text::plots(&first, &second, clients(context.settings.quick));
    let sentences = text::sentences(&first, &second);
    let notes = text::notes(&sizes);
    Ok(Experiment {
        tables: vec![first, second],
        plots,
        sentences,
        notes,
        checks,
        ..Experiment::default()
    })
}

/// A file of random bytes in the place.
async fn make_file(context: &Context<'_>, name: &str, bytes: u64, direct: bool) -> Result<PathBuf> {
    context.step(&format!("writing {name}"))?;
    let path = context.place.path(name);
    fill_file(&path, bytes, Content::Random, direct, Duration::MAX, &context.stop).await?;
    Ok(path)
}

async fn measure_one_writer(context: &Context<'_>, sizes: &Sizes) -> Result<(Table, Vec<Check>)> {
    let (plain, growing, direct) = ("batches-file", "batches-growing", "batches-direct");
    let plain_path = make_file(context, plain, sizes.file, false).await?;
    let growing_path = make_file(context, growing, BLOCK as u64, false).await?;
    let allowed = context.place.direct();
    let direct_path = match &allowed {
        Ok(()) => Some(make_file(context, direct, sizes.file, true).await?),
        Err(_) => None,
    };
    let mut cases = Vec::new();
    let mut syncs: Vec<SyncTimes> = Vec::new();
    for (name, answered_by, manner) in one_writer() {
        let path = match (manner.direct, &direct_path) {
            (false, _) if manner.growing => &growing_path,
            (false, _) => &plain_path,
            (true, Some(path)) => path,
            (true, None) => {
                cases.push(Case::not_made(name, allowed.clone().err().unwrap_or_default()));
                syncs.push(SyncTimes::default());
                continue;
            }
        };
        let subject = FileWrites::open(path, sizes.file, manner)?;
        syncs.push(subject.syncs.clone());
        cases.push(Case::new(name, answered_by, subject));
    }
    rounds(context, &mut cases, 1, sizes.one_writer, None).await?;
    let columns = [
        ("rate", "writes/s"),
        ("per write", "µs"),
        ("p50", "µs"),
        ("p99", "µs"),
        ("sync p50", "µs"),
    ];
    let mut table = Table::new(ONE_WRITER, &columns);
    for (case, syncs) in cases.iter().zip(&syncs) {
        match &case.subject {
            Err(reason) => table.not_made(&*case.name, reason),
            Ok(_) => {
                let mut figures = load_figures(&case.rounds);
                // The last column is rate × mean: the checks have it.
                figures.pop();
                figures.push(spread(&syncs.p50_us()));
                table.measured(&*case.name, &*case.answered_by, figures);
            }
        }
    }
    let checks = checks_of(&cases, 1);
    close(cases).await?;
    for name in [plain, growing, direct] {
        context.place.remove(name)?;
    }
    Ok((table, checks))
}

/// Little's law for all rows whose writes take long enough for it.
fn checks_of(cases: &[Case], depth: usize) -> Vec<Check> {
    let slow = |rounds: &[Samples]| {
        let means: Vec<f64> = rounds.iter().map(Samples::mean_us).collect();
        !rounds.is_empty() && median(&means) >= LITTLE_FROM_US
    };
    let slow = cases.iter().filter(|case| slow(&case.rounds));
    slow.map(|case| little_check(&case.name, &case.rounds, depth)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{run_alone, settings};
    use super::*;
    use crate::report::Outcome;

    #[test]
    fn every_row_is_there_measured_or_with_its_reason() {
        let measured = run_alone(&DEFINITION, &settings());
        let [first, second] = &measured.tables[..] else { panic!("two tables") };
        assert_eq!(first.rows.len(), one_writer().len());
        assert_eq!(second.rows.len(), 9);
        for table in [first, second] {
            for row in table.rows.iter().filter(|row| matches!(row.outcome, Outcome::Measured(_))) {
                assert!(table.value(&row.name, "rate") > Some(0.0), "{row:?}");
            }
        }
        assert!(first.value(FSYNC, "sync p50").is_some());
        assert!(first.value(NO_SYNC, "sync p50").is_none());
        assert!(!measured.checks.is_empty());
        assert!((2..=8).contains(&measured.sentences.len()), "{:?}", measured.sentences);
        assert_eq!(measured.plots.len(), 2);
    }
}
