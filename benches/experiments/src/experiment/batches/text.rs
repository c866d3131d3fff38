//! What the figures of the experiment show. Each sentence branches on its figures, and is not there
//! if one of them is missing.

use super::super::words::{micros, positive, ratio, rounded, thousands};
use super::group::{GROUP_COMMIT, Kind};
use super::{FDATASYNC_GROWING, FSYNC, FSYNC_GROWING, NO_SYNC, PER, Sizes};
use crate::report::{Plot, PlotData, Table};
use cairn_engine::Mode;

/// Two figures that differ by less than this are about the same.
const SAME: f64 = 0.05;

/// The median in a row and a column, if a sentence can say it and divide by it.
fn value(table: &Table, row: &str, column: &str) -> Option<f64> {
    table.value(row, column).and_then(positive)
}

pub(super) fn sentences(one: &Table, group: &Table) -> Vec<String> {
    [cost(one), threshold(one), metadata(one), group_commit(group)].into_iter().flatten().collect()
}

/// What a sync costs.
fn cost(one: &Table) -> Option<String> {
    let [(_, per_write), ..] = PER;
    let sync = value(one, per_write, "sync p50")?;
    let with = value(one, per_write, "per write")?;
    let without = value(one, NO_SYNC, "per write")?;
    Some(format!(
        "One fdatasync takes {} here (median): a write of 4 KiB takes {} with it, and {} if the page cache answers.",
        micros(sync),
        micros(with),
        micros(without)
    ))
}

/// How many writes must share a sync.
fn threshold(one: &Table) -> Option<String> {
    let without = value(one, NO_SYNC, "per write")?;
    let mut share = None;
    for (writes, row) in PER {
        let with = value(one, row, "per write")?;
        let lost = 1.0 - without / with;
        if lost < 0.1 {
            let count = if writes == 1.0 {
                "every write".into()
            } else {
                format!("every {} writes", thousands(writes))
            };
            return Some(format!(
                "With one fdatasync for {count}, less than 10 % of a write's time is the sync."
            ));
        }
        share = Some((writes, lost));
    }
    let (writes, lost) = share?;
    Some(format!(
        "Even with one fdatasync for every {} writes, {:.0} % of a write's time is the sync and the transfer that it waits for.",
        thousands(writes),
        lost * 100.0
    ))
}

/// What changed metadata costs.
fn metadata(one: &Table) -> Option<String> {
    let [(_, in_place), ..] = PER;
    let (data, all) = (value(one, in_place, "per write")?, value(one, FSYNC, "per write")?);
    let growing = value(one, FDATASYNC_GROWING, "per write")?;
    let growing_all = value(one, FSYNC_GROWING, "per write")?;
    let compare = |what: &str, against: &str, (this, that): (f64, f64)| {
        let factor = this / that;
        if (factor - 1.0).abs() < SAME {
            format!("{what} takes about as long as {against} ({})", micros(this))
        } else if factor > 1.0 {
            let (factor, this, that) = (ratio(factor), micros(this), micros(that));
            format!("{what} takes {factor} times as long as {against} ({this} against {that})")
        } else {
            let (less, this, that) = ((1.0 - factor) * 100.0, micros(this), micros(that));
            format!("{what} takes {less:.0} % less time than {against} ({this} against {that})")
        }
    };
    Some(format!(
        "What metadata costs: in place, {}; with fdatasync, {}; on a growing file, {}.",
        compare("a write with fsync", "one with fdatasync", (all, data)),
        compare("a write that makes its file longer", "one in place", (growing, data)),
        compare("fsync", "fdatasync", (growing_all, growing)),
    ))
}

/// What sharing a sync gains.
fn group_commit(group: &Table) -> Option<String> {
    let gain = |kind: Kind| {
        let (one, many) =
            (value(group, &kind.row(1), "rate")?, value(group, &kind.row(100), "rate")?);
        Some((many, many / one))
    };
    let (rate, factor) = gain(Kind::Engine(Mode::Sync))?;
    let change = |factor: f64| match factor {
        _ if (factor - 1.0).abs() < SAME => "about as many as".to_owned(),
        factor if factor > 1.0 => format!("{} times as many as", ratio(factor)),
        factor => format!("{:.0} % fewer than", (1.0 - factor) * 100.0),
    };
    let mut text = format!(
        "Group commit: Cairn in mode sync answers {} puts/s of 100 clients, {} of one",
        rounded(rate),
        change(factor)
    );
    if let Some((rate, factor)) = gain(Kind::Threads) {
        text += &format!(
            "; 100 threads that each write with O_DIRECT and call fdatasync write {}/s, {} one thread",
            rounded(rate),
            change(factor)
        );
    }
    Some(text + ".")
}

pub(super) fn plots(one: &Table, group: &Table, clients: &[usize]) -> Vec<Plot> {
    [writes_plot(one), clients_plot(group, clients)].into_iter().flatten().collect()
}

fn writes_plot(one: &Table) -> Option<Plot> {
    let rates: Vec<(f64, f64)> = PER
        .into_iter()
        .filter_map(|(writes, row)| Some((writes, value(one, row, "rate")?)))
        .collect();
    let ((least, first), (most, last)) = (*rates.first()?, *rates.last()?);
    let mut lines = vec![("fdatasync".to_owned(), rates.clone())];
    if let Some(rate) = value(one, NO_SYNC, "rate") {
        let level = rates.iter().map(|(writes, _)| (*writes, rate)).collect();
        lines.push(("no sync: the page cache".to_owned(), level));
    }
    let factor = last / first;
    let much = match factor {
        _ if (factor - 1.0).abs() < SAME => "about as many".to_owned(),
        factor if factor > 1.0 => format!("{} times as many", ratio(factor)),
        factor => format!("{:.0} % fewer", (1.0 - factor) * 100.0),
    };
    let sentence = format!(
        "One writer makes {} writes/s with one fdatasync for {}, and {} with one for {} ({much}).",
        rounded(first),
        count(least, "write"),
        rounded(last),
        count(most, "write"),
    );
    Some(Plot {
        file: "batches-writes.svg".into(),
        title: "Writes of 4 KiB by one writer, by how many share an fdatasync".into(),
        sentence,
        data: PlotData::Lines {
            x: "writes for each fdatasync".into(),
            y: "writes/s".into(),
            ticks: PER.into_iter().map(|(writes, _)| (writes, thousands(writes))).collect(),
            lines,
        },
    })
}

fn clients_plot(group: &Table, clients: &[usize]) -> Option<Plot> {
    let line = |kind: Kind| {
        let points = clients.iter().filter_map(|clients| {
            Some((*clients as f64, value(group, &kind.row(*clients), "rate")?))
        });
        let points: Vec<(f64, f64)> = points.collect();
        (!points.is_empty()).then(|| (kind.label(), points))
    };
    let lines: Vec<_> = Kind::ALL.into_iter().filter_map(line).collect();
    // At most the clients that all lines have.
    let at = |kind: Kind, clients: usize| value(group, &kind.row(clients), "rate");
    let (engine, own) = (at(Kind::Engine(Mode::Sync), 100), at(Kind::Threads, 100));
    let sentence = match (engine, own) {
        (Some(engine), Some(own)) => {
            let factor = engine / own;
            let much = match factor {
                _ if (factor - 1.0).abs() < SAME => "about the same".to_owned(),
                factor if factor > 1.0 => format!("{} times as many", ratio(factor)),
                factor => format!("{:.0} % fewer", (1.0 - factor) * 100.0),
            };
            format!(
                "With 100 clients, Cairn in mode sync answers {} puts/s, and threads that each write with O_DIRECT and call fdatasync write {}/s ({much} for Cairn).",
                rounded(engine),
                rounded(own)
            )
        }
        _ => {
            let (label, points) = lines.first()?;
            let (clients, rate) = points.last()?;
            let clients = count(*clients, "client");
            format!("{label}: {} writes/s with {clients}.", rounded(*rate))
        }
    };
    Some(Plot {
        file: "batches-clients.svg".into(),
        title: GROUP_COMMIT.into(),
        sentence,
        data: PlotData::Lines {
            x: "clients".into(),
            y: "puts/s".into(),
            ticks: clients.iter().map(|n| (*n as f64, thousands(*n as f64))).collect(),
            lines,
        },
    })
}

fn count(value: f64, what: &str) -> String {
    let plural = if value == 1.0 { "" } else { "s" };
    format!("{} {what}{plural}", thousands(value))
}

pub(super) fn notes(sizes: &Sizes) -> Vec<String> {
    vec![
        format!(
            "All writes are 4 KiB of random bytes, in order and round again through a file of {} MiB that is written in full before; a growing file begins each round empty, and again when it has that size.",
            sizes.file >> 20
        ),
        "\"Per write\" is the mean, with the write's share of the syncs; p50 and p99 of a row with a sync per 10 or more writes are of single writes, most of which end in the page cache. A round of one writer ends after a sync, however long that takes, so each write is counted with its share of one.".into(),
        "A sync also waits for the transfer of what was written since the last one, so it takes longer the more writes share it.".into(),
        "Rows that the page cache answers lose acknowledged writes at a power cut; those that the device answers may lose them, unless the device keeps completed writes.".into(),
        format!(
            "A put into Cairn is more than a write: it goes through the log and the index of an engine of {} MiB, which syncs in the background after each sixteenth of that, and may be read afterwards. The threads that call fdatasync for themselves only write over blocks of a file, with O_DIRECT as the engine does. Mode replicated is answered before a sync; a quorum of peers covers the time until then, and there are no peers here.",
            sizes.engine >> 20
        ),
        "Filesystems share journal commits and devices share cache flushes between threads, so own fdatasync calls gain by number too.".into(),
        "Little's law is checked for rows of one writer whose write takes 5 µs or more; below that the load generator's own work counts.".into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::sizes;
    use super::*;
    use crate::experiment::LOAD_COLUMNS;
    use crate::experiment::tests::settings;
    use crate::measure::figure;

    /// `per_write` for 1, 10, 100, 1,000 writes per sync, without, fsync, growing and fsync growing.
    fn one(per_write: [f64; 8]) -> Table {
        let mut table = Table::new("t", &[("rate", "/s"), ("per write", "µs"), ("sync p50", "µs")]);
        let names = PER.iter().map(|(_, name)| *name).chain([
            NO_SYNC,
            FSYNC,
            FDATASYNC_GROWING,
            FSYNC_GROWING,
        ]);
        for (name, time) in names.zip(per_write) {
            table.measured(name, "x", vec![figure(1e6 / time), figure(time), figure(time)]);
        }
        table
    }

    fn group(rates: [f64; 4]) -> Table {
        let mut table = Table::new("g", &LOAD_COLUMNS);
        let (sync, own) = (Kind::Engine(Mode::Sync), Kind::Threads);
        let rows = [sync.row(1), sync.row(100), own.row(1), own.row(100)];
        for (row, rate) in rows.into_iter().zip(rates) {
            table.measured(row, "x", vec![figure(rate), None, None, None, None]);
        }
        table
    }

    const SLOW: [f64; 8] = [1000.0, 110.0, 20.0, 10.5, 10.0, 2000.0, 1500.0, 1520.0];

    #[test]
    fn the_sync_is_cheap_from_as_many_writes_as_the_figures_say() {
        assert!(threshold(&one(SLOW)).unwrap().contains("every 1,000 writes, less than 10 %"));
        let free = [10.5; 8];
        assert!(threshold(&one(free)).unwrap().contains("for every write, less"));
        let never = [1000.0, 500.0, 100.0, 40.0, 10.0, 1.0, 1.0, 1.0];
        assert!(threshold(&one(never)).unwrap().contains("75 % of a write's time"));
    }

    #[test]
    fn metadata_is_dearer_the_same_or_cheaper() {
        let text = metadata(&one(SLOW)).unwrap();
        assert!(text.contains("fsync takes 2.0 times as long"), "{text}");
        assert!(text.contains("longer takes 1.5 times as long as one in place"), "{text}");
        assert!(text.contains("file, fsync takes about as long as fdatasync (1,500 µs)"), "{text}");
        let odd = [1000.0, 1.0, 1.0, 1.0, 1.0, 500.0, 1000.0, 1000.0];
        let text = metadata(&one(odd)).unwrap();
        assert!(text.contains("50 % less time than one with fdatasync"), "{text}");
    }

    #[test]
    fn group_commit_says_what_it_gains_and_what_it_loses() {
        let text = group_commit(&group([100.0, 2000.0, 120.0, 90.0])).unwrap();
        assert!(text.contains("2,000 puts/s of 100 clients, 20 times as many as of one"), "{text}");
        assert!(text.contains("write 90/s, 25 % fewer than one thread"), "{text}");
    }

    #[test]
    fn a_plots_sentence_follows_its_figures() {
        let plots = plots(&one(SLOW), &group([100.0, 2000.0, 120.0, 4000.0]), &[1, 10, 100]);
        assert!(plots[0].sentence.contains("1,000 writes/s"), "{}", plots[0].sentence);
        assert!(plots[0].sentence.contains("(95 times as many)"), "{}", plots[0].sentence);
        assert!(plots[1].sentence.contains("50 % fewer for Cairn"), "{}", plots[1].sentence);
        let PlotData::Lines { lines, .. } = &plots[1].data else { panic!("lines") };
        assert_eq!(lines.len(), 2, "no line without a point");
    }

    #[test]
    fn a_round_without_an_answer_makes_no_sentence() {
        let nothing = group([0.0, 2000.0, 0.0, 0.0]);
        assert_eq!(group_commit(&nothing), None);
        let own = group_commit(&group([100.0, 2000.0, 0.0, 90.0])).unwrap();
        assert!(!own.contains("threads"), "{own}");
        let plots = plots(&one([f64::INFINITY; 8]), &nothing, &[1, 100]);
        assert_eq!(plots.len(), 1);
        assert_eq!(plots[0].sentence, "Cairn, sync: 2,000 writes/s with 100 clients.");
        assert_eq!(threshold(&one([0.0; 8])), None);
    }

    #[test]
    fn what_is_missing_makes_no_sentence() {
        let nothing = Table::new("t", &LOAD_COLUMNS);
        assert!(sentences(&nothing, &nothing).is_empty());
        assert!(plots(&nothing, &nothing, &[1]).is_empty());
        assert!(!notes(&sizes(&settings())).is_empty());
    }
}
