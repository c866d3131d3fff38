//! Batches as rows, sentences and a plot.

use super::super::finding::{caption, finding, findings, waits};
use super::events::shares;
use super::replay::{Replayed, Script};
use super::rows::{COMMITS, Kind, State};
use super::{Effort, FILES, Sizes, engine_row, files_row};
use crate::experiment::Context;
use crate::measure::{figure, spread};
use crate::report::{Figure, Plot, PlotData, Table, size};
use crate::subject::FileSync;
use cairn_engine::Mode;
use std::time::Duration;

/// The columns of times per 10,000 events, without and with the sync after the batches.
pub(super) const TIME: &str = "mean time per 10,000 events";
const SYNC: &str = "sync per 10,000 events";
/// Paths are compared by this one.
const WITH_SYNC: &str = "with the sync";
const DEVIATION: &str = "deviation";
const COLUMNS: [(&str, &str); 7] = [
    ("events", "/s"),
    (TIME, "s"),
    (DEVIATION, "s"),
    ("first batch", "s"),
    ("last batch", "s"),
    (SYNC, "s"),
    (WITH_SYNC, "s"),
];
const FSYNC: &str = "fsync of file and folder";

/// A row: what a path did, or why it is not there.
pub(super) struct Measured {
    name: String,
    answered_by: String,
    replayed: Result<Replayed, String>,
}

impl Measured {
    pub(super) fn new(
        name: impl Into<String>,
        answered_by: impl Into<String>,
        replayed: Replayed,
    ) -> Measured {
        let (name, answered_by) = (name.into(), answered_by.into());
        Measured { name, answered_by, replayed: Ok(replayed) }
    }

    pub(super) fn not_made(name: impl Into<String>, reason: impl Into<String>) -> Measured {
        let (name, answered_by) = (name.into(), String::new());
        Measured { name, answered_by, replayed: Err(reason.into()) }
    }

    /// Whether this row of files without fsync replayed for longer than its commit interval. None
    /// if it is another row.
    fn reached(&self, commit: u32) -> Option<bool> {
        let replayed = self.replayed.as_ref().ok().filter(|_| self.name == unsynced(commit))?;
        Some(replayed.replaying() > Duration::from_secs(commit.into()))
    }

    /// Seconds of each batch per 10,000 events.
    fn seconds(&self) -> Vec<f64> {
        let replayed = self.replayed.iter();
        replayed.flat_map(|one| one.counted()).map(|batch| batch.seconds()).collect()
    }
}

/// The mean in place of the median.
fn mean_figure(values: &[f64]) -> Option<Figure> {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    spread(values).map(|figure| Figure { median: mean, ..figure })
}

/// The standard deviation of a sample. None for less than two values.
fn deviation(values: &[f64]) -> Option<f64> {
    let mean = mean_figure(values)?.median;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (values.len() > 1).then(|| (squares / (values.len() - 1) as f64).sqrt())
}

/// A table with one row for each path.
pub(super) fn table(title: &str, rows: &[Measured]) -> Table {
    let mut table = Table::new(title, &COLUMNS);
    for row in rows {
        match &row.replayed {
            Ok(replayed) => {
                let seconds = row.seconds();
                let rates: Vec<f64> = seconds.iter().map(|seconds| 10_000.0 / seconds).collect();
                let (time, sync) = (mean_figure(&seconds), replayed.sync_seconds());
                let with_sync = time.zip(sync).map(|(time, sync)| time.median + sync);
                let figures = vec![
                    spread(&rates),
                    time,
                    deviation(&seconds).and_then(figure),
                    seconds.first().copied().and_then(figure),
                    seconds.get(1..).and_then(<[f64]>::last).copied().and_then(figure),
                    sync.and_then(figure),
                    with_sync.and_then(figure),
                ];
                table.measured(&*row.name, &*row.answered_by, figures);
            }
            Err(reason) => table.not_made(&*row.name, reason),
        }
    }
    table
}

/// What the first table shows.
pub(super) fn sentences(table: &Table) -> Vec<String> {
    let [without, _, synced] = FILES.map(files_row);
    let pairs = [
        (FSYNC, [synced, without]),
        ("The engine, as durable", [engine_row(Mode::Sync), synced]),
        ("The engine, without a sync before the answer", [engine_row(Mode::Replicated), without]),
    ];
    findings(table, WITH_SYNC, &pairs)
}

/// What the second table shows: what ext4's commit interval changes, and the path that a full
/// filesystem slows most.
pub(super) fn own_sentences(table: &Table, rows: &[Measured]) -> Vec<String> {
    let reached = |commit: &u32| rows.iter().any(|row| row.reached(*commit) == Some(true));
    let commits: Vec<String> = COMMITS.into_iter().filter(reached).map(unsynced).collect();
    let pairs = commits.iter().skip(1).zip(&commits);
    let pairs = pairs.map(|(long, short)| ("A longer commit interval", [&**long, &**short]));
    let mut sentences = findings(table, WITH_SYNC, &pairs.collect::<Vec<_>>());
    let pairs = table.bars(WITH_SYNC).into_iter().filter_map(|(full, figure)| {
        let empty = full.strip_suffix(State::Full.name())?.to_owned() + State::Empty.name();
        Some((figure.median / table.value(&empty, WITH_SYNC)?, full, empty))
    });
    let slowed = pairs.filter(|(times, ..)| *times > 1.0 && times.is_finite());
    let slowed = slowed.max_by(|a, b| a.0.total_cmp(&b.0));
    sentences.extend(slowed.and_then(|(_, full, empty)| {
        finding(table, "The path that a full filesystem slows most", WITH_SYNC, [&full, &empty])
    }));
    sentences
}

/// The row of files without fsync on an empty filesystem of this commit interval.
fn unsynced(commit: u32) -> String {
    Kind::Files(FileSync::Nothing, commit).row(State::Empty)
}

/// The batches of the paths in the directory.
pub(super) fn plot(table: &Table, rows: &[Measured]) -> Option<Plot> {
    let line = |row: &Measured| {
        let points = (1u32..).map(f64::from).zip(row.seconds()).filter(|point| point.1 > 0.0);
        (row.name.clone(), points.collect::<Vec<_>>())
    };
    let lines = rows.iter().map(line).filter(|(_, points)| !points.is_empty());
    let lines: Vec<_> = lines.collect();
    let most = lines.iter().map(|(_, points)| points.len()).max()?;
    let tick = |batch: &usize| (*batch as f64, batch.to_string());
    let [without, _, synced] = FILES.map(files_row);
    Some(Plot {
        file: "uploads-batches.svg".to_owned(),
        title: "Replay of uploads, downloads and deletes, batch by batch".to_owned(),
        sentence: caption(table, FSYNC, TIME, [synced, without])?,
        data: PlotData::Lines {
            x: "batch".to_owned(),
            y: "time per 10,000 events, without the sync (s)".to_owned(),
            ticks: [1, 2, 3, 5, 10, 20, 30].iter().filter(|at| **at <= most).map(tick).collect(),
            lines,
        },
    })
}

/// The rows whose commit interval is longer than what they replayed, so that it cannot show.
pub(super) fn commit_note(rows: &[Measured]) -> Option<String> {
    let short = COMMITS
        .into_iter()
        .filter(|commit| rows.iter().any(|row| row.reached(*commit) == Some(false)));
    let short: Vec<String> = short.map(unsynced).collect();
    let why = "Not compared, because they replayed for less than their commit interval";
    (!short.is_empty()).then(|| format!("{why}: {}.", short.join("; ")))
}

/// The rows that did not replay the whole log.
pub(super) fn cut_notes(rows: &[Measured], batches: usize) -> Vec<String> {
    let mut notes = Vec::new();
    for row in rows {
        let Ok(replayed) = &row.replayed else { continue };
        let whole = replayed.batches.iter().filter(|batch| batch.whole).count();
        match (whole, replayed.batches.first()) {
            (0, Some(first)) if first.events > 0 => notes.push(format!(
                "{}: cut by its time limit within the first batch, after {} events.",
                row.name, first.events
            )),
            (0, _) => notes.push(format!("{}: no event was answered within its time.", row.name)),
            _ if whole < batches => notes.push(format!(
                "{}: cut by its time limit after {whole} of {batches} batches.",
                row.name
            )),
            _ => {}
        }
    }
    notes
}

/// The engines whose size was in the way.
pub(super) fn waits_notes(rows: &[Measured], engine_bytes: u64) -> Vec<String> {
    // In a quick run a larger size makes no engine larger.
    let note =
        |row: &Measured| waits(&row.name, row.replayed.as_ref().ok()?.waits, engine_bytes, false);
    rows.iter().filter_map(note).collect()
}

/// What a reader must know.
pub(super) fn notes(
    context: &Context<'_>,
    effort: &Effort,
    sizes: &Sizes,
    scripts: [&Script; 2],
) -> Vec<String> {
    let shares = scripts.map(|script| {
        let [uploads, downloads, deletes] = shares(&script.events);
        format!("{uploads:.0} % uploads, {downloads:.0} % downloads, {deletes:.0} % deletes")
    });
    let [here, own] = shares;
    let mut notes = vec![
        format!(
            "One client replays the same log of events through each path: {here}. Pieces have \
             2 KiB to 256 KiB, and at most {} of them live at a time. An upload is a temporary \
             file and a rename, or a put. Before the first batch, events are not counted: at most \
             {}, and at most for a tenth of the path's time.",
            size(sizes.live),
            effort.batch / 5
        ),
        format!(
            "A batch has {} events, and the first one also those that the warm-up left. All times \
             are given per 10,000 events. \"{TIME}\" is the mean of the batches with the least \
             and the most, and stands as `median` in the JSON. Its deviation is that of single \
             batches. A path ends after {} s in the directory.",
            effort.batch,
            effort.limit.as_secs_f64()
        ),
        format!(
            "The paths take turns, batch by batch. After each batch the whole filesystem is \
             synced, so that no path pays for another one's pages. This sync is not part of the \
             batch. It is what an answer from the page cache still owes, and it also writes what \
             other programs left. Sentences compare \"{WITH_SYNC}\". The fewer events a sync \
             follows, the more it costs for each of them."
        ),
        format!(
            "Each engine has {}, and on the filesystem of its own {}. It syncs after 4 \
             MiB, or a sixteenth of that if it is less, since it uses space again only after a sync.",
            size(sizes.engine),
            size(sizes.own_engine)
        ),
        "Downloads of files come from the page cache, since the pieces were written a moment \
         before. The engine reads its files with O_DIRECT. The source empties the page cache \
         before each batch."
            .to_owned(),
        "The source replayed 1,750,000 events of a real node on one hard disk with 1 GB of memory: \
         90,021 s with fsync, 34,981 s without, 28,760 s with a longer commit interval too. This \
         log is generated and has more downloads and deletes, so compare ratios, not seconds."
            .to_owned(),
    ];
    if context.settings.root {
        notes.push(format!(
            "The filesystem of its own is ext4 in a file of {} behind a loop device. Its log: \
             {own}, pieces of 2 KiB to 16 KiB, at most {} of them live. When full, one new \
             large file and the engines' directories leave 10 % free: such a filesystem is not \
             aged. When empty, only the engines' directories are there. Each path runs once, in \
             the order of the rows, alone to its end. It is synced only before and after, since \
             syncs between batches would hide the commit interval. A path ends after {} s. The \
             small journal can commit before the interval ends. The loop device adds work to \
             each write: compare these rows with each other, not with the first table.",
            size(sizes.image),
            size(sizes.own_live),
            effort.own_limit.as_secs_f64()
        ));
    }
    notes
}

#[cfg(test)]
mod tests;
