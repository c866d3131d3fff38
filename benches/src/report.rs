//! The report of a run: lines, ratios with their rounds, and checks that decide the exit code.

use anyhow::Result;
use cairn_experiments::{Outcome, Row, Samples, Table, cell, median};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// The command.
    pub bench: String,
    /// The arguments, and what was found about the systems.
    pub settings: BTreeMap<String, String>,
    /// The measured loads.
    pub lines: Vec<Line>,
    /// Tables of rows with their spread.
    pub tables: Vec<Table>,
    /// Numbers that are neither a load nor a ratio.
    pub figures: Vec<Figure>,
    /// The ratios.
    pub ratios: Vec<Ratio>,
    /// The assertions.
    pub checks: Vec<Check>,
    /// What a reader must know to believe the numbers.
    pub notes: Vec<String>,
}

/// One load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// What was measured.
    pub name: String,
    /// Requests answered.
    pub operations: u64,
    /// Seconds measured.
    pub seconds: f64,
    /// Answers per second.
    pub per_second: f64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile of the latency in microseconds.
    pub p999_us: f64,
    /// Rate × mean latency, which must be near `clients`.
    pub little: f64,
    /// Concurrent requests.
    pub clients: usize,
}

impl Line {
    /// Summarises the samples of a load with this many clients.
    pub fn new(name: impl Into<String>, samples: &Samples, clients: usize) -> Line {
        let quantile_us = |quantile| samples.quantile_us(quantile);
        Line {
            name: name.into(),
            operations: samples.latencies.len(),
            seconds: samples.elapsed.as_secs_f64(),
            per_second: samples.rate(),
            mean_us: samples.mean_us(),
            p50_us: quantile_us(0.5),
            p99_us: quantile_us(0.99),
            p999_us: quantile_us(0.999),
            little: samples.under_way(),
            clients,
        }
    }
}

/// A number with its unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What the number is.
    pub name: String,
    /// The number.
    pub value: f64,
    /// Its unit.
    pub unit: String,
}

/// The ratio of two rates: the median over the rounds. In each round the two sides were measured
/// one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Which side over which other side.
    pub name: String,
    /// The median.
    pub value: f64,
    /// The ratio of each round.
    pub rounds: Vec<f64>,
}

impl Ratio {
    /// Pairs the rounds of both sides.
    pub fn new(name: impl Into<String>, over: &[Samples], under: &[Samples]) -> Ratio {
        let rounds: Vec<f64> = over.iter().zip(under).map(|(a, b)| a.rate() / b.rate()).collect();
        Ratio { name: name.into(), value: median(&rounds), rounds }
    }
}

/// Something that must hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// What must hold.
    pub name: String,
    /// Whether it did.
    pub passed: bool,
    /// What was found.
    pub found: String,
}

impl Report {
    /// An empty report of a command.
    pub fn new(bench: &str) -> Report {
        Report { bench: bench.to_owned(), ..Report::default() }
    }

    /// Records a setting: an argument, or something found about a system.
    pub fn set(&mut self, name: &str, value: impl ToString) {
        self.settings.insert(name.to_owned(), value.to_string());
    }

    /// Adds a number.
    pub fn figure(&mut self, name: impl Into<String>, value: f64, unit: &str) {
        self.figures.push(Figure { name: name.into(), value, unit: unit.to_owned() });
    }

    /// Adds an assertion.
    pub fn check(&mut self, name: impl Into<String>, passed: bool, found: impl ToString) {
        self.checks.push(Check { name: name.into(), passed, found: found.to_string() });
    }

    /// The line of this name.
    pub fn line(&self, name: &str) -> Option<&Line> {
        self.lines.iter().find(|line| line.name == name)
    }

    /// The value of the figure of this name.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }

    /// The ratio of this name.
    pub fn ratio(&self, name: &str) -> Option<f64> {
        self.ratios.iter().find(|ratio| ratio.name == name).map(|ratio| ratio.value)
    }

    /// What was measured, in a line.
    pub fn title(&self) -> String {
        let named = ["clients", "value bytes", "puts", "keys"];
        let found =
            named.iter().filter_map(|name| Some(format!("{name}: {}", self.settings.get(*name)?)));
        std::iter::once(self.bench.clone()).chain(found).collect::<Vec<_>>().join(", ")
    }

    /// Whether all assertions held.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|check| check.passed)
    }

    /// Writes the report to standard output.
    pub fn print(&self, json: bool) -> Result<()> {
        if json {
            println!("{}", serde_json::to_string_pretty(self)?);
            return Ok(());
        }
        println!("cairn-bench {}", self.bench);
        for (name, value) in &self.settings {
            println!("  {name}: {value}");
        }
        self.print_lines();
        self.tables.iter().for_each(print_table);
        for Figure { name, value, unit } in &self.figures {
            println!("{name:<58} {value:>14.3} {unit}");
        }
        for Ratio { name, value, rounds } in &self.ratios {
            let rounds: Vec<String> = rounds.iter().map(|round| format!("{round:.2}")).collect();
            println!("{name}: {value:.2} (rounds: {})", rounds.join(", "));
        }
        for note in &self.notes {
            println!("note: {note}");
        }
        for Check { name, passed, found } in &self.checks {
            println!("{} {name}: {found}", if *passed { "PASS" } else { "FAIL" });
        }
        Ok(())
    }

    fn print_lines(&self) {
        if self.lines.is_empty() {
            return;
        }
        println!(
            "{:<34} {:>10} {:>9} {:>9} {:>9} {:>9} {:>14}",
            "", "per s", "mean µs", "p50 µs", "p99 µs", "p99.9 µs", "rate × mean"
        );
        for line in &self.lines {
            println!(
                "{:<34} {:>10.0} {:>9.0} {:>9.0} {:>9.0} {:>9.0} {:>7.1} of {:>3}",
                line.name,
                line.per_second,
                line.mean_us,
                line.p50_us,
                line.p99_us,
                line.p999_us,
                line.little,
                line.clients
            );
        }
    }
}

fn print_table(table: &Table) {
    println!("{}", table.title);
    let columns: Vec<String> = table
        .columns
        .iter()
        .map(|column| format!("{:>26}", format!("{} {}", column.name, column.unit).trim()))
        .collect();
    println!("{:<52}{}", "", columns.concat());
    for Row { name, answered_by, outcome } in &table.rows {
        match outcome {
            Outcome::Measured(figures) => {
                let cells = figures.iter().map(|figure| format!("{:>26}", cell(*figure)));
                println!("{name:<52}{}  {answered_by}", cells.collect::<String>());
            }
            Outcome::NotMade(reason) => println!("{name:<52}  not measured: {reason}"),
        }
    }
}

/// Sums the rounds of one side.
pub fn merged<'a>(rounds: impl IntoIterator<Item = &'a Samples>) -> Result<Samples> {
    let mut sum = Samples::new()?;
    for round in rounds {
        sum.add(round)?;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failed_check_fails_the_report() {
        let mut report = Report::new("test");
        report.check("holds", true, "yes");
        assert!(report.passed());
        report.check("does not", false, "no");
        assert!(!report.passed());
    }
}
