//! What the file's figures say about syncs.

use super::file::{Plan, RATE, ROWS, SAFE, Syncs, WRITTEN};
use super::text::{digits, size};
use crate::report::{Plot, PlotData, Table};

/// Syncing costs little if it leaves this part of the throughput.
const CHEAP: f64 = 0.9;

/// The intervals that were measured, the longest first, with their throughput. One sync at the end
/// is an interval as long as the file.
fn by_interval(table: &Table, plan: &Plan) -> Vec<(Syncs, u64, f64)> {
    let interval = |row| match row {
        Syncs::Never => None,
        Syncs::AtEnd => Some(plan.bytes),
        Syncs::Every(bytes) => Some(bytes),
    };
    let measured = |row: &Syncs| Some((*row, interval(*row)?, table.value(&row.name(), RATE)?));
    ROWS.iter().filter_map(measured).collect()
}

/// What the figures show.
pub(super) fn sentences(table: &Table) -> Vec<String> {
    let rate = |row: Syncs| table.value(&row.name(), RATE);
    let mut sentences = Vec::new();
    let Some(end) = rate(Syncs::AtEnd) else { return sentences };
    let (small, large) = (Syncs::Every(16 << 10), Syncs::Every(1 << 20));
    if let (Some(at_small), Some(at_large)) = (rate(small), rate(large)) {
        sentences.push(format!(
            "With a sync {} the file is written at {} MB/s, and with a sync {} at {} MB/s: {} and \
             {} times the {} MB/s with one sync at the end.",
            small.name(),
            digits(at_small),
            large.name(),
            digits(at_large),
            digits(at_small / end),
            digits(at_large / end),
            digits(end)
        ));
    }
    let of_never = |column| table.value(&Syncs::Never.name(), column);
    if let (Some(never), Some(safe)) = (rate(Syncs::Never), of_never(SAFE)) {
        let whole = of_never(WRITTEN).is_some_and(|mib| mib >= 1024.0);
        sentences.push(format!(
            "Without a sync the file is written at {} MB/s, {} times the throughput with one sync \
             at the end; a GiB is safe only after {} s{}.",
            digits(never),
            digits(never / end),
            digits(safe),
            if whole { "" } else { " at this pace" }
        ));
    }
    sentences
}

/// The throughput by interval.
pub(super) fn plot(table: &Table, plan: &Plan) -> Option<Plot> {
    let synced = by_interval(table, plan);
    let (_, _, end) = *synced.iter().find(|(row, ..)| *row == Syncs::AtEnd)?;
    let tick = |(_, bytes, _): &(Syncs, u64, f64)| (*bytes as f64, size(*bytes));
    let ticks: Vec<(f64, String)> = synced.iter().rev().map(tick).collect();
    let points = synced.iter().rev().map(|(_, bytes, rate)| (*bytes as f64, *rate));
    let mut lines = vec![("with syncs".to_owned(), points.collect::<Vec<_>>())];
    if let Some(never) = table.value(&Syncs::Never.name(), RATE) {
        let points = ticks.iter().map(|(bytes, _)| (*bytes, never)).collect();
        lines.push(("never".to_owned(), points));
    }
    Some(Plot {
        file: "intervals-file.svg".to_owned(),
        title: "Throughput of 4 KiB writes by the bytes between two syncs".to_owned(),
        sentence: cheap_from(&synced, end),
        data: PlotData::Lines {
            x: "bytes between two syncs".to_owned(),
            y: "throughput in MB/s".to_owned(),
            ticks,
            lines,
        },
    })
}

/// From which interval on syncing costs little. `synced` begins with the longest.
fn cheap_from(synced: &[(Syncs, u64, f64)], end: f64) -> String {
    let every = synced.iter().filter(|(row, ..)| matches!(row, Syncs::Every(_)));
    let cheap = every.clone().take_while(|(_, _, rate)| *rate >= CHEAP * end).last();
    let end = digits(end);
    match (cheap, every.clone().next()) {
        (Some((_, bytes, rate)), _) => format!(
            "From {} between two syncs on, syncing costs at most 10 % of the {end} MB/s with one \
             sync at the end; there it is {} MB/s.",
            size(*bytes),
            digits(*rate)
        ),
        (None, Some((row, _, rate))) => format!(
            "Even a sync {} costs more than 10 % of the {end} MB/s with one sync at the end: it \
             leaves {} MB/s.",
            row.name(),
            digits(*rate)
        ),
        (None, None) => format!("One sync at the end leaves {end} MB/s."),
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::COLUMNS;
    use super::super::file::tests::{PLAN, rates};
    use super::*;

    fn sentence(of: [u64; 7]) -> String {
        plot(&rates(of), &PLAN).unwrap().sentence
    }

    #[test]
    fn the_plot_names_the_shortest_interval_from_which_on_syncs_are_cheap() {
        let found = sentence([7000, 1000, 990, 900, 500, 100, 10]);
        assert!(found.starts_with("From 10 MiB between"), "{found}");
        assert!(found.contains("1,000 MB/s") && found.ends_with("900 MB/s."), "{found}");
        // A cheap interval below an expensive one does not count.
        let found = sentence([7000, 1000, 990, 500, 950, 100, 10]);
        assert!(found.starts_with("From 100 MiB between"), "{found}");
        let found = sentence([7000, 1000, 700, 950, 500, 100, 10]);
        assert!(found.starts_with("Even a sync every 100 MiB costs more"), "{found}");
    }

    #[test]
    fn the_sentences_give_the_ratios_of_the_table() {
        let found = sentences(&rates([7000, 1000, 990, 900, 500, 100, 12]));
        assert!(found[0].contains("12 MB/s") && found[0].contains("0.012 and 0.50 times"));
        assert!(found[1].contains("7.00 times"), "{found:?}");
        assert!(found[1].ends_with(" s."), "{found:?}");
        let short = sentences(&rates([70, 10, 10, 10, 10, 10, 10]));
        assert!(short[1].ends_with(" s at this pace."), "{short:?}");
        assert!(sentences(&Table::new("t", &COLUMNS)).is_empty());
    }
}
