//! The command line, and how runs are spread over threads.

mod scenarios;
mod summary;

use cairn_engine::Mode;
use cairn_sim::harness::{Report, RunOptions, run_seed};
use clap::Parser;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Instant;
use summary::Summary;

/// How many events of a failed run are printed, and how much of each.
const STORY_LINES: usize = 20;
const STORY_COLUMNS: usize = 160;

/// In this many runs every kind of fault must have been applied.
const ALL_FAULTS_IN: u64 = 200;

/// Deterministic simulation of a Cairn cluster. One seed is one run.
#[derive(Debug, Parser)]
#[command(name = "cargo sim")]
struct Arguments {
    /// Replay this seed and print its trace.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Run these seeds: `A..B` without B, or a number N for 0..N; the default is 100.
    #[arg(long, value_parser = parse_range)]
    seeds: Option<std::ops::Range<u64>>,
    /// Runs at the same time.
    #[arg(long, default_value_t = default_jobs())]
    jobs: usize,
    /// This mode instead of each seed's own.
    #[arg(long)]
    mode: Option<Mode>,
    /// Few faults besides power cuts, close upon each other; in mode `replicated` by default.
    #[arg(long, conflicts_with_all = ["scenarios", "scenario"])]
    storm: bool,
    /// Run the seeds that this number divides twice, and compare their traces; every seed without a
    /// number.
    #[arg(long, value_name = "NUMBER", num_args = 0..=1, default_missing_value = "1")]
    check_determinism: Option<std::num::NonZeroU64>,
    /// Stop once this many runs have failed, and say how many runs it took.
    #[arg(long, value_name = "FAILURES")]
    until_failures: Option<usize>,
    /// Run all scripted scenarios, each with its seeds.
    #[arg(long, conflicts_with_all = ["seed", "check_determinism", "until_failures"])]
    scenarios: bool,
    /// Run this scripted scenario: with `--seed` once, with its trace; otherwise with `--seeds`, or
    /// with its default number of seeds.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["scenarios", "check_determinism", "until_failures"])]
    scenario: Option<String>,
    /// Of each scenario run only a few seeds, chosen by this number: the numbers that follow one
    /// another reach all.
    #[arg(long, value_name = "NUMBER", requires = "scenarios", conflicts_with = "seeds")]
    window: Option<u64>,
    /// Show what the nodes log; repeat for more.
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
}

fn default_jobs() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn parse_range(text: &str) -> Result<std::ops::Range<u64>, String> {
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("`{text}`: {error}"));
    match text.split_once("..") {
        Some((from, to)) => Ok(number(from)?..number(to)?),
        None => Ok(0..number(text)?),
    }
}

/// Runs the program.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.scenarios || arguments.scenario.is_some() {
        return scenarios::main(&arguments);
    }
    match arguments.seed {
        Some(seed) if arguments.check_determinism.is_none() => replay(seed, &arguments),
        Some(seed) => run_many(seed..seed + 1, &arguments),
        None => run_many(arguments.seeds.clone().unwrap_or(0..100), &arguments),
    }
}

/// Options for runs of which only the result is shown.
fn options(arguments: &Arguments) -> RunOptions {
    RunOptions { mode: arguments.mode, storm: arguments.storm, print: false, log: None }
}

/// Options for one run whose trace is shown.
fn shown(arguments: &Arguments) -> RunOptions {
    let log = match arguments.verbose {
        0 => None,
        1 => Some(tracing::Level::INFO),
        2 => Some(tracing::Level::DEBUG),
        _ => Some(tracing::Level::TRACE),
    };
    RunOptions { print: true, log, ..options(arguments) }
}

fn replay(seed: u64, arguments: &Arguments) -> ExitCode {
    let report = run_seed(seed, shown(arguments));
    println!("trace hash {:016x}", report.trace_hash);
    for violation in &report.violations {
        println!("FAILED {violation}");
    }
    let mut summary = Summary::default();
    summary.add(&report);
    summary.print();
    finish(&summary, arguments.storm)
}

fn run_many(seeds: std::ops::Range<u64>, arguments: &Arguments) -> ExitCode {
    let started = Instant::now();
    let queue: Arc<Mutex<VecDeque<u64>>> = Arc::new(Mutex::new(seeds.collect()));
    let options = options(arguments);
    let every = arguments.check_determinism;
    let twice = move |seed: u64| every.is_some_and(|every| seed % every == 0);
    let (sender, receiver) = mpsc::channel();
    for _ in 0..arguments.jobs.max(1) {
        let (queue, sender) = (queue.clone(), sender.clone());
        std::thread::spawn(move || {
            loop {
                let Some(seed) = queue.lock().pop_front() else { return };
                let mut report = run_seed(seed, options);
                if twice(seed) {
                    compare(&mut report, &run_seed(seed, options));
                }
                if sender.send(report).is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    let mut summary = Summary::default();
    let mut hashes = BTreeMap::new();
    let mut catches = Vec::new();
    for report in receiver {
        for violation in &report.violations {
            println!("seed {} ({}) FAILED {violation}", report.seed, report.mode);
        }
        if !report.passed() {
            println!("  replay: {}", replay_command(&report, options));
            print_story(&report, options);
        }
        if twice(report.seed) {
            hashes.insert(report.seed, report.trace_hash);
        }
        summary.add(&report);
        if let Some(violation) = report.violations.first() {
            catches.push(Catch {
                seed: report.seed,
                run: summary.runs(),
                property: violation.property,
            });
        }
        if arguments.until_failures.is_some_and(|failures| catches.len() >= failures) {
            break;
        }
    }
    for (seed, hash) in &hashes {
        println!("seed {seed}, twice: trace hash {hash:016x}");
    }
    summary.print();
    if arguments.until_failures.is_some() {
        print_catches(&catches);
    }
    let minutes = started.elapsed().as_secs_f64() / 60.0;
    println!("{:.1} runs/min", (summary.runs() as f64 + hashes.len() as f64) / minutes);
    finish(&summary, arguments.storm)
}

/// Prints the kinds of faults of a run, and the last events before the first violation.
fn print_story(report: &Report, options: RunOptions) {
    let plan = options.plan(report.seed);
    let drawn: BTreeSet<&str> =
        plan.faults.iter().chain(&plan.decays).map(|kind| kind.name()).collect();
    println!("  drawn: {}", drawn.into_iter().collect::<Vec<_>>().join(", "));
    let before = report.trace.iter().take_while(|line| !line.contains("VIOLATION"));
    // The clients' requests are the longer part of a trace.
    let events: Vec<&String> = before.filter(|line| !line.contains(" client ")).collect();
    for line in events.iter().skip(events.len().saturating_sub(STORY_LINES)) {
        println!("  {}", line.chars().take(STORY_COLUMNS).collect::<String>());
    }
}

fn replay_command(report: &Report, options: RunOptions) -> String {
    let mode = options.mode.map_or_else(String::new, |mode| format!(" --mode {mode}"));
    let storm = if options.storm { " --storm" } else { "" };
    format!("cargo sim --seed {}{mode}{storm}", report.seed)
}

fn compare(first: &mut Report, second: &Report) {
    if first.trace == second.trace && first.trace_hash == second.trace_hash {
        return;
    }
    let pairs = first.trace.iter().zip(&second.trace);
    let differing = pairs.into_iter().find(|(one, other)| one != other);
    let detail = match differing {
        Some((one, other)) => format!("two runs differ:\n    {one}\n    {other}"),
        None => format!("two runs have {} and {} events", first.trace.len(), second.trace.len()),
    };
    first.violations.push(cairn_clients::Violation::new("a seed has one trace", detail));
}

/// A failed run: its seed, how many runs had ended by then, and the first property that did not
/// hold.
struct Catch {
    seed: u64,
    run: u64,
    property: &'static str,
}

/// One line for `sim/mutants/run`.
fn print_catches(catches: &[Catch]) {
    let Some(first) = catches.first() else {
        println!("caught by no seed");
        return;
    };
    let runs = std::iter::once(0).chain(catches.iter().map(|catch| catch.run));
    let mut gaps: Vec<u64> = runs.zip(catches).map(|(before, catch)| catch.run - before).collect();
    gaps.sort_unstable();
    let median = gaps.get(gaps.len() / 2).copied().unwrap_or_default();
    println!(
        "caught by seed {} | {} | median {median} of {}",
        first.seed,
        first.property,
        catches.len()
    );
}

/// Fails if a run failed, or if in many runs a kind of fault was never applied, or an event of watches never
/// happened; a storm has few kinds.
fn finish(summary: &Summary, storm: bool) -> ExitCode {
    println!("{} passed, {} failed", summary.passed(), summary.failed());
    let missing = summary.never_applied();
    if !storm && summary.runs() >= ALL_FAULTS_IN && !missing.is_empty() {
        println!("never applied in {} runs: {}", summary.runs(), missing.join(", "));
        return ExitCode::FAILURE;
    }
    let missing = summary.never_happened();
    if !storm && summary.runs() >= ALL_FAULTS_IN && !missing.is_empty() {
        println!("never happened in {} runs: {}", summary.runs(), missing.join(", "));
        return ExitCode::FAILURE;
    }
    if summary.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
