//! `cairn-bench`: the source of every published number of Cairn.
//!
//! Each command measures both sides of a ratio in one run, in alternating rounds on the same disk,
//! because absolute numbers change with the machine and ratios do not. Load is closed-loop: each
//! client sends its next request when its last one was answered. So rate × mean latency must equal
//! the number of clients (Little's law), and each line prints that product.

mod chart;
mod commands;
mod fio;
mod machine;
mod page;
mod proc_io;
mod progress;
mod raw;
mod report;
mod results;
mod systems;
mod target;

use anyhow::Context;
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The allocator of the shipped binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(
    name = "cairn-bench",
    about = "Measures Cairn and what it is compared with, in one run",
    version
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Print one JSON document instead of a table.
    #[arg(long, global = true)]
    json: bool,
    /// Keep the result, with the facts of the machine, in benches/results: `table` makes README's
    /// table from these files.
    #[arg(long, global = true)]
    keep: bool,
    /// Also draw the measured loads into this file, as SVG.
    #[arg(long, global = true)]
    svg: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// The engine alone, random-key puts or gets, against raw direct 4 KiB random writes or reads.
    Engine(commands::engine::Arguments),
    /// The engine on a full and old data area, beside a fresh one.
    Aged(commands::aged::Arguments),
    /// Puts while the engine takes checkpoints, scrubs, deletes and compacts.
    Upkeep(commands::upkeep::Arguments),
    /// How long an engine with many keys takes to open.
    Restart(commands::restart::Arguments),
    /// Bytes written to the device per user byte.
    Amplification(commands::amplification::Arguments),
    /// What more keys cost, with checkpoints of what changed and with whole ones.
    Growth(commands::growth::Arguments),
    /// Three Cairn nodes against three etcd members.
    Cluster(commands::cluster::Arguments),
    /// `cairn bench disk`, with fio beside its raw rows; writes docs/experiments.md.
    Experiments(commands::experiments::Arguments),
    /// The engine's key index against other ordered maps with cheap copies.
    Index(commands::index::Arguments),
    /// Large puts by many more clients than there is room for, beside the usual number.
    Overload(commands::overload::Arguments),
    /// The engine beside RocksDB, redb, fjall and files, in one run.
    Peers(commands::peers::Arguments),
    /// Power cuts of one machine under load, by `cargo lossy`. Needs root.
    Lossy(commands::lossy::Arguments),
    /// Sync-like system calls of each node during puts, counted by strace.
    Syscalls(commands::syscalls::Arguments),
    /// Writes README's table from the results that `--keep` kept.
    Table(commands::table::Arguments),
}

impl Command {
    /// Where it measures, if it measures.
    fn directory(&self) -> Option<PathBuf> {
        let disk = match self {
            Command::Engine(arguments) => &arguments.disk,
            Command::Aged(arguments) => &arguments.disk,
            Command::Upkeep(arguments) => &arguments.disk,
            Command::Restart(arguments) => &arguments.disk,
            Command::Amplification(arguments) => &arguments.disk,
            Command::Growth(arguments) => &arguments.disk,
            Command::Cluster(arguments) => &arguments.disk,
            Command::Experiments(arguments) => &arguments.disk,
            Command::Overload(arguments) => &arguments.disk,
            Command::Peers(arguments) => &arguments.disk,
            Command::Syscalls(arguments) => &arguments.disk,
            // The machines' folders are in the temporary directory.
            Command::Lossy(_) => return Some(std::env::temp_dir()),
            Command::Index(_) | Command::Table(_) => return None,
        };
        Some(disk.dir.clone())
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut builder = match &arguments.command {
        // As in a server, storage and what it serves share one thread.
        Command::Engine(_)
        | Command::Amplification(_)
        | Command::Aged(_)
        | Command::Growth(_)
        | Command::Upkeep(_)
        | Command::Restart(_) => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    match builder.enable_all().build() {
        Ok(runtime) => runtime.block_on(print(arguments)),
        Err(error) => {
            eprintln!("cairn-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn print(arguments: Arguments) -> ExitCode {
    let Arguments { command, json, keep, svg } = arguments;
    let directory = command.directory().filter(|_| keep);
    // Dropping the command's future stops the servers that it started, so Ctrl-C leaves none
    // behind.
    let outcome = tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
        outcome = run(command, directory, svg) => outcome,
    };
    match outcome.and_then(|report| report.print(json).map(|()| report.passed())) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(2),
        Err(error) => {
            eprintln!("cairn-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a command. Keeps its result if the directory that it measured in is named, and draws it if a
/// file for the picture is.
async fn run(
    command: Command,
    directory: Option<PathBuf>,
    svg: Option<PathBuf>,
) -> anyhow::Result<report::Report> {
    let report = measure(command).await?;
    if let Some(directory) = directory {
        let machine = machine::Machine::of(&directory)?;
        let file = results::keep(&results::folder()?, &report, machine)?;
        eprintln!("kept in {}", file.display());
    }
    if let Some(file) = svg
        && let Err(error) = draw(&report, &file)
    {
        eprintln!("not drawn: {error:#}");
    }
    Ok(report)
}

fn draw(report: &report::Report, file: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(!report.lines.is_empty(), "`{}` measures no loads", report.bench);
    let picture = chart::bars(&report.lines, &report.title());
    std::fs::write(file, picture).with_context(|| file.display().to_string())
}

async fn measure(command: Command) -> anyhow::Result<report::Report> {
    match command {
        Command::Engine(arguments) => commands::engine::run(arguments).await,
        Command::Aged(arguments) => commands::aged::run(arguments).await,
        Command::Upkeep(arguments) => commands::upkeep::run(arguments).await,
        Command::Restart(arguments) => commands::restart::run(arguments).await,
        Command::Amplification(arguments) => commands::amplification::run(arguments).await,
        Command::Growth(arguments) => commands::growth::run(arguments).await,
        Command::Cluster(arguments) => commands::cluster::run(arguments).await,
        Command::Experiments(arguments) => commands::experiments::run(arguments).await,
        Command::Index(arguments) => commands::index::run(arguments).await,
        Command::Lossy(arguments) => commands::lossy::run(arguments).await,
        Command::Overload(arguments) => commands::overload::run(arguments).await,
        Command::Peers(arguments) => commands::peers::run(arguments).await,
        Command::Syscalls(arguments) => commands::syscalls::run(arguments).await,
        Command::Table(arguments) => commands::table::run(&arguments),
    }
}
