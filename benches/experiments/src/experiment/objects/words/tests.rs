//! Sentences from made-up figures.

use super::super::clients::Act;
use super::super::rows::beside;
use super::*;
use crate::experiment::LOAD_COLUMNS;

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
            (DIRECT_FSYNC_BOTH, "disk", files),
            ("Cairn, replicated", "device", 60_000.0),
            ("Cairn, sync", "disk", sync),
            (DSYNC, "disk", dsync),
        ],
        PUTS,
    );
    let parts = load(&[(RAW, "device", 40_000.0), (DSYNC, "disk", dsync)], PARTS);
    vec![puts, parts]
}

#[test]
fn on_a_disk_with_slow_syncs_the_sync_has_a_price() {
    let tables = tables(1000.0, 8000.0, 4000.0);
    let said = sentences(&tables);
    assert_eq!(said.len(), 4);
    assert!(said[0].contains("a factor of 20."), "{}", said[0]);
    assert_eq!(
        said[1],
        "With O_DIRECT and everything synced before the answer, files do 1,000/s and raw O_DSYNC \
         writes do 4,000/s (4.0 ×): a put of a file takes two syncs and changes filesystem \
         metadata, a raw write takes one and changes none. Cairn in mode sync does 8,000/s, 8.0 × \
         O_DIRECT files with fsync of file and folder: this gain has two parts, no filesystem \
         metadata and group commit."
    );
    assert!(said[2].contains("60,000/s, 7.5 × mode sync, 60 × buffered files"), "{}", said[2]);
    assert!(said[3].starts_with("With 32 under way, a raw write with O_DSYNC costs 10 × one"));
    assert!(said[3].contains("has a price"), "{}", said[3]);
    assert_eq!(
        plots(&tables)[0].sentence,
        "Of the rows that are on the disk at the answer, “Cairn, sync” is the fastest: 8,000/s, \
         8.0 × buffered files with fsync of file and folder (1,000/s)."
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
    let slower = fsync(Some(10.0), Some(20.0)).unwrap();
    assert!(slower.contains("slower without fsync (0.50 ×)"), "{slower}");
    assert!(said[1].contains("0.51 × O_DIRECT files"), "{}", said[1]);
    assert!(said[1].ends_with("Cairn is slower here."), "{}", said[1]);
    assert!(said[3].starts_with("With 32 under way") && said[3].contains("nearly free here"));
    assert!(plots(&tables)[0].sentence.contains(&format!("“{DSYNC}” is the fastest: 39,000/s")));
}

#[test]
fn metadata_has_the_gain_that_the_raw_writes_show_and_no_other() {
    let said = |raw, sync| synced(Some(5000.0), Some(1.0), raw, sync).unwrap();
    let none = said(Some(4000.0), Some(12_000.0));
    assert!(none.contains("(0.80 ×): files are faster here"), "{none}");
    assert!(none.ends_with("so Cairn's gain is group commit."), "{none}");
    let same = said(Some(5100.0), Some(5200.0));
    assert!(same.contains("metadata, with two syncs for a put of a file, costs nothing"), "{same}");
    assert!(same.ends_with("Cairn gains nothing that stands out here."), "{same}");
    let more = said(Some(20_000.0), Some(10_000.0));
    assert!(more.ends_with("raw writes gain more, although they have no group commit."), "{more}");
    // Without one of them, nothing is said of it.
    let without_cairn = said(Some(2500.0), None);
    assert!(without_cairn.contains("(0.50 ×): files are faster"), "{without_cairn}");
    assert!(!without_cairn.contains("Cairn") && !without_cairn.contains("costs"));
    let without_raw = said(None, Some(10_000.0));
    assert_eq!(
        without_raw,
        "Cairn in mode sync does 10,000/s, 2.0 × O_DIRECT files with fsync of file and folder."
    );
}

#[test]
fn without_direct_files_raw_writes_are_not_beside_them() {
    let said = synced(None, Some(10.0), Some(20.0), Some(30.0)).unwrap();
    let wanted =
        "Cairn in mode sync does 30/s, 3.0 × buffered files with fsync of file and folder.";
    assert_eq!(said, wanted);
    assert_eq!(synced(None, Some(10.0), Some(20.0), None), None);
}

#[test]
fn without_figures_there_is_no_sentence() {
    let mut puts = load(&[(NO_FSYNC, "page cache", 5.0)], PUTS);
    puts.not_made(FSYNC_BOTH, "read only");
    let tables = [puts, Table::new(PARTS, &LOAD_COLUMNS)];
    assert!(sentences(&tables).is_empty() && plots(&tables).is_empty());
    assert!(sentences(&[]).is_empty() && gains(&[]).is_empty());
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
        "Files: the p99 of puts is higher beside deletes, 32 ms against 10 ms (3.2 ×); Cairn, \
         sync: the p99 of puts is lower beside deletes, 2.0 ms against 4.0 ms (0.50 ×)."
    );
}

#[test]
fn rounds_that_were_left_out_are_said() {
    assert_eq!(rounds(&[5, 5], 5), None);
    assert!(rounds(&[2, 5], 5).unwrap().contains("2 rounds of the first two tables and 5"));
}

#[test]
fn forced_syncs_are_not_called_waiting_puts() {
    assert_eq!(waits("Cairn, sync", 0), None);
    let said = waits("Cairn, sync", 3).unwrap();
    assert!(said.contains("in the rounds") && said.contains("waited for 3 syncs"), "{said}");
}

#[test]
fn a_reader_is_told_that_the_engine_is_not_among_the_parts() {
    let settings = crate::experiment::tests::settings();
    let notes = notes(&Sizes::new(&settings), &[]).join("\n");
    assert!(notes.contains("on raw files”") && notes.contains("engine is not in it"), "{notes}");
}
