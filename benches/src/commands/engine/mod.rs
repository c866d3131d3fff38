//! The engine alone against the disk: puts against raw 4 KiB random writes and large writes, gets
//! against raw 4 KiB random reads.
//!
//! All lines use files of the same size on the same disk, in alternating rounds. Every key is there
//! before the first round. The raw line is the fastest of several ways, fio's among them.

mod gets;

use crate::fio::Access;
use crate::progress::Step;
use crate::raw::{LARGE_BYTES, LARGE_DEPTH, RawFile, RawLines, large_copies, large_writes};
use crate::report::{Line, Ratio, Report, merged};
use crate::target::{BackendArgument, DiskArguments, make_engine, make_raw_device};
use anyhow::Result;
use cairn_engine::io::BLOCK;
use cairn_engine::{EngineStatus, Mode};
use cairn_experiments::{EngineLog, Limit, Payloads, Putter, ValueBytes, drive};
use std::time::Duration;

/// Applied log that is kept.
const RETAINED_LOG_BYTES: u64 = 256 << 20;
/// Of the data area, at most this share is filled with the keys' values.
const MOST_FILLED: f64 = 0.4;

/// The command's arguments.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    pub disk: DiskArguments,
    /// I/O backend of both lines.
    #[arg(long, value_enum, default_value = "auto")]
    backend: BackendArgument,
    /// Durability mode of the engine: device, replicated or sync.
    #[arg(long, default_value = "replicated")]
    mode: Mode,
    /// Concurrent requests.
    #[arg(long, default_value_t = 100)]
    depth: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 4096)]
    value_bytes: usize,
    /// Different keys of 24 bytes, as far as their values fill two fifths of the data area.
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Rounds of each line. Many short ones: a disk's speed changes within seconds, and the ratio
    /// is the median.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds measured in each round, after half a second of warm-up.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Size in MiB of the engine's directory, and of the raw file.
    #[arg(long, default_value_t = 10240)]
    size_mib: u64,
    /// Measure gets of keys that are not in memory, instead of puts.
    #[arg(long)]
    gets: bool,
    /// Fail if the engine's rate over the raw rate is below this.
    #[arg(long)]
    assert_ratio: Option<f64>,
}

/// The engine with all its keys, and the raw file beside it.
struct Subjects {
    log: EngineLog,
    payloads: Payloads,
    raw: RawFile,
}

/// Measures both lines.
pub async fn run(arguments: Arguments) -> Result<Report> {
    let scratch = arguments.disk.scratch()?;
    let folder = scratch.path().join("raw");
    let bytes = arguments.size_mib << 20;
    let device = make_raw_device(&folder, bytes, arguments.backend)?;
    let raw = RawFile { device, folder, depth: arguments.depth, seconds: arguments.seconds };
    let path = scratch.path().join("engine");
    let engine = make_engine(&path, bytes, arguments.mode, arguments.backend).await?;
    let log = EngineLog::start(engine.clone(), RETAINED_LOG_BYTES);
    let most = (engine.status().data_bytes as f64 * MOST_FILLED) as u64
        / arguments.value_bytes.max(1) as u64;
    let payloads = Payloads::new(arguments.keys.min(most), 1);
    let step = Step::new("putting every key once");
    Putter::fill(&log, &payloads, ValueBytes::Fixed(arguments.value_bytes), 100).await?;
    drop(step);

    let mut report = Report::new(&name(&arguments));
    report.set("backend", engine.status().backend);
    report.set("mode", arguments.mode);
    report.set("value bytes", arguments.value_bytes);
    report.set("keys", payloads.keys());
    report.set("rounds", format!("{} of {} s each", arguments.rounds, arguments.seconds));
    report.set("directory", arguments.disk.dir.display());
    let subjects = Subjects { log, payloads, raw };
    if arguments.gets {
        gets::measure(&arguments, &subjects, &mut report).await?;
    } else {
        puts(&arguments, &subjects, &mut report).await?;
    }
    engine.close().await?;
    Ok(report)
}

/// A result of its own for each kind of run: only the first is README's.
fn name(arguments: &Arguments) -> String {
    let mut name = "engine".to_owned();
    if arguments.gets {
        name += "-gets";
    }
    if arguments.value_bytes != 4096 {
        name += &format!("-{}", arguments.value_bytes);
    }
    if arguments.depth != 100 {
        name += &format!("-depth-{}", arguments.depth);
    }
    name
}

async fn puts(arguments: &Arguments, subjects: &Subjects, report: &mut Report) -> Result<()> {
    let Subjects { log, payloads, raw } = subjects;
    let limit = limit(arguments);
    let mut lines = RawLines::new(Access::Write);
    let (mut puts, mut large, mut copies) = (Vec::new(), Vec::new(), Vec::new());
    let mut wrote = Wrote::default();
    let step = Step::new("measuring");
    for round in 0..arguments.rounds {
        let seed = round as u64 + 1;
        lines.round(raw, seed, report).await?;
        large.push(large_writes(raw, seed).await?);
        copies.push(large_copies(raw, payloads, seed).await?);
        let before = log.engine().status();
        let putters = Putter::many(log, payloads, arguments.value_bytes, arguments.depth, seed);
        let samples = drive(putters, limit).await?;
        wrote.add(&before, &log.engine().status());
        step.say(&format!("round {}: {:.0} puts/s", round + 1, samples.rate()));
        puts.push(samples);
    }
    drop(step);
    report.lines.push(Line::new("engine puts (append + apply)", &merged(&puts)?, arguments.depth));
    let (name, fastest) = lines.report(report, arguments.depth)?;
    report.set("compared with", name);
    let ratio = Ratio::new("engine / raw", &puts, fastest);
    let value = ratio.value;
    report.ratios.push(ratio);
    let unit = arguments.value_bytes as f64 / LARGE_BYTES as f64;
    for (name, lines) in
        [("raw 256 KiB writes", &large), ("raw 256 KiB writes of copies, with syncs", &copies)]
    {
        report.lines.push(Line::new(name, &merged(lines)?, LARGE_DEPTH));
        let mut bandwidth = Ratio::new(format!("engine / {name}, bytes"), &puts, lines);
        bandwidth.value *= unit;
        bandwidth.rounds.iter_mut().for_each(|round| *round *= unit);
        report.ratios.push(bandwidth);
    }
    let p99 = merged(&puts)?.quantile_us(0.99);
    report.figure("engine p99 / raw p99", p99 / lines.p99_us()?, "");
    wrote.report(report, &log.engine().status());
    if let Some(least) = arguments.assert_ratio {
        let name = format!("engine / raw is at least {least}");
        report.check(name, value >= least, format!("{value:.2}"));
    }
    Ok(())
}

fn limit(arguments: &Arguments) -> Limit {
    Limit::Time {
        warm_up: Duration::from_millis(500),
        measured: Duration::from_secs(arguments.seconds),
    }
}

/// What the engine wrote during its rounds.
#[derive(Default)]
struct Wrote {
    device_bytes: u64,
    user_bytes: u64,
    journal_blocks: u64,
    syncs: u64,
    checkpoints: u64,
}

impl Wrote {
    fn add(&mut self, before: &EngineStatus, after: &EngineStatus) {
        self.device_bytes += after.device_bytes_written - before.device_bytes_written;
        self.user_bytes += after.user_bytes_written - before.user_bytes_written;
        self.journal_blocks += after.written_sequence - before.written_sequence;
        self.syncs += after.syncs - before.syncs;
        self.checkpoints += after.checkpoints - before.checkpoints;
    }

    fn report(&self, report: &mut Report, status: &EngineStatus) {
        let ratio = self.device_bytes as f64 / self.user_bytes.max(1) as f64;
        report.figure("engine: device bytes per user byte", ratio, "");
        let journal = (self.journal_blocks * BLOCK as u64) as f64;
        report.figure("engine: journal bytes per user byte", journal / self.user_bytes as f64, "");
        let journal = (status.journal_blocks * BLOCK as u64) as f64;
        report.figure(
            "engine: device bytes per byte of journal",
            self.device_bytes as f64 / journal,
            "",
        );
        report.figure("engine: syncs", self.syncs as f64, "");
        report.figure("engine: checkpoints", self.checkpoints as f64, "");
    }
}
