//! Batches as rows, sentences and a plot.

use super::events::shares;
use super::image::{Kind, State};
use super::replay::{Replayed, Script};
use super::{Effort, FILES, MIB, Sizes, engine_row, files_row};
use crate::experiment::Context;
use crate::measure::{figure, spread};
use crate::report::{Figure, Plot, PlotData, Table};
use crate::subject::FileSync;
use cairn_engine::Mode;

/// The column that paths are compared by.
pub(super) const TIME: &str = "time per 10,000 events";
const COLUMNS: [(&str, &str); 6] = [
    ("events", "/s"),
    (TIME, "s"),
    ("deviation", "s"),
    ("first batch", "s"),
    ("last batch", "s"),
    ("sync afterwards", "s"),
];
/// Times whose ratio is below this count as equal.
const EQUAL: f64 = 1.1;

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
                let syncs: Vec<f64> =
                    replayed.syncs.iter().map(|sync| sync.as_secs_f64()).collect();
                let figures = vec![
                    spread(&rates),
                    mean_figure(&seconds),
                    deviation(&seconds).and_then(figure),
                    seconds.first().copied().and_then(figure),
                    seconds.last().copied().and_then(figure),
                    mean_figure(&syncs),
                ];
                table.measured(&*row.name, &*row.answered_by, figures);
            }
            Err(reason) => table.not_made(&*row.name, reason),
        }
    }
    table
}

/// A number with two digits.
fn two_digits(number: f64) -> String {
    let decimals = if number >= 10.0 {
        0
    } else if number >= 1.0 {
        1
    } else {
        2
    };
    if number < 0.1 { format!("{number:.3}") } else { format!("{number:.decimals$}") }
}

/// The figures of two rows that a sentence compares: how many times as long the first one takes.
fn times(table: &Table, one: &str, other: &str) -> Option<(f64, f64, f64)> {
    let (one, other) = (table.value(one, TIME)?, table.value(other, TIME)?);
    (one > 0.0 && other > 0.0).then(|| (one, other, one / other))
}

/// What the first table shows.
pub(super) fn sentences(table: &Table) -> Vec<String> {
    let [without, _, synced] = FILES.map(files_row);
    let cost = times(table, synced, without).map(|(with, without, ratio)| {
        let (with, without) = (two_digits(with), two_digits(without));
        let figures = format!("{without} s per 10,000 events without fsync, {with} s with fsync");
        match ratio {
            EQUAL.. => format!(
                "Files take {figures} of file and folder: fsync makes this path {} times as slow.",
                two_digits(ratio)
            ),
            _ if ratio * EQUAL > 1.0 => {
                format!("Files take {figures} of file and folder: fsync costs less than 10 % here.")
            }
            _ => format!(
                "Files take {figures} of file and folder: they are not slower with fsync here."
            ),
        }
    });
    let engine = |mode: Mode, with: &str, meaning: &str| {
        times(table, with, engine_row(mode)).map(|(files, engine, ratio)| {
            let (files, engine) = (two_digits(files), two_digits(engine));
            let figures = format!("{with} take {files} s, {} takes {engine} s", engine_row(mode));
            let found = match ratio {
                EQUAL.. => format!("the engine is {} times as fast", two_digits(ratio)),
                _ if ratio * EQUAL > 1.0 => "they differ by less than 10 %".to_owned(),
                _ => format!("the engine is {} times as slow", two_digits(1.0 / ratio)),
            };
            format!("{meaning}, {figures} per 10,000 events: {found}.")
        })
    };
    let durable = engine(Mode::Sync, synced, "At equal durability");
    let fast = engine(Mode::Replicated, without, "Without a sync before the answer");
    [cost, durable, fast].into_iter().flatten().collect()
}

/// What the second table shows.
pub(super) fn own_sentences(table: &Table) -> Vec<String> {
    let intervals = [1, 5, 30].map(|commit| {
        let row = Kind::Files(FileSync::Nothing, commit).row(State::Empty);
        (commit, table.value(&row, TIME))
    });
    let measured: Vec<(u32, f64)> = intervals
        .into_iter()
        .filter_map(|(commit, time)| Some((commit, time.filter(|time| *time > 0.0)?)))
        .collect();
    let by_time = |one: &&(u32, f64), other: &&(u32, f64)| one.1.total_cmp(&other.1);
    let interval = match (measured.iter().min_by(by_time), measured.iter().max_by(by_time)) {
        (Some((least_at, least)), Some((most_at, most))) if measured.len() > 1 => {
            let figures = format!(
                "On the empty filesystem of its own, files without fsync take {} s per 10,000 \
                 events with commit={least_at} and {} s with commit={most_at}",
                two_digits(*least),
                two_digits(*most)
            );
            Some(match most / least {
                EQUAL.. => format!("{figures}: the slowest interval against the fastest."),
                _ => format!("{figures}: the commit interval changes less than 10 % here."),
            })
        }
        _ => None,
    };
    let ratios = table.rows.iter().filter_map(|row| {
        let name = row.name.strip_suffix(State::Full.name())?;
        let (full, empty, ratio) =
            times(table, &row.name, &format!("{name}{}", State::Empty.name()))?;
        Some((name.trim_end_matches([',', ' ']), full, empty, ratio))
    });
    let worst = ratios.max_by(|one, other| one.3.total_cmp(&other.3));
    let fullness = worst.map(|(name, full, empty, ratio)| {
        let (full, empty) = (two_digits(full), two_digits(empty));
        match ratio {
            EQUAL.. => format!(
                "A filesystem that is 90 % full slows {name} most: {empty} s per 10,000 events \
                 become {full} s."
            ),
            _ => format!(
                "A filesystem that is 90 % full slows no path by 10 %: the most is {name}, {empty} \
                 s per 10,000 events empty and {full} s full."
            ),
        }
    });
    [interval, fullness].into_iter().flatten().collect()
}

/// The batches of the paths in the directory.
pub(super) fn plot(rows: &[Measured]) -> Option<Plot> {
    let lines: Vec<(String, Vec<(f64, f64)>)> = rows
        .iter()
        .map(|row| {
            let points = (1u32..).map(f64::from).zip(row.seconds()).filter(|point| point.1 > 0.0);
            (row.name.clone(), points.collect())
        })
        .filter(|(_, points): &(String, Vec<_>)| !points.is_empty())
        .collect();
    let most = lines.iter().map(|(_, points)| points.len()).max()?;
    let tick = |batch: &usize| (*batch as f64, batch.to_string());
    let data = PlotData::Lines {
        x: "batch".to_owned(),
        y: "time per 10,000 events (s)".to_owned(),
        ticks: [1, 2, 3, 5, 10, 20, 30].iter().filter(|batch| **batch <= most).map(tick).collect(),
        lines,
    };
    Some(Plot {
        file: "uploads-batches.svg".to_owned(),
        title: "Replay of uploads, downloads and deletes, batch by batch".to_owned(),
        sentence: plot_sentence(&data)?,
        data,
    })
}

/// The path whose last batch differs most from its first one.
pub(super) fn plot_sentence(data: &PlotData) -> Option<String> {
    let PlotData::Lines { lines, .. } = data else { return None };
    let ends = lines.iter().filter(|(_, points)| points.len() > 1).filter_map(|(name, points)| {
        Some((name, points.len(), points.first()?.1, points.last()?.1))
    });
    let change = |first: f64, last: f64| (last / first).ln().abs();
    let most = ends.max_by(|one, other| change(one.2, one.3).total_cmp(&change(other.2, other.3)));
    let Some((name, batches, first, last)) = most else {
        return Some("No path replayed more than one batch in its time.".to_owned());
    };
    let figures = format!(
        "{} s per 10,000 events in the first batch, {} s in batch {batches}, its last",
        two_digits(first),
        two_digits(last)
    );
    Some(match (last / first).max(first / last) {
        EQUAL.. if last > first => format!("{name} slow down most: {figures}."),
        EQUAL.. => format!("{name} change most, and become faster: {figures}."),
        _ => format!(
            "No path changes by 10 % from its first to its last batch; most {name}: {figures}."
        ),
    })
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
    let reads = match context.place.direct() {
        Ok(()) => "the engine reads its files with O_DIRECT",
        Err(_) => "the engine's files are in the page cache too, since O_DIRECT is refused here",
    };
    let mut notes = vec![
        format!(
            "One client replays the same log of events through each path: {here}. Pieces have 2 KiB \
             to 256 KiB, and at most {} MiB of them live at a time. An upload is a temporary file \
             and a rename, or a put. Before the first batch, {} events are not counted.",
            sizes.live / MIB,
            effort.batch / 5
        ),
        format!(
            "A batch has {} events; its time is given per 10,000 events. {TIME} is the mean of the \
             batches with the least and the most; its deviation is that of single batches. A path \
             ends after {} s in the directory.",
            effort.batch,
            effort.limit.as_secs_f64()
        ),
        "The paths take turns, batch by batch. After each batch the whole filesystem is synced, so \
         that no path pays for another one's pages. This sync is not part of the batch: \"sync \
         afterwards\" is the time that it took, and what an answer from the page cache still owes."
            .to_owned(),
        format!(
            "Downloads of files come from the page cache, since the pieces were written a moment \
             before; {reads}. The source empties the page cache before each batch."
        ),
        "The source replayed 1,750,000 events of a real node on one hard disk with 1 GB of memory: \
         90,021 s with fsync, 34,981 s without, 28,760 s with a longer commit interval too. This \
         log is generated and has more downloads and deletes, so compare ratios, not seconds."
            .to_owned(),
    ];
    if context.settings.root {
        notes.push(format!(
            "The filesystem of its own is ext4 in a file of {} MiB behind a loop device. Its log: \
             {own}, pieces of 2 KiB to 16 KiB, at most {} MiB of them live. When full, a large \
             file and the engine's directory leave 10 % free; when empty, only the engine's \
             directory is there. Here each path runs alone to its end, with one sync after it, \
             since syncs between batches would hide the commit interval. A path ends after {} s, \
             so a longer interval ends with the row.",
            sizes.image / MIB,
            sizes.own_live / MIB,
            effort.own_limit.as_secs_f64()
        ));
    }
    notes
}
