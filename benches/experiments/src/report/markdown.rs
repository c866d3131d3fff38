//! The tables, plots and sentences of a run as Markdown, for a page of documentation.

use super::{Experiment, Outcome, Plot, Report, Table, cell};
use std::fmt::Write;

/// The run as Markdown. `plots` is the folder of the plots' files, as the page names it.
pub fn markdown(report: &Report, plots: &str) -> String {
    let mut text = String::new();
    for experiment in &report.experiments {
        let _ = writeln!(text, "## {}\n", experiment.name);
        add_experiment(&mut text, experiment, plots);
    }
    if !report.conclusion.is_empty() {
        let _ = writeln!(text, "## What it means for this disk\n");
        add_list(&mut text, &report.conclusion);
    }
    text.trim_end().to_owned() + "\n"
}

fn add_experiment(text: &mut String, experiment: &Experiment, plots: &str) {
    let _ =
        writeln!(text, "{}", wrapped(&format!("{} {}", experiment.question, experiment.source)));
    for table in &experiment.tables {
        let _ = writeln!(text, "\n**{}**\n\n{}", table.title, table_text(table));
    }
    for Plot { file, title, sentence, .. } in &experiment.plots {
        let _ = writeln!(text, "\n![{title}]({plots}/{file})\n\n{}", wrapped(sentence));
    }
    text.push('\n');
    add_list(text, &experiment.sentences);
    if !experiment.notes.is_empty() {
        let _ = writeln!(text, "To read these figures:\n");
        add_list(text, &experiment.notes);
    }
    let failed: Vec<String> = experiment
        .checks
        .iter()
        .filter(|check| !check.passed)
        .map(|check| format!("**Check failed**: {}; found {}.", check.name, check.found))
        .collect();
    if failed.is_empty() && !experiment.checks.is_empty() {
        let _ = writeln!(text, "All {} checks of these figures held.\n", experiment.checks.len());
    } else {
        add_list(text, &failed);
    }
}

fn add_list(text: &mut String, sentences: &[String]) {
    for sentence in sentences {
        let lines = wrap(sentence, 98);
        let _ = writeln!(text, "- {}", lines.join("\n  "));
    }
    if !sentences.is_empty() {
        text.push('\n');
    }
}

fn table_text(table: &Table) -> String {
    let head: Vec<String> = table
        .columns
        .iter()
        .map(|column| match column.unit.as_str() {
            "" => format!(" {} ", column.name),
            unit => format!(" {}, {unit} ", column.name),
        })
        .collect();
    let mut text = format!("| | answered by |{}|\n|---|---|", head.join("|"));
    text.push_str(&"---:|".repeat(head.len()));
    for row in &table.rows {
        let cells = match &row.outcome {
            Outcome::Measured(figures) => {
                let cells: Vec<String> = figures.iter().map(|figure| cell(*figure)).collect();
                format!(" {} | {} |", row.answered_by, cells.join(" | "))
            }
            Outcome::NotMade(reason) => {
                let empty = " |".repeat(table.columns.len().saturating_sub(1));
                format!(" | not measured: {reason} |{empty}")
            }
        };
        let _ = write!(text, "\n| {} |{cells}", row.name);
    }
    text
}

fn wrapped(text: &str) -> String {
    wrap(text, 100).join("\n")
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::{Check, Figure, PlotData};
    use super::*;

    #[test]
    fn a_page_has_each_row_each_reason_each_plot_and_each_failed_check() {
        let mut table = Table::new("Puts", &[("rate", "/s"), ("rate × mean", "")]);
        let figure = Figure { median: 1234.0, least: 1000.0, most: 1500.0, rounds: 3 };
        table.measured("raw", "device", vec![Some(figure), None]);
        table.not_made("engine, device", "the cache is volatile");
        let data = PlotData::Bars { axis: "/s".into(), bars: vec![] };
        let plot = Plot {
            file: "p.svg".into(),
            title: "Plot".into(),
            sentence: "It shows one thing.".into(),
            data,
        };
        let check = |passed| Check { name: format!("c {passed}"), passed, found: "3".into() };
        let experiment = Experiment {
            name: "objects".into(),
            question: "What?".into(),
            source: "After X.".into(),
            tables: vec![table],
            plots: vec![plot],
            sentences: vec!["word ".repeat(40)],
            checks: vec![check(true), check(false)],
            ..Experiment::default()
        };
        let mut text = String::new();
        add_experiment(&mut text, &experiment, "plots");
        for part in [
            "What? After X.",
            "| | answered by | rate, /s | rate × mean |\n|---|---|---:|---:|\n",
            "\n| raw | device | 1,234 (1,000–1,500) | – |\n",
            "\n| engine, device | | not measured: the cache is volatile | |\n",
            "![Plot](plots/p.svg)\n\nIt shows one thing.",
            "**Check failed**: c false; found 3.",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains("c true"));
        let sentences = text.lines().filter(|line| line.contains("word"));
        assert!(sentences.map(|line| line.chars().count()).max() <= Some(100));
    }
}
