//! The run: the rows of four tables, measured in alternating rounds.
//!
//! What holds here: the rows of a phase alternate, and every second round runs them in the reverse
//! order. What a row leaves to the background ends before the next row, outside of the measured time.
//! Gets come first, when all values lie where the preload and its end put them.

use crate::places::{self, Made, Places};
use crate::plan::{DEPTHS, LEAST_ROUNDS, Plan};
use crate::sides::{Load, Side};
use crate::values::{KEY_BYTES, Values};
use anyhow::{Context, Result, ensure};
use cairn_experiments::{
    Check, FileStore, FileSync, Place, Samples, Stop, Stopped, Table, median, spread,
    sync_filesystem,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// The part of the time that gets may take.
const GETS: f64 = 0.4;
/// What keeps the objects of rows that put. Rows that differ in what they sync share one.
const STORES: [&str; 7] = [
    "Cairn, replicated",
    "Cairn, sync",
    "RocksDB",
    "RocksDB, tables O_DIRECT",
    "redb",
    "fjall",
    "a file for each object",
];
/// The run ends rather than leave less than this on the filesystem.
const SPARE_BYTES: u64 = 1 << 30;
/// The most by which rate × mean latency may differ from the number of requests under way.
const LITTLE_TOLERANCE: f64 = 0.15;

/// What the run found.
#[derive(Serialize)]
pub struct Output {
    /// What was measured, and the versions and settings of the peers.
    pub settings: BTreeMap<String, String>,
    /// The figures.
    pub tables: Vec<Table>,
    /// What must hold if the figures are to be believed.
    pub checks: Vec<Check>,
    /// What a reader must know to believe them.
    pub notes: Vec<String>,
}

/// Bytes of all rounds.
#[derive(Clone, Copy, Default)]
struct Written {
    /// By the kernel's count.
    to_files: u64,
    /// Of values.
    of_values: u64,
    /// Whether some of the work in the background did not end in time, so that bytes are missing.
    incomplete: bool,
}

impl Written {
    fn add(&mut self, other: Written) {
        self.to_files += other.to_files;
        self.of_values += other.of_values;
        self.incomplete |= other.incomplete;
    }
}

/// A row of a table.
struct Row {
    name: String,
    answered_by: String,
    side: Made<Side>,
    depth: usize,
    rounds: Vec<Samples>,
    written: Written,
}

impl Row {
    fn new(name: &str, answered_by: &str, side: Made<Side>) -> Row {
        Row {
            name: name.to_owned(),
            answered_by: answered_by.to_owned(),
            side,
            depth: 1,
            rounds: Vec::new(),
            written: Written::default(),
        }
    }

    /// The one of [`STORES`] that has its objects; empty if none has.
    fn store(&self) -> &'static str {
        // A longer name may begin with a shorter one.
        let direct = self.name.starts_with("RocksDB") && self.name.ends_with("O_DIRECT");
        let found = STORES.iter().find(|store| match **store {
            "RocksDB, tables O_DIRECT" => direct,
            "RocksDB" => !direct && self.name.starts_with("RocksDB"),
            store => self.name.starts_with(store),
        });
        found.copied().unwrap_or_default()
    }

    /// Whether its requests wait in threads for a lock that need not be fair.
    fn is_of_threads(&self) -> bool {
        !matches!(self.side, Ok(Side::EnginePuts(_) | Side::EngineGets(_) | Side::RawReads(_)))
    }

    /// Rate × mean latency.
    fn under_way(&self) -> f64 {
        median(&self.rounds.iter().map(Samples::under_way).collect::<Vec<_>>())
    }

    /// Whether rate × mean latency is the number of requests under way (Little's law). If it is
    /// less, some requests were not answered within a round, and the latencies are those of the
    /// others.
    fn waits_are_known(&self) -> bool {
        // Not a number is not within.
        (self.under_way() / self.depth as f64 - 1.0).abs() <= LITTLE_TOLERANCE
    }
}

/// Runs the plan. What it makes is removed when this returns, and when the future is dropped.
///
/// # Errors
/// The first failure; `Stopped`.
pub async fn run(plan: &Plan, stop: &Stop) -> Result<Output> {
    let began = Instant::now();
    std::fs::create_dir_all(&plan.dir).with_context(|| plan.dir.display().to_string())?;
    let place = Place::make(&plan.dir, plan.bytes())?;
    let values = Values::new(plan.keys, plan.value_bytes);
    let places = places::make(plan, &values, &place, stop).await?;
    let mut settings = settings(plan);
    settings.extend(places.peers());

    let (mut gets, mut puts) = (Vec::new(), Vec::new());
    for depth in DEPTHS {
        gets.extend(get_rows(&places).into_iter().map(|row| Row { depth, ..row }));
        puts.extend(put_rows(&places, plan, depth)?.into_iter().map(|row| Row { depth, ..row }));
    }
    let phase = Phase { plan, values: &values, folder: &place.path(""), stop };
    let left = plan.time.saturating_sub(began.elapsed());
    let gets_end = Instant::now() + left.mul_f64(GETS);
    phase.rounds("get", &mut gets, gets_end).await?;
    phase.rounds("put", &mut puts, began + plan.time).await?;

    let mut tables = Vec::new();
    for (what, rows) in [("Puts", &puts), ("Uncached gets", &gets)] {
        for depth in DEPTHS {
            let title = format!("{what} of {} B, {depth} under way", plan.value_bytes);
            tables.push(table(title, rows.iter().filter(|row| row.depth == depth)));
        }
    }
    tables.push(phase.written(&puts).await?);
    let checks = gets.iter().chain(&puts).flat_map(checks).collect();
    let mut notes = notes(plan);
    notes.extend(gets.iter().chain(&puts).filter_map(starved));
    drop((gets, puts));
    places.close().await?;
    drop(place);
    settings.insert("seconds of the run".to_owned(), began.elapsed().as_secs().to_string());
    Ok(Output { settings, tables, checks, notes })
}

fn settings(plan: &Plan) -> BTreeMap<String, String> {
    let limit = format!("{} of {:?}", plan.rounds, plan.limit());
    [
        ("value bytes", plan.value_bytes.to_string()),
        ("key bytes", KEY_BYTES.to_string()),
        ("keys, all put before the rounds", plan.keys.to_string()),
        ("rounds", limit),
        ("quick", plan.quick.to_string()),
        (
            "Cairn",
            format!(
                "{}, engine of {} MiB",
                crate::store::locked("cairn-engine"),
                plan.engine_bytes() >> 20
            ),
        ),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

fn get_rows(places: &Places) -> Vec<Row> {
    let device = "device";
    #[cfg(feature = "rocksdb")]
    let rocks = places.direct_gets.clone().map(Side::RocksGets);
    #[cfg(not(feature = "rocksdb"))]
    let rocks = places.direct.clone().and_then(|_| Err("this build is without RocksDB".to_owned()));
    let files = places.files.clone().and_then(|folder| {
        places.o_direct.clone()?;
        let made = FileStore::make(&folder, true, FileSync::Nothing);
        made.map_err(|error| format!("{error:#}"))
    });
    let raw_file = places.raw.clone().map(|(_, file)| Side::FileReads(file));
    let raw_device = places.raw.clone().map(|(device, _)| Side::RawReads(device));
    let no_direct = |peer: &str| Err(format!("{peer} has no direct reads"));
    vec![
        Row::new("raw random 4 KiB reads, threads", device, raw_file),
        Row::new("raw random 4 KiB reads, as Cairn reads", device, raw_device),
        Row::new("Cairn", device, places.replicated.clone().map(Side::EngineGets)),
        Row::new("RocksDB, direct reads", device, rocks),
        Row::new("redb", "", no_direct("redb")),
        Row::new("fjall", "", no_direct("fjall")),
        Row::new("a file for each object, O_DIRECT", device, files.map(Side::FileGets)),
    ]
}

fn put_rows(places: &Places, plan: &Plan, depth: usize) -> Result<Vec<Row>> {
    let store = |store: &Made<_>, synced, grouped| -> Made<Side> {
        if grouped && depth == 1 {
            return Err("one put under way has none to be committed with".to_owned());
        }
        let store = store.clone()?;
        Ok(Side::StorePuts { store, synced, grouped })
    };
    let background = "device; disk within 1 s or 64 MiB, in the background";
    let (rocks, direct) = (&places.rocks, &places.direct);
    let (redb, fjall) = (&places.redb, &places.fjall);
    let (disk, cache, memory) = ("disk", "page cache", "memory of the process");
    let mut rows = vec![
        Row::new("Cairn, replicated", background, places.replicated.clone().map(Side::EnginePuts)),
        Row::new("Cairn, sync", disk, places.synced.clone().map(Side::EnginePuts)),
        Row::new("RocksDB, WAL synced", disk, store(rocks, true, false)),
        Row::new("RocksDB, WAL synced, tables O_DIRECT", disk, store(direct, true, false)),
        Row::new("RocksDB, WAL not synced", cache, store(rocks, false, false)),
        Row::new("RocksDB, WAL not synced, tables O_DIRECT", cache, store(direct, false, false)),
        Row::new("redb, durable", disk, store(redb, true, false)),
        Row::new("redb, durable, one commit for all that wait", disk, store(redb, true, true)),
        Row::new("redb, not durable", memory, store(redb, false, false)),
        Row::new("fjall, journal synced", disk, store(fjall, true, false)),
        Row::new(
            "fjall, journal synced, one sync for all that wait",
            disk,
            store(fjall, true, true),
        ),
        Row::new("fjall, journal not synced", cache, store(fjall, false, false)),
    ];
    for direct in [false, true] {
        for sync in [FileSync::File, FileSync::Nothing] {
            rows.push(file_row(places, plan, direct, sync)?);
        }
    }
    Ok(rows)
}

fn file_row(places: &Places, plan: &Plan, direct: bool, sync: FileSync) -> Result<Row> {
    let how = if direct { "O_DIRECT" } else { "buffered" };
    let synced = if sync == FileSync::Nothing { "no fsync" } else { "fsync of the file" };
    let answered_by = match (direct, sync) {
        (true, FileSync::Nothing) => "device, but the file is known in memory only",
        (_, sync) => sync.answered_by(),
    };
    let side = places.files.clone().and_then(|folder| {
        if direct {
            places.o_direct.clone()?;
            if !plan.value_bytes.is_multiple_of(4096) {
                return Err("O_DIRECT writes whole blocks, and these values are none".to_owned());
            }
        }
        let made = FileStore::make(&folder, direct, sync);
        made.map(Side::FilePuts).map_err(|error| format!("{error:#}"))
    });
    Ok(Row::new(&format!("a file for each object, {how}, {synced}"), answered_by, side))
}

struct Phase<'a> {
    plan: &'a Plan,
    values: &'a Values,
    folder: &'a Path,
    stop: &'a Stop,
}

impl Phase<'_> {
    /// Measures the rows in alternating rounds, until another one would not end in time.
    async fn rounds(&self, what: &str, rows: &mut [Row], until: Instant) -> Result<()> {
        for round in 0..self.plan.rounds {
            let began = Instant::now();
            let mut ordered: Vec<&mut Row> = rows.iter_mut().collect();
            if round % 2 == 1 {
                ordered.reverse();
            }
            for row in ordered {
                let name = format!("{what}, {} under way: {}", row.depth, row.name);
                self.one(row, round).await.context(name)?;
            }
            let (took, of) = (began.elapsed(), self.plan.rounds);
            eprintln!("{what}s: round {} of {of} in {:.1} s", round + 1, took.as_secs_f64());
            if Instant::now() + took > until {
                break;
            }
        }
        Ok(())
    }

    async fn one(&self, row: &mut Row, round: usize) -> Result<()> {
        let Ok(side) = &row.side else { return Ok(()) };
        if self.stop.is_set() {
            return Err(Stopped.into());
        }
        let load = Load {
            depth: row.depth,
            limit: self.plan.limit(),
            seed: round as u64 + 1,
            stop: self.stop.clone(),
        };
        let before = written_bytes()?;
        let samples = side.round(self.values, &load).await?;
        let settled = side.settle().await?;
        sync_filesystem(self.folder).await?;
        let free = cairn_engine::io::free_space(self.folder).context("free space")?.free_bytes;
        ensure!(free >= SPARE_BYTES, "only {} MiB are free", free >> 20);
        row.written.add(Written {
            to_files: written_bytes()?.saturating_sub(before),
            of_values: samples.answered.saturating_mul(self.plan.value_bytes as u64),
            incomplete: !settled,
        });
        row.rounds.push(samples);
        Ok(())
    }

    /// What each store wrote in all rounds of its rows, and in the end.
    async fn written(&self, rows: &[Row]) -> Result<Table> {
        let title = format!("Bytes written, puts of {} B, all rounds", self.plan.value_bytes);
        let mut table = Table::new(title, &[("written", "B/B")]);
        for name in STORES {
            let of_store = || rows.iter().filter(|row| row.store() == name);
            let Some(first) = of_store().next() else { continue };
            let side = match &first.side {
                Ok(side) => side,
                Err(reason) => {
                    table.not_made(name, reason);
                    continue;
                }
            };
            let before = written_bytes()?;
            let incomplete = !side.finish().await.context(name)?;
            sync_filesystem(self.folder).await?;
            let to_files = written_bytes()?.saturating_sub(before);
            let mut written = Written { to_files, of_values: 0, incomplete };
            of_store().for_each(|row| written.add(row.written));
            if written.incomplete {
                table.not_made(name, "its work in the background did not end in time");
                continue;
            }
            let figure = written.to_files as f64 / written.of_values as f64;
            table.measured(name, "disk", vec![spread(&[figure])]);
        }
        Ok(table)
    }
}

/// Bytes that this process had written to filesystems.
fn written_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/io").context("/proc/self/io")?;
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|bytes| bytes.trim().parse().ok()).context("/proc/self/io has no write_bytes")
}

fn table<'a>(title: String, rows: impl Iterator<Item = &'a Row>) -> Table {
    let columns =
        [("rate", "/s"), ("p50", "µs"), ("p99", "µs"), ("p99.9", "µs"), ("rate × mean", "")];
    let mut table = Table::new(title, &columns);
    for row in rows {
        if let Err(reason) = &row.side {
            table.not_made(&row.name, reason);
            continue;
        }
        let each =
            |of: &dyn Fn(&Samples) -> f64| spread(&row.rounds.iter().map(of).collect::<Vec<_>>());
        let latency = |quantile| match row.waits_are_known() {
            true => each(&|samples| samples.quantile_us(quantile)),
            false => None,
        };
        let figures = vec![
            each(&Samples::rate),
            latency(0.5),
            latency(0.99),
            latency(0.999),
            each(&Samples::under_way),
        ];
        table.measured(&row.name, &row.answered_by, figures);
    }
    table
}

fn checks(row: &Row) -> Vec<Check> {
    if row.side.is_err() {
        return Vec::new();
    }
    let Row { name, depth, rounds, .. } = row;
    let mut checks = vec![Check {
        name: format!("{name}, {depth} under way: at least {LEAST_ROUNDS} rounds"),
        passed: rounds.len() >= LEAST_ROUNDS,
        found: rounds.len().to_string(),
    }];
    // A peer whose threads starve is a finding, not a failure of the bench.
    if !row.is_of_threads() {
        checks.push(Check {
            name: format!("{name}: rate × mean latency is the {depth} under way, within 15 %"),
            passed: row.waits_are_known(),
            found: format!("{:.2}", row.under_way()),
        });
    }
    checks
}

/// Why a row has no latencies.
fn starved(row: &Row) -> Option<String> {
    let Row { name, depth, .. } = row;
    (row.side.is_ok() && row.is_of_threads() && !row.waits_are_known()).then(|| {
        format!(
            "{name}: rate × mean latency is {:.1} of the {depth} under way, since some threads waited longer than a round; so its latencies are not shown",
            row.under_way()
        )
    })
}

fn notes(plan: &Plan) -> Vec<String> {
    let Plan { keys, value_bytes, .. } = plan;
    [
        format!("each of the {keys} keys was put once before the first round; a put overwrites one of them, each equally likely, with {value_bytes} random bytes"),
        "every side has the same number of requests under way: tasks for Cairn and for the raw reads through its device code, a thread for each request for the others, whose calls block".to_owned(),
        "Cairn appends each put to a log and applies it, as a node does, without replication".to_owned(),
        "rounds are short: what an LSM tree leaves to compaction ends after its round, outside of the measured time; its bytes are in the table of bytes written".to_owned(),
        "bytes written are what the kernel counts for the process in all rounds, with what is in memory written at the end and compacted, over the bytes of the values; the filesystem's own journal is not among them".to_owned(),
        "redb has no group commit and fjall syncs for each thread; the rows «for all that wait» put up to 64 waiting puts into one commit, as an application can".to_owned(),
        "values are in the tables of the LSM trees; separating them from the keys was not measured".to_owned(),
        "gets read values from the device: Cairn and RocksDB have their indexes in memory, a file is opened for each get".to_owned(),
    ]
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_that_puts_belongs_to_its_store() {
        let store = |name: &str| Row::new(name, "", Err(String::new())).store();
        for (name, found) in [
            ("Cairn, sync", "Cairn, sync"),
            ("RocksDB, WAL synced", "RocksDB"),
            ("RocksDB, WAL synced, tables O_DIRECT", "RocksDB, tables O_DIRECT"),
            ("redb, durable, one commit for all that wait", "redb"),
            ("a file for each object, O_DIRECT, no fsync", "a file for each object"),
            ("raw random 4 KiB reads, threads", ""),
        ] {
            assert_eq!(store(name), found, "{name}");
        }
    }

    #[test]
    fn a_row_whose_threads_starve_has_a_rate_and_no_latencies() {
        let mut row = Row::new("redb, durable", "disk", Err("replaced".to_owned()));
        row.depth = 100;
        let mut samples = Samples::new().unwrap();
        // 100 answers in a second of 1 ms each: 0.1 under way.
        samples.latencies.record_n(1_000_000, 100).unwrap();
        samples.elapsed = std::time::Duration::from_secs(1);
        row.rounds.push(samples);
        assert!(!row.waits_are_known());
        row.rounds[0].latencies.record_n(1_000_000_000, 100).unwrap();
        assert!(row.waits_are_known(), "{}", row.under_way());
    }
}
