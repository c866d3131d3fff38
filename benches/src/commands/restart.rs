//! How long an engine with many keys takes to open, after `kill -9` with a third of the journal
//! written since the last checkpoint, and after a clean stop; and the memory of its process. Each
//! open is in a process of its own, without a page cache that helps it: the engine reads directly.

use crate::progress::Step;
use crate::report::Report;
use crate::target::{BackendArgument, DiskArguments, make_engine};
use anyhow::{Context, Result, ensure};
use cairn_engine::Mode;
use cairn_experiments::{
    EngineLog, Limit, Payloads, Putter, ValueBytes, drive, median, open_engine,
};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

const DEPTH: usize = 100;
/// How much of the log stays: as on a node.
const RETAINED_LOG_BYTES: u64 = 256 << 20;

/// The command's arguments.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    pub disk: DiskArguments,
    /// I/O backend.
    #[arg(long, value_enum, default_value = "auto")]
    backend: BackendArgument,
    /// Different keys of 24 bytes.
    #[arg(long, default_value_t = 10_000_000)]
    keys: u64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 256)]
    value_bytes: usize,
    /// Size in MiB of the engine's directory.
    #[arg(long, default_value_t = 16384)]
    size_mib: u64,
    /// Checkpoints of what changed that are taken before, each when a third of the journal is written.
    #[arg(long, default_value_t = 8)]
    checkpoints: u64,
    /// Opens of each kind.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Fail if a median is above this many seconds.
    #[arg(long)]
    assert_seconds: Option<f64>,
    /// One process of this measurement: fill or open.
    #[arg(long, hide = true)]
    process: Option<Process>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Process {
    Fill,
    Open,
}

/// What a process says once the engine is open, or filled.
#[derive(Serialize, Deserialize)]
struct Said {
    seconds: f64,
    keys: u64,
    journal_percent: f64,
    resident_bytes: u64,
}

/// Measures the opens.
pub async fn run(arguments: Arguments) -> Result<Report> {
    if let Some(process) = arguments.process {
        return serve(&arguments, process).await;
    }
    let scratch = arguments.disk.scratch()?;
    let step = Step::new("filling");
    let mut report = Report::new("restart");
    report.set("keys", arguments.keys);
    report.set("value bytes", arguments.value_bytes);
    report.set("directory", arguments.disk.dir.display());
    let (mut killed, mut clean, mut resident, mut journal) = (vec![], vec![], vec![], vec![]);
    let (mut filler, mut lines) = start(&arguments, scratch.path(), Process::Fill)?;
    journal.push(said(&mut lines).await?.journal_percent);
    for round in 0..arguments.rounds {
        step.say(&format!("round {} of {}", round + 1, arguments.rounds));
        filler.start_kill()?;
        filler.wait().await?;
        // Killed again after it has opened: the next open finds the same journal.
        let (child, mut lines) = start(&arguments, scratch.path(), Process::Open)?;
        let opened = said(&mut lines).await?;
        ensure!(opened.keys >= arguments.keys, "{} keys of {}", opened.keys, arguments.keys);
        killed.push(opened.seconds);
        resident.push(opened.resident_bytes as f64);
        filler = child;
    }
    stop(filler).await?;
    for round in 0..arguments.rounds {
        step.say(&format!("clean, round {} of {}", round + 1, arguments.rounds));
        let (child, mut lines) = start(&arguments, scratch.path(), Process::Open)?;
        let opened = said(&mut lines).await?;
        ensure!(opened.keys >= arguments.keys, "{} keys of {}", opened.keys, arguments.keys);
        clean.push(opened.seconds);
        stop(child).await?;
    }
    drop(step);
    report.figure("journal since the last checkpoint", median(&journal), "%");
    for (name, seconds) in [("after kill -9", &killed), ("after a clean stop", &clean)] {
        let most = seconds.iter().copied().fold(0.0, f64::max);
        report.figure(format!("open {name}"), median(seconds), "s, median");
        report.figure(format!("open {name}, longest"), most, "s");
        if let Some(limit) = arguments.assert_seconds {
            let found = format!("{:.2} s", median(seconds));
            report.check(
                format!("open {name} takes at most {limit} s"),
                median(seconds) <= limit,
                found,
            );
        }
    }
    let keys = arguments.keys as f64;
    report.figure("resident after an open", median(&resident) / f64::from(1 << 20), "MiB");
    report.figure("resident after an open, by key", median(&resident) / keys, "bytes");
    Ok(report)
}

/// A process of this program for one step. Its output says how it went.
fn start(
    arguments: &Arguments,
    path: &Path,
    process: Process,
) -> Result<(Child, tokio::io::Lines<BufReader<ChildStdout>>)> {
    let mut command = Command::new(std::env::current_exe().context("this program")?);
    command.arg("restart").arg("--dir").arg(path);
    command.args(["--keys", &arguments.keys.to_string()]);
    command.args(["--value-bytes", &arguments.value_bytes.to_string()]);
    command.args(["--size-mib", &arguments.size_mib.to_string()]);
    command.args(["--checkpoints", &arguments.checkpoints.to_string()]);
    command.args(["--process", if matches!(process, Process::Fill) { "fill" } else { "open" }]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().context("a process of this program")?;
    let output = child.stdout.take().context("its output")?;
    Ok((child, BufReader::new(output).lines()))
}

async fn said(lines: &mut tokio::io::Lines<BufReader<ChildStdout>>) -> Result<Said> {
    let line = lines.next_line().await?.context("the process ended early")?;
    serde_json::from_str(&line).with_context(|| line.clone())
}

/// Closes its input: it closes the engine.
async fn stop(mut child: Child) -> Result<()> {
    drop(child.stdin.take());
    let status = child.wait().await?;
    ensure!(status.success(), "a process ended with {status}");
    Ok(())
}

/// The process: fills or opens, says how it went, and closes the engine when its input ends.
async fn serve(arguments: &Arguments, process: Process) -> Result<Report> {
    let path: PathBuf = arguments.disk.dir.join("engine");
    let begun = Instant::now();
    let engine = match process {
        Process::Fill => {
            let bytes = arguments.size_mib << 20;
            let engine = make_engine(&path, bytes, Mode::Replicated, arguments.backend).await?;
            let log = EngineLog::start(engine.clone(), RETAINED_LOG_BYTES);
            let payloads = Payloads::new(arguments.keys, 1);
            let sizes = ValueBytes::Fixed(arguments.value_bytes);
            Putter::fill(&log, &payloads, sizes, DEPTH).await?;
            engine.checkpoint().await?;
            engine.checkpoint().await?;
            engine.raise_format();
            let last = engine.status().checkpoints + arguments.checkpoints;
            // As far as a node lets the journal grow before the next checkpoint.
            while engine.status().checkpoints < last || journal_percent(&engine) < 33.0 {
                let limit = Limit::Operations(100_000);
                drive(
                    Putter::mixed(&log, &payloads, sizes, DEPTH, begun.elapsed().as_nanos() as u64),
                    limit,
                )
                .await?;
            }
            engine
        }
        Process::Open => open_engine(&path, Mode::Replicated, arguments.backend.into()).await?,
    };
    let said = Said {
        seconds: begun.elapsed().as_secs_f64(),
        keys: engine.status().keys,
        journal_percent: journal_percent(&engine),
        resident_bytes: resident_bytes()?,
    };
    println!("{}", serde_json::to_string(&said)?);
    let input =
        tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    input.await??;
    engine.close().await?;
    drop(engine);
    // What other handles hold is gone within a second.
    tokio::time::sleep(Duration::from_millis(100)).await;
    std::process::exit(0);
}

fn journal_percent(engine: &cairn_engine::Engine) -> f64 {
    let status = engine.status();
    let since = status.written_sequence - status.checkpoint_sequence;
    since as f64 / status.journal_blocks as f64 * 100.0
}

/// What the system says of this process.
fn resident_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? << 10)
}
