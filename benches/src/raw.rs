//! The raw line: what the disk does with `O_DIRECT` at random offsets of a file of full size, by our
//! own code and by fio. The way that is fastest counts.

use crate::fio::{Access, Fio, rate_only};
use crate::report::{Line, Report, merged};
use anyhow::{Context, Result};
use cairn_engine::io::{AlignedBuf, BLOCK, Device, FileKind};
use cairn_experiments::{
    FileReader, Limit, Payloads, RawReader, RawWriter, Samples, Stop, Worker, drive,
    drive_blocking, median, raw_writes,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The file, and how many requests are under way.
pub struct RawFile {
    pub device: Arc<dyn Device>,
    /// Its folder.
    pub folder: PathBuf,
    pub depth: usize,
    pub seconds: u64,
}

impl RawFile {
    fn path(&self) -> PathBuf {
        self.folder.join(FileKind::Data.name())
    }

    fn limit(&self) -> Limit {
        let warm_up = Duration::from_millis(500);
        Limit::Time { warm_up, measured: Duration::from_secs(self.seconds) }
    }
}

/// One way to reach the file.
struct Way {
    name: String,
    rounds: Vec<Samples>,
    /// Whether only the rate is known.
    rate_only: bool,
}

/// All ways, measured in the same rounds.
pub struct RawLines {
    ways: Vec<Way>,
    access: Access,
}

impl RawLines {
    /// No rounds yet.
    pub fn new(access: Access) -> RawLines {
        RawLines { ways: Vec::new(), access }
    }

    /// One round of each way: 4 KiB requests.
    pub async fn round(&mut self, raw: &RawFile, seed: u64, report: &mut Report) -> Result<()> {
        let RawFile { device, depth, seconds, .. } = raw;
        let (depth, path, limit) = (*depth, raw.path(), raw.limit());
        let ring = match self.access {
            Access::Write => drive(RawWriter::many(device, BLOCK, depth, seed), limit).await?,
            Access::Read => drive(RawReader::many(device, depth, seed), limit).await?,
        };
        self.add("on the engine's device", ring, false);
        let threads = match self.access {
            Access::Write => {
                let blocks = device.size() / BLOCK as u64;
                raw_writes(&path, blocks, depth, false, limit).await?
            }
            Access::Read => {
                let readers = FileReader::many(&path, depth, seed)?;
                drive_blocking(readers, limit, &Stop::default()).await?
            }
        };
        self.add("a thread for each", threads, false);
        for (name, fio) in
            [("fio, io_uring", Fio::Ring), ("fio, threads", Fio::Threads { dsync: false })]
        {
            match fio.rate(&path, self.access, BLOCK, depth, *seconds).await {
                Ok(rate) => self.add(name, rate_only(rate, *seconds)?, true),
                Err(reason) => {
                    let note = format!("not measured with fio: {reason:#}");
                    if !report.notes.contains(&note) {
                        report.notes.push(note);
                    }
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, way: &str, samples: Samples, rate_only: bool) {
        let what = if self.access == Access::Write { "writes" } else { "reads" };
        let name = format!("raw 4 KiB {what}, {way}");
        match self.ways.iter_mut().find(|found| found.name == name) {
            Some(found) => found.rounds.push(samples),
            None => self.ways.push(Way { name, rounds: vec![samples], rate_only }),
        }
    }

    /// Adds the lines to a report, and returns the rounds of the fastest way by the median of its
    /// rates, with its name.
    pub fn report(&self, report: &mut Report, depth: usize) -> Result<(&str, &[Samples])> {
        let rate = |way: &Way| median(&way.rounds.iter().map(Samples::rate).collect::<Vec<_>>());
        for way in &self.ways {
            if way.rate_only {
                report.figure(&*way.name, rate(way), "per s, median");
            } else {
                report.lines.push(Line::new(&*way.name, &merged(&way.rounds)?, depth));
            }
        }
        let fastest = self.ways.iter().max_by(|a, b| rate(a).total_cmp(&rate(b)));
        fastest.map(|way| (&*way.name, &*way.rounds)).context("no round was measured")
    }

    /// The line whose latencies are to be compared with: the lowest p99 of those that know theirs.
    pub fn p99_us(&self) -> Result<f64> {
        let mut least = f64::INFINITY;
        for way in self.ways.iter().filter(|way| !way.rate_only) {
            least = least.min(merged(&way.rounds)?.quantile_us(0.99));
        }
        Ok(least)
    }
}

/// Bytes of a large write, and how many are under way.
pub const LARGE_BYTES: usize = 256 << 10;
pub const LARGE_DEPTH: usize = 16;
/// What the engine writes between two syncs.
const SYNC_BYTES: u64 = 4 << 20;

/// Large writes at random offsets, the disk's bandwidth, by the engine's device.
pub async fn large_writes(raw: &RawFile, seed: u64) -> Result<Samples> {
    drive(RawWriter::many(&raw.device, LARGE_BYTES, LARGE_DEPTH, seed), raw.limit()).await
}

/// The same as an engine has to do it: each write has bytes that came from elsewhere, and there is a
/// sync after every 4 MiB.
pub async fn large_copies(raw: &RawFile, payloads: &Payloads, seed: u64) -> Result<Samples> {
    let written = Arc::new(AtomicU64::new(0));
    let copier = |slot: usize| Copier {
        device: Arc::clone(&raw.device),
        payloads: payloads.clone(),
        buf: Some(AlignedBuf::zeroed(LARGE_BYTES)),
        rng: StdRng::seed_from_u64(seed ^ ((slot as u64) << 32)),
        written: Arc::clone(&written),
    };
    drive((0..LARGE_DEPTH).map(copier).collect(), raw.limit()).await
}

struct Copier {
    device: Arc<dyn Device>,
    payloads: Payloads,
    buf: Option<AlignedBuf>,
    rng: StdRng,
    written: Arc<AtomicU64>,
}

impl Worker for Copier {
    async fn step(&mut self) -> Result<()> {
        let mut buf = self.buf.take().context("the buffer was lost with a failed write")?;
        buf.copy_from_slice(&self.payloads.value(&mut self.rng, LARGE_BYTES));
        let bytes = buf.len() as u64;
        let place = self.rng.random_range(0..(self.device.size() / bytes).max(1));
        let (outcome, buf) = self.device.write(place * bytes, buf).await;
        outcome.context("raw write")?;
        self.buf = Some(buf);
        let before = self.written.fetch_add(bytes, Ordering::Relaxed);
        if before / SYNC_BYTES != (before + bytes) / SYNC_BYTES {
            self.device.sync().await.context("raw sync")?;
        }
        Ok(())
    }
}
