//! What a row shows beside another one: the one template of all sentences about figures.
//!
//! What holds here: a sentence says what its figures say, whatever they are. Without its figures
//! there is none.

use crate::report::{Table, cell, count, number, size};

/// Two rows, the second one the measure of the first.
pub(super) type Pair<'a> = [&'a str; 2];

/// How many times a row's figure is that of another row. None for a row beside itself.
pub(super) fn finding(
    table: &Table,
    what: &str,
    column: &str,
    [row, measure]: Pair<'_>,
) -> Option<String> {
    let (this, that) = (table.figure(row, column)?, table.figure(measure, column)?);
    if row == measure || this.median <= 0.0 || that.median <= 0.0 {
        return None;
    }
    let spread = this.rounds.min(that.rounds) > 1;
    let overlap = match spread && this.least <= that.most && that.least <= this.most {
        true => "; their rounds overlap",
        false => "",
    };
    let times = number(this.median / that.median);
    let (this, that) = (value(table, row, column)?, value(table, measure, column)?);
    Some(format!("{what}: {times} × “{column}” (“{row}” {this}, “{measure}” {that}{overlap})."))
}

/// The findings of one column that have their figures.
pub(super) fn findings(table: &Table, column: &str, pairs: &[(&str, Pair<'_>)]) -> Vec<String> {
    pairs.iter().filter_map(|(what, pair)| finding(table, what, column, *pair)).collect()
}

/// A row's figure by itself.
pub(super) fn alone(table: &Table, column: &str, row: &str) -> Option<String> {
    Some(format!("“{row}”: {column} {}.", value(table, row, column)?))
}

/// What a plot shows: a finding, or else the first figure above zero, those of the pair before all
/// others.
pub(super) fn caption(table: &Table, what: &str, column: &str, pair: Pair<'_>) -> Option<String> {
    finding(table, what, column, pair).or_else(|| {
        let rows = table.rows.iter().map(|row| &*row.name);
        let row = pair.into_iter().chain(rows).find(|row| table.value(row, column) > Some(0.0))?;
        alone(table, column, row)
    })
}

/// A note where an engine's size was in the way of a row. `grows` is whether a larger `--size`
/// makes it larger.
pub(super) fn waits(row: &str, times: u64, engine_bytes: u64, grows: bool) -> Option<String> {
    if times == 0 {
        return None;
    }
    let (times, size) = (count(times as usize, "wait"), size(engine_bytes));
    let way_out = if grows { " A larger --size avoids it." } else { "" };
    Some(format!(
        "{row}: {times} for space, which an engine of {size} uses again only after a sync.{way_out}"
    ))
}

fn value(table: &Table, row: &str, column: &str) -> Option<String> {
    let figure = table.figure(row, column)?;
    let unit = &table.columns.iter().find(|found| found.name == column)?.unit;
    Some(format!("{} {unit}", cell(Some(figure))).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{figure, spread};

    fn table() -> Table {
        let mut table = Table::new("t", &[("rate", "/s")]);
        table.measured("a", "x", vec![spread(&[300.0, 200.0])]);
        table.measured("b", "x", vec![spread(&[100.0, 200.0])]);
        table.measured("none", "x", vec![figure(0.0)]);
        table.not_made("c", "no");
        table
    }

    #[test]
    fn a_finding_has_both_figures_their_ratio_and_whether_rounds_overlap() {
        let found = finding(&table(), "More", "rate", ["a", "b"]).unwrap();
        for part in ["More: 1.67 × “rate”", "“a” 250 (200–300) /s", "“b” 150", "overlap"]
        {
            assert!(found.contains(part), "{found}");
        }
        let mut apart = table();
        apart.measured("d", "x", vec![spread(&[10.0, 20.0])]);
        assert!(!finding(&apart, "Less", "rate", ["a", "d"]).unwrap().contains("overlap"));
    }

    #[test]
    fn what_is_missing_or_nothing_makes_no_finding() {
        let pairs = [["a", "c"], ["c", "a"], ["a", "none"], ["none", "a"], ["a", "other"]];
        for pair in pairs.into_iter().chain([["a", "a"]]) {
            assert_eq!(finding(&table(), "x", "rate", pair), None, "{pair:?}");
        }
        assert_eq!(findings(&table(), "rate", &[("x", ["a", "b"]), ("y", ["a", "c"])]).len(), 1);
        let captioned = |pair| caption(&table(), "x", "rate", pair).unwrap();
        for (pair, row) in [
            (["c", "a"], "“a”: rate 250 (200–300) /s."),
            (["b", "b"], "“b”: rate 150 (100–200) /s."),
            (["none", "b"], "“b”: rate 150 (100–200) /s."),
            (["none", "c"], "“a”: rate 250 (200–300) /s."),
        ] {
            assert_eq!(captioned(pair), row, "{pair:?}");
        }
        let mut nothing = Table::new("t", &[("rate", "/s")]);
        nothing.measured("none", "x", vec![figure(0.0)]);
        assert_eq!(caption(&nothing, "x", "rate", ["none", "a"]), None);
    }

    #[test]
    fn a_note_of_waits_names_a_larger_size_only_where_it_helps() {
        assert_eq!(waits("a", 0, 64 << 20, true), None);
        for grows in [true, false] {
            let found = waits("a", 3, 64 << 20, grows).unwrap();
            assert!(found.starts_with("a: 3 waits for space, which an engine of 64 MiB"));
            assert_eq!(found.contains("--size"), grows, "{found}");
        }
    }
}
