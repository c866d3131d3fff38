//! The engine on a full and old data area: values of many sizes, overwritten and deleted until ten
//! times the area was written, beside the same load on the fresh area.

use crate::fio::Access;
use crate::progress::Step;
use crate::raw::{RawFile, RawLines};
use crate::report::{Line, Ratio, Report, merged};
use crate::target::{BackendArgument, DiskArguments, make_engine, make_raw_device};
use anyhow::{Result, ensure};
use cairn_engine::Mode;
use cairn_experiments::{EngineLog, Limit, Payloads, Putter, ValueBytes, Worker, drive};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::time::Duration;

const DEPTH: usize = 100;
/// Of each so many changes one is a delete, and the key is put again at once.
const DELETES: u32 = 16;

/// The command's arguments.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    pub disk: DiskArguments,
    /// I/O backend.
    #[arg(long, value_enum, default_value = "auto")]
    backend: BackendArgument,
    /// Size in MiB of the engine's directory.
    #[arg(long, default_value_t = 8192)]
    size_mib: u64,
    /// Least and most bytes of a value: each factor of two is as likely as any other.
    #[arg(long, num_args = 2, default_values_t = [200, 256 << 10])]
    value_bytes: Vec<usize>,
    /// Current keys' bytes, in hundredths of the data area.
    #[arg(long, default_value_t = 90)]
    live_percent: u64,
    /// Times the data area's bytes that are written before the aged rate is measured.
    #[arg(long, default_value_t = 10)]
    times: u64,
    /// Rounds of each rate.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of a round, after half a second of warm-up.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Fail if the aged rate over the fresh rate is below this.
    #[arg(long)]
    assert_ratio: Option<f64>,
}

/// Measures both ages.
pub async fn run(arguments: Arguments) -> Result<Report> {
    let [least, most] = arguments.value_bytes[..] else { anyhow::bail!("two sizes are needed") };
    ensure!(0 < least && least <= most, "{least} to {most} bytes");
    let sizes =
        if least == most { ValueBytes::Fixed(least) } else { ValueBytes::Between(least, most) };
    let scratch = arguments.disk.scratch()?;
    let bytes = arguments.size_mib << 20;
    let folder = scratch.path().join("raw");
    let device = make_raw_device(&folder, bytes, arguments.backend)?;
    let raw = RawFile { device, folder, depth: DEPTH, seconds: arguments.seconds };
    let path = scratch.path().join("engine");
    let engine = make_engine(&path, bytes, Mode::Replicated, arguments.backend).await?;
    let log = EngineLog::start(engine.clone(), 256 << 20);
    let data_bytes = engine.status().data_bytes;
    let live = data_bytes * arguments.live_percent / 100;
    let payloads = Payloads::new((live as f64 / sizes.mean()) as u64, 1);

    let mut report = Report::new("aged");
    report.set("value bytes", format!("{least} to {most}"));
    report.set("keys", payloads.keys());
    report.set("data area", data_bytes);
    report.set("directory", arguments.disk.dir.display());
    report.set("rounds", format!("{} of {} s each", arguments.rounds, arguments.seconds));

    let step = Step::new("fresh");
    let few = Payloads::new(payloads.keys() / 4, 1);
    Putter::fill(&log, &few, sizes, DEPTH).await?;
    let mut lines = RawLines::new(Access::Write);
    let mut fresh = Vec::new();
    for round in 0..arguments.rounds {
        lines.round(&raw, round as u64, &mut report).await?;
        fresh.push(drive(changers(&log, &few, sizes, round as u64), limit(&arguments)).await?);
    }
    step.say("filling");
    Putter::fill(&log, &payloads, sizes, DEPTH).await?;
    space(&mut report, "filled", &engine.status());
    let target = engine.status().user_bytes_written + arguments.times * data_bytes;
    let mut turn = 1000;
    while engine.status().user_bytes_written < target {
        let written = engine.status().user_bytes_written;
        let limit = Limit::Time { warm_up: Duration::ZERO, measured: Duration::from_secs(5) };
        let samples = drive(changers(&log, &payloads, sizes, turn), limit).await?;
        turn += 1;
        let left = target.saturating_sub(written) >> 20;
        step.say(&format!("{:.0} changes/s, {left} MiB to write", samples.rate()));
    }
    let (waits, before) = (log.waits().await, engine.status());
    let mut aged = Vec::new();
    for round in 0..arguments.rounds {
        lines.round(&raw, round as u64 + 100, &mut report).await?;
        aged.push(
            drive(changers(&log, &payloads, sizes, turn + round as u64), limit(&arguments)).await?,
        );
    }
    let after = engine.status();
    drop(step);
    space(&mut report, "aged", &after);
    report.lines.push(Line::new("changes, a quarter of the keys, fresh", &merged(&fresh)?, DEPTH));
    report.lines.push(Line::new("changes, all keys, aged", &merged(&aged)?, DEPTH));
    let (name, fastest) = lines.report(&mut report, DEPTH)?;
    report.set("compared with", name);
    let (_, of_aged) = fastest.split_at(fastest.len() / 2);
    report.ratios.push(Ratio::new("aged / raw", &aged, of_aged));
    let ratio = Ratio::new("aged / fresh", &aged, &fresh);
    let value = ratio.value;
    report.ratios.push(ratio);
    let user = (after.user_bytes_written - before.user_bytes_written) as f64;
    let device = (after.device_bytes_written - before.device_bytes_written) as f64;
    report.figure("aged: device bytes per user byte", device / user, "");
    let moved = (after.moved_bytes - before.moved_bytes) as f64;
    report.figure("aged: moved bytes per user byte", moved / user, "");
    report.figure("aged: puts that waited for space", (log.waits().await - waits) as f64, "");
    if let Some(least) = arguments.assert_ratio {
        let name = format!("aged / fresh is at least {least}");
        report.check(name, value >= least, format!("{value:.2}"));
    }
    engine.close().await?;
    Ok(report)
}

fn limit(arguments: &Arguments) -> Limit {
    let warm_up = Duration::from_millis(500);
    Limit::Time { warm_up, measured: Duration::from_secs(arguments.seconds) }
}

/// What each byte of the data area is.
fn space(report: &mut Report, when: &str, status: &cairn_engine::EngineStatus) {
    let area = status.data_bytes as f64 / 100.0;
    let space = status.space;
    let dead = space.dead_unrecorded + space.dead_unsynced + space.dead_viewed;
    for (name, bytes) in [
        ("live", space.live),
        ("log", space.log),
        ("padding", space.padding),
        ("dead", dead),
        ("reserve", space.reserve),
        ("free", space.free),
    ] {
        report.figure(format!("{when}: {name}"), bytes as f64 / area, "% of the data area");
    }
}

/// A client that overwrites keys, and sometimes deletes one and puts it again.
struct Changer {
    log: EngineLog,
    payloads: Payloads,
    sizes: ValueBytes,
    rng: StdRng,
}

fn changers(log: &EngineLog, payloads: &Payloads, sizes: ValueBytes, seed: u64) -> Vec<Changer> {
    (0..DEPTH as u64)
        .map(|client| Changer {
            log: log.clone(),
            payloads: payloads.clone(),
            sizes,
            rng: StdRng::seed_from_u64(seed ^ (client << 32)),
        })
        .collect()
}

impl Worker for Changer {
    async fn step(&mut self) -> Result<()> {
        let key = self.payloads.key(&mut self.rng);
        if self.rng.random_range(0..DELETES) == 0 {
            self.log.delete(key.clone()).await?;
        }
        let bytes = self.sizes.draw(&mut self.rng);
        let value = self.payloads.value(&mut self.rng, bytes);
        self.log.put(key, value).await
    }
}
