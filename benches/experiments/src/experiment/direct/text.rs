//! What the figures of the experiment show.

use super::super::finding::finding;
use super::write::How;
use super::{Against, LEAST_MEMORY, Line, SAFE, TITLE, USED, name};
use crate::experiment::Settings;
use crate::report::{Plot, PlotData, Table, size};

/// One way of writing beside another one, in the largest size of which both were measured.
fn beside(table: &Table, what: &str, column: &str, pair: [(How, usize); 2]) -> Option<String> {
    [Against::Above, Against::Below].into_iter().find_map(|against| {
        let [one, other] = pair.map(|(how, depth)| name(against, how, depth));
        finding(table, what, column, [&one, &other])
    })
}

/// Buffered and direct, with nothing else between them: one writer, over zeros.
const OVER_ZEROS: [(How, usize); 2] = [(How::Zeroed, 1), (How::BufferedZeroed, 1)];

pub(super) fn sentences(table: &Table) -> Vec<String> {
    let [one, _] = OVER_ZEROS;
    [
        beside(table, "Around the page cache", SAFE, OVER_ZEROS),
        beside(table, "More writes under way", SAFE, [(How::Zeroed, 16), one]),
        beside(table, "Space that is only reserved", SAFE, [(How::Preallocated, 1), one]),
        beside(table, "Around the page cache", USED, OVER_ZEROS),
    ]
    .into_iter()
    .flatten()
    .collect()
}

pub(super) fn plot(table: &Table) -> Option<Plot> {
    Some(Plot {
        file: "direct-safety.svg".into(),
        title: format!("{TITLE}: time to safety"),
        sentence: beside(table, "Around the page cache", SAFE, OVER_ZEROS)?,
        data: PlotData::Bars {
            axis: "seconds for each GiB until it is synced".into(),
            bars: table.bars(SAFE),
        },
    })
}

pub(super) fn notes(lines: &[Line], settings: &Settings, memory: Option<u64>) -> Vec<String> {
    let mut notes = vec![
        "Writes of 128 KiB of random bytes, in order. Buffered: one writer. Direct: so many threads that each wait for one write. Before a buffered write over zeros, none of the file is in the page cache. Cairn submits through io_uring where the kernel allows it, so its processor time differs from these threads'.".to_owned(),
        "Time to safety ends with a final fdatasync. A new file's name would need a sync of its folder too; that is not counted. Times begin before the file is opened and its space is reserved; the zeros of a zeroed file are not counted: Cairn writes them once, when it makes its files.".to_owned(),
        "\"User\" and \"system\" are the processor time of the process that writes. \"Machine\" is that of everything on the machine, also of the kernel's threads that write pages back and of other programs, in steps of 10 ms.".to_owned(),
        "Files are shortened to what a first write, not counted, shows to fit into a row's time; a row that takes longer nevertheless ends early. The column \"written\" shows it; sentences and plot are for each GiB written.".to_owned(),
    ];
    notes.push(match memory {
        Some(memory) => format!(
            "Rows above memory run in a memory cgroup of {} (at least {}), which also bounds their page cache; rows below memory run without a limit.",
            size(memory),
            size(LEAST_MEMORY)
        ),
        None => "Rows below memory run without a limit; nothing was measured above memory.".into(),
    });
    if settings.child.is_none() {
        notes.push("\"User\" and \"system\" contain the measuring process's own work.".into());
    }
    let made = lines.iter().filter_map(|line| line.rounds.as_ref().ok());
    let least = made.map(Vec::len).min().unwrap_or(settings.rounds());
    if least < settings.rounds() {
        let of = settings.rounds();
        notes.push(format!("The disk became slower: some rows have {least} of {of} rounds."));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::super::write::Written;
    use super::super::{ROWS, table};
    use super::*;
    use crate::experiment::tests::settings;

    /// A row of 512 MiB.
    fn line(against: Against, how: How, depth: usize, safe_s: f64, used_s: f64) -> Line {
        let (write_s, user_s, system_s) = (safe_s / 4.0, used_s / 2.0, used_s / 2.0);
        let one = Written { bytes: 1 << 29, write_s, safe_s, user_s, system_s, machine_s: 1.0 };
        Line { against, how, depth, rounds: Ok(vec![one; 3]) }
    }

    /// The rows of a size, no two of which are alike; one of zeros takes so long direct, and 2 s
    /// buffered.
    fn lines(against: Against, zeroed: f64) -> Vec<Line> {
        let safe = [7.0, 2.0, 3.0, 5.0, zeroed, 0.3];
        let used = [0.6, 0.4, 0.3, 0.7, 0.1, 0.2];
        let figures = safe.into_iter().zip(used);
        let rows = ROWS.into_iter().zip(figures);
        rows.map(|((how, depth), (safe, used))| line(against, how, depth, safe, used)).collect()
    }

    #[test]
    fn the_largest_size_counts_and_the_plot_agrees() {
        let mut both = lines(Against::Below, 1.0);
        let said = sentences(&table(&both));
        let times = ["0.500 ×", "0.300 ×", "3.00 ×", "0.250 ×"];
        assert_eq!(said.len(), times.len(), "{said:?}");
        for (said, times) in said.iter().zip(times) {
            assert!(said.contains(times) && said.contains("below memory"), "{said}");
        }
        both.extend(lines(Against::Above, 4.0));
        let plot = plot(&table(&both)).unwrap();
        assert!(plot.sentence.contains("2.00 ×") && plot.sentence.contains("above memory"));
        let PlotData::Bars { bars, .. } = plot.data else { panic!("bars") };
        assert_eq!((bars.len(), bars[0].1.median), (12, 14.0), "for each GiB");
        both.retain(|line| line.how != How::BufferedZeroed);
        assert!(super::plot(&table(&both)).is_none(), "a new file is not the same as zeros");
    }

    #[test]
    fn notes_say_where_the_rows_were_measured_and_how_many_rounds_are_missing() {
        let mut lines = vec![line(Against::Below, How::Buffered, 1, 1.0, 0.1)];
        assert!(sentences(&table(&lines)).is_empty());
        let text = notes(&lines, &settings(), Some(64 << 20)).join(" ");
        assert!(text.contains("cgroup of 64 MiB") && text.contains("measuring process's own"));
        lines[0].rounds.as_mut().unwrap().pop();
        assert!(notes(&lines, &settings(), None).join(" ").contains("2 of 3 rounds"));
    }
}
