//! A growing file, written through the page cache, with a sync after so many bytes.
//!
//! What holds here: each row writes a new file, in one thread. Each row but `never` ends with a
//! sync that counts, also if its time limit cut it. So all bytes that it counts are synced. The
//! limit is checked between two calls of the system.

use super::super::{Context, Settings};
use crate::measure::{Stop, spread_of};
use crate::report::{Figure, Table, size};
use anyhow::{Context as _, Result};
use cairn_engine::io::BLOCK;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

const NAME: &str = "intervals-file";
const GIB: f64 = (1u64 << 30) as f64;
const CONTENT_BYTES: usize = 1 << 20;
const WARM_UP_BYTES: u64 = 4 << 20;

pub(super) const RATE: &str = "throughput";
const SAFE: &str = "time to safety per GiB";
pub(super) const COLUMNS: [(&str, &str); 6] = [
    ("written", "MiB"),
    (RATE, "MB/s"),
    ("time per GiB", "s"),
    (SAFE, "s"),
    ("longest sync", "ms"),
    ("time in syncs", "%"),
];

/// When a row syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syncs {
    Never,
    AtEnd,
    /// After so many bytes.
    Every(u64),
}

/// The rows, the fewest syncs first.
pub(super) const ROWS: [Syncs; 7] = [
    Syncs::Never,
    Syncs::AtEnd,
    Syncs::Every(100 << 20),
    Syncs::Every(10 << 20),
    Syncs::Every(1 << 20),
    Syncs::Every(100 << 10),
    Syncs::Every(16 << 10),
];

impl Syncs {
    pub(super) fn name(self) -> String {
        match self {
            Syncs::Never => "never".to_owned(),
            Syncs::AtEnd => "at the end".to_owned(),
            Syncs::Every(bytes) => format!("every {}", size(bytes)),
        }
    }

    fn answered_by(self) -> &'static str {
        match self {
            Syncs::Never => "page cache",
            Syncs::AtEnd | Syncs::Every(_) => "disk",
        }
    }
}

/// How much to write, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Bytes of a file.
    pub bytes: u64,
    /// The time after which a row's writes end.
    pub limit: Duration,
    /// The most rounds.
    pub rounds: usize,
    /// A round after the first begins only if it will probably end within this time.
    pub budget: Duration,
}

impl Plan {
    pub(super) fn new(settings: &Settings) -> Plan {
        if settings.quick {
            let (limit, budget) = (Duration::from_millis(1200), Duration::ZERO);
            return Plan { bytes: 32 << 20, limit, rounds: 1, budget };
        }
        Plan {
            bytes: (settings.size_bytes / 2).min(1 << 30),
            limit: Duration::from_secs(15),
            rounds: 3,
            budget: Duration::from_secs(150),
        }
    }

    /// The most time, on a disk that writes so many bytes in `fill`. The page cache may hold the
    /// whole file when the first two rows sync it. The other rows have at most one interval
    /// unsynced when they are cut.
    pub(super) fn bound(&self, fill: impl Fn(u64) -> Duration) -> Duration {
        let rest: u64 = ROWS.iter().map(|row| self.most_unsynced(*row)).sum();
        let round = self.limit * ROWS.len() as u32 + fill(rest + WARM_UP_BYTES);
        round.max(self.budget)
    }

    fn most_unsynced(&self, row: Syncs) -> u64 {
        match row {
            Syncs::Every(bytes) if self.applies(row) => bytes,
            Syncs::Every(_) => 0,
            Syncs::Never | Syncs::AtEnd => self.bytes,
        }
    }

    /// Whether a row differs from `at the end`.
    fn applies(&self, row: Syncs) -> bool {
        !matches!(row, Syncs::Every(bytes) if bytes >= self.bytes)
    }

    pub(super) fn title(&self) -> String {
        format!("Time to write {} in 4 KiB writes", size(self.bytes))
    }
}

/// Random bytes that never repeat within a block.
struct Content {
    bytes: Vec<u8>,
    rng: StdRng,
    at: usize,
}

impl Content {
    fn new(seed: u64) -> Content {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut bytes = vec![0; CONTENT_BYTES];
        rng.fill_bytes(&mut bytes);
        Content { bytes, rng, at: 0 }
    }

    /// The next block. Eight new bytes make it differ from all before it.
    fn block(&mut self) -> &[u8] {
        let stamp = self.rng.next_u64().to_le_bytes();
        let at = self.at;
        self.at = (at + BLOCK) % CONTENT_BYTES;
        let Some(block) = self.bytes.get_mut(at..at + BLOCK) else { return &[] };
        for (byte, new) in block.iter_mut().zip(stamp) {
            *byte = new;
        }
        block
    }
}

/// One row in one round.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    bytes: u64,
    time: Duration,
    /// `time`, and the sync that `never` does not count.
    until_safe: Duration,
    syncing: Duration,
    longest_sync: Duration,
}

/// Writes a new file. Blocks.
fn write(
    path: &Path,
    row: Syncs,
    plan: &Plan,
    content: &mut Content,
    stop: &Stop,
) -> Result<Written> {
    let mut file = File::create_new(path).with_context(|| path.display().to_string())?;
    let mut done = Written::default();
    let mut unsynced = 0;
    let began = Instant::now();
    let sync = |file: &File, done: &mut Written| -> Result<()> {
        let from = Instant::now();
        file.sync_data().context("fdatasync")?;
        let took = from.elapsed();
        done.syncing += took;
        done.longest_sync = done.longest_sync.max(took);
        Ok(())
    };
    while done.bytes < plan.bytes && began.elapsed() < plan.limit {
        stop.check()?;
        let block = content.block();
        file.write_all(block).with_context(|| format!("writing {}", path.display()))?;
        done.bytes += block.len() as u64;
        unsynced += block.len() as u64;
        if matches!(row, Syncs::Every(bytes) if unsynced >= bytes) {
            sync(&file, &mut done)?;
            unsynced = 0;
        }
    }
    if unsynced > 0 && row != Syncs::Never {
        sync(&file, &mut done)?;
    }
    done.time = began.elapsed();
    if row == Syncs::Never {
        file.sync_data().context("fdatasync")?;
    }
    done.until_safe = began.elapsed();
    Ok(done)
}

/// The table, and a note for what the limit cut.
pub(super) async fn measure(context: &Context<'_>, plan: &Plan) -> Result<(Table, Vec<String>)> {
    let warm_up = Plan { bytes: WARM_UP_BYTES.min(plan.bytes), ..*plan };
    context.step("warm-up: writing a file")?;
    let mut content = Content::new(1);
    (_, content) = written(context, Syncs::AtEnd, &warm_up, content).await?;
    let mut measured: Vec<(Syncs, Vec<Written>)> =
        ROWS.iter().map(|row| (*row, Vec::new())).collect();
    let began = Instant::now();
    let mut last_round = Duration::ZERO;
    for round in 0..plan.rounds {
        if round > 0 && began.elapsed() + last_round > plan.budget {
            break;
        }
        let from = Instant::now();
        for (row, rounds) in measured.iter_mut().filter(|(row, _)| plan.applies(*row)) {
            let name = row.name();
            context.step(&format!("round {} of {}: sync {name}", round + 1, plan.rounds))?;
            let done;
            (done, content) = written(context, *row, plan, content).await?;
            rounds.push(done);
        }
        last_round = from.elapsed();
    }
    Ok((table(plan, &measured), notes(plan, &measured)))
}

async fn written(
    context: &Context<'_>,
    row: Syncs,
    plan: &Plan,
    mut content: Content,
) -> Result<(Written, Content)> {
    let (path, plan, stop) = (context.place.path(NAME), *plan, context.stop.clone());
    let write = move || {
        let done = write(&path, row, &plan, &mut content, &stop)?;
        anyhow::Ok((done, content))
    };
    let done = tokio::task::spawn_blocking(write).await.context("the writer ended early")??;
    context.place.remove(NAME)?;
    Ok(done)
}

fn table(plan: &Plan, measured: &[(Syncs, Vec<Written>)]) -> Table {
    let mut table = Table::new(plan.title(), &COLUMNS);
    for (row, rounds) in measured {
        match plan.applies(*row) {
            true => table.measured(row.name(), row.answered_by(), figures(*row, rounds)),
            false => table.not_made(
                row.name(),
                format!("the file has {}: the same as `at the end`", size(plan.bytes)),
            ),
        }
    }
    table
}

fn figures(row: Syncs, rounds: &[Written]) -> Vec<Option<Figure>> {
    let each = |of: &dyn Fn(&Written) -> f64| spread_of(rounds, of);
    let per_gib = |time: Duration, bytes: u64| time.as_secs_f64() * GIB / bytes as f64;
    let syncs = row != Syncs::Never;
    vec![
        each(&|done| done.bytes as f64 / f64::from(1 << 20)),
        each(&|done| done.bytes as f64 / done.time.as_secs_f64() / 1e6),
        each(&|done| per_gib(done.time, done.bytes)),
        each(&|done| per_gib(done.until_safe, done.bytes)),
        each(&|done| done.longest_sync.as_secs_f64() * 1e3).filter(|_| syncs),
        each(&|done| done.syncing.as_secs_f64() / done.time.as_secs_f64() * 100.0)
            .filter(|_| syncs),
    ]
}

fn notes(plan: &Plan, measured: &[(Syncs, Vec<Written>)]) -> Vec<String> {
    let cut = |rounds: &[Written]| rounds.iter().any(|done| done.bytes < plan.bytes);
    let cut = measured.iter().filter(|(_, rounds)| cut(rounds)).map(|(row, _)| row.name());
    let cut: Vec<String> = cut.collect();
    let mut notes = vec![
        "One thread writes a new file of random bytes through the page cache, as the source did. \
         The file grows, so a sync also commits the filesystem's metadata. Every row but `never` \
         ends with a sync that counts."
            .to_owned(),
        "`never` measures the page cache, at least in part: a power cut after its last answer loses \
         data. The same holds for the source's 7 GB/s. Its `time to safety` contains a final sync; \
         its other figures do not."
            .to_owned(),
    ];
    if (plan.bytes as f64) < GIB {
        notes.push(format!(
            "The file has {}, so all times per GiB are extrapolated.",
            size(plan.bytes)
        ));
    }
    if !cut.is_empty() {
        notes.push(format!(
            "The time limit of {} s cut these rows, so their time per GiB is extrapolated: {}.",
            plan.limit.as_secs_f64(),
            cut.join(", ")
        ));
    }
    notes
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub const PLAN: Plan =
        Plan { bytes: 1 << 30, limit: Duration::from_secs(15), rounds: 1, budget: Duration::ZERO };

    /// A table in which each row writes its rate in a second.
    pub fn rates(rates: [u64; 7]) -> Table {
        let one = |rate: u64| Written {
            bytes: rate * 1_000_000,
            time: Duration::from_secs(1),
            until_safe: Duration::from_secs(2),
            syncing: Duration::from_millis(250),
            longest_sync: Duration::from_millis(3),
        };
        let measured: Vec<_> =
            ROWS.iter().zip(rates).map(|(row, rate)| (*row, vec![one(rate)])).collect();
        table(&PLAN, &measured)
    }

    #[test]
    fn never_has_no_sync_but_a_time_to_safety() {
        let table = rates([1000; 7]);
        let value = |row: &str, column| table.value(row, column);
        assert_eq!(value("never", "longest sync"), None);
        assert_eq!(value("never", "time in syncs"), None);
        assert_eq!(value("at the end", "time in syncs"), Some(25.0));
        assert_eq!(value("at the end", "longest sync"), Some(3.0));
        assert!(value("never", SAFE) > value("never", "time per GiB"));
        assert_eq!(table.rows[0].answered_by, "page cache");
    }

    #[test]
    fn a_row_writes_all_bytes_or_is_cut_and_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let mut content = Content::new(1);
        let stop = Stop::default();
        for (limit, bytes) in [(Duration::from_secs(60), 256 << 10), (Duration::ZERO, 0)] {
            let plan = Plan { bytes: 256 << 10, limit, ..PLAN };
            let mut measured = Vec::new();
            for row in ROWS {
                let path = folder.path().join(format!("{bytes}-{}", row.name()));
                let done = write(&path, row, &plan, &mut content, &stop).unwrap();
                assert_eq!(done.bytes, bytes);
                assert_eq!(path.metadata().unwrap().len(), bytes);
                measured.push((row, vec![done]));
            }
            let cut = notes(&plan, &measured).iter().any(|note| note.contains("cut these rows"));
            assert_eq!(cut, bytes == 0);
        }
        stop.set();
        let path = folder.path().join("stopped");
        assert!(write(&path, Syncs::AtEnd, &PLAN, &mut content, &stop).is_err());
    }

    #[test]
    fn a_file_of_less_than_a_gib_says_that_its_figures_are_extrapolated() {
        let says = |bytes: u64| {
            let notes = notes(&Plan { bytes, ..PLAN }, &[]);
            notes.iter().any(|note| note.contains("all times per GiB are extrapolated"))
        };
        assert!(says(32 << 20) && !says(1 << 30));
    }

    #[test]
    fn blocks_differ_after_the_buffer_was_used_up() {
        let mut content = Content::new(1);
        let blocks: std::collections::BTreeSet<Vec<u8>> =
            (0..2 * CONTENT_BYTES / BLOCK).map(|_| content.block().to_vec()).collect();
        assert_eq!(blocks.len(), 2 * CONTENT_BYTES / BLOCK);
        assert!(blocks.iter().all(|block| block.len() == BLOCK));
    }
}
