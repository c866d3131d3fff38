//! The sentences, notes and plots that follow from the figures.
//!
//! What holds here: a sentence says what its figures say, whatever they are. Without its figures
//! there is no sentence.

use super::super::words::thousands;
use super::rows::{
    DELETES, DIRECT_FSYNC_BOTH, DSYNC, FSYNC_BOTH, NO_FSYNC, PARTS, PARTS_PAIRS, PUTS, RAW, cairn,
};
use super::{DEPTH, Sizes};
use crate::report::{Figure, Outcome, Plot, PlotData, Row, Table};
use cairn_engine::Mode;

/// A ratio with two digits. None if it is not a positive number.
fn ratio(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    let ratio = a? / b?;
    (ratio.is_finite() && ratio > 0.0).then_some(ratio)
}

fn two_digits(number: f64) -> String {
    match number {
        n if n >= 9.95 => format!("{n:.0}"),
        n if n >= 0.995 => format!("{n:.1}"),
        n if n >= 0.0995 => format!("{n:.2}"),
        n => format!("{n:.3}"),
    }
}

/// A rate with three digits and separators.
fn rate(number: f64) -> String {
    let unit = 10f64.powi((number.max(1.0).log10().floor() as i32 - 2).max(0));
    format!("{}/s", thousands((number / unit).round() * unit))
}

fn milliseconds(us: f64) -> String {
    format!("{} ms", two_digits(us / 1000.0))
}

/// Below this, a difference is taken for noise.
const NOISE: f64 = 1.1;

/// What the figures show.
pub(super) fn sentences(tables: &[Table]) -> Vec<String> {
    let puts = |row: &str| value(tables, PUTS, row, "rate");
    let sync = cairn(Mode::Sync);
    let said = [
        fsync(puts(NO_FSYNC), puts(FSYNC_BOTH)),
        synced(puts(DIRECT_FSYNC_BOTH), puts(FSYNC_BOTH), puts(DSYNC), puts(&sync)),
        replicated(puts(&cairn(Mode::Replicated)), puts(&sync), puts(FSYNC_BOTH)),
        dsync(value(tables, PARTS, RAW, "rate"), puts(DSYNC)),
    ];
    said.into_iter().flatten().collect()
}

fn value(tables: &[Table], title: &str, row: &str, column: &str) -> Option<f64> {
    tables.iter().find(|table| table.title == title)?.value(row, column)
}

fn fsync(without: Option<f64>, with: Option<f64>) -> Option<String> {
    let factor = ratio(without, with)?;
    let (a, b) = (rate(without?), rate(with?));
    let figures =
        format!("{a} from the page cache without fsync, {b} with fsync of file and folder");
    let factor_text = two_digits(factor);
    Some(if factor <= 1.0 / NOISE {
        format!("Files: {figures}. On this disk files are slower without fsync ({factor_text} ×).")
    } else if factor >= NOISE {
        format!(
            "Files: {figures}. On this disk fsync costs puts of files a factor of {factor_text}."
        )
    } else {
        format!(
            "Files: {figures}. On this disk dropping fsync gains nothing that stands out (a \
             factor of {factor_text})."
        )
    })
}

/// Files beside raw writes, both with `O_DIRECT` and synced.
fn metadata(files: Option<f64>, raw: Option<f64>) -> Option<String> {
    let factor = ratio(raw, files)?;
    let figures = format!(
        "With O_DIRECT and everything synced before the answer, files do {} and raw O_DSYNC writes \
         do {} ({} ×)",
        rate(files?),
        rate(raw?),
        two_digits(factor)
    );
    Some(match factor {
        f if f >= NOISE => format!(
            "{figures}: a put of a file takes two syncs and changes filesystem metadata, a raw \
             write takes one and changes none."
        ),
        f if f > 1.0 / NOISE => format!(
            "{figures}: filesystem metadata, with two syncs for a put of a file, costs nothing \
             that stands out here."
        ),
        _ => format!("{figures}: files are faster here, although a put takes two syncs."),
    })
}

/// Cairn beside files. The raw writes tell how much of its gain is not group commit.
fn cairn_synced(which: &str, files: f64, raw: Option<f64>, sync: Option<f64>) -> Option<String> {
    let factor = ratio(sync, Some(files))?;
    let verdict = match ratio(raw, Some(files)) {
        _ if factor <= 1.0 / NOISE => ": Cairn is slower here",
        _ if factor < NOISE => ": Cairn gains nothing that stands out here",
        None => "",
        Some(raw) if raw < NOISE => {
            ": raw writes gain nothing that stands out, so Cairn's gain is group commit"
        }
        Some(raw) if raw >= factor * NOISE => {
            ": raw writes gain more, although they have no group commit"
        }
        Some(_) => ": this gain has two parts, no filesystem metadata and group commit",
    };
    Some(format!(
        "Cairn in mode sync does {}, {} × {which} files with fsync of file and folder{verdict}.",
        rate(sync?),
        two_digits(factor)
    ))
}

/// Files, raw writes and Cairn, all synced. All of them write with `O_DIRECT`; where it is not
/// there, buffered files are beside Cairn only.
fn synced(
    direct: Option<f64>,
    buffered: Option<f64>,
    raw: Option<f64>,
    sync: Option<f64>,
) -> Option<String> {
    let raw = direct.and(raw);
    let cairn = match direct {
        Some(files) => cairn_synced("O_DIRECT", files, raw, sync),
        None => cairn_synced("buffered", buffered?, None, sync),
    };
    let said: Vec<String> = [metadata(direct, raw), cairn].into_iter().flatten().collect();
    (!said.is_empty()).then(|| said.join(" "))
}

fn replicated(replicated: Option<f64>, sync: Option<f64>, files: Option<f64>) -> Option<String> {
    let over = |factor: Option<f64>, what: &str| {
        factor.map(|factor| format!("{} × {what}", two_digits(factor)))
    };
    let others: Vec<String> = [
        over(ratio(replicated, sync), "mode sync"),
        over(ratio(replicated, files), "buffered files with fsync of file and folder"),
    ]
    .into_iter()
    .flatten()
    .collect();
    if others.is_empty() {
        return None;
    }
    Some(format!(
        "Cairn in mode replicated does {}, {}; it answers before the sync, and peers cover the \
         time until then.",
        rate(replicated?),
        others.join(", ")
    ))
}

/// A write with `O_DSYNC` that costs less than this × a write without is nearly free.
const FREE: f64 = 1.3;

fn dsync(without: Option<f64>, with: Option<f64>) -> Option<String> {
    let factor = ratio(without, with)?;
    let figures = format!(
        "With {DEPTH} under way, a raw write with O_DSYNC costs {} × one without ({} against {})",
        two_digits(factor),
        rate(with?),
        rate(without?)
    );
    Some(if factor < FREE {
        format!("{figures}: with so many, O_DSYNC is nearly free here.")
    } else {
        format!("{figures}: here the sync itself has a price.")
    })
}

/// What each pair of rows of the second table shows, as notes.
pub(super) fn gains(tables: &[Table]) -> Vec<String> {
    let parts = |row: &str| value(tables, PARTS, row, "rate");
    let gain = |(part, with, without): &(&str, &str, &str)| {
        let factor = two_digits(ratio(parts(with), parts(without))?);
        Some(format!("{part}: {factor} × the rate (“{with}” over “{without}”)."))
    };
    PARTS_PAIRS.iter().filter_map(gain).collect()
}

/// What a reader must know to believe the figures.
pub(super) fn notes(sizes: &Sizes, laid_out: &[String]) -> Vec<String> {
    let objects = sizes.objects;
    let mut notes =
        vec![
        format!(
            "{DEPTH} requests under way, random overwrites of {objects} objects of 4 KiB with \
             random bytes. The raw files have as many blocks of 4 KiB."
        ),
        "A put into a file writes a temporary file and renames it. Without fsync of the folder a \
         power cut may undo the rename.".into(),
        "Cairn submits through its own backend, from one thread. All other rows wait in system \
         calls, one thread for each request.".into(),
        "Cairn alone, one node, without a network. Its rate has group commit in it, the raw rows \
         do not, so Cairn over files is not the gain of avoiding filesystem metadata alone.".into(),
        format!(
            "Cairn's directory has {} MiB and syncs in the background after each {} MiB at the \
             latest; by default a node does after 64 MiB.",
            sizes.engine_bytes >> 20,
            (sizes.engine_bytes / 16).min(64 << 20) >> 20
        ),
        format!("“{PARTS}” holds raw files only. The engine is not in it."),
        "Each gain isolates one variable. They share causes, so they neither add up nor multiply \
         to one number; what fsync costs and what filesystem metadata costs are two \
         numbers.".into(),
        "The three rows “in order” write each block of their file once in a round. On a fast \
         disk such a round ends before its time. The warm-up is an eighth of the blocks.".into(),
        "A value in a write of 32 values waits for the whole write, so 32 values are under way \
         in one request.".into(),
        format!(
            "Deletes: {half} clients put and are measured. Beside them {half} clients put other \
             objects, or delete one and put it again in turn. {} objects are theirs.",
            sizes.others,
            half = DEPTH / 2
        ),
        "After each round of a row the whole filesystem is synced, outside of the measured time, \
         so that a row does not pay for what the row before it left unsynced. This includes what \
         other programs wrote. Every second round runs the rows in the reverse order.".into(),
        "ext4 begins to write out a file when it is renamed over another one, without being \
         asked to (auto_da_alloc). So its files without fsync are not only in the page \
         cache.".into(),
        "Fractalbits' engine row does not fit together: 190,985/s × 413 µs are 79 requests under \
         way by Little's law, not the 128 that it names.".into(),
    ];
    if !laid_out.is_empty() {
        notes.push(format!(
            "The time to lay out ended early: {}. Puts of the others make new objects at first.",
            laid_out.join(", ")
        ));
    }
    notes
}

/// Says which rounds did not fit into the time.
pub(super) fn rounds(found: &[usize; 2], wanted: usize) -> Option<String> {
    let [puts, beside] = found;
    (*puts < wanted || *beside < wanted).then(|| {
        format!(
            "The disk took longer than the bound assumes: {puts} rounds of the first two tables \
             and {beside} of the third, instead of {wanted}."
        )
    })
}

/// Says where an engine's size was in the way of puts, in the rounds.
pub(super) fn waits(name: &str, times: u64) -> Option<String> {
    (times > 0).then(|| {
        format!(
            "{name}: in the rounds, puts had no space and waited for {times} syncs, since \
             overwritten values free their space only then. A larger --size avoids it."
        )
    })
}

/// The plots.
pub(super) fn plots(tables: &[Table]) -> Vec<Plot> {
    let puts = bars(tables, PUTS, "rate").zip(fastest_on_disk(tables));
    let puts = puts.map(|(bars, sentence)| Plot {
        file: "objects-puts.svg".into(),
        title: "Puts of 4 KiB objects, 32 under way".into(),
        sentence,
        data: PlotData::Bars { axis: "puts per second".into(), bars },
    });
    let deletes = bars(tables, DELETES, "p99").zip(tails(tables));
    let deletes = deletes.map(|(bars, sentence)| Plot {
        file: "objects-deletes.svg".into(),
        title: "The slowest hundredth of puts, beside puts and beside deletes".into(),
        sentence,
        data: PlotData::Bars { axis: "p99 of puts, µs".into(), bars },
    });
    puts.into_iter().chain(deletes).collect()
}

/// One bar for each row that has a figure in this column.
fn bars(tables: &[Table], title: &str, column: &str) -> Option<Vec<(String, Figure)>> {
    let table = tables.iter().find(|table| table.title == title)?;
    let at = table.columns.iter().position(|found| found.name == column)?;
    let bar = |row: &Row| match &row.outcome {
        Outcome::Measured(figures) => Some((row.name.clone(), (*figures.get(at)?)?)),
        Outcome::NotMade(_) => None,
    };
    let bars: Vec<_> = table.rows.iter().filter_map(bar).collect();
    (!bars.is_empty()).then_some(bars)
}

/// The fastest row of the first table whose data is on the disk when it answers.
fn fastest_on_disk(tables: &[Table]) -> Option<String> {
    let table = tables.iter().find(|table| table.title == PUTS)?;
    let on_disk = table.rows.iter().filter(|row| row.answered_by == "disk");
    let rates = on_disk.filter_map(|row| Some((&*row.name, table.value(&row.name, "rate")?)));
    let (name, fastest) = rates.max_by(|a, b| a.1.total_cmp(&b.1))?;
    let files = table.value(FSYNC_BOTH, "rate");
    let than = match ratio(Some(fastest), files).zip(files) {
        Some((factor, files)) if name != FSYNC_BOTH => {
            format!(
                ", {} × buffered files with fsync of file and folder ({})",
                two_digits(factor),
                rate(files)
            )
        }
        _ => String::new(),
    };
    let fastest = rate(fastest);
    Some(format!(
        "Of the rows that are on the disk at the answer, “{name}” is the fastest: {fastest}{than}."
    ))
}

/// What deletes do to the p99 of puts.
fn tails(tables: &[Table]) -> Option<String> {
    let table = tables.iter().find(|table| table.title == DELETES)?;
    let mut said = Vec::new();
    for pair in table.rows.chunks_exact(2) {
        let [puts, deletes] = pair else { continue };
        let p99 = |row: &Row| table.value(&row.name, "p99");
        let Some(factor) = ratio(p99(deletes), p99(puts)) else { continue };
        let (Some(from), Some(to)) = (p99(puts), p99(deletes)) else { continue };
        let change = match factor {
            f if f >= NOISE => "is higher beside deletes",
            f if f > 1.0 / NOISE => "is about the same beside deletes",
            _ => "is lower beside deletes",
        };
        let who = puts.name.split(':').next().unwrap_or_default();
        said.push(format!(
            "{who}: the p99 of puts {change}, {} against {} ({} ×)",
            milliseconds(to),
            milliseconds(from),
            two_digits(factor)
        ));
    }
    (!said.is_empty()).then(|| format!("{}.", upper(&said.join("; "))))
}

fn upper(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests;
