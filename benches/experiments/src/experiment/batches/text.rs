//! What the figures of the experiment show.

use super::super::finding::{caption, findings};
use super::group::{GROUP_COMMIT, Kind};
use super::{FDATASYNC_GROWING, FSYNC, FSYNC_GROWING, NO_SYNC, PER, Sizes};
use crate::report::{Plot, PlotData, Table, size, whole};
use cairn_engine::Mode;

const SYNC: Kind = Kind::Engine(Mode::Sync);

pub(super) fn sentences(one: &Table, group: &Table) -> Vec<String> {
    let [(_, per_1), .., (_, per_1000)] = PER;
    let mut sentences = findings(
        one,
        "per write",
        &[
            ("A sync for each write", [per_1, NO_SYNC]),
            ("A sync for 1,000 writes", [per_1000, NO_SYNC]),
            ("fsync instead of fdatasync, in place", [FSYNC, per_1]),
            ("A longer file with each write", [FDATASYNC_GROWING, per_1]),
            ("fsync instead of fdatasync, on a growing file", [FSYNC_GROWING, FDATASYNC_GROWING]),
        ],
    );
    let [sync_1, sync, own_1, own] = group_rows();
    let pairs = [
        ("Clients that share syncs", [&*sync, &*sync_1]),
        ("Threads with their own syncs", [&own, &own_1]),
        ("Group commit beside own syncs", [&sync, &own]),
    ];
    sentences.extend(findings(group, "rate", &pairs));
    sentences
}

/// Group commit and own syncs, with one client and with 100: the most that all lines have.
fn group_rows() -> [String; 4] {
    [SYNC.row(1), SYNC.row(100), Kind::Threads.row(1), Kind::Threads.row(100)]
}

pub(super) fn plots(one: &Table, group: &Table, clients: &[usize]) -> Vec<Plot> {
    [writes_plot(one), clients_plot(group, clients)].into_iter().flatten().collect()
}

fn writes_plot(one: &Table) -> Option<Plot> {
    let [(_, per_1), .., (_, per_1000)] = PER;
    let line = |row: fn(&str) -> &str| {
        one.line("rate", PER.map(|(writes, per)| (writes, row(per).to_owned())))
    };
    let lines = [("fdatasync", line(|per| per)), ("no sync: the page cache", line(|_| NO_SYNC))];
    let lines = lines.into_iter().filter(|(_, points)| !points.is_empty());
    Some(Plot {
        file: "batches-writes.svg".into(),
        title: "Writes of 4 KiB by one writer, by how many share an fdatasync".into(),
        sentence: caption(one, "One sync for 1,000 writes", "rate", [per_1000, per_1])?,
        data: PlotData::Lines {
            x: "writes for each fdatasync".into(),
            y: "writes/s".into(),
            ticks: PER.map(|(writes, _)| (writes, whole(writes))).into(),
            lines: lines.map(|(name, points)| (name.to_owned(), points)).collect(),
        },
    })
}

fn clients_plot(group: &Table, clients: &[usize]) -> Option<Plot> {
    let line = |kind: Kind| {
        let rows = clients.iter().map(|clients| (*clients as f64, kind.row(*clients)));
        (kind.label(), group.line("rate", rows))
    };
    let lines = Kind::ALL.map(line).into_iter().filter(|(_, points)| !points.is_empty());
    let [_, sync, _, own] = group_rows();
    Some(Plot {
        file: "batches-clients.svg".into(),
        title: GROUP_COMMIT.into(),
        sentence: caption(group, "Group commit beside own syncs", "rate", [&sync, &own])?,
        data: PlotData::Lines {
            x: "clients".into(),
            y: "puts/s".into(),
            ticks: clients.iter().map(|n| (*n as f64, whole(*n as f64))).collect(),
            lines: lines.collect(),
        },
    })
}

pub(super) fn notes(sizes: &Sizes) -> Vec<String> {
    vec![
        format!(
            "All writes are 4 KiB of random bytes, in order and round again through a file of {} that is written in full before; a growing file begins each round empty, and again when it has that size.",
            size(sizes.file)
        ),
        "\"Per write\" is the mean, with the write's share of the syncs; p50 and p99 of a row with a sync per 10 or more writes are of single writes, most of which end in the page cache. A round of one writer ends after a sync, however long that takes, so each write is counted with its share of one.".into(),
        "A sync also waits for the transfer of what was written since the last one, so it takes longer the more writes share it.".into(),
        "Rows that the page cache answers lose acknowledged writes at a power cut; those that the device answers may lose them, unless the device keeps completed writes.".into(),
        format!(
            "A put into Cairn is more than a write: it goes through the log and the index of an engine of {}, which syncs in the background after each sixteenth of that, and may be read afterwards. The threads that call fdatasync for themselves only write over blocks of a file, with O_DIRECT as the engine does. Mode replicated is answered before a sync; a quorum of peers covers the time until then, and there are no peers here.",
            size(sizes.engine)
        ),
        "Filesystems share journal commits and devices share cache flushes between threads, so own fdatasync calls gain by number too.".into(),
        "Little's law is checked for rows of one writer whose write takes 5 µs or more; below that the load generator's own work counts.".into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::LOAD_COLUMNS;
    use crate::measure::figure;

    #[test]
    fn sentences_and_plots_follow_their_figures() {
        let mut one = Table::new("t", &[("rate", "/s"), ("per write", "µs")]);
        let more = [NO_SYNC, FSYNC, FDATASYNC_GROWING, FSYNC_GROWING];
        let names = PER.iter().map(|(_, name)| *name).chain(more);
        for (name, us) in names.zip([1000.0, 110.0, 20.0, 10.5, 10.0, 2000.0, 1500.0, 4500.0]) {
            one.measured(name, "x", vec![figure(1e6 / us), figure(us)]);
        }
        let group = |own| {
            let mut group = Table::new("g", &LOAD_COLUMNS);
            for (row, rate) in group_rows().into_iter().zip([100.0, 2000.0, own, 4000.0]) {
                group.measured(row, "x", vec![figure(rate), None, None, None, None]);
            }
            group
        };
        let of_one = ["100 ×", "1.05 ×", "2.00 ×", "1.50 ×", "3.00 ×"];
        for (own, of_group) in
            [(160.0, &["20.0 ×", "25.0 ×", "0.500 ×"][..]), (0.0, &["20.0 ×", "0.500 ×"])]
        {
            let said = sentences(&one, &group(own));
            let times: Vec<_> = of_one.iter().chain(of_group).collect();
            assert_eq!(said.len(), times.len(), "nothing of rows without a figure: {said:?}");
            assert!(said.iter().zip(times).all(|(one, times)| one.contains(times)), "{said:?}");
        }
        let plots = plots(&one, &group(0.0), &[1, 10, 100]);
        assert!(plots[0].sentence.contains("95.2 ×"), "{}", plots[0].sentence);
        let PlotData::Lines { lines, .. } = &plots[1].data else { panic!("lines") };
        assert_eq!(lines.iter().map(|(_, points)| points.len()).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn what_is_missing_makes_no_sentence() {
        let nothing = Table::new("t", &LOAD_COLUMNS);
        assert!(sentences(&nothing, &nothing).is_empty());
        assert!(plots(&nothing, &nothing, &[1]).is_empty());
    }
}
