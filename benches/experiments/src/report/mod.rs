//! What a run says: tables, plots, checks and sentences, as data.
//!
//! The JSON form is these types. Every figure is finite; one that could not be measured is missing.

mod markdown;
mod numbers;
mod svg;

use serde::{Deserialize, Serialize};

pub use markdown::markdown;
pub use numbers::{cell, number, rounded, size};
pub(crate) use numbers::{count, time, whole};
pub use svg::svg;

/// The version of the JSON form. It changes when a field changes its meaning or goes.
pub const SCHEMA: u32 = 1;

/// A whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The version of Cairn.
    pub version: String,
    /// The directory that was measured in.
    pub directory: String,
    /// Whether it was a quick run.
    pub quick: bool,
    /// The size that the experiments were given, in bytes.
    pub size_bytes: u64,
    /// How the engine and the raw rows reach the disk: `io_uring`, or `threads` and why.
    pub backend: String,
    /// The share of the processors that other programs used just before the run.
    pub busy_with_others: Option<f64>,
    /// Seconds of the whole run.
    pub seconds: f64,
    /// What `cairn doctor` found about the directory's machine.
    pub machine: serde_json::Value,
    /// The experiments that were run, in order.
    pub experiments: Vec<Experiment>,
    /// What it all means for this disk.
    pub conclusion: Vec<String>,
}

impl Report {
    /// The checks that failed, with the experiment's name.
    pub fn failed_checks(&self) -> impl Iterator<Item = (&str, &Check)> {
        self.experiments.iter().flat_map(|experiment| {
            let failed = experiment.checks.iter().filter(|check| !check.passed);
            failed.map(|check| (experiment.name.as_str(), check))
        })
    }

    /// The experiment of this name.
    pub fn experiment(&self, name: &str) -> Option<&Experiment> {
        self.experiments.iter().find(|experiment| experiment.name == name)
    }
}

/// One experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: String,
    /// What it asks.
    pub question: String,
    /// Whose experiment it is made after.
    pub source: String,
    /// Seconds that it took.
    pub seconds: f64,
    /// The tables.
    pub tables: Vec<Table>,
    /// The plots.
    pub plots: Vec<Plot>,
    /// What the figures show.
    pub sentences: Vec<String>,
    /// What a reader must know to believe the figures.
    pub notes: Vec<String>,
    /// What must hold if the figures are to be believed.
    pub checks: Vec<Check>,
}

impl Experiment {
    /// The table of this title.
    pub fn table(&self, title: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.title == title)
    }
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// The columns of figures.
    pub columns: Vec<Column>,
    /// The rows.
    pub rows: Vec<Row>,
}

impl Table {
    /// A table without rows yet. Each column is a name and a unit.
    pub fn new(title: impl Into<String>, columns: &[(&str, &str)]) -> Table {
        let column = |(name, unit): &(&str, &str)| Column {
            name: (*name).to_owned(),
            unit: (*unit).to_owned(),
        };
        Table { title: title.into(), columns: columns.iter().map(column).collect(), rows: vec![] }
    }

    /// Adds a measured row. `figures` has one place for each column.
    pub fn measured(
        &mut self,
        name: impl Into<String>,
        answered_by: impl Into<String>,
        figures: Vec<Option<Figure>>,
    ) {
        debug_assert_eq!(figures.len(), self.columns.len());
        let outcome = Outcome::Measured(figures);
        self.rows.push(Row { name: name.into(), answered_by: answered_by.into(), outcome });
    }

    /// Adds a row that this place does not allow.
    pub fn not_made(&mut self, name: impl Into<String>, reason: impl Into<String>) {
        let outcome = Outcome::NotMade(reason.into());
        self.rows.push(Row { name: name.into(), answered_by: String::new(), outcome });
    }

    /// The figure in a row and a column.
    pub fn figure(&self, row: &str, column: &str) -> Option<Figure> {
        let row = self.rows.iter().find(|found| found.name == row)?;
        self.in_row(row, column)
    }

    /// The median in a row and a column.
    pub fn value(&self, row: &str, column: &str) -> Option<f64> {
        self.figure(row, column).map(|figure| figure.median)
    }

    /// The rows that have a figure in this column.
    pub(crate) fn bars(&self, column: &str) -> Vec<(String, Figure)> {
        let bar = |row: &Row| Some((row.name.clone(), self.in_row(row, column)?));
        self.rows.iter().filter_map(bar).collect()
    }

    /// The medians of these rows over a logarithmic axis, which shows nothing that is not above
    /// zero.
    pub(crate) fn line(
        &self,
        column: &str,
        rows: impl IntoIterator<Item = (f64, String)>,
    ) -> Vec<(f64, f64)> {
        let points = rows.into_iter().filter_map(|(x, row)| Some((x, self.value(&row, column)?)));
        points.filter(|(_, y)| *y > 0.0).collect()
    }

    fn in_row(&self, row: &Row, column: &str) -> Option<Figure> {
        let at = self.columns.iter().position(|found| found.name == column)?;
        match &row.outcome {
            Outcome::Measured(figures) => *figures.get(at)?,
            Outcome::NotMade(_) => None,
        }
    }
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// What its figures are.
    pub name: String,
    /// Their unit; empty for a bare number.
    pub unit: String,
}

/// A row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// What has the data when the operation is answered: the page cache, the device, the device's
    /// cache emptied by a sync. Empty if the row was not made.
    pub answered_by: String,
    /// The figures, or why there are none.
    pub outcome: Outcome,
}

/// What came of a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A figure for each column, or none where it could not be measured.
    Measured(Vec<Option<Figure>>),
    /// Why this place does not allow the row.
    NotMade(String),
}

/// A figure: the median of some rounds, and their spread.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The median.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
    /// How many rounds.
    pub rounds: usize,
}

/// Something that must hold if the figures are to be believed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// What must hold.
    pub name: String,
    /// Whether it did.
    pub passed: bool,
    /// What was found.
    pub found: String,
}

/// A plot with one message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plot {
    /// The name of its file, without a folder.
    pub file: String,
    /// What it plots.
    pub title: String,
    /// The one sentence that it shows, true by its own figures.
    pub sentence: String,
    /// What is drawn.
    pub data: PlotData,
}

/// What a plot draws.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PlotData {
    /// One bar for each figure, with its spread.
    Bars {
        /// The axis and its unit.
        axis: String,
        /// Labels and figures, from the top.
        bars: Vec<(String, Figure)>,
    },
    /// Lines over a logarithmic axis. Both axes are logarithmic.
    Lines {
        /// The horizontal axis and its unit.
        x: String,
        /// The vertical axis and its unit.
        y: String,
        /// The places on the horizontal axis that are labelled, with their labels.
        ticks: Vec<(f64, String)>,
        /// The names and points of the lines. All coordinates are above zero.
        lines: Vec<(String, Vec<(f64, f64)>)>,
    },
}

impl PlotData {
    /// Whether there is anything to draw, and the axes can show all of it.
    pub(crate) fn is_drawable(&self) -> bool {
        match self {
            PlotData::Bars { bars, .. } => {
                let most = || bars.iter().map(|(_, figure)| figure.most);
                most().any(|most| most > 0.0) && most().all(f64::is_finite)
            }
            PlotData::Lines { lines, .. } => {
                let mut all = lines.iter().flat_map(|(_, points)| points).peekable();
                let shown = |at: f64| at > 0.0 && at.is_finite();
                all.peek().is_some() && all.all(|(x, y)| shown(*x) && shown(*y))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_its_row_and_column() {
        let mut table = Table::new("t", &[("rate", "/s"), ("p50", "µs")]);
        let figure = |median| Some(Figure { median, least: 1.0, most: 9.0, rounds: 3 });
        table.measured("a", "the device", vec![figure(2.0), None]);
        table.not_made("b", "read only");
        assert_eq!(table.value("a", "rate"), Some(2.0));
        for (row, column) in [("a", "p50"), ("a", "p99"), ("b", "rate"), ("c", "rate")] {
            assert_eq!(table.value(row, column), None, "{row} {column}");
        }
    }

    #[test]
    fn json_gives_back_the_report_and_an_unknown_field_is_refused() {
        let mut table = Table::new("t", &[("rate", "/s")]);
        table.measured("a", "x", vec![None]);
        table.not_made("b", "why not");
        let report = Report {
            schema: SCHEMA,
            version: "1".into(),
            directory: "/d".into(),
            quick: true,
            size_bytes: 1,
            backend: "io_uring".into(),
            busy_with_others: None,
            seconds: 1.5,
            machine: serde_json::json!({}),
            experiments: vec![Experiment { tables: vec![table], ..Experiment::default() }],
            conclusion: vec!["so".into()],
        };
        let mut json = serde_json::to_value(&report).unwrap();
        assert_eq!(serde_json::from_value::<Report>(json.clone()).unwrap(), report);
        json["unknown"] = true.into();
        assert!(serde_json::from_value::<Report>(json).is_err());
    }
}
