//! What the file's figures say about syncs.

use super::super::finding::{Pair, caption, findings};
use super::file::{Plan, RATE, ROWS, Syncs};
use crate::report::{Plot, PlotData, Table, size};

/// Syncing costs little if it leaves this part of the throughput.
const CHEAP: f64 = 0.9;

/// The intervals that were measured, the longest first. One sync at the end is an interval as long
/// as the file.
fn by_interval(table: &Table, plan: &Plan) -> Vec<(u64, String)> {
    let interval = |row: &Syncs| match row {
        Syncs::Never => None,
        Syncs::AtEnd => Some((plan.bytes, row.name())),
        Syncs::Every(bytes) => Some((*bytes, row.name())),
    };
    let measured = |(_, name): &(u64, String)| table.value(name, RATE).is_some();
    ROWS.iter().filter_map(interval).filter(measured).collect()
}

/// What the figures show.
pub(super) fn sentences(table: &Table) -> Vec<String> {
    let end = Syncs::AtEnd.name();
    let rows = [Syncs::Every(16 << 10), Syncs::Every(1 << 20), Syncs::Never].map(Syncs::name);
    let pairs = rows.each_ref().map(|row| ("Beside one sync at the end", [row, &end] as Pair<'_>));
    findings(table, RATE, &pairs)
}

/// The throughput by interval.
pub(super) fn plot(table: &Table, plan: &Plan) -> Option<Plot> {
    let synced = by_interval(table, plan);
    let points = synced.iter().rev().map(|(bytes, row)| (*bytes as f64, row.clone()));
    let never = synced.iter().rev().map(|(bytes, _)| (*bytes as f64, Syncs::Never.name()));
    let lines = [("with syncs", table.line(RATE, points)), ("never", table.line(RATE, never))];
    let end = Syncs::AtEnd.name();
    let all = table.value(&end, RATE)?;
    let is_cheap = |(_, row): &&(u64, String)| table.value(row, RATE) >= Some(CHEAP * all);
    let cheap = synced.iter().take_while(is_cheap).last().filter(|(_, row)| *row != end);
    let (what, (_, row)) = match cheap {
        Some(cheap) => ("The shortest interval for which syncs cost at most 10 %", cheap),
        None => {
            ("Even the longest interval costs more than 10 %", synced.get(1).or(synced.first())?)
        }
    };
    Some(Plot {
        file: "intervals-file.svg".to_owned(),
        title: "Throughput of 4 KiB writes by the bytes between two syncs".to_owned(),
        sentence: caption(table, what, RATE, [row, &end])?,
        data: PlotData::Lines {
            x: "bytes between two syncs".to_owned(),
            y: "throughput in MB/s".to_owned(),
            ticks: synced.iter().rev().map(|(bytes, _)| (*bytes as f64, size(*bytes))).collect(),
            lines: lines.map(|(name, points)| (name.to_owned(), points)).into(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::super::file::COLUMNS;
    use super::super::file::tests::{PLAN, rates};
    use super::*;

    #[test]
    fn the_plot_names_the_shortest_interval_from_which_on_syncs_are_cheap() {
        for (rates_of, named) in [
            ([7000, 1000, 990, 900, 500, 100, 10], "every 10 MiB"),
            // A cheap interval below an expensive one does not count.
            ([7000, 1000, 990, 500, 950, 100, 10], "every 100 MiB"),
            ([7000, 1000, 700, 950, 500, 100, 10], "every 100 MiB"),
        ] {
            let found = plot(&rates(rates_of), &PLAN).unwrap().sentence;
            assert!(found.contains(&format!("“{named}” ")), "{found}");
            assert_eq!(found.starts_with("Even"), rates_of[2] == 700, "{found}");
        }
        let mut short = rates([7000, 1000, 0, 0, 0, 0, 0]);
        short.rows.truncate(2);
        let found = plot(&short, &PLAN).unwrap().sentence;
        assert_eq!(found, "“at the end”: throughput 1,000 MB/s.", "no interval beside it");
    }

    #[test]
    fn the_sentences_give_the_ratios_of_the_table() {
        let found = sentences(&rates([7000, 1000, 990, 900, 500, 100, 12]));
        for (found, times) in found.iter().zip(["0.0120 ×", "0.500 ×", "7.00 ×"]) {
            assert!(found.contains(times), "{found}");
        }
        assert!(sentences(&Table::new("t", &COLUMNS)).is_empty());
    }
}
