//! The latency of puts while the engine does other work: a checkpoint, compaction, a scrub, and
//! deletes beside the puts.

use crate::progress::Step;
use crate::report::{Line, Report, merged};
use crate::target::{BackendArgument, DiskArguments, make_engine};
use anyhow::Result;
use cairn_engine::{Engine, GroupId, Mode};
use cairn_experiments::{EngineLog, Limit, Payloads, Putter, Samples, ValueBytes, Worker, drive};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::time::Duration;

const GROUP: GroupId = GroupId(0);
/// Bytes of the values that compaction finds: a few share a block.
const SMALL_BYTES: usize = 250;
/// One key in so many keeps its small value.
const KEPT: u64 = 8;
/// Extents that a scrub reads at a time.
const EXTENTS: u64 = 64;

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
    /// Size in MiB of the engine's directory.
    #[arg(long, default_value_t = 10240)]
    size_mib: u64,
    /// Rounds of each line.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of a round, after half a second of warm-up.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Scrub at this many MiB a second: a node's default.
    #[arg(long, default_value_t = 32)]
    scrub_mib: u64,
    /// Fail if a p99 beside upkeep is above this many times the quiet one.
    #[arg(long)]
    assert_ratio: Option<f64>,
}

/// Measures each line in each round.
pub async fn run(arguments: Arguments) -> Result<Report> {
    let scratch = arguments.disk.scratch()?;
    let path = scratch.path().join("engine");
    let bytes = arguments.size_mib << 20;
    let engine = make_engine(&path, bytes, Mode::Replicated, arguments.backend).await?;
    let log = EngineLog::start(engine.clone(), 256 << 20);
    let payloads = Payloads::new(arguments.keys, 1);
    let step = Step::new("filling");
    let sizes = ValueBytes::Fixed(arguments.value_bytes);
    Putter::fill(&log, &payloads, sizes, arguments.depth).await?;

    let names =
        ["alone", "beside checkpoints", "beside a scrub", "beside deletes", "beside compaction"];
    let mut lines: [Vec<Samples>; 5] = Default::default();
    let (mut checkpoints, mut scrubbed, mut deleted, mut moved) = (0, 0, 0, 0);
    for round in 0..arguments.rounds {
        step.say(&format!("round {} of {}", round + 1, arguments.rounds));
        let seed = round as u64 * 10;
        let puts = |seed| {
            let putters =
                Putter::many(&log, &payloads, arguments.value_bytes, arguments.depth, seed);
            drive(putters, limit(&arguments))
        };
        let [alone, checkpoint, scrub, delete, compaction] = &mut lines;
        alone.push(puts(seed).await?);
        let before = engine.status().checkpoints;
        checkpoint.push(beside(puts(seed + 1), checkpoint_over_and_over(&engine)).await?);
        checkpoints += engine.status().checkpoints - before;
        let counter = std::cell::Cell::new(0);
        let scrubbing = scrub_at(&engine, arguments.scrub_mib << 20, &counter);
        scrub.push(beside(puts(seed + 2), scrubbing).await?);
        scrubbed += counter.get();
        let deleters = deleters(&log, &payloads, seed + 3);
        let (samples, deletes) = tokio::join!(puts(seed + 3), drive(deleters, limit(&arguments)));
        delete.push(samples?);
        deleted += deletes?.answered;
        sparse(&log, &arguments).await?;
        let before = engine.status().moved_bytes;
        compaction.push(puts(seed + 4).await?);
        moved += engine.status().moved_bytes - before;
    }
    drop(step);

    let mut report = Report::new("upkeep");
    report.set("value bytes", arguments.value_bytes);
    report.set("keys", arguments.keys);
    report.set("directory", arguments.disk.dir.display());
    report.set("rounds", format!("{} of {} s each", arguments.rounds, arguments.seconds));
    let quiet = merged(&lines[0])?.quantile_us(0.99);
    for (name, samples) in names.iter().zip(&lines) {
        let samples = merged(samples)?;
        report.lines.push(Line::new(format!("puts {name}"), &samples, arguments.depth));
        let ratio = samples.quantile_us(0.99) / quiet;
        report.figure(format!("p99 {name} / p99 alone"), ratio, "");
        if let Some(most) = arguments.assert_ratio {
            let name = format!("p99 {name} is at most {most} times p99 alone");
            report.check(name, ratio <= most, format!("{ratio:.2}"));
        }
    }
    report.figure("checkpoints taken", checkpoints as f64, "");
    report.figure("scrubbed", scrubbed as f64 / f64::from(1 << 20), "MiB");
    report.figure("deletes", deleted as f64, "");
    report.figure("moved by compaction", moved as f64 / f64::from(1 << 20), "MiB");
    report.check("checkpoints ran", checkpoints > 0, checkpoints);
    report.check("the scrub read", scrubbed > 0, scrubbed);
    report.check("compaction moved values", moved > 0, moved);
    engine.close().await?;
    Ok(report)
}

fn limit(arguments: &Arguments) -> Limit {
    let warm_up = Duration::from_millis(500);
    Limit::Time { warm_up, measured: Duration::from_secs(arguments.seconds) }
}

/// The samples of the puts; the other work ends with them.
async fn beside(
    puts: impl Future<Output = Result<Samples>>,
    work: impl Future<Output = Result<()>>,
) -> Result<Samples> {
    tokio::select! {
        samples = puts => samples,
        ended = work => Err(ended.err().unwrap_or_else(|| anyhow::anyhow!("the other work ended"))),
    }
}

async fn checkpoint_over_and_over(engine: &Engine) -> Result<()> {
    loop {
        engine.checkpoint().await?;
    }
}

/// Reads and checks the whole data area over and over, `rate` bytes a second.
async fn scrub_at(engine: &Engine, rate: u64, scrubbed: &std::cell::Cell<u64>) -> Result<()> {
    let (mut at, data_bytes) = (0, engine.status().data_bytes);
    loop {
        let range = at..(at + (1 << 20)).min(data_bytes);
        for extents in engine.extents(GROUP, range.clone()).await.chunks(EXTENTS as usize) {
            let (bytes, damaged) = engine.check_extents(extents).await;
            anyhow::ensure!(damaged.is_empty(), "damaged values");
            scrubbed.set(scrubbed.get() + bytes);
            tokio::time::sleep(Duration::from_secs_f64(bytes as f64 / rate as f64)).await;
        }
        at = if range.end == data_bytes { 0 } else { range.end };
    }
}

/// Clients that delete random keys.
fn deleters(log: &EngineLog, payloads: &Payloads, seed: u64) -> Vec<Deleter> {
    (0..10u64)
        .map(|client| Deleter {
            log: log.clone(),
            payloads: payloads.clone(),
            rng: StdRng::seed_from_u64(seed ^ (client << 32)),
        })
        .collect()
}

struct Deleter {
    log: EngineLog,
    payloads: Payloads,
    rng: StdRng,
}

impl Worker for Deleter {
    async fn step(&mut self) -> Result<()> {
        self.log.delete(self.payloads.key(&mut self.rng)).await
    }
}

/// Leaves blocks behind in which little is live: many small values, of which most are deleted.
async fn sparse(log: &EngineLog, arguments: &Arguments) -> Result<()> {
    let most = arguments.keys + 200_000;
    let small = |number: u64| Payloads::nth_key(arguments.keys + number);
    let batch = 1000;
    for first in (0..most - arguments.keys).step_by(batch) {
        let numbers = first..first + batch as u64;
        let puts =
            numbers.map(|number| log.put(small(number), vec![number as u8; SMALL_BYTES].into()));
        futures::future::try_join_all(puts).await?;
    }
    for first in (0..most - arguments.keys).step_by(batch) {
        let numbers = (first..first + batch as u64).filter(|number| number % KEPT != 0);
        futures::future::try_join_all(numbers.map(|number| log.delete(small(number)))).await?;
    }
    Ok(())
}
