//! The clients of a bench.

use super::keys::Keys;
use crate::cli::output::millis;
use bytes::Bytes;
use cairn_client::{Client, Error, ReadOptions};
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Longest latency that is recorded exactly, in microseconds.
const LATENCY_MAX_US: u64 = 120_000_000;
const TICK: Duration = Duration::from_millis(200);
/// Values are slices of one random block at random offsets, so that none equals the one before.
const RANDOM_SLACK: usize = 64 << 10;

/// So many kinds of errors are told apart.
const ERROR_KINDS: usize = 32;
const OTHER_ERRORS: &str = "other errors";

/// What to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub clients: u32,
    pub size: usize,
    pub puts_percent: u32,
    pub bound: Bound,
    pub stale: bool,
    pub seed: u64,
}

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bound {
    Time(Duration),
    Count(u64),
}

/// The latencies and errors of one kind of request.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    pub latency_us: Histogram<u64>,
    pub errors: BTreeMap<String, u64>,
}

/// The result.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub elapsed: Duration,
    pub puts: Kind,
    pub gets: Kind,
    pub gets_found: u64,
}

impl Kind {
    fn new() -> anyhow::Result<Kind> {
        Ok(Kind {
            latency_us: Histogram::new_with_bounds(1, LATENCY_MAX_US, 3)?,
            errors: BTreeMap::new(),
        })
    }

    fn record(&mut self, took: Duration, result: Result<(), Error>) {
        match result {
            Ok(()) => {
                self.latency_us
                    .saturating_record(u64::try_from(took.as_micros()).unwrap_or(LATENCY_MAX_US));
            }
            Err(error) => self.failed(kind_of(&error.to_string()), 1),
        }
    }

    fn failed(&mut self, kind: String, times: u64) {
        let known = self.errors.contains_key(&kind) || self.errors.len() < ERROR_KINDS;
        let kind = if known { kind } else { OTHER_ERRORS.to_owned() };
        *self.errors.entry(kind).or_default() += times;
    }

    fn add(&mut self, other: &Kind) -> anyhow::Result<()> {
        self.latency_us.add(&other.latency_us)?;
        for (error, count) in &other.errors {
            self.failed(error.clone(), *count);
        }
        Ok(())
    }
}

/// Errors that differ in a number only are of one kind: it is `N` there.
fn kind_of(error: &str) -> String {
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let words = error.split(' ').map(|word| if is_number(word) { "N" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

impl Measured {
    fn nothing() -> anyhow::Result<Measured> {
        let (puts, gets) = (Kind::new()?, Kind::new()?);
        Ok(Measured { elapsed: Duration::ZERO, puts, gets, gets_found: 0 })
    }

    /// Whether any request failed.
    pub(super) fn failed(&self) -> bool {
        !self.puts.errors.is_empty() || !self.gets.errors.is_empty()
    }
}

struct BenchCounters {
    plan: Plan,
    keys: Arc<Keys>,
    began: Instant,
    issued: AtomicU64,
    done: AtomicU64,
    random: Bytes,
}

/// Puts every key once, so that gets find it. Not measured.
pub(super) async fn fill(plan: &Plan, keys: &Arc<Keys>, clients: &[Client]) -> anyhow::Result<()> {
    let bound = Bound::Count(keys.count());
    let puts = Plan { puts_percent: 100, bound, ..*plan };
    let filled = run(&puts, keys, clients, &ProgressBar::hidden()).await?;
    match filled.puts.errors.into_keys().next() {
        None => Ok(()),
        Some(error) => anyhow::bail!("the keys that gets need cannot be put: {error}"),
    }
}

/// Runs the plan. Each client sends its requests one after the other. They end when this is dropped.
pub(super) async fn run(
    plan: &Plan,
    keys: &Arc<Keys>,
    clients: &[Client],
    bar: &ProgressBar,
) -> anyhow::Result<Measured> {
    let mut random = vec![0; plan.size + RANDOM_SLACK];
    StdRng::seed_from_u64(plan.seed).fill_bytes(&mut random);
    let shared = Arc::new(BenchCounters {
        plan: *plan,
        keys: Arc::clone(keys),
        began: Instant::now(),
        issued: AtomicU64::new(0),
        done: AtomicU64::new(0),
        random: random.into(),
    });
    let spawned = (0..plan.clients).zip(clients.iter().cycle()).map(|(number, client)| {
        AbortOnDrop(tokio::spawn(one_client(Arc::clone(&shared), client.clone(), number)))
    });
    let tasks: Vec<_> = spawned.collect();
    let ticker = tokio::spawn(tick(Arc::clone(&shared), bar.clone()));
    let _ticker = AbortOnDrop(ticker);
    let mut measured = Measured::nothing()?;
    for mut task in tasks {
        let part = (&mut task.0).await??;
        measured.puts.add(&part.puts)?;
        measured.gets.add(&part.gets)?;
        measured.gets_found += part.gets_found;
    }
    measured.elapsed = shared.began.elapsed();
    Ok(measured)
}

/// A task that ends with its owner.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn tick(shared: Arc<BenchCounters>, bar: ProgressBar) {
    let mut before = (shared.began, 0);
    loop {
        tokio::time::sleep(TICK).await;
        let now = (Instant::now(), shared.done.load(Ordering::Relaxed));
        let seconds = (now.0 - before.0).as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "shown with no digits")]
        let rate = (now.1 - before.1) as f64 / seconds;
        bar.set_message(format!("{rate:.0}/s"));
        bar.set_position(match shared.plan.bound {
            Bound::Time(_) => millis(shared.began.elapsed()),
            Bound::Count(_) => now.1,
        });
        before = now;
    }
}

async fn one_client(
    shared: Arc<BenchCounters>,
    client: Client,
    number: u32,
) -> anyhow::Result<Measured> {
    let plan = &shared.plan;
    let mut random = StdRng::seed_from_u64(plan.seed ^ (u64::from(number) + 1).rotate_left(32));
    let mut part = Measured::nothing()?;
    let read = if plan.stale { ReadOptions::stale() } else { ReadOptions::default() };
    while go_on(&shared) {
        if random.random_range(0..100) < plan.puts_percent {
            let (key, from) = (shared.keys.next(), random.random_range(0..RANDOM_SLACK));
            let value = shared.random.slice(from..from + plan.size);
            let began = Instant::now();
            let result = client.put(key, value).await.map(|_| ());
            part.puts.record(began.elapsed(), result);
        } else {
            let key = shared.keys.key(random.random_range(0..shared.keys.count()));
            let began = Instant::now();
            let result = client.get_with(key, read).await;
            part.gets_found += u64::from(matches!(result, Ok(Some(_))));
            part.gets.record(began.elapsed(), result.map(|_| ()));
        }
        shared.done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(part)
}

fn go_on(shared: &BenchCounters) -> bool {
    match shared.plan.bound {
        Bound::Time(time) => shared.began.elapsed() < time,
        Bound::Count(count) => shared.issued.fetch_add(1, Ordering::Relaxed) < count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: requests that no node answered were thousands of kinds of errors, each with the
    /// milliseconds that it had waited.
    #[test]
    fn errors_that_differ_in_a_number_are_one_kind_and_kinds_are_bounded() {
        let mut kind = Kind::new().unwrap();
        for ms in 2500..2600 {
            kind.failed(kind_of(&format!("a:7400: no answer within {ms} ms")), 1);
        }
        assert_eq!(kind.errors, BTreeMap::from([("a:7400: no answer within N ms".into(), 100)]));
        for node in 0..100 {
            kind.failed(kind_of(&format!("node{node}:7400: refused")), 1);
        }
        assert_eq!(kind.errors.len(), ERROR_KINDS + 1);
        assert_eq!(kind.errors[OTHER_ERRORS], 100 - (ERROR_KINDS as u64 - 1));
    }
}
