//! Names of rows, which parts of a write path they compare, and the tables.

use super::clients::Act;
use crate::experiment::{Case, LOAD_COLUMNS, load_figures};
use crate::measure::spread;
use crate::report::{Figure, Table};
use crate::subject::FileSync;
use cairn_engine::Mode;
use std::sync::mpsc;

/// The first table.
pub(in crate::experiment) const PUTS: &str = "Puts of 4 KiB objects";
/// The second.
pub(super) const PARTS: &str = "What parts of such a write path gain, on raw files";
/// The third.
pub(super) const DELETES: &str = "Deletes beside puts";

pub(super) const RAW: &str = "raw, O_DIRECT, no sync";
pub(in crate::experiment) const DSYNC: &str = "raw, O_DIRECT and O_DSYNC";
pub(super) const FDATASYNC: &str = "raw, O_DIRECT, fdatasync after each write";
pub(super) const ONE_BY_ONE_JOURNAL: &str =
    "raw, O_DIRECT, no sync, a journal block after each write";
pub(super) const TOGETHER: &str = "one write of 32 values, no sync";
pub(super) const TOGETHER_JOURNAL: &str = "one write of 32 values, a journal block after it";
pub(super) const BUFFERED: &str = "raw, buffered, fdatasync after each write";
pub(super) const ZEROED: &str = "in order, a zeroed file, O_DIRECT and O_DSYNC";
pub(super) const UNWRITTEN: &str = "in order, an allocated file, O_DIRECT and O_DSYNC";
pub(super) const GROWS: &str = "in order, a file that grows, O_DIRECT and O_DSYNC";

/// Rows of the second table that are not in the first.
pub(super) const PARTS_ONLY: [&str; 7] =
    [ONE_BY_ONE_JOURNAL, TOGETHER, TOGETHER_JOURNAL, BUFFERED, ZEROED, UNWRITTEN, GROWS];

/// What one part is, the row that has it, and the row that differs from it in this only.
pub(super) const PARTS_PAIRS: [(&str, &str, &str); 8] = [
    ("Not syncing each write", RAW, DSYNC),
    ("Coalescing 32 values into one write", TOGETHER, RAW),
    ("No journal block for each value", RAW, ONE_BY_ONE_JOURNAL),
    ("No journal block for each write of 32 values", TOGETHER, TOGETHER_JOURNAL),
    ("O_DSYNC instead of an fdatasync after each write", DSYNC, FDATASYNC),
    ("O_DIRECT, with fdatasync", FDATASYNC, BUFFERED),
    ("Zeroing the file before, instead of only allocating it", ZEROED, UNWRITTEN),
    ("Zeroing the file before, instead of letting it grow", ZEROED, GROWS),
];

/// The file store in the third table.
pub(super) const FILES_BESIDE: &str = "files, fsync of file and folder";

pub(in crate::experiment) const NO_FSYNC: &str = "files, buffered, no fsync";
/// The files that are beside raw writes and the engine, which write with `O_DIRECT`, too.
const FSYNC: &str = "files, buffered, fsync of the file";
pub(in crate::experiment) const FSYNC_BOTH: &str = "files, buffered, fsync of file and folder";

pub(in crate::experiment) const DIRECT_FSYNC_BOTH: &str =
    "files, O_DIRECT, fsync of file and folder";

pub(super) fn files(direct: bool, sync: FileSync) -> &'static str {
    match (direct, sync) {
        (false, FileSync::Nothing) => NO_FSYNC,
        (false, FileSync::File) => FSYNC,
        (false, FileSync::FileAndFolder) => FSYNC_BOTH,
        (true, FileSync::Nothing) => "files, O_DIRECT, no fsync",
        (true, FileSync::File) => "files, O_DIRECT, fsync of the file",
        (true, FileSync::FileAndFolder) => DIRECT_FSYNC_BOTH,
    }
}

pub(super) fn files_answered_by(direct: bool, sync: FileSync) -> &'static str {
    match (direct, sync) {
        (true, FileSync::Nothing) => "device, but the file is known in memory only",
        (_, sync) => sync.answered_by(),
    }
}

pub(in crate::experiment) fn cairn(mode: Mode) -> String {
    format!("Cairn, {mode}")
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
