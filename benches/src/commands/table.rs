//! README's table, made from the results that were kept.
//!
//! What holds here: every figure comes from a result, and a row whose result is missing is an error
//! that names the command to run. Nothing is written then.

use crate::page::write_measured;
use crate::report::Report;
use crate::results::{Kept, folder, load, workspace};
use anyhow::{Context, Result, bail, ensure};
use cairn_experiments::{Outcome, Table, number, rounded, size as format_size};
use std::path::Path;

/// The command's arguments.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print the table instead of writing it into README.md.
    #[arg(long)]
    print: bool,
}

/// The rows of one result.
struct Source {
    /// The bench.
    bench: &'static str,
    /// How to measure it.
    command: &'static str,
    /// The rows: what was measured, Cairn's figures, and what they are compared with.
    rows: fn(&Report) -> Result<Vec<[String; 3]>>,
}

/// All of them, in the order of the table.
const SOURCES: [Source; 6] = [
    Source { bench: "cluster", command: "cluster --nats --costs", rows: cluster },
    Source { bench: "engine", command: "engine", rows: engine },
    Source { bench: "peers", command: "peers", rows: peers },
    Source { bench: "amplification", command: "amplification --cluster", rows: amplification },
    Source { bench: "syscalls", command: "syscalls", rows: syscalls },
    Source { bench: "lossy", command: "lossy", rows: lossy },
];

/// Writes the table.
pub fn run(arguments: &Arguments) -> Result<Report> {
    let text = table(&folder()?)?;
    let mut report = Report::new("table");
    if arguments.print {
        report.notes.push(format!("the table:\n{text}"));
    } else {
        write_measured(&workspace()?.join("README.md"), &text)?;
        report.notes.push("README.md is written".to_owned());
    }
    Ok(report)
}

fn table(folder: &Path) -> Result<String> {
    let mut text = "| | Cairn | compared with |\n|---|---|---|\n".to_owned();
    let mut machines: Vec<(String, Vec<&str>)> = Vec::new();
    let mut missing = Vec::new();
    for source in &SOURCES {
        let rows = load(folder, source.bench).and_then(
            |Kept { report, machine, cairn, commit, .. }| {
                let machine = format!("{}; Cairn {cairn} at {commit}", machine.text());
                Ok(((source.rows)(&report).context("its figures")?, machine))
            },
        );
        let (rows, machine) = match rows {
            Ok(found) => found,
            Err(error) => {
                missing.push(format!("cargo bench-cairn {} --keep ({error:#})", source.command));
                continue;
            }
        };
        for [what, cairn, compared] in rows {
            text += &format!("| {what} | {cairn} | {compared} |\n");
        }
        match machines.iter_mut().find(|(found, _)| *found == machine) {
            Some((_, benches)) => benches.push(source.bench),
            None => machines.push((machine, vec![source.bench])),
        }
    }
    if !missing.is_empty() {
        bail!("results are missing; run\n  {}", missing.join("\n  "));
    }
    text.push('\n');
    for (machine, benches) in machines {
        text += &format!("- `{}`: {machine}.\n", benches.join("`, `"));
    }
    Ok(text)
}

/// A size as a reader says it.
fn size(report: &Report) -> Result<String> {
    Ok(format_size(setting(report, "value bytes")?.parse().context("value bytes")?))
}

fn ms(us: f64) -> String {
    format!("{} ms", rounded(us / 1e3))
}

fn setting<'a>(report: &'a Report, name: &str) -> Result<&'a str> {
    let found = report.settings.get(name).map(String::as_str);
    found.with_context(|| format!("there is no setting `{name}`"))
}

fn ratio(report: &Report, name: &str) -> Result<String> {
    let found = report.ratio(name).with_context(|| format!("there is no ratio `{name}`"))?;
    Ok(format!("{found:.2}"))
}

fn value(report: &Report, name: &str) -> Result<f64> {
    report.value(name).with_context(|| format!("there is no figure `{name}`"))
}

fn cluster(report: &Report) -> Result<Vec<[String; 3]>> {
    let line = |name: &str| {
        let line = report.line(name).with_context(|| format!("there is no line `{name}`"))?;
        Ok::<_, anyhow::Error>(format!("{}, p99 {}", rounded(line.per_second), ms(line.p99_us)))
    };
    let what =
        format!("puts/s of {}, {} clients (`cluster`)", size(report)?, setting(report, "clients")?);
    let other = |name: &str, system: &str| {
        Ok::<_, anyhow::Error>(format!("{name} {}: {}", setting(report, system)?, line(system)?))
    };
    let others =
        [other("NATS", "NATS, three replicas")?, other("etcd", "etcd, three members")?].join("; ");
    let costs = ratio(report, "cairn, mode sync / cairn, three nodes")?;
    Ok(vec![
        [what, line("cairn, three nodes")?, others],
        [
            "mode `sync` over mode `replicated` (`cluster --costs`)".to_owned(),
            costs,
            "1".to_owned(),
        ],
    ])
}

fn engine(report: &Report) -> Result<Vec<[String; 3]>> {
    let size = size(report)?;
    Ok(vec![[
        format!("engine alone, puts/s of {size} at depth 100 (`engine`)"),
        ratio(report, "engine / raw")?,
        "1 = raw random 4 KiB writes, by the fastest of four ways".to_owned(),
    ]])
}

/// A row of Cairn's engine, and the peers' rows that are compared with it.
struct Comparison {
    /// The beginning of the table's title.
    table: &'static str,
    what: &'static str,
    cairn: &'static str,
    /// The peers' names and rows.
    others: &'static [(&'static str, &'static str)],
}

/// Beside a row of Cairn are those that answer as late, or that are the nearest to it.
const PEERS: [Comparison; 3] = [
    Comparison {
        table: "Puts",
        what: "engine alone, mode `sync`: puts/s of SIZE, synced",
        cairn: "Cairn, sync",
        others: &[
            ("RocksDB", "RocksDB, WAL synced"),
            ("redb", "redb, durable, one commit for all that wait"),
            ("fjall", "fjall, journal synced, one sync for all that wait"),
            ("files", "a file for each object, O_DIRECT, fsync of the file"),
        ],
    },
    Comparison {
        table: "Puts",
        what: "engine alone, mode `replicated`: puts/s of SIZE to the device; the others' to the page cache",
        cairn: "Cairn, replicated",
        others: &[
            ("RocksDB", "RocksDB, WAL not synced"),
            ("fjall", "fjall, journal not synced"),
            ("files", "a file for each object, buffered, no fsync"),
        ],
    },
    Comparison {
        table: "Uncached gets",
        what: "engine alone: uncached gets/s of SIZE",
        cairn: "Cairn",
        others: &[
            ("raw reads", "raw random 4 KiB reads, threads"),
            ("RocksDB", "RocksDB, direct reads"),
        ],
    },
];

fn peers(report: &Report) -> Result<Vec<[String; 3]>> {
    let bytes = setting(report, "value bytes")?;
    let mut rows = Vec::new();
    for Comparison { table, what, cairn, others } in PEERS {
        let title = format!("{table} of {bytes} B, 100 under way");
        let table = report.tables.iter().find(|table| table.title == title);
        let table = table.with_context(|| format!("there is no table `{title}`"))?;
        let mut compared = Vec::new();
        for (peer, row) in others {
            // Only peers have a version.
            let version = report.settings.get(*peer).and_then(|text| text.split(',').next());
            let version = version.filter(|text| !text.starts_with("not measured"));
            let name = version.map_or((*peer).to_owned(), |version| format!("{peer} {version}"));
            compared.push(format!("{name}: {}", cell(table, row)?));
        }
        let what = format!("{}; 100 under way (`peers`)", what.replace("SIZE", &size(report)?));
        rows.push([what, cell(table, cairn)?, compared.join("; ")]);
    }
    Ok(rows)
}

/// The rate and the p99 of a row, or why there are none.
fn cell(table: &Table, name: &str) -> Result<String> {
    let row = table.rows.iter().find(|row| row.name == name);
    let row = row.with_context(|| format!("there is no row `{name}`"))?;
    if let Outcome::NotMade(reason) = &row.outcome {
        return Ok(format!("not measured ({reason})"));
    }
    let rate = table.value(name, "rate").with_context(|| format!("`{name}` has no rate"))?;
    let p99 = table.value(name, "p99").map_or(String::new(), |us| format!(", p99 {}", ms(us)));
    Ok(format!("{}{p99}", rounded(rate)))
}

fn amplification(report: &Report) -> Result<Vec<[String; 3]>> {
    let most = |size: &str| {
        let of = |slot| value(report, &format!("cluster, replica {slot}, {size} values"));
        let replicas = (1..=3).map(of).collect::<Result<Vec<f64>>>()?;
        Ok::<_, anyhow::Error>(replicas.into_iter().fold(0.0, f64::max))
    };
    Ok(vec![[
        "bytes written per user byte and replica (`amplification --cluster`)".to_owned(),
        format!("{:.2} for 4 KiB values, {:.2} for 64 KiB", most("4 KiB")?, most("64 KiB")?),
        String::new(),
    ]])
}

/// The node with the most syncs, of those whose syncs strace could see or not.
fn syscalls(report: &Report) -> Result<Vec<[String; 3]>> {
    let of = |suffix: &str| {
        let found = report.figures.iter().filter(|figure| figure.name.ends_with(suffix));
        let found: Vec<f64> = found.map(|figure| figure.value).collect();
        ensure!(!found.is_empty(), "there is no figure of `{suffix}`");
        Ok(found.into_iter().fold(0.0, f64::max))
    };
    ensure!(of(": calls of other kinds")? == 0.0, "a node made calls of other kinds");
    let cairn = format!(
        "no fsync, at most {} background fdatasyncs in {:.0} s",
        of(": syncs by the engine's count")?.max(of(": fdatasyncs by strace")?),
        of(": time")?
    );
    let puts: f64 = setting(report, "puts")?.parse().context("puts")?;
    Ok(vec![[format!("during {} puts (`syscalls`)", number(puts)), cairn, String::new()]])
}

fn lossy(report: &Report) -> Result<Vec<[String; 3]>> {
    let cairn = format!(
        "{} acknowledged writes, {} lost, back after {:.1} s",
        number(value(report, "acknowledged writes")?),
        value(report, "faults")?,
        value(report, "back after, median")?
    );
    let what = format!(
        "{} power cuts of one machine under load (`cargo lossy`)",
        value(report, "power cuts")?
    );
    Ok(vec![[what, cairn, String::new()]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::report::{Line, Ratio, merged};
    use crate::results::keep;
    use cairn_experiments::{Figure, Samples};

    fn samples(per_second: u64) -> Samples {
        let mut samples = Samples::new().unwrap();
        samples.latencies.record_n(11_000_000, per_second).unwrap();
        samples.elapsed = std::time::Duration::from_secs(1);
        samples
    }

    /// A result of each bench, as its command makes it.
    fn results() -> Vec<Report> {
        let mut cluster = Report::new("cluster");
        for (name, value) in [
            ("value bytes", "4096"),
            ("clients", "100"),
            ("etcd, three members", "3.4"),
            ("NATS, three replicas", "2.15"),
        ] {
            cluster.set(name, value);
        }
        for (name, rate) in [
            ("cairn, three nodes", 17_342),
            ("etcd, three members", 4_400),
            ("NATS, three replicas", 16_210),
        ] {
            cluster.lines.push(Line::new(name, &merged(&[samples(rate)]).unwrap(), 100));
        }
        let costs = "cairn, mode sync / cairn, three nodes";
        cluster.ratios.push(Ratio::new(costs, &[samples(88)], &[samples(100)]));
        let mut engine = Report::new("engine");
        engine.set("value bytes", 4096);
        engine.ratios.push(Ratio::new("engine / raw", &[samples(103)], &[samples(100)]));
        let mut amplification = Report::new("amplification");
        for (size, value) in [("4 KiB", 1.08), ("64 KiB", 1.01)] {
            for slot in 1..=3 {
                amplification.figure(format!("cluster, replica {slot}, {size} values"), value, "");
            }
        }
        let mut syscalls = Report::new("syscalls");
        syscalls.set("puts", 20_000);
        for (name, value) in [
            ("a: calls of other kinds", 0.0),
            ("a: fdatasyncs by strace", 4.0),
            ("a: syncs by the engine's count", 2.0),
            ("a: time", 3.1),
        ] {
            syscalls.figure(name, value, "");
        }
        let mut lossy = Report::new("lossy");
        for (name, value) in [
            ("power cuts", 200.0),
            ("acknowledged writes", 336_687.0),
            ("faults", 0.0),
            ("back after, median", 0.6),
        ] {
            lossy.figure(name, value, "");
        }
        vec![cluster, engine, peers_result(), amplification, syscalls, lossy]
    }

    fn peers_result() -> Report {
        let mut report = Report::new("peers");
        report.set("value bytes", 4096);
        report.set("redb", "4.6.0, cache 1 GiB");
        report.set("RocksDB", "not measured: no compiler");
        let mut tables: Vec<Table> = Vec::new();
        for Comparison { table: title, cairn, others, .. } in PEERS {
            let title = format!("{title} of 4096 B, 100 under way");
            if tables.iter().all(|table| table.title != title) {
                tables.push(Table::new(&title, &[("rate", "/s"), ("p99", "µs")]));
            }
            let table = tables.iter_mut().find(|table| table.title == title).unwrap();
            let figure = |median| Some(Figure { median, least: 1.0, most: 9.0, rounds: 5 });
            for row in std::iter::once(&cairn).chain(others.iter().map(|(_, row)| row)) {
                match row {
                    row if row.starts_with("RocksDB") => table.not_made(*row, "no compiler"),
                    row if row.starts_with("redb") => {
                        table.measured(*row, "disk", vec![figure(1234.0), None]);
                    }
                    row => table.measured(*row, "disk", vec![figure(56_789.0), figure(2500.0)]),
                }
            }
        }
        report.tables = tables;
        report
    }

    #[test]
    fn every_figure_of_the_table_is_that_of_a_result() {
        let folder = tempfile::tempdir().unwrap();
        let machine = Machine::of(folder.path()).unwrap();
        for report in results() {
            keep(folder.path(), &report, machine.clone()).unwrap();
        }
        let text = table(folder.path()).unwrap();
        for part in [
            "| puts/s of 4 KiB, 100 clients (`cluster`) | 17,300, p99 11.0 ms | NATS 2.15: 16,200, p99 11.0 ms; etcd 3.4: 4,400, p99 11.0 ms |",
            "(`cluster --costs`) | 0.88 | 1 |",
            "(`engine`) | 1.03 |",
            "| 56,800, p99 2.50 ms | RocksDB: not measured (no compiler); redb 4.6.0: 1,230; fjall: 56,800",
            "| 1.08 for 4 KiB values, 1.01 for 64 KiB |",
            "no fsync, at most 4 background fdatasyncs in 3 s",
            "| 200 power cuts of one machine under load (`cargo lossy`) | 336,687 acknowledged writes, 0 lost, back after 0.6 s |",
            &machine.text(),
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn a_missing_result_is_an_error_with_the_command_that_makes_it() {
        let folder = tempfile::tempdir().unwrap();
        let machine = Machine::of(folder.path()).unwrap();
        for report in results().iter().filter(|report| report.bench != "engine") {
            keep(folder.path(), report, machine.clone()).unwrap();
        }
        let error = table(folder.path()).unwrap_err().to_string();
        assert!(error.contains("cargo bench-cairn engine --keep"), "{error}");
        assert!(!error.contains("cluster"), "{error}");
    }
}
