//! The latency of puts while the engine does other work: checkpoints, a scrub, deletes, and
//! compaction. The p99 beside each is compared with the p99 of puts alone in the same round.

mod phase;
mod scrub;
mod sparse;

use crate::progress::Step;
use crate::report::{Line, Ratio, Report, merged};
use crate::target::{BackendArgument, DiskArguments, make_engine};
use anyhow::Result;
use cairn_engine::Mode;
use cairn_experiments::{EngineLog, Payloads, Putter, Samples, ValueBytes, median};
use phase::{Bench, Phase};
use scrub::Scrub;
use sparse::Sparse;
use std::time::Duration;

/// Applied log that is kept.
const RETAINED_LOG_BYTES: u64 = 256 << 20;

/// The command's arguments.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    pub disk: DiskArguments,
    /// I/O backend.
    #[arg(long, value_enum, default_value = "auto")]
    backend: BackendArgument,
    /// Concurrent puts.
    #[arg(long, default_value_t = 100)]
    depth: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 4096)]
    value_bytes: usize,
    /// Different keys.
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Size in MiB of the engine's directory. Less than a quarter of the data area should be free:
    /// above that, compaction begins late.
    #[arg(long, default_value_t = 7680)]
    size_mib: u64,
    /// Rounds of each line. The ratios are medians.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds measured in each round, after half a second of warm-up.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Scrub at this many MiB a second: a node's default.
    #[arg(long, default_value_t = 10)]
    scrub_mib: u64,
    /// Small values that each round makes for compaction; most of them are deleted.
    #[arg(long, default_value_t = 800_000)]
    small_values: u64,
    /// Fail if a p99 beside upkeep is above this many times the one of puts alone.
    #[arg(long, default_value_t = 1.5)]
    most_ratio: f64,
    /// The same beside deletes.
    #[arg(long, default_value_t = 1.2)]
    most_ratio_deletes: f64,
}

/// What each round measured.
#[derive(Default)]
struct Measured {
    alone: Vec<Phase>,
    checkpoints: Vec<Phase>,
    scrub: Vec<Phase>,
    deletes: Vec<Phase>,
    compaction: Vec<Phase>,
}

/// Measures each line in each round.
pub async fn run(arguments: Arguments) -> Result<Report> {
    let scratch = arguments.disk.scratch()?;
    let path = scratch.path().join("engine");
    let bytes = arguments.size_mib << 20;
    let engine = make_engine(&path, bytes, Mode::Replicated, arguments.backend).await?;
    let bench = Bench {
        log: EngineLog::start(engine.clone(), RETAINED_LOG_BYTES),
        payloads: Payloads::new(arguments.keys, 1),
        value_bytes: arguments.value_bytes,
        depth: arguments.depth,
        measured: Duration::from_secs(arguments.seconds),
    };
    let step = Step::new("filling");
    let sizes = ValueBytes::Fixed(arguments.value_bytes);
    Putter::fill(&bench.log, &bench.payloads, sizes, arguments.depth).await?;
    // So that they run only where they are measured.
    bench.log.hold_checkpoints().await;
    bench.age().await?;

    let mut scrub = Scrub::new(&engine, arguments.scrub_mib << 20);
    let mut sparse = Sparse::new(&bench.log, &bench.payloads, arguments.small_values);
    let mut measured = Measured::default();
    for round in 0..arguments.rounds {
        let seed = round as u64 * 10;
        let say = |what: &str| {
            step.say(&format!("round {} of {}: {what}", round + 1, arguments.rounds));
        };
        say("puts alone");
        measured.alone.push(bench.alone(seed).await?);
        say("checkpoints");
        measured.checkpoints.push(bench.beside_checkpoints(seed + 1).await?);
        say("a scrub");
        measured.scrub.push(bench.beside_a_scrub(seed + 2, &mut scrub).await?);
        say("deletes");
        measured.deletes.push(bench.beside_deletes(seed + 3).await?);
        say("making sparse blocks");
        sparse.make().await?;
        say("compaction");
        measured.compaction.push(bench.beside_compaction(seed + 4).await?);
        say("removing small values");
        sparse.remove().await?;
    }
    drop(step);

    let mut report = Report::new("upkeep");
    report.set("value bytes", arguments.value_bytes);
    report.set("keys", arguments.keys);
    report.set("data area", engine.status().data_bytes);
    report.set("directory", arguments.disk.dir.display());
    report.set("rounds", format!("{} of {} s each", arguments.rounds, arguments.seconds));
    latencies(&mut report, &arguments, &measured)?;
    work(&mut report, &arguments, &measured);
    scrub.report(&mut report);
    sparse.report(&mut report);
    engine.close().await?;
    Ok(report)
}

/// The lines, and the ratio of each to puts alone.
fn latencies(report: &mut Report, arguments: &Arguments, measured: &Measured) -> Result<()> {
    let depth = arguments.depth;
    let alone: Vec<&Samples> = measured.alone.iter().map(|phase| &phase.puts).collect();
    report.lines.push(Line::new("puts alone", &merged(alone.iter().copied())?, depth));
    for (name, phases, most) in [
        ("beside checkpoints", &measured.checkpoints, arguments.most_ratio),
        ("beside a scrub", &measured.scrub, arguments.most_ratio),
        ("beside deletes", &measured.deletes, arguments.most_ratio_deletes),
        ("beside compaction", &measured.compaction, arguments.most_ratio),
    ] {
        let puts = phases.iter().map(|phase| &phase.puts);
        report.lines.push(Line::new(format!("puts {name}"), &merged(puts.clone())?, depth));
        let p99 = |samples: &Samples| samples.quantile_us(0.99);
        let rounds: Vec<f64> = puts.zip(&alone).map(|(a, b)| p99(a) / p99(b)).collect();
        let value = median(&rounds);
        report.ratios.push(Ratio { name: format!("p99 {name} / p99 alone"), value, rounds });
        let check = format!("p99 {name} is at most {most} times p99 alone");
        report.check(check, value <= most, format!("{value:.2}"));
    }
    Ok(())
}

/// What ran beside the puts, in the measured time alone. A line in which nothing ran means nothing.
fn work(report: &mut Report, arguments: &Arguments, measured: &Measured) {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let counts = |phases: &[Phase], count: fn(&Phase) -> u64| -> Vec<u64> {
        phases.iter().map(count).collect()
    };
    let disturbed = counts(&measured.alone, |phase| phase.checkpoints + phase.moved_bytes);
    report.check(
        "nothing ran beside puts alone",
        disturbed.iter().all(|n| *n == 0),
        list(&disturbed),
    );
    let checkpoints = counts(&measured.checkpoints, |phase| phase.checkpoints);
    report.check("checkpoints ended in each round", all(&checkpoints), list(&checkpoints));
    let scrubbed = counts(&measured.scrub, |phase| phase.work);
    let seconds = (arguments.seconds * arguments.rounds as u64) as f64;
    report.figure("scrubbed", mib(scrubbed.iter().sum()), "MiB");
    report.figure("scrubbed in a second", mib(scrubbed.iter().sum()) / seconds, "MiB");
    report.check("the scrub read bytes in each round", all(&scrubbed), list(&scrubbed));
    let deletes = counts(&measured.deletes, |phase| phase.work);
    report.figure("deletes in a second", deletes.iter().sum::<u64>() as f64 / seconds, "");
    report.check("keys were deleted in each round", all(&deletes), list(&deletes));
    let moved = counts(&measured.compaction, |phase| phase.moved_bytes);
    report.figure("moved by compaction", mib(moved.iter().sum()), "MiB");
    report.figure("moved in a second", mib(moved.iter().sum()) / seconds, "MiB");
    report.check("compaction moved bytes in each round", all(&moved), list(&moved));
}

/// Whether no round was without.
fn all(counts: &[u64]) -> bool {
    counts.iter().all(|count| *count > 0)
}

fn list(counts: &[u64]) -> String {
    counts.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}
