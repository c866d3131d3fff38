//! The experiments of `cairn bench disk` on this machine: the source of `docs/experiments.md`.
//!
//! The command runs the release build as a user would. It then writes the same raw file with the
//! experiments' code and with fio, in alternating rounds: if both do not agree, the raw rows are
//! not to be believed.

use crate::fio::{Access, Fio, rate_only};
use crate::page::write_measured;
use crate::progress::Step;
use crate::report::{Line, Ratio, Report, merged};
use crate::systems::cairn::program;
use crate::target::{BackendArgument, DiskArguments, make_raw_device};
use anyhow::{Context, Result, bail};
use cairn_engine::io::{BLOCK, FileKind};
use cairn_experiments::{Limit, Name, Samples, markdown, median, raw_writes};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// The page, and the folder of its plots, as the page names it.
const PAGE: &str = "docs/experiments.md";
const PLOTS: &str = "experiments";
/// How far fio's rate may be from ours.
const MOST_APART: f64 = 0.1;
const RAW_BYTES: u64 = 2 << 30;
const WARM_UP: Duration = Duration::from_millis(500);

/// The command's arguments.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    pub disk: DiskArguments,
    /// Short rounds.
    #[arg(long)]
    quick: bool,
    /// Write the tables and plots into the documentation.
    #[arg(long)]
    docs: bool,
    /// Rounds of the comparison with fio.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
}

/// Runs the experiments, and compares the raw rows with fio.
pub async fn run(arguments: Arguments) -> Result<Report> {
    let scratch = arguments.disk.scratch()?;
    let plots = scratch.path().join("plots");
    let measured = experiments(&arguments, scratch.path(), &plots).await?;
    let mut report = Report::new("experiments");
    report.set("directory", arguments.disk.dir.display());
    report.set("quick", arguments.quick);
    let names: Vec<&str> = measured.experiments.iter().map(|one| one.name.as_str()).collect();
    let wanted: Vec<&str> = Name::all().map(Name::text).collect();
    report.check("every experiment was run", names == wanted, names.join(", "));
    let checks: usize = measured.experiments.iter().map(|one| one.checks.len()).sum();
    let failed: Vec<String> = measured
        .failed_checks()
        .map(|(name, check)| format!("{name}: {}; found {}", check.name, check.found))
        .collect();
    let found = if failed.is_empty() { format!("all {checks}") } else { failed.join("; ") };
    report.check("the checks of all experiments hold", failed.is_empty(), found);
    let mut fio = String::new();
    let folder = scratch.path().join("raw");
    // The engine's device code makes the file and fills it with zeros; it is closed then.
    drop(make_raw_device(&folder, RAW_BYTES, BackendArgument::Auto)?);
    let file = folder.join(FileKind::Data.name());
    for raw in RAW {
        compare(&mut report, &mut fio, arguments.quick, arguments.rounds, &file, raw).await?;
    }
    if arguments.docs {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("workspace")?;
        write_page(root, &measured, &plots, &fio)?;
        report.notes.push(format!("{PAGE} and its plots are written"));
    }
    Ok(report)
}

/// What `cairn bench disk` prints. Its plots are in `plots`.
async fn experiments(
    arguments: &Arguments,
    scratch: &Path,
    plots: &Path,
) -> Result<cairn_experiments::Report> {
    let program = program()?;
    let mut command = Command::new(program);
    command.args(["bench", "disk", "--yes", "-o", "json", "--plots"]).arg(plots).arg(scratch);
    if arguments.quick {
        command.arg("--quick");
    }
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn();
    let output = child.context("cairn bench disk")?.wait_with_output().await?;
    if !output.status.success() {
        bail!("cairn bench disk ended with {}", output.status);
    }
    serde_json::from_slice(&output.stdout).context("the report of cairn bench disk")
}

/// A raw row: how many writes are under way, and whether each is synced.
#[derive(Clone, Copy)]
struct Raw {
    depth: usize,
    dsync: bool,
}

const RAW: [Raw; 4] = [
    Raw { depth: 1, dsync: false },
    Raw { depth: 1, dsync: true },
    Raw { depth: 32, dsync: false },
    Raw { depth: 32, dsync: true },
];

/// Raw direct 4 KiB random writes by the experiments' code and by fio.
async fn compare(
    report: &mut Report,
    page: &mut String,
    quick: bool,
    rounds: usize,
    file: &Path,
    raw: Raw,
) -> Result<()> {
    let Raw { depth, dsync } = raw;
    let seconds = if quick { 1 } else { 2 };
    let limit = Limit::Time { warm_up: WARM_UP, measured: Duration::from_secs(seconds) };
    let synced = if dsync { "O_DIRECT and O_DSYNC" } else { "O_DIRECT, no sync" };
    let name = format!("raw 4 KiB random writes, {synced}, {depth} under way");
    let step = Step::new(name.clone());
    let (mut ours, mut theirs, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        // Each side begins every second round.
        for side in [round % 2, (round + 1) % 2] {
            if side == 0 {
                let blocks = RAW_BYTES / BLOCK as u64;
                ours.push(raw_writes(file, blocks, depth, dsync, limit).await?);
            } else {
                let rate =
                    Fio::Threads { dsync }.rate(file, Access::Write, BLOCK, depth, seconds).await?;
                rates.push(rate);
                theirs.push(rate_only(rate, seconds)?);
            }
        }
    }
    drop(step);
    report.lines.push(Line::new(&*name, &merged(&ours)?, depth));
    let ratio = Ratio::new(format!("ours / fio: {name}"), &ours, &theirs);
    let (value, fio) = (ratio.value, median(&rates));
    report.figure(format!("fio: {name}"), fio, "per s");
    report.ratios.push(ratio);
    let close = (value - 1.0).abs() <= MOST_APART;
    report.check(format!("fio agrees within 10 %: {name}"), close, format!("{value:.3}"));
    let own = median(&ours.iter().map(Samples::rate).collect::<Vec<_>>());
    let _ = writeln!(page, "| {synced} | {depth} | {own:.0} | {fio:.0} | {value:.2} |");
    Ok(())
}

fn write_page(
    root: &Path,
    measured: &cairn_experiments::Report,
    plots: &Path,
    fio: &str,
) -> Result<()> {
    let page = root.join(PAGE);
    let text = format!(
        "\n{}\n{}\n## fio beside the raw rows\n\nThe same file, written in alternating rounds by the experiments' code and by fio (psync, a thread\nfor each write under way).\n\n| 4 KiB random writes | under way | ours, writes/s | fio, writes/s | ratio, median of the rounds |\n|---|---:|---:|---:|---:|\n{fio}\n",
        machine(measured),
        markdown(measured, PLOTS),
    );
    write_measured(&page, &text)?;
    let folder: PathBuf = page.with_file_name(PLOTS);
    // Plots of earlier runs may have other names.
    match std::fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => std::fs::create_dir_all(&folder)?,
    }
    for plot in measured.experiments.iter().flat_map(|experiment| &experiment.plots) {
        std::fs::copy(plots.join(&plot.file), folder.join(&plot.file))
            .with_context(|| plot.file.clone())?;
    }
    Ok(())
}

/// The facts of the machine on which the page was measured.
fn machine(measured: &cairn_experiments::Report) -> String {
    let mut text = format!(
        "## The machine\n\nMeasured by version {} through {} in {:.0} minutes, with files of {} MiB. Other programs used\n{:.0} % of the processors just before.\n\n| fact | value |\n|---|---|\n",
        measured.version,
        measured.backend,
        measured.seconds / 60.0,
        measured.size_bytes >> 20,
        measured.busy_with_others.unwrap_or(0.0) * 100.0,
    );
    let findings = measured.machine.pointer("/findings").and_then(serde_json::Value::as_array);
    for finding in findings.into_iter().flatten() {
        let field =
            |name: &str| finding.get(name).and_then(serde_json::Value::as_str).unwrap_or("");
        // Where the files were says nothing about the machine.
        if field("name") != "directory" {
            let _ = writeln!(text, "| {} | {} |", field("name"), field("value"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{BEGIN, END};

    #[test]
    fn only_the_measured_part_of_the_page_is_written_anew() {
        let root = tempfile::tempdir().unwrap();
        let docs = root.path().join("docs");
        std::fs::create_dir(&docs).unwrap();
        std::fs::write(docs.join("experiments.md"), format!("head\n{BEGIN}old\n{END}tail\n"))
            .unwrap();
        let measured = cairn_experiments::Report {
            schema: 1,
            version: "0.1".into(),
            directory: "d".into(),
            quick: true,
            size_bytes: 64 << 20,
            backend: "io_uring".into(),
            busy_with_others: Some(0.0),
            seconds: 60.0,
            machine: serde_json::json!({ "findings": [{ "name": "kernel", "value": "6.18" }] }),
            experiments: Vec::new(),
            conclusion: vec!["So it is.".into()],
        };
        for _ in 0..2 {
            write_page(root.path(), &measured, root.path(), "| 1 | 2 | 3 | 0.67 |\n").unwrap();
            let text = std::fs::read_to_string(docs.join("experiments.md")).unwrap();
            assert!(text.starts_with("head\n") && text.ends_with("tail\n"), "{text}");
            for part in ["| kernel | 6.18 |", "- So it is.", "| 1 | 2 | 3 | 0.67 |"] {
                assert_eq!(text.matches(part).count(), 1, "{part} in {text}");
            }
            assert!(!text.contains("old"));
        }
    }
}
