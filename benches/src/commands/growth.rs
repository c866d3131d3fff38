//! What more keys cost: steady overwrites of small values at several numbers of keys, with checkpoints
//! of what changed (format 3), and with checkpoints of everything alone (format 2). Each number and
//! format has a directory of its own, and as many checkpoints are taken in each.

use crate::progress::Step;
use crate::report::{Line, Report, merged};
use crate::target::{BackendArgument, DiskArguments, make_engine};
use anyhow::{Result, ensure};
use cairn_engine::Mode;
use cairn_experiments::{EngineLog, Limit, Payloads, Putter, Samples, ValueBytes, drive};

/// How much of the log stays: its records are in each checkpoint, too.
const RETAINED_LOG_BYTES: u64 = 64 << 20;
/// Puts between two looks at the engine.
const PUTS_AT_ONCE: u64 = 50_000;
/// More puts than any number of checkpoints takes.
const PUTS_MAX: u64 = 1 << 32;

/// The command's arguments.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    pub disk: DiskArguments,
    /// I/O backend.
    #[arg(long, value_enum, default_value = "auto")]
    backend: BackendArgument,
    /// Numbers of different keys of 24 bytes.
    #[arg(long, value_delimiter = ',', default_value = "100000,1000000,5000000,10000000")]
    keys: Vec<u64>,
    /// Bytes of a value.
    #[arg(long, default_value_t = 256)]
    value_bytes: usize,
    /// Concurrent requests.
    #[arg(long, default_value_t = 100)]
    depth: usize,
    /// Size in MiB of the engine's directory. Default: 1 KiB for each key, at least 1 GiB.
    #[arg(long)]
    size_mib: Option<u64>,
    /// Checkpoints to take while values are overwritten.
    #[arg(long, default_value_t = 16)]
    checkpoints: u64,
    /// Fail if checkpoints of what changed write more device bytes per user byte.
    #[arg(long)]
    assert_bytes: Option<f64>,
    /// Fail if p99.9 of puts at some number of keys is above so many times that at the first number.
    #[arg(long)]
    assert_tail: Option<f64>,
}

#[derive(Clone, Copy)]
enum Format {
    Changes,
    Whole,
}

struct Found {
    line: Line,
    device_bytes: f64,
}

/// Measures each number of keys.
pub async fn run(arguments: Arguments) -> Result<Report> {
    let mut report = Report::new("growth");
    report.set("value bytes", arguments.value_bytes);
    report.set("requests under way", arguments.depth);
    report.set("checkpoints", arguments.checkpoints);
    report.set("directory", arguments.disk.dir.display());
    let mut first_tail = None;
    for keys in &arguments.keys {
        for format in [Format::Changes, Format::Whole] {
            let found = measure(&arguments, *keys, format).await?;
            let name = found.line.name.clone();
            let unit = "device bytes per user byte";
            report.figure(name.as_str(), found.device_bytes, unit);
            if matches!(format, Format::Changes) {
                check(
                    &arguments,
                    &mut report,
                    &found,
                    *first_tail.get_or_insert(found.line.p999_us),
                );
            }
            report.lines.push(found.line);
        }
    }
    report.notes.push(
        "device bytes are values with padding, journal, checkpoints and superblock, while values are overwritten"
            .to_owned(),
    );
    Ok(report)
}

fn check(arguments: &Arguments, report: &mut Report, found: &Found, first_tail: f64) {
    let name = &found.line.name;
    if let Some(most) = arguments.assert_bytes {
        let text = format!("{:.2}", found.device_bytes);
        let passed = found.device_bytes <= most;
        report.check(format!("{name}: at most {most} device bytes per user byte"), passed, text);
    }
    if let Some(most) = arguments.assert_tail {
        let ratio = found.line.p999_us / first_tail;
        let text = format!("{ratio:.2}");
        report.check(format!("{name}: p99.9 at most {most} times the first"), ratio <= most, text);
    }
}

async fn measure(arguments: &Arguments, keys: u64, format: Format) -> Result<Found> {
    let name = match format {
        Format::Changes => format!("{keys} keys"),
        Format::Whole => format!("{keys} keys, whole checkpoints"),
    };
    let step = Step::new(name.as_str());
    let scratch = arguments.disk.scratch()?;
    let bytes = arguments.size_mib.map_or((keys << 10).max(1 << 30), |mib| mib << 20);
    let path = scratch.path().join("engine");
    let engine = make_engine(&path, bytes, Mode::Replicated, arguments.backend).await?;
    if matches!(format, Format::Changes) {
        engine.raise_format();
    }
    let log = EngineLog::start(engine.clone(), RETAINED_LOG_BYTES);
    let payloads = Payloads::new(keys, 1);
    step.say(&format!("{name}: filling"));
    let sizes = ValueBytes::Fixed(arguments.value_bytes);
    Putter::fill(&log, &payloads, sizes, arguments.depth).await?;
    // Both areas hold all of it, as after a long time.
    engine.checkpoint().await?;
    engine.checkpoint().await?;
    let before = engine.status();
    let mut all: Vec<Samples> = Vec::new();
    for round in 0.. {
        let taken = engine.status().checkpoints - before.checkpoints;
        step.say(&format!("{name}: checkpoint {taken} of {}", arguments.checkpoints));
        if taken >= arguments.checkpoints {
            break;
        }
        ensure!(round * PUTS_AT_ONCE < PUTS_MAX, "no checkpoint within {PUTS_MAX} puts");
        let putters =
            Putter::many(&log, &payloads, arguments.value_bytes, arguments.depth, round + 2);
        all.push(drive(putters, Limit::Operations(PUTS_AT_ONCE)).await?);
    }
    let after = engine.status();
    engine.close().await?;
    let user = (after.user_bytes_written - before.user_bytes_written) as f64;
    Ok(Found {
        line: Line::new(name, &merged(&all)?, arguments.depth),
        device_bytes: (after.device_bytes_written - before.device_bytes_written) as f64 / user,
    })
}
