//! The engine alone against the disk's raw 4 KiB random writes.
//!
//! Both lines use the same device code on files of the same size on the same disk, in alternating
//! rounds. If fio is installed, it then writes the raw file too, as an independent check.

use super::experiments::{Fio, fio_rate};
use crate::progress::Step;
use crate::report::{Line, Ratio, Report, merged};
use crate::target::{BackendArgument, DiskArguments, make_engine, make_raw_device};
use anyhow::Result;
use cairn_engine::Mode;
use cairn_engine::io::FileKind;
use cairn_experiments::{EngineLog, Limit, Payloads, Putter, RawWriter, Samples, drive};
use std::time::Duration;

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
    /// Different keys.
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// Rounds of each line. Many short ones: a disk's speed changes within seconds, and the ratio
    /// is the median.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Seconds measured in each round, after half a second of warm-up.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Size in MiB of the engine's directory, and of the raw file.
    #[arg(long, default_value_t = 4096)]
    size_mib: u64,
    /// Fail if the engine's rate over the raw rate is below this.
    #[arg(long)]
    assert_ratio: Option<f64>,
}

/// Measures both lines.
pub async fn run(arguments: Arguments) -> Result<Report> {
    let scratch = arguments.disk.scratch()?;
    let raw_path = scratch.path().join("raw");
    let bytes = arguments.size_mib << 20;
    let raw = make_raw_device(&raw_path, bytes, arguments.backend)?;
    let engine_path = scratch.path().join("engine");
    let engine = make_engine(&engine_path, bytes, arguments.mode, arguments.backend).await?;
    let log = EngineLog::start(engine.clone(), 256 << 20);
    let payloads = Payloads::new(arguments.keys, 1);

    let mut raw_rounds = Vec::new();
    let mut engine_rounds = Vec::new();
    let limit = Limit::Time {
        warm_up: Duration::from_millis(500),
        measured: Duration::from_secs(arguments.seconds),
    };
    let step = Step::new("measuring");
    for round in 0..arguments.rounds {
        let seed = round as u64 + 1;
        let samples = drive(RawWriter::many(&raw, arguments.depth, seed), limit).await?;
        step.say(&format!("round {}: raw {:.0}/s", round + 1, samples.rate()));
        raw_rounds.push(samples);
        let putters = Putter::many(&log, &payloads, arguments.value_bytes, arguments.depth, seed);
        let samples = drive(putters, limit).await?;
        step.say(&format!("round {}: engine {:.0}/s", round + 1, samples.rate()));
        engine_rounds.push(samples);
    }
    let status = engine.status();
    engine.close().await?;
    drop(raw);

    let mut report = Report::new("engine");
    report.set("backend", status.backend);
    report.set("mode", arguments.mode);
    report.set("value bytes", arguments.value_bytes);
    report.set("keys", arguments.keys);
    report.set("rounds", format!("{} of {} s each", arguments.rounds, arguments.seconds));
    report.set("directory", arguments.disk.dir.display());
    push_line(&mut report, "raw 4 KiB random writes, O_DIRECT", &raw_rounds, arguments.depth)?;
    push_line(&mut report, "engine puts (append + apply)", &engine_rounds, arguments.depth)?;
    report.figure(
        "engine: device bytes per user byte",
        status.device_bytes_written as f64 / status.user_bytes_written.max(1) as f64,
        "",
    );
    report.figure("engine: syncs", status.syncs as f64, "");
    report.figure("engine: checkpoints", status.checkpoints as f64, "");
    let ratio = Ratio::new("engine / raw", &engine_rounds, &raw_rounds);
    let value = ratio.value;
    report.ratios.push(ratio);
    if let Some(least) = arguments.assert_ratio {
        report.check(
            format!("engine / raw is at least {least}"),
            value >= least,
            format!("{value:.2}"),
        );
    }
    let raw_file = raw_path.join(FileKind::Data.name());
    let _step = Step::new("fio");
    match fio_rate(&raw_file, Fio::Ring, arguments.depth, arguments.seconds).await {
        Ok(rate) => report.figure("fio: the same raw writes, io_uring", rate, "per s"),
        Err(reason) => report.notes.push(format!("not measured with fio: {reason:#}")),
    }
    Ok(report)
}

fn push_line(report: &mut Report, name: &str, rounds: &[Samples], depth: usize) -> Result<()> {
    report.lines.push(Line::new(name, &merged(rounds)?, depth));
    Ok(())
}
