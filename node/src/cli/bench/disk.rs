//! `cairn bench disk`: the experiments on a directory of the user's own disk.
//!
//! What holds here: the space and the time are said before anything is made, and asked for if they
//! are large. A signal ends the run, and what it made is removed; a second signal ends the process
//! at once, and the next run removes what is left.

use super::super::confirm::confirm;
use super::super::exit::{Exit, UsageError};
use super::super::output::{Output, table, tell};
use anyhow::Context;
use cairn_engine::Mode;
use cairn_experiments::{
    Experiment, Name, Observer, Outcome, Plan, Report, Settings, Stop, cell, svg,
};
use cairn_node::config::{format_size, parse_size};
use cairn_node::doctor::{self, FilesystemKind, MODES};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// The hidden command that runs a part of an experiment in a process of its own.
pub(super) const CHILD: &str = "disk-child";

/// Above this a run asks first.
const LARGE_BYTES: u64 = 1 << 30;
const LARGE_TIME: Duration = Duration::from_secs(180);
const MAX_SIZE: u64 = 1 << 40;
/// Voters for which the modes are judged.
const VOTERS: usize = 3;
/// Signals within this time count as one.
const TOGETHER: Duration = Duration::from_secs(1);
/// The exit code of a process that a signal ended.
const ENDED_BY_SIGNAL: i32 = 130;

#[derive(Args)]
pub(super) struct DiskArgs {
    /// A directory on the disk to measure. Everything is made in a folder in it, and removed
    dir: PathBuf,

    /// Only these experiments: objects, intervals, uploads, batches, direct
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<Name>,

    /// Size of the files and of Cairn's data directories, 64MiB or more: 2GiB, or 256MiB with
    /// --quick
    #[arg(long, value_parser = parse_size)]
    size: Option<u64>,

    /// Under two minutes in all unless --size is larger: few and short rounds, so larger spreads
    #[arg(long)]
    quick: bool,

    /// Also draw the plots, as SVG files in this directory
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,

    /// Do not ask
    #[arg(long)]
    yes: bool,
}

pub(super) async fn run(args: DiskArgs, output: &Output) -> anyhow::Result<Exit> {
    cairn_node::platform::check().map_err(cairn_node::Error::Platform)?;
    // A file beyond the process's limit is an error then, instead of the process's end.
    let _beyond_the_limit = signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?;
    let plan = plan(&args)?;
    if let Some(plots) = &args.plots {
        check_plots(plots, &plan)?;
    }
    announce(&args, &plan)?;
    let (stop, bar) = (Stop::default(), Bar::new());
    let signals = tokio::spawn(stop_on_signals(stop.clone()));
    let ended = cairn_experiments::run(&plan, &bar, &stop).await;
    signals.abort();
    bar.0.finish_and_clear();
    let report = ended.map_err(|error| match error.downcast::<cairn_experiments::Refused>() {
        Ok(refused) => UsageError(refused.to_string()).into(),
        Err(error) => error,
    })?;
    output.either(|| serde_json::to_value(&report).unwrap_or_default(), || as_text(&report))?;
    if let Some(plots) = &args.plots {
        draw(&report, plots)?;
    }
    Ok(Exit::Done)
}

/// What to run: the arguments, and what the doctor says of the directory.
fn plan(args: &DiskArgs) -> anyhow::Result<Plan> {
    let default = if args.quick { Settings::QUICK_SIZE } else { Settings::DEFAULT_SIZE };
    let size_bytes = args.size.unwrap_or(default);
    if !(Settings::MIN_SIZE..=MAX_SIZE).contains(&size_bytes) {
        let (least, most) = (format_size(Settings::MIN_SIZE), format_size(MAX_SIZE));
        let reason = format!("--size {size_bytes}: choose between {least} and {most}");
        return Err(UsageError(reason).into());
    }
    let directory = std::path::absolute(&args.dir)?;
    let found = std::fs::metadata(&directory);
    let reason = match found {
        Ok(found) if found.is_dir() => None,
        Ok(_) => Some("is not a directory; name one".to_owned()),
        Err(error) => Some(format!("{error}; name a directory that exists")),
    };
    if let Some(reason) = reason {
        return Err(UsageError(format!("{}: {reason}", args.dir.display())).into());
    }
    let planned = doctor::Plan {
        voters: VOTERS,
        size_bytes: Some(size_bytes),
        contract_asserted: false,
        window: cairn_node::promise::SyncWindow::default(),
        memory: None,
    };
    let machine = doctor::examine(&args.dir, planned)?;
    if let Ok(filesystem) = &machine.facts.filesystem
        && filesystem.kind == FilesystemKind::Memory
    {
        let reason = format!(
            "{} is in memory ({}), where nothing is written to a disk; name a directory on a disk",
            args.dir.display(),
            filesystem.name
        );
        return Err(UsageError(reason).into());
    }
    let why_not = |mode: Mode| {
        let refusals = &machine.verdict.of(mode).refusals;
        let sentences: Vec<&str> = refusals.iter().map(|reason| reason.sentence()).collect();
        (!sentences.is_empty()).then(|| sentences.join("; "))
    };
    let settings = Settings {
        size_bytes,
        quick: args.quick,
        modes: MODES.into_iter().map(|mode| (mode, why_not(mode))).collect(),
        child: std::env::current_exe()
            .ok()
            .map(|program| (program, vec!["bench".to_owned(), CHILD.to_owned()])),
        root: rustix::process::geteuid().is_root(),
    };
    let names = if args.only.is_empty() { Name::all().collect() } else { args.only.clone() };
    Ok(Plan { directory, names, settings, machine: machine.json() })
}

/// The plots' folder is there and can be written to, before minutes are spent on what they show.
fn check_plots(plots: &Path, plan: &Plan) -> anyhow::Result<()> {
    let context = || format!("--plots {}", plots.display());
    let own = plan.directory.join(cairn_experiments::FOLDER);
    if std::path::absolute(plots)?.starts_with(own) {
        let reason = "lies in the folder that the run removes; name another directory";
        return Err(UsageError(format!("{}: {reason}", context())).into());
    }
    std::fs::create_dir_all(plots).with_context(context)?;
    tempfile::tempfile_in(plots).map(drop).with_context(context)
}

/// Says what the run takes, and asks if it is much.
fn announce(args: &DiskArgs, plan: &Plan) -> anyhow::Result<()> {
    let bounds = plan.bounds();
    let text = format!(
        "in {}: at most {} MiB on the disk at one time, and about {}, longer on a disk below {} MiB/s; all of it in the folder {}, which is removed at the end",
        plan.directory.display(),
        bounds.bytes.div_ceil(1 << 20),
        minutes(bounds.time),
        plan.settings.assumed_mib_per_second(),
        cairn_experiments::FOLDER
    );
    tell(&text);
    let large = bounds.bytes > LARGE_BYTES || bounds.time > LARGE_TIME;
    if large && !args.yes && !confirm("Go on?", "add --yes, or --quick for a short run")? {
        return Err(UsageError("nothing was measured".to_owned()).into());
    }
    Ok(())
}

fn minutes(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds.div_ceil(60)),
    }
}

/// The first signal ends the run. One that comes later than `TOGETHER` after it ends the process: a
/// terminal and a program that passes signals on may both send the first one.
async fn stop_on_signals(stop: Stop) -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut first = None;
    loop {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
        }
        let folder = cairn_experiments::FOLDER;
        let text = match first {
            None => format!("stopping; the next signal ends at once and leaves {folder} behind"),
            Some(first) if Instant::now() < first + TOGETHER => continue,
            Some(_) => format!("ended at once; the next run removes {folder}"),
        };
        tell(&text);
        if first.replace(Instant::now()).is_some() {
            std::process::exit(ENDED_BY_SIGNAL);
        }
        stop.set();
    }
}

/// A progress bar; nothing if standard error is no terminal.
struct Bar(ProgressBar);

impl Bar {
    fn new() -> Bar {
        let style = ProgressStyle::with_template("{spinner} {elapsed} {prefix}: {msg}");
        let bar = ProgressBar::new_spinner();
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.enable_steady_tick(Duration::from_millis(120));
        Bar(bar)
    }
}

impl Observer for Bar {
    fn experiment(&self, name: &str, at: usize, of: usize) {
        self.0.set_prefix(format!("{at}/{of} {name}"));
        if self.0.is_hidden() {
            tell(&format!("{at}/{of} {name}"));
        }
    }

    fn step(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    fn zeroed(&self, done: u64, of: u64) {
        self.0.set_message(format!("zeroing, {} of {} MiB", done >> 20, of >> 20));
    }
}

/// Writes each plot to a new file and gives it its name, so that nobody reads half a plot.
fn draw(report: &Report, folder: &Path) -> anyhow::Result<()> {
    for plot in report.experiments.iter().flat_map(|experiment| &experiment.plots) {
        let path = folder.join(&plot.file);
        let context = || format!("--plots: {}", path.display());
        let readable = std::fs::Permissions::from_mode(0o644);
        let file = tempfile::Builder::new().permissions(readable).tempfile_in(folder);
        let mut file = file.with_context(context)?;
        file.write_all(svg(plot)?.as_bytes()).with_context(context)?;
        file.persist(&path).map_err(|error| error.error).with_context(context)?;
    }
    Ok(())
}

fn as_text(report: &Report) -> String {
    let mut parts = vec![format!("direct I/O through {}", report.backend)];
    parts.extend(report.experiments.iter().map(experiment_text));
    parts.push(format!("What it means for {}\n{}", report.directory, list(&report.conclusion)));
    let failed = report.failed_checks();
    let failed: Vec<String> = failed
        .map(|(name, check)| format!("CHECK FAILED  {name}: {}; found {}", check.name, check.found))
        .collect();
    if !failed.is_empty() {
        parts.push(failed.join("\n"));
    }
    parts.join("\n\n")
}

fn list(sentences: &[String]) -> String {
    sentences.iter().map(|one| format!("- {one}")).collect::<Vec<_>>().join("\n")
}

fn experiment_text(experiment: &Experiment) -> String {
    let mut parts = vec![format!(
        "{}: {}\n{}",
        experiment.name.to_uppercase(),
        experiment.question,
        experiment.source
    )];
    for one in &experiment.tables {
        let units = one.columns.iter().map(|column| match column.unit.as_str() {
            "" => column.name.to_uppercase(),
            unit => format!("{} ({unit})", column.name.to_uppercase()),
        });
        let head: Vec<String> =
            ["", "ANSWERED BY"].map(str::to_owned).into_iter().chain(units).collect();
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        let made = one.rows.iter().filter_map(|row| match &row.outcome {
            Outcome::Measured(figures) => {
                let first = [row.name.clone(), row.answered_by.clone()];
                Some(first.into_iter().chain(figures.iter().map(|figure| cell(*figure))).collect())
            }
            Outcome::NotMade(_) => None,
        });
        let reasons = one.rows.iter().filter_map(|row| match &row.outcome {
            Outcome::NotMade(reason) => Some(format!("\nnot measured: {}: {reason}", row.name)),
            Outcome::Measured(_) => None,
        });
        let reasons: String = reasons.collect();
        parts.push(format!("{}\n{}{reasons}", one.title, table(&head, made)));
    }
    parts.push(list(&experiment.sentences));
    let notes: Vec<String> = experiment.notes.iter().map(|note| format!("note: {note}")).collect();
    parts.push(notes.join("\n"));
    parts.retain(|part| !part.is_empty());
    parts.join("\n\n")
}
