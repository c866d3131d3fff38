//! `cairn-bench`: the source of every published number of Cairn.
//!
//! Each command measures both sides of a ratio in one run, in alternating rounds on the same disk,
//! because absolute numbers change with the machine and ratios do not. Load is closed-loop: each
//! client sends its next request when its last one was answered. So rate × mean latency must equal
//! the number of clients (Little's law), and each line prints that product.

mod commands;
mod proc_io;
mod progress;
mod report;
mod systems;
mod target;

use clap::{Parser, Subcommand};
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
}

#[derive(Subcommand)]
enum Command {
    /// The engine alone, 4 KiB random-key puts, against raw direct 4 KiB random writes.
    Engine(commands::engine::Arguments),
    /// Bytes written to the device per user byte.
    Amplification(commands::amplification::Arguments),
    /// Three Cairn nodes against three etcd members.
    Cluster(commands::cluster::Arguments),
    /// `cairn bench disk`, with fio beside its raw rows; writes docs/experiments.md.
    Experiments(commands::experiments::Arguments),
    /// The engine's key index against other ordered maps with cheap copies.
    Index(commands::index::Arguments),
    /// Sync-like system calls of each node during puts, counted by strace.
    Syscalls(commands::syscalls::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut builder = match &arguments.command {
        // As in a server, storage and what it serves share one thread.
        Command::Engine(_) | Command::Amplification(_) => {
            tokio::runtime::Builder::new_current_thread()
        }
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    match builder.enable_all().build() {
        Ok(runtime) => runtime.block_on(measure(arguments)),
        Err(error) => {
            eprintln!("cairn-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(arguments: Arguments) -> ExitCode {
    // Dropping the command's future stops the servers that it started, so Ctrl-C leaves none
    // behind.
    let outcome = tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
        outcome = run(arguments.command) => outcome,
    };
    match outcome.and_then(|report| report.print(arguments.json).map(|()| report.passed())) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(2),
        Err(error) => {
            eprintln!("cairn-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> anyhow::Result<report::Report> {
    match command {
        Command::Engine(arguments) => commands::engine::run(arguments).await,
        Command::Amplification(arguments) => commands::amplification::run(arguments).await,
        Command::Cluster(arguments) => commands::cluster::run(arguments).await,
        Command::Experiments(arguments) => commands::experiments::run(arguments).await,
        Command::Index(arguments) => commands::index::run(arguments).await,
        Command::Syscalls(arguments) => commands::syscalls::run(arguments).await,
    }
}
