//! Names of rows, and the tables, plots, sentences and notes that follow from the figures.
//!
//! What holds here: a sentence says what its figures say, whatever they are. Without its figures
//! there is no sentence.

use super::clients::Act;
use super::{DEPTH, Sizes};
use crate::experiment::{Case, LOAD_COLUMNS, load_figures};
use crate::measure::spread;
use crate::report::{Figure, Outcome, Plot, PlotData, Table};
use crate::subject::FileSync;
use cairn_engine::Mode;
use std::sync::mpsc;

/// The first table.
pub(super) const PUTS: &str = "Puts of 4 KiB objects";
/// The second.
pub(super) const PARTS: &str = "What each part of the engine gains";
/// The third.
pub(super) const DELETES: &str = "Deletes beside puts";

pub(super) const RAW: &str = "raw, O_DIRECT, no sync";
pub(super) const DSYNC: &str = "raw, O_DIRECT and O_DSYNC";
pub(super) const FDATASYNC: &str = "raw, O_DIRECT, fdatasync after each write";
pub(super) const ONE_BY_ONE: &str = "32 writes of one value, no sync";
pub(super) const ONE_BY_ONE_JOURNAL: &str = "32 writes of one value, a journal block after each";
pub(super) const TOGETHER: &str = "one write of 32 values, no sync";
pub(super) const TOGETHER_JOURNAL: &str = "one write of 32 values, a journal block after it";
pub(super) const BUFFERED: &str = "raw, buffered, fdatasync after each write";
pub(super) const ZEROED: &str = "in order, a zeroed file, O_DIRECT and O_DSYNC";
pub(super) const UNWRITTEN: &str = "in order, an allocated file, O_DIRECT and O_DSYNC";
pub(super) const GROWS: &str = "in order, a file that grows, O_DIRECT and O_DSYNC";

/// Rows of the second table that are not in the first.
pub(super) const PARTS_ONLY: [&str; 8] = [
    ONE_BY_ONE,
    ONE_BY_ONE_JOURNAL,
    TOGETHER,
    TOGETHER_JOURNAL,
    BUFFERED,
    ZEROED,
    UNWRITTEN,
    GROWS,
];

/// What one part is, the row that has it, and the row that differs from it in this only.
const PARTS_PAIRS: [(&str, &str, &str); 8] = [
    ("Not syncing each write", ONE_BY_ONE, DSYNC),
    ("Coalescing 32 values into one write", TOGETHER, ONE_BY_ONE),
    ("No journal block for each value", ONE_BY_ONE, ONE_BY_ONE_JOURNAL),
    ("No journal block for each write of 32 values", TOGETHER, TOGETHER_JOURNAL),
    ("O_DSYNC instead of an fdatasync after each write", DSYNC, FDATASYNC),
    ("O_DIRECT, with fdatasync", FDATASYNC, BUFFERED),
    ("Zeroing the file before, instead of only allocating it", ZEROED, UNWRITTEN),
    ("Zeroing the file before, instead of letting it grow", ZEROED, GROWS),
];

/// The file store in the third table.
pub(super) const FILES_BESIDE: &str = "files, fsync of file and folder";

const NO_FSYNC: &str = "files, buffered, no fsync";
const FSYNC: &str = "files, buffered, fsync of the file";
const FSYNC_BOTH: &str = "files, buffered, fsync of file and folder";

pub(super) fn files(direct: bool, sync: FileSync) -> &'static str {
    match (direct, sync) {
        (false, FileSync::Nothing) => NO_FSYNC,
        (false, FileSync::File) => FSYNC,
        (false, FileSync::FileAndFolder) => FSYNC_BOTH,
        (true, FileSync::Nothing) => "files, O_DIRECT, no fsync",
        (true, FileSync::File) => "files, O_DIRECT, fsync of the file",
        (true, FileSync::FileAndFolder) => "files, O_DIRECT, fsync of file and folder",
    }
}

pub(super) fn files_answered_by(direct: bool, sync: FileSync) -> &'static str {
    match (direct, sync) {
        (true, FileSync::Nothing) => "device, but the file is known in memory only",
        (_, sync) => sync.answered_by(),
    }
}

pub(super) fn cairn(mode: Mode) -> String {
    format!("Cairn, {mode}")
}

pub(super) fn mode_answered_by(mode: Mode) -> &'static str {
    match mode {
        Mode::Device => "device, which keeps completed writes",
        Mode::Replicated => "device, synced in the background; peers cover the time between",
        Mode::Sync => "disk",
    }
}

pub(super) fn beside(who: &str, act: Act) -> String {
    match act {
        Act::Put => format!("{who}: beside puts"),
        Act::DeleteAndPut => format!("{who}: beside deletes"),
    }
}

/// A table of the cases whose names are wanted.
pub(super) fn table(title: &str, cases: &[Case], wanted: impl Fn(&str) -> bool) -> Table {
    let mut table = Table::new(title, &LOAD_COLUMNS);
    for case in cases.iter().filter(|case| wanted(&case.name)) {
        row(&mut table, case, load_figures(&case.rounds));
    }
    table
}

fn row(table: &mut Table, case: &Case, figures: Vec<Option<Figure>>) {
    match &case.subject {
        Ok(_) => table.measured(&*case.name, &*case.answered_by, figures),
        Err(reason) => table.not_made(&*case.name, reason),
    }
}

/// The rows of the pairs; two of them are in the first table, too.
pub(super) fn parts_table(cases: &[Case]) -> Table {
    table(PARTS, cases, |name| PARTS_PAIRS.iter().any(|(_, a, b)| name == *a || name == *b))
}

pub(super) fn deletes_table(cases: &[Case], deletes: &[mpsc::Receiver<f64>]) -> Table {
    let columns = [("rate", "/s"), ("p50", "µs"), ("p99", "µs"), ("deletes", "/s")];
    let mut table = Table::new(DELETES, &columns);
    for (case, told) in cases.iter().zip(deletes) {
        let [rate, _, p50, p99, _] = load_figures(&case.rounds)[..] else { continue };
        let deletes = spread(&told.try_iter().collect::<Vec<_>>());
        row(&mut table, case, vec![rate, p50, p99, deletes]);
    }
    table
}

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
    let digits = format!("{:.0}", (number / unit).round() * unit);
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + "/s"
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
        metadata(puts(&sync), puts(FSYNC_BOTH), puts(DSYNC)),
        replicated(puts(&cairn(Mode::Replicated)), puts(&sync), puts(FSYNC_BOTH)),
        dsync(value(tables, PARTS, ONE_BY_ONE, "rate"), puts(DSYNC)),
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
    Some(if factor >= NOISE {
        format!(
            "Files: {figures}. On this disk fsync costs puts of files a factor of {factor_text}."
        )
    } else {
        format!(
            "Files: {figures}. On this disk dropping fsync gains nothing that stands out (a factor of {factor_text})."
        )
    })
}

fn metadata(sync: Option<f64>, files: Option<f64>, raw: Option<f64>) -> Option<String> {
    let raw = ratio(raw, files).zip(raw);
    let raw = raw.map(|(factor, raw)| {
        format!("raw O_DSYNC writes do {} ({} ×)", rate(raw), two_digits(factor))
    });
    let Some(factor) = ratio(sync, files) else {
        let base = rate(files?);
        return raw.map(|raw| {
            format!("Synced before the answer, files do {base}, and {raw}: this is what filesystem metadata costs.")
        });
    };
    let figures = format!(
        "With everything synced before the answer, files do {} and Cairn does {} ({} ×)",
        rate(files?),
        rate(sync?),
        two_digits(factor)
    );
    let verdict = match factor {
        f if f >= NOISE => {
            "Cairn's gain is one write per value without filesystem metadata, and group commit"
        }
        f if f > 1.0 / NOISE => {
            "avoiding filesystem metadata gains Cairn nothing that stands out here"
        }
        _ => "avoiding filesystem metadata does not make Cairn faster here",
    };
    let raw = raw.map(|raw| format!("; {raw}, without group commit")).unwrap_or_default();
    Some(format!("{figures}{raw}: {verdict}."))
}

fn replicated(replicated: Option<f64>, sync: Option<f64>, files: Option<f64>) -> Option<String> {
    let over = |factor: Option<f64>, what: &str| {
        factor.map(|factor| format!("{} × {what}", two_digits(factor)))
    };
    let others: Vec<String> = [
        over(ratio(replicated, sync), "mode sync"),
        over(ratio(replicated, files), "files with fsync of file and folder"),
    ]
    .into_iter()
    .flatten()
    .collect();
    if others.is_empty() {
        return None;
    }
    Some(format!(
        "Cairn in mode replicated does {}, {}; it answers before the sync, and peers cover the time until then.",
        rate(replicated?),
        others.join(", ")
    ))
}

/// A write with `O_DSYNC` that costs less than this × a write without is nearly free.
const FREE: f64 = 1.3;

fn dsync(without: Option<f64>, with: Option<f64>) -> Option<String> {
    let factor = ratio(without, with)?;
    let figures = format!(
        "A raw write with O_DSYNC costs {} × one without ({} against {})",
        two_digits(factor),
        rate(with?),
        rate(without?)
    );
    Some(if factor < FREE {
        format!(
            "{figures}: O_DSYNC is nearly free here, and what can be gained is filesystem metadata and one write per value."
        )
    } else {
        format!(
            "{figures}: here the sync itself has a price, with or without a filesystem's metadata."
        )
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
    let mut notes = vec![
        format!(
            "{DEPTH} requests under way, random overwrites of {objects} objects of 4 KiB with random bytes. The raw files have as many blocks of 4 KiB."
        ),
        "A put into a file writes a temporary file and renames it. Without fsync of the folder a power cut may undo the rename.".into(),
        format!(
            "Cairn and “{RAW}” submit through the engine's backend. All other rows wait in system calls, one thread for each request."
        ),
        "Cairn alone, one node, without a network. Its rate has group commit in it, the raw rows do not, so Cairn over files is not the gain of avoiding filesystem metadata alone.".into(),
        "Each gain isolates one variable. They share causes, so they neither add up nor multiply to one number; what fsync costs and what filesystem metadata costs are two numbers.".into(),
        "The three rows “in order” write each block of their file once in a round. On a fast disk such a round ends before its time. The warm-up is an eighth of the blocks.".into(),
        "A value in a write of 32 values waits for the whole write, so 32 values are under way in one request.".into(),
        format!(
            "Deletes: {half} clients put and are measured. Beside them {half} clients put other objects, or delete one and put it again in turn. {} objects are theirs.",
            sizes.others,
            half = DEPTH / 2
        ),
        "After each round everything on the filesystem is synced, outside of the measured time, so that no row pays for the row before it. This includes what other programs wrote.".into(),
        "Fractalbits' engine row does not fit together: 190,985/s × 413 µs are 79 requests under way by Little's law, not the 128 that it names.".into(),
    ];
    if !laid_out.is_empty() {
        notes.push(format!(
            "The time to lay out ended early: {}. Puts of the others make new objects at first.",
            laid_out.join(", ")
        ));
    }
    notes
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
    let bar = |row: &crate::report::Row| match &row.outcome {
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
        let p99 = |row: &crate::report::Row| table.value(&row.name, "p99");
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
pub(super) mod tests {
    use super::*;

    fn load(rows: &[(&str, &str, f64)], title: &str) -> Table {
        let mut table = Table::new(title, &LOAD_COLUMNS);
        for (name, answered_by, rate) in rows {
            let figure = |median| Some(Figure { median, least: median, most: median, rounds: 1 });
            let figures = vec![figure(*rate), figure(1.0), figure(1.0), figure(1.0), figure(32.0)];
            table.measured(*name, *answered_by, figures);
        }
        table
    }

    fn tables(files: f64, sync: f64, dsync: f64) -> Vec<Table> {
        let puts = load(
            &[
                (NO_FSYNC, "page cache", 20_000.0),
                (FSYNC_BOTH, "disk", files),
                ("Cairn, replicated", "device", 60_000.0),
                ("Cairn, sync", "disk", sync),
                (DSYNC, "disk", dsync),
            ],
            PUTS,
        );
        let parts = load(&[(ONE_BY_ONE, "device", 40_000.0), (DSYNC, "disk", dsync)], PARTS);
        vec![puts, parts]
    }

    #[test]
    fn on_a_disk_with_slow_syncs_the_sync_has_a_price() {
        let tables = tables(1000.0, 8000.0, 4000.0);
        let said = sentences(&tables);
        assert_eq!(said.len(), 4);
        assert!(said[0].contains("a factor of 20."), "{}", said[0]);
        assert!(said[1].contains("Cairn does 8,000/s (8.0 ×)"), "{}", said[1]);
        assert!(said[1].contains("4,000/s (4.0 ×), without group commit: Cairn's gain"));
        assert!(said[2].contains("60,000/s, 7.5 × mode sync, 60 × files"), "{}", said[2]);
        assert!(said[3].contains("costs 10 × one without") && said[3].contains("has a price"));
        assert_eq!(
            plots(&tables)[0].sentence,
            "Of the rows that are on the disk at the answer, “Cairn, sync” is the fastest: 8,000/s, 8.0 × buffered files with fsync of file and folder (1,000/s)."
        );
        let gains = gains(&tables);
        assert_eq!(gains.len(), 1);
        assert!(gains[0].starts_with("Not syncing each write: 10 × the rate"), "{}", gains[0]);
    }

    #[test]
    fn figures_that_speak_against_cairn_are_said() {
        let tables = tables(19_500.0, 10_000.0, 39_000.0);
        let said = sentences(&tables);
        assert!(said[0].contains("gains nothing that stands out (a factor of 1.0)"));
        assert!(said[1].contains("(0.51 ×)"), "{}", said[1]);
        assert!(said[1].contains("does not make Cairn faster here"));
        assert!(said[3].contains("nearly free here"));
        assert!(
            plots(&tables)[0].sentence.contains(&format!("“{DSYNC}” is the fastest: 39,000/s"))
        );
    }

    #[test]
    fn without_figures_there_is_no_sentence() {
        let mut puts = load(&[(NO_FSYNC, "page cache", 5.0)], PUTS);
        puts.not_made(FSYNC_BOTH, "read only");
        let tables = [puts, Table::new(PARTS, &LOAD_COLUMNS)];
        assert!(sentences(&tables).is_empty() && plots(&tables).is_empty());
        assert!(sentences(&[]).is_empty() && gains(&[]).is_empty());
        assert!(metadata(None, Some(10.0), Some(20.0)).unwrap().contains("(2.0 ×)"));
        assert_eq!(ratio(Some(1.0), Some(0.0)), None);
    }

    #[test]
    fn numbers_are_rounded_as_a_reader_expects() {
        let found = [0.0512, 0.514, 0.996, 1.04, 9.96, 123.4].map(two_digits);
        assert_eq!(found, ["0.051", "0.51", "1.0", "1.0", "10", "123"]);
        let found = [0.4, 7.0, 999.6, 1234.0, 12_345.0, 1_234_567.0].map(rate);
        assert_eq!(found, ["0/s", "7/s", "1,000/s", "1,230/s", "12,300/s", "1,230,000/s"]);
    }

    #[test]
    fn a_tail_that_grows_or_shrinks_beside_deletes_is_said_so() {
        let columns = [("rate", "/s"), ("p50", "µs"), ("p99", "µs"), ("deletes", "/s")];
        let mut table = Table::new(DELETES, &columns);
        for (who, act, p99) in [
            ("files", Act::Put, 10_000.0),
            ("files", Act::DeleteAndPut, 32_000.0),
            ("Cairn, sync", Act::Put, 4000.0),
            ("Cairn, sync", Act::DeleteAndPut, 2000.0),
            ("none", Act::Put, 2000.0),
        ] {
            let figure = Some(Figure { median: p99, least: p99, most: p99, rounds: 1 });
            table.measured(beside(who, act), "disk", vec![figure; 4]);
        }
        table.not_made(beside("none", Act::DeleteAndPut), "why not");
        assert_eq!(
            tails(&[table]).unwrap(),
            "Files: the p99 of puts is higher beside deletes, 32 ms against 10 ms (3.2 ×); Cairn, sync: the p99 of puts is lower beside deletes, 2.0 ms against 4.0 ms (0.50 ×)."
        );
    }
}
