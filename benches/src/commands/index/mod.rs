//! The engine's key index against other ordered maps: memory per key, and the time of each
//! operation.
//!
//! Each map runs in a process of its own, so that its memory is what the operating system counts
//! for that process, with everything that the allocator keeps. Rounds go through all maps in turn.

mod maps;
mod measure;

use crate::progress::Step;
use crate::report::{Ratio, Report};
use anyhow::{Context, Result, ensure};
use cairn_experiments::median;
use clap::ValueEnum;
use std::collections::BTreeMap;
use tokio::process::Command;

/// The command's arguments.
#[derive(clap::Args)]
pub struct Arguments {
    /// Numbers of keys.
    #[arg(long, value_delimiter = ',', default_value = "1000000,10000000")]
    keys: Vec<u64>,
    /// Maps.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = MapArgument::value_variants().to_vec())]
    maps: Vec<MapArgument>,
    /// Rounds. Each figure is the median.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Fail if the index needs more bytes than this for a key beside the key's own.
    #[arg(long)]
    assert_overhead: Option<f64>,
    /// Measure one part of one map in this process.
    #[arg(long, hide = true, requires = "part")]
    alone: Option<MapArgument>,
    /// Which part.
    #[arg(long, hide = true)]
    part: Option<PartArgument>,
}

/// A map to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum MapArgument {
    /// The engine's index.
    Index,
    /// imbl's OrdMap with a shared slice for each key: what the engine had before.
    Imbl,
    /// imbl's OrdMap with keys up to 30 bytes inline.
    ImblInline,
    /// rpds' red-black tree.
    Rpds,
    /// concread's B+-tree; 100 operations in each transaction.
    Concread,
    /// std's BTreeMap, which has no cheap copy.
    Std,
}

impl MapArgument {
    const fn name(self) -> &'static str {
        match self {
            MapArgument::Index => "index",
            MapArgument::Imbl => "imbl",
            MapArgument::ImblInline => "imbl-inline",
            MapArgument::Rpds => "rpds",
            MapArgument::Concread => "concread",
            MapArgument::Std => "std",
        }
    }
}

/// What one process measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PartArgument {
    /// Inserts, overwrites, reads, snapshots.
    Use,
    /// Building from sorted keys.
    Build,
}

impl PartArgument {
    const fn name(self) -> &'static str {
        match self {
            PartArgument::Use => "use",
            PartArgument::Build => "build",
        }
    }
}

/// What was measured, with its unit: one value for each round.
type Rounds = BTreeMap<(u64, String), BTreeMap<MapArgument, Vec<f64>>>;

/// Measures all maps.
pub async fn run(arguments: Arguments) -> Result<Report> {
    let mut report = Report::new("index");
    if let (Some(map), Some(part)) = (arguments.alone, arguments.part) {
        let keys = arguments.keys.first().copied().context("no number of keys")?;
        for (name, value, unit) in measure::part(map, part, keys) {
            report.figure(name, value, unit);
        }
        return Ok(report);
    }
    report.set("keys", format!("{:?}, of {} random bytes", arguments.keys, measure::KEY_BYTES));
    report.set("rounds", arguments.rounds);
    report.set("allocator", "mimalloc");
    let mut found = Rounds::new();
    let mut units = BTreeMap::new();
    let step = Step::new("measuring");
    for &keys in &arguments.keys {
        for round in 0..arguments.rounds {
            for &map in &arguments.maps {
                step.say(&format!("{keys} keys, round {}: {}", round + 1, map.name()));
                for part in [PartArgument::Use, PartArgument::Build] {
                    for (name, value, unit) in alone(map, part, keys).await? {
                        units.insert(name.clone(), unit);
                        let maps = found.entry((keys, name)).or_default();
                        maps.entry(map).or_default().push(value);
                    }
                }
            }
        }
    }
    drop(step);
    fill(&mut report, &found, &units);
    if let Some(most) = arguments.assert_overhead {
        for ((keys, name), maps) in &found {
            let rounds = maps.get(&MapArgument::Index);
            if let Some(rounds) = rounds.filter(|_| name.starts_with("memory")) {
                let overhead = median(rounds) - measure::KEY_BYTES as f64;
                let what = format!("{keys} keys, {name}: at most the key and {most} bytes");
                report.check(what, overhead <= most, format!("{overhead:.1} bytes"));
            }
        }
    }
    report
        .notes
        .push("ns are processor time of the one thread that works; ms are wall clock".to_owned());
    report.notes.push(
        "memory is the growth of the resident set of a process that holds nothing else".to_owned(),
    );
    Ok(report)
}

fn fill(report: &mut Report, found: &Rounds, units: &BTreeMap<String, &'static str>) {
    for ((keys, name), maps) in found {
        let unit = units.get(name).copied().unwrap_or_default();
        for (map, rounds) in maps {
            report.figure(format!("{keys} keys, {name}: {}", map.name()), median(rounds), unit);
        }
        let Some(index) = maps.get(&MapArgument::Index) else { continue };
        for (map, rounds) in maps.iter().filter(|(map, _)| **map != MapArgument::Index) {
            let rounds: Vec<f64> = rounds.iter().zip(index).map(|(a, b)| a / b).collect();
            let name = format!("{keys} keys, {name}: {} / index", map.name());
            report.ratios.push(Ratio { name, value: median(&rounds), rounds });
        }
    }
}

/// Measures one part of one map in a process of its own.
async fn alone(
    map: MapArgument,
    part: PartArgument,
    keys: u64,
) -> Result<Vec<(String, f64, &'static str)>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--json", "index", "--keys", &keys.to_string()]);
    command.args(["--alone", map.name(), "--part", part.name()]);
    let output = command.kill_on_drop(true).output().await?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "measuring {} failed: {text}", map.name());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let figures = report.get("figures").and_then(|figures| figures.as_array());
    let figure = |figure: &serde_json::Value| {
        let unit = figure.get("unit")?.as_str()?;
        let unit = measure::UNITS.into_iter().find(|known| *known == unit)?;
        Some((figure.get("name")?.as_str()?.to_owned(), figure.get("value")?.as_f64()?, unit))
    };
    let figures = figures.into_iter().flatten().map(figure);
    figures.collect::<Option<_>>().context("a figure cannot be read")
}
