//! Puts and gets on the shipped engine, by its mode, its sync settings and the number of clients.
//!
//! What holds here: one engine is made and closed and opened again with other settings, so that
//! rounds alternate over the settings. The keys that are read were all written before.

use super::super::{Context, Settings, little_check};
use super::text::{clients, size, time};
use crate::measure::{Limit, Payloads, Samples, Worker, drive_until, spread};
use crate::report::{Check, Figure, Table};
use crate::subject::{EngineLog, open_engine_with};
use anyhow::{Context as _, Result};
use bytes::Bytes;
use cairn_engine::io::Backend;
use cairn_engine::{Engine, KernelBootId, Mode, Options};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const NAME: &str = "intervals-engine";
const VALUE_BYTES: usize = 4096;
/// Clients that write the keys before the first round.
const FILL_CLIENTS: usize = 64;

pub(super) const TITLE: &str = "Cairn's sync settings";
pub(super) const PUT_RATE: &str = "put rate";
pub(super) const PUT_P99: &str = "put p99";
pub(super) const SYNCS: &str = "syncs";
pub(super) const COLUMNS: [(&str, &str); 8] = [
    (PUT_RATE, "/s"),
    ("put p50", "µs"),
    (PUT_P99, "µs"),
    ("get p50", "µs"),
    ("get p99", "µs"),
    (SYNCS, "/s"),
    ("checkpoints", "/s"),
    ("rate × mean", ""),
];

/// How an engine syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub mode: Mode,
    pub interval: Duration,
    pub bytes: u64,
}

impl Setting {
    /// Cairn's default.
    pub const DEFAULT: Setting = Setting::pair(1000, 64);
    /// The mode that waits for a sync before each answer.
    pub const SYNC: Setting = Setting { mode: Mode::Sync, ..Setting::DEFAULT };

    const fn pair(interval_ms: u64, mib: u64) -> Setting {
        let interval = Duration::from_millis(interval_ms);
        Setting { mode: Mode::Replicated, interval, bytes: mib << 20 }
    }

    /// The default, the other pairs, and mode `sync`.
    fn all(quick: bool) -> Vec<Setting> {
        let mut all = vec![Setting::DEFAULT];
        for interval_ms in [100, 1000, 10_000] {
            for mib in [4, 64, 512] {
                let corner = interval_ms != 1000 && mib != 64;
                let pair = Setting::pair(interval_ms, mib);
                if pair != Setting::DEFAULT && (corner || !quick) {
                    all.push(pair);
                }
            }
        }
        all.push(Setting::SYNC);
        all
    }

    pub(super) fn name(&self) -> String {
        match self.mode {
            Mode::Sync => self.mode.name().to_owned(),
            mode => format!("{}, {}", mode.name(), self.pair_name(",")),
        }
    }

    pub(super) fn pair_name(&self, between: &str) -> String {
        format!("{}{between} {}", time(self.interval), size(self.bytes))
    }

    pub(super) fn row(&self, count: usize) -> String {
        format!("{}, {}", self.name(), clients(count))
    }

    fn options(&self, boot: KernelBootId, boot_nonce: u64) -> Options {
        Options {
            sync_interval: self.interval,
            sync_bytes: self.bytes,
            ..Options::new(self.mode, boot, boot_nonce)
        }
    }

    /// Why the setting is not justified here.
    fn refused(&self, settings: &Settings) -> Option<String> {
        match settings.modes.iter().find(|(mode, _)| *mode == self.mode) {
            Some((_, reason)) => reason.clone(),
            None => Some("the run does not know whether this mode is justified".to_owned()),
        }
    }
}

/// What to measure, and for how long.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Bytes of the engine's directory.
    pub bytes: u64,
    pub settings: Vec<Setting>,
    /// The numbers of clients, the fewest first.
    pub clients: &'static [usize],
    pub warm_up: Duration,
    /// The measured time of a round.
    pub window: Duration,
    /// The same for a setting whose interval is longer than `window`. If the two differ, such a
    /// setting has one round.
    pub long_window: Duration,
    pub rounds: usize,
    /// The most time to write the keys.
    pub fill_limit: Duration,
    /// What a close and an open take at most.
    pub open_time: Duration,
}

impl Plan {
    pub(super) fn new(settings: &Settings) -> Plan {
        let bytes = (settings.size_bytes / 2).min(1 << 30);
        let (ms, secs) = (Duration::from_millis, Duration::from_secs);
        let settings = Setting::all(settings.quick);
        match settings.len() {
            6 => Plan {
                bytes,
                settings,
                clients: &[10, 100],
                warm_up: ms(100),
                window: ms(1200),
                long_window: ms(1200),
                rounds: 1,
                fill_limit: secs(1),
                open_time: ms(300),
            },
            _ => Plan {
                bytes,
                settings,
                clients: &[1, 10, 100, 1000],
                warm_up: ms(400),
                window: ms(2200),
                long_window: ms(10_400),
                rounds: 2,
                fill_limit: secs(5),
                open_time: secs(1),
            },
        }
    }

    /// The most time, on a disk that writes so many bytes in `fill`.
    pub(super) fn bound(&self, fill: impl Fn(u64) -> Duration) -> Duration {
        let setting = |setting: &Setting| {
            let cell = self.warm_up + self.window_of(setting);
            let round = self.open_time + cell * self.clients.len() as u32;
            round * self.rounds_of(setting) as u32
        };
        let rounds: Duration = self.settings.iter().map(setting).sum();
        fill(self.bytes) + self.fill_limit + self.open_time + rounds
    }

    fn window_of(&self, setting: &Setting) -> Duration {
        if setting.interval > self.window { self.long_window } else { self.window }
    }

    fn rounds_of(&self, setting: &Setting) -> usize {
        if self.window_of(setting) == self.window { self.rounds } else { 1 }
    }

    /// Applied log that the engine keeps.
    fn retain_bytes(&self) -> u64 {
        self.bytes / 8
    }

    /// A sixteenth of the directory holds values.
    fn keys(&self) -> u64 {
        (self.bytes / 16 / VALUE_BYTES as u64).max(1)
    }

    pub(super) fn most_clients(&self) -> usize {
        self.clients.last().copied().unwrap_or(1)
    }

    pub(super) fn fewest_clients(&self) -> usize {
        self.clients.first().copied().unwrap_or(1)
    }

    pub(super) fn notes(&self) -> Vec<String> {
        let retain = size(self.retain_bytes());
        let mut notes = vec![
            format!(
                "Each client puts with a probability of one half, else it gets; the values have 4 \
                 KiB and random bytes. `{PUT_RATE}` counts the puts alone, `rate × mean` both \
                 kinds. The engine runs without replication.",
            ),
            format!(
                "A sync here is one of the data area and one of the journal, whatever began it: \
                 the interval, the bytes, or a checkpoint. The engine's directory has {} and keeps \
                 {retain} of log, so a checkpoint syncs at least after every {retain} of puts. \
                 Settings of more unsynced bytes than that do not differ.",
                size(self.bytes)
            ),
            "A longer interval and more bytes leave more unsynced on each node when the power \
             goes. A gain in speed must be weighed against that."
                .to_owned(),
            "In mode `replicated` a put is answered when the write is completed, without a sync: \
             the copies on other nodes protect it from a power cut of one node. Here is one node, \
             so its durability is that of the write."
                .to_owned(),
        ];
        if self.long_window > self.window {
            notes.push(format!(
                "Settings of an interval above {} have one round of {}, all others {} rounds of \
                 {}.",
                time(self.window),
                time(self.long_window),
                self.rounds,
                time(self.window)
            ));
        }
        notes
    }
}

/// A setting with a number of clients.
pub(super) struct Cell {
    setting: Setting,
    clients: usize,
    rounds: Vec<Round>,
}

struct Round {
    /// Puts and gets.
    all: Samples,
    puts: Samples,
    gets: Samples,
    syncs: u64,
    checkpoints: u64,
}

/// Measures all settings that are justified here.
pub(super) async fn measure(context: &Context<'_>, plan: &Plan) -> Result<Vec<Cell>> {
    let justified = plan.settings.iter().filter(|one| one.refused(context.settings).is_none());
    let justified: Vec<Setting> = justified.copied().collect();
    let mut cells: Vec<Cell> = justified
        .iter()
        .flat_map(|setting| plan.clients.iter().map(|clients| (*setting, *clients)))
        .map(|(setting, clients)| Cell { setting, clients, rounds: Vec::new() })
        .collect();
    let Some(first) = justified.first() else { return Ok(cells) };
    let engine = context.engine(NAME, plan.bytes, |boot| first.options(boot, 1)).await?;
    let log = EngineLog::start(engine, plan.retain_bytes());
    context.step("writing the keys")?;
    let payloads = Payloads::new(1, 1);
    let keys = fill(context, plan, &log, &payloads).await?;
    close(log).await?;
    let mut boot_nonce = 1;
    for round in 0..plan.rounds {
        for setting in justified.iter().filter(|setting| round < plan.rounds_of(setting)) {
            context.step(&format!("round {} of {}: {}", round + 1, plan.rounds, setting.name()))?;
            boot_nonce += 1;
            let path = context.place.path(NAME);
            let options = |boot| setting.options(boot, boot_nonce);
            let engine = open_engine_with(&path, Backend::Auto, options).await?;
            let log = EngineLog::start(engine, plan.retain_bytes());
            let load = Mix { log: &log, payloads: &payloads, keys, seed: boot_nonce };
            for cell in cells.iter_mut().filter(|cell| cell.setting == *setting) {
                context.stop.check()?;
                let window = plan.window_of(setting);
                let measured = load.round(context, cell.clients, plan.warm_up, window).await;
                cell.rounds.push(measured.with_context(|| setting.row(cell.clients))?);
            }
            close(log).await?;
        }
    }
    context.place.remove(NAME)?;
    Ok(cells)
}

/// Closes the engine so that the next open finds everything applied.
async fn close(log: EngineLog) -> Result<()> {
    log.engine().checkpoint().await?;
    Ok(log.engine().close().await?)
}

/// A key by its number: 16 bytes, neighbours far apart.
fn key(number: u64) -> Bytes {
    // An odd factor makes this a bijection.
    Bytes::from(format!("{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

struct Fill {
    log: EngineLog,
    payloads: Payloads,
    next: Arc<AtomicU64>,
    until: Instant,
    rng: StdRng,
}

impl Worker for Fill {
    async fn step(&mut self) -> Result<()> {
        if Instant::now() >= self.until {
            return Ok(());
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let value = self.payloads.value(&mut self.rng, VALUE_BYTES);
        self.log.put(key(number), value).await
    }
}

/// Writes the keys, as many as the time allows, and returns how many.
async fn fill(
    context: &Context<'_>,
    plan: &Plan,
    log: &EngineLog,
    payloads: &Payloads,
) -> Result<u64> {
    let next = Arc::new(AtomicU64::new(0));
    let until = Instant::now() + plan.fill_limit;
    let workers = (0..FILL_CLIENTS as u64).map(|seed| Fill {
        log: log.clone(),
        payloads: payloads.clone(),
        next: Arc::clone(&next),
        until,
        rng: StdRng::seed_from_u64(seed),
    });
    let limit = Limit::Operations(plan.keys());
    drive_until(workers.collect(), limit, &context.stop).await.context("writing the keys")?;
    Ok(next.load(Ordering::Relaxed))
}

/// Puts and gets in equal numbers.
struct Mix<'a> {
    log: &'a EngineLog,
    payloads: &'a Payloads,
    keys: u64,
    seed: u64,
}

impl Mix<'_> {
    async fn round(
        &self,
        context: &Context<'_>,
        clients: usize,
        warm_up: Duration,
        measured: Duration,
    ) -> Result<Round> {
        let from = Instant::now() + warm_up;
        let until = from + measured;
        let kinds = Arc::new(Kinds {
            from,
            until,
            puts: Mutex::new(Samples::new()?),
            gets: Mutex::new(Samples::new()?),
        });
        let workers = (0..clients as u64).map(|client| MixedClient {
            log: self.log.clone(),
            payloads: self.payloads.clone(),
            keys: self.keys,
            rng: StdRng::seed_from_u64(self.seed ^ (client << 32)),
            kinds: Arc::clone(&kinds),
        });
        let counters = tokio::spawn(counters(self.log.engine().clone(), from, until));
        let limit = Limit::Time { warm_up, measured };
        let driven = drive_until(workers.collect(), limit, &context.stop).await;
        let all = driven.inspect_err(|_| counters.abort())?;
        let (syncs, checkpoints) = counters.await.context("the counters' task ended early")?;
        let taken = |samples: &Mutex<Samples>| {
            let samples = samples.lock().unwrap_or_else(PoisonError::into_inner).clone();
            Samples { elapsed: measured, ..samples }
        };
        Ok(Round { all, puts: taken(&kinds.puts), gets: taken(&kinds.gets), syncs, checkpoints })
    }
}

/// Syncs and checkpoints that end in a time.
async fn counters(engine: Engine, from: Instant, until: Instant) -> (u64, u64) {
    let now = || {
        let status = engine.status();
        // A sync is two calls: of the data area and of the journal.
        (status.syncs / 2, status.checkpoints)
    };
    tokio::time::sleep_until(from.into()).await;
    let (syncs, checkpoints) = now();
    tokio::time::sleep_until(until.into()).await;
    let (syncs_after, checkpoints_after) = now();
    (syncs_after.saturating_sub(syncs), checkpoints_after.saturating_sub(checkpoints))
}

/// What the clients measured, the two kinds apart.
struct Kinds {
    from: Instant,
    until: Instant,
    puts: Mutex<Samples>,
    gets: Mutex<Samples>,
}

impl Kinds {
    fn answered(&self, kind: &Mutex<Samples>, sent: Instant) {
        let now = Instant::now();
        if now < self.from || now >= self.until {
            return;
        }
        let latency_ns = u64::try_from((now - sent).as_nanos()).unwrap_or(u64::MAX);
        let mut samples = kind.lock().unwrap_or_else(PoisonError::into_inner);
        samples.latencies.saturating_record(latency_ns.max(1));
        samples.answered += 1;
    }
}

struct MixedClient {
    log: EngineLog,
    payloads: Payloads,
    keys: u64,
    rng: StdRng,
    kinds: Arc<Kinds>,
}

impl Worker for MixedClient {
    async fn step(&mut self) -> Result<()> {
        let key = key(self.rng.random_range(0..self.keys));
        if self.rng.random_bool(0.5) {
            let value = self.payloads.value(&mut self.rng, VALUE_BYTES);
            let sent = Instant::now();
            self.log.put(key, value).await?;
            self.kinds.answered(&self.kinds.puts, sent);
        } else {
            let sent = Instant::now();
            self.log.get(&key).await?.context("a written key is not there")?;
            self.kinds.answered(&self.kinds.gets, sent);
        }
        Ok(())
    }
}

/// The table. `direct` is whether writes bypass the page cache.
pub(super) fn table(plan: &Plan, settings: &Settings, cells: &[Cell], direct: bool) -> Table {
    let mut table = Table::new(TITLE, &COLUMNS);
    for setting in &plan.settings {
        if let Some(reason) = setting.refused(settings) {
            for count in plan.clients {
                table.not_made(setting.row(*count), &*reason);
            }
        }
        let answered_by = match (setting.mode, direct) {
            (Mode::Sync, _) => "disk",
            (_, true) => "device",
            (_, false) => "page cache",
        };
        for cell in cells.iter().filter(|cell| cell.setting == *setting) {
            table.measured(setting.row(cell.clients), answered_by, figures(&cell.rounds));
        }
    }
    table
}

fn figures(rounds: &[Round]) -> Vec<Option<Figure>> {
    let each = |of: &dyn Fn(&Round) -> f64| spread(&rounds.iter().map(of).collect::<Vec<_>>());
    let per_second = |round: &Round, count: u64| count as f64 / round.all.elapsed.as_secs_f64();
    vec![
        each(&|round| round.puts.rate()),
        each(&|round| round.puts.quantile_us(0.5)),
        each(&|round| round.puts.quantile_us(0.99)),
        each(&|round| round.gets.quantile_us(0.5)),
        each(&|round| round.gets.quantile_us(0.99)),
        each(&|round| per_second(round, round.syncs)),
        each(&|round| per_second(round, round.checkpoints)),
        each(&|round| round.all.under_way()),
    ]
}

/// Little's law for each cell, puts and gets together.
pub(super) fn checks(cells: &[Cell]) -> Vec<Check> {
    let check = |cell: &Cell| {
        let all: Vec<Samples> = cell.rounds.iter().map(|round| round.all.clone()).collect();
        little_check(&cell.setting.row(cell.clients), &all, cell.clients)
    };
    cells.iter().map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::tests::settings;

    #[test]
    fn the_default_is_that_of_the_engine() {
        let boot = cairn_engine::io::boot_id().unwrap();
        let default = Options::new(Mode::Replicated, boot, 1);
        assert_eq!(Setting::DEFAULT.interval, default.sync_interval);
        assert_eq!(Setting::DEFAULT.bytes, default.sync_bytes);
        assert_eq!(Setting::DEFAULT.row(1000), "replicated, 1 s, 64 MiB, 1,000 clients");
        assert_eq!(Setting::SYNC.row(1), "sync, 1 client");
    }

    #[test]
    fn a_quick_run_measures_the_corners_a_full_run_all_pairs() {
        let quick = Setting::all(true);
        let full = Setting::all(false);
        assert_eq!((quick.len(), full.len()), (6, 10));
        assert!(quick.iter().all(|setting| full.contains(setting)));
        let names: std::collections::BTreeSet<String> = full.iter().map(Setting::name).collect();
        assert_eq!(names.len(), full.len());
    }

    #[test]
    fn a_window_is_longer_than_the_interval_in_a_full_run() {
        let plan = Plan::new(&Settings { quick: false, ..settings() });
        for setting in &plan.settings {
            assert!(plan.window_of(setting) > setting.interval);
        }
        assert_eq!(plan.rounds_of(&Setting::pair(10_000, 4)), 1);
        assert_eq!(plan.rounds_of(&Setting::SYNC), plan.rounds);
    }

    #[test]
    fn keys_differ() {
        let keys: std::collections::BTreeSet<Bytes> = (0..5000).map(key).collect();
        assert_eq!(keys.len(), 5000);
        assert!(keys.iter().all(|key| key.len() == 16));
    }
}
