//! Batches as rows, sentences and a plot.

use super::events::shares;
use super::replay::{Replayed, Script};
use super::rows::{COMMITS, Kind, State};
use super::{Effort, FILES, MIB, Sizes, engine_row, files_row};
use crate::experiment::Context;
use crate::measure::{figure, spread};
use crate::report::{Figure, Plot, PlotData, Table};
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

/// The figures of two rows that a sentence compares: their times with the sync, and how many times
/// as long the first one takes.
fn times(table: &Table, one: &str, other: &str) -> Option<(f64, f64, f64)> {
    let (one, other) = (table.value(one, WITH_SYNC)?, table.value(other, WITH_SYNC)?);
    (one > 0.0 && other > 0.0).then(|| (one, other, one / other))
}

/// Whether the means of two rows differ by 10 % and by more than their batches deviate. A row of
/// one batch has no deviation, so it says nothing about a small difference.
fn differ(table: &Table, one: &str, other: &str) -> Option<bool> {
    let (mean, other_mean, ratio) = times(table, one, other)?;
    let deviations = table.value(one, DEVIATION)? + table.value(other, DEVIATION)?;
    Some(ratio.max(1.0 / ratio) >= EQUAL && (mean - other_mean).abs() > deviations)
}

/// What the first table shows.
pub(super) fn sentences(table: &Table) -> Vec<String> {
    let [without, _, synced] = FILES.map(files_row);
    let cost = times(table, synced, without).map(|(with, without, ratio)| {
        let (with, without) = (two_digits(with), two_digits(without));
        let figures = format!(
            "With the sync afterwards, files take {without} s per 10,000 events without fsync, \
             and {with} s with fsync of file and folder"
        );
        match ratio {
            EQUAL.. => format!("{figures}: {} times as long.", two_digits(ratio)),
            _ if ratio * EQUAL > 1.0 => format!("{figures}: they differ by less than 10 %."),
            _ => format!("{figures}: fsync does not slow them here."),
        }
    });
    let engine = |mode: Mode, with: &str, meaning: &str| {
        times(table, with, engine_row(mode)).map(|(files, engine, ratio)| {
            let (files, engine) = (two_digits(files), two_digits(engine));
            let figures =
                format!("{with} take {files} s and {} takes {engine} s", engine_row(mode));
            let found = match ratio {
                EQUAL.. => format!("the engine is {} times as fast", two_digits(ratio)),
                _ if ratio * EQUAL > 1.0 => "they differ by less than 10 %".to_owned(),
                _ => format!("the engine is {} times as slow", two_digits(1.0 / ratio)),
            };
            format!("{meaning}, {figures} per 10,000 events, with the sync afterwards: {found}.")
        })
    };
    let durable = engine(Mode::Sync, synced, "At equal durability");
    let fast = engine(Mode::Replicated, without, "Without a sync before the answer");
    [cost, durable, fast].into_iter().flatten().collect()
}

/// What the second table shows.
pub(super) fn own_sentences(table: &Table, rows: &[Measured]) -> Vec<String> {
    [commit_sentence(table, rows), fullness_sentence(table)].into_iter().flatten().collect()
}

/// Whether ext4's commit interval shows. A row that ends before its interval does says nothing
/// about it.
fn commit_sentence(table: &Table, rows: &[Measured]) -> Option<String> {
    let name = |commit: u32| Kind::Files(FileSync::Nothing, commit).row(State::Empty);
    let replaying = |commit: u32| {
        let row = rows.iter().find(|row| row.name == name(commit))?;
        row.replayed.as_ref().ok().map(Replayed::replaying)
    };
    let measured = COMMITS.map(|commit| {
        let time = table.value(&name(commit), WITH_SYNC)?;
        let reached = replaying(commit)? > Duration::from_secs(commit.into());
        Some((commit, time, reached))
    });
    let measured: Vec<_> = measured.into_iter().flatten().collect();
    let reached = || measured.iter().filter(|row| row.2).map(|row| (row.0, row.1));
    let by_time = |one: &(u32, f64), other: &(u32, f64)| one.1.total_cmp(&other.1);
    let found = reached().min_by(by_time).zip(reached().max_by(by_time));
    let Some(((fast, least), (slow, most))) = found else {
        return (!measured.is_empty()).then(|| {
            "The commit interval is not judged: no row of files without fsync replayed for \
             longer than its interval."
                .to_owned()
        });
    };
    if fast == slow {
        return Some(format!(
            "The commit interval is not judged: of the files without fsync, only commit={fast} \
             replayed for longer than its interval."
        ));
    }
    let (least, most) = (two_digits(least), two_digits(most));
    let figures = format!(
        "In one run each, with the sync afterwards, files without fsync on the empty filesystem \
         of its own take between {least} s (commit={fast}) and {most} s (commit={slow}) per \
         10,000 events"
    );
    Some(match differ(table, &name(slow), &name(fast)) {
        Some(true) => format!("{figures}: more apart than single batches deviate by."),
        Some(false) => {
            format!("{figures}: less than 10 % apart, or within what single batches deviate by.")
        }
        None => format!("{figures}, with too few batches to compare."),
    })
}

/// Whether a full filesystem shows.
fn fullness_sentence(table: &Table) -> Option<String> {
    let pairs = table.rows.iter().filter_map(|row| {
        let name = row.name.strip_suffix(State::Full.name())?;
        let empty = format!("{name}{}", State::Empty.name());
        let (full_time, empty_time, ratio) = times(table, &row.name, &empty)?;
        let name = name.trim_end_matches([',', ' ']);
        Some((name, differ(table, &row.name, &empty), full_time, empty_time, ratio))
    });
    let pairs: Vec<_> = pairs.collect();
    let by_ratio = |one: &&(_, _, _, _, f64), other: &&(_, _, _, _, f64)| one.4.total_cmp(&other.4);
    let slowed = pairs.iter().filter(|pair| pair.1 == Some(true) && pair.4 > 1.0);
    if let Some((name, _, full, empty, _)) = slowed.max_by(by_ratio) {
        return Some(format!(
            "In one run each, with the sync afterwards, this path is slowed most on the filesystem \
             that is 90 % full: {name}, {} s per 10,000 events empty and {} s full.",
            two_digits(*empty),
            two_digits(*full)
        ));
    }
    let judged = pairs.iter().filter(|pair| pair.1.is_some()).count();
    (judged > 0).then(|| {
        format!(
            "In one run each, with the sync afterwards, none of the {judged} paths with more than \
             one batch is slower by 10 %, and by more than single batches deviate, on the \
             filesystem that is 90 % full."
        )
    })
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
        y: "time per 10,000 events, without the sync (s)".to_owned(),
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
    let (first_s, last_s) = (two_digits(first), two_digits(last));
    let figures = format!(
        "{name}, from {first_s} s per 10,000 events in batch 1 to {last_s} s in batch {batches}"
    );
    Some(match change(first, last).exp() {
        EQUAL.. if last > first => format!("The path that changes most slows down: {figures}."),
        EQUAL.. => format!("The path that changes most becomes faster: {figures}."),
        _ => format!("The path that changes most changes by less than 10 %: {figures}."),
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

/// The engines whose size was in the way.
pub(super) fn waits_notes(rows: &[Measured], engine_bytes: u64) -> Vec<String> {
    let waits = rows.iter().filter_map(|row| Some((&row.name, row.replayed.as_ref().ok()?.waits)));
    let waits = waits.filter(|(_, waits)| *waits > 0);
    let note = |(name, waits)| {
        format!(
            "{name}: {waits} times an upload waited for a sync, since the engine of {} MiB uses \
             space again only then.",
            engine_bytes / MIB
        )
    };
    waits.map(note).collect()
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
             2 KiB to 256 KiB, and at most {} MiB of them live at a time. An upload is a temporary \
             file and a rename, or a put. Before the first batch, events are not counted: at most \
             {}, and at most for a tenth of the path's time.",
            sizes.live / MIB,
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
            "Each engine has {} MiB, and on the filesystem of its own {} MiB. It syncs after a \
             sixteenth of that, instead of 64 MiB, since it uses space again only after a sync.",
            sizes.engine / MIB,
            sizes.own_engine / MIB
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
            "The filesystem of its own is ext4 in a file of {} MiB behind a loop device. Its log: \
             {own}, pieces of 2 KiB to 16 KiB, at most {} MiB of them live. When full, one new \
             large file and the engines' directories leave 10 % free: such a filesystem is not \
             aged. When empty, only the engines' directories are there. Each path runs once, in \
             the order of the rows, alone to its end. It is synced only before and after, since \
             syncs between batches would hide the commit interval. A path ends after {} s. The \
             small journal can commit before the interval ends. The loop device adds work to \
             each write: compare these rows with each other, not with the first table.",
            sizes.image / MIB,
            sizes.own_live / MIB,
            effort.own_limit.as_secs_f64()
        ));
    }
    notes
}

#[cfg(test)]
mod tests;
