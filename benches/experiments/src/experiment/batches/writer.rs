//! Writes of 4 KiB to one file, with a sync after every so many of them.
//!
//! What holds here: a round of one writer ends after a sync, if it has any. The file is written over in place, in order and round again; only a growing
//! file is appended to. What a round leaves unsynced is synced after it, so that no row pays for
//! the row before it.

use crate::measure::{BlockingWorker, Limit, Samples, Stop, drive_blocking};
use crate::subject::{Load, Subject, stamp};
use anyhow::{Context, Result, anyhow};
use cairn_engine::io::{AlignedBuf, BLOCK};
use futures::future::BoxFuture;
use nix::libc;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The system call after the writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Fdatasync,
    Fsync,
}

/// How a row writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Manner {
    /// `O_DIRECT`.
    pub direct: bool,
    /// `O_DSYNC`.
    pub dsync: bool,
    /// What is called after how many writes.
    pub sync: Option<(Call, u64)>,
    /// Whether each write makes the file longer.
    pub growing: bool,
}

impl Manner {
    fn open(self, path: &Path) -> Result<File> {
        let mut flags = 0;
        if self.direct {
            flags |= libc::O_DIRECT;
        }
        if self.dsync {
            flags |= libc::O_DSYNC;
        }
        let mut options = OpenOptions::new();
        let file = options.write(true).custom_flags(flags).open(path);
        file.with_context(|| path.display().to_string())
    }
}

/// The latencies of the syncs in each round.
#[derive(Clone, Default)]
pub(super) struct SyncTimes(Arc<Mutex<Vec<Samples>>>);

impl SyncTimes {
    /// The median of each round; not a number for a round without a sync.
    pub(super) fn p50_us(&self) -> Vec<f64> {
        let rounds = self.0.lock().map(|rounds| rounds.clone()).unwrap_or_default();
        rounds.iter().map(|round| round.quantile_us(0.5)).collect()
    }

    fn begin(&self) -> Result<()> {
        self.0.lock().map_err(|_| anyhow!("a writer panicked"))?.push(Samples::new()?);
        Ok(())
    }

    fn add(&self, time: Duration) -> Result<()> {
        let mut rounds = self.0.lock().map_err(|_| anyhow!("a writer panicked"))?;
        if let Some(round) = rounds.last_mut() {
            round.record(time);
        }
        Ok(())
    }
}

/// One file and how it is written.
pub(super) struct FileWrites {
    file: Arc<File>,
    blocks: u64,
    manner: Manner,
    pub(super) syncs: SyncTimes,
}

impl FileWrites {
    /// Opens a file of `bytes` that is there already. A growing file never exceeds `bytes`.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn open(path: &Path, bytes: u64, manner: Manner) -> Result<FileWrites> {
        let file = Arc::new(manner.open(path)?);
        let syncs = SyncTimes::default();
        Ok(FileWrites { file, blocks: bytes / BLOCK as u64, manner, syncs })
    }

    fn writers(&self, depth: usize, seed: u64, measured_from: Instant) -> Vec<Writer> {
        let writer = |slot: u64| {
            let mut rng = StdRng::seed_from_u64(seed ^ (slot << 32));
            let mut buf = AlignedBuf::zeroed(BLOCK);
            rng.fill_bytes(&mut buf);
            Writer {
                file: Arc::clone(&self.file),
                blocks: self.blocks.max(1),
                manner: self.manner,
                syncs: self.syncs.clone(),
                measured_from,
                next: slot,
                step: depth as u64,
                unsynced: 0,
                buf,
                rng,
            }
        };
        (0..depth as u64).map(writer).collect()
    }
}

impl Subject for FileWrites {
    fn round<'a>(&'a mut self, load: &'a Load) -> BoxFuture<'a, Result<Samples>> {
        Box::pin(async move {
            if self.manner.growing {
                let file = Arc::clone(&self.file);
                let emptied = move || file.set_len(0).and_then(|()| file.sync_all());
                tokio::task::spawn_blocking(emptied).await?.context("emptying the file")?;
            }
            self.syncs.begin()?;
            let warm_up = match load.limit {
                Limit::Time { warm_up, .. } => warm_up,
                _ => Duration::ZERO,
            };
            let mut writers = self.writers(load.depth, load.seed, Instant::now() + warm_up);
            let samples = match (load.limit, load.depth, writers.pop()) {
                (Limit::Time { warm_up, measured }, 1, Some(writer)) => {
                    let stop = load.stop.clone();
                    let run = move || writer.run(warm_up, measured, &stop);
                    tokio::task::spawn_blocking(run).await??
                }
                (limit, _, last) => {
                    writers.extend(last);
                    drive_blocking(writers, limit, &load.stop).await?
                }
            };
            let file = Arc::clone(&self.file);
            let synced = tokio::task::spawn_blocking(move || file.sync_data());
            synced.await?.context("fdatasync")?;
            Ok(samples)
        })
    }
}

/// One thread that writes.
struct Writer {
    file: Arc<File>,
    blocks: u64,
    manner: Manner,
    syncs: SyncTimes,
    measured_from: Instant,
    next: u64,
    /// How far apart this writer's blocks are: there is one writer for each block between.
    step: u64,
    unsynced: u64,
    buf: AlignedBuf,
    rng: StdRng,
}

impl Writer {
    /// Writes for these times, and on until a sync ends them. A measured time that ends within a
    /// slow sync would count the writes and not what they wait for.
    fn run(mut self, warm_up: Duration, measured: Duration, stop: &Stop) -> Result<Samples> {
        let until = Instant::now() + warm_up;
        while Instant::now() < until || self.owes_a_sync() {
            stop.check()?;
            self.step()?;
        }
        let mut samples = Samples::new()?;
        let began = Instant::now();
        self.measured_from = began;
        loop {
            stop.check()?;
            let sent = Instant::now();
            self.step()?;
            let answered = Instant::now();
            samples.record(answered - sent);
            samples.elapsed = answered - began;
            if samples.elapsed >= measured && !self.owes_a_sync() {
                return Ok(samples);
            }
        }
    }

    /// Whether writes wait for the sync that they share.
    fn owes_a_sync(&self) -> bool {
        self.manner.sync.is_some() && self.unsynced > 0
    }

    fn sync(&mut self, call: Call) -> Result<()> {
        self.unsynced = 0;
        let began = Instant::now();
        match call {
            Call::Fdatasync => self.file.sync_data().context("fdatasync")?,
            Call::Fsync => self.file.sync_all().context("fsync")?,
        }
        let ended = Instant::now();
        if ended >= self.measured_from { self.syncs.add(ended - began) } else { Ok(()) }
    }
}

impl BlockingWorker for Writer {
    fn step(&mut self) -> Result<()> {
        if self.next >= self.blocks {
            self.next %= self.step;
            if self.manner.growing {
                self.file.set_len(0).context("emptying the file")?;
            }
        }
        stamp(&mut self.buf, &mut self.rng);
        self.file.write_all_at(&self.buf, self.next * BLOCK as u64).context("write")?;
        self.next += self.step;
        self.unsynced += 1;
        match self.manner.sync {
            Some((call, every)) if self.unsynced >= every => self.sync(call),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Manner = Manner { direct: false, dsync: false, sync: None, growing: false };

    fn zeros(path: &Path, bytes: u64) {
        File::create_new(path).unwrap().set_len(bytes).unwrap();
    }

    fn load(depth: usize, operations: u64) -> Load {
        Load { depth, limit: Limit::Operations(operations), seed: 1, stop: Stop::default() }
    }

    #[tokio::test]
    async fn a_sync_follows_every_so_many_writes_and_the_file_keeps_its_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        zeros(&path, 2 << 20);
        let before = std::fs::read(&path).unwrap();
        let sync = Some((Call::Fdatasync, 10));
        let mut subject = FileWrites::open(&path, 2 << 20, Manner { sync, ..PLAIN }).unwrap();
        let samples = subject.round(&load(1, 1000)).await.unwrap();
        assert_eq!(samples.latencies.len(), 1000);
        assert_eq!(subject.syncs.0.lock().unwrap()[0].latencies.len(), 100);
        assert!(subject.syncs.p50_us()[0] > 0.0);
        let after = std::fs::read(&path).unwrap();
        assert_eq!(after.len(), before.len());
        let changed = before.chunks(BLOCK).zip(after.chunks(BLOCK)).filter(|(a, b)| a != b);
        assert_eq!(changed.count(), 512, "1,000 writes go round all 512 blocks");
    }

    #[tokio::test]
    async fn a_round_of_one_writer_ends_only_after_all_writes_of_a_sync() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        zeros(&path, 2 << 20);
        // As if the disk were so slow that no time is long enough for one write.
        let limit = Limit::Time { warm_up: Duration::ZERO, measured: Duration::ZERO };
        for every in [1, 10, 1000] {
            let sync = Some((Call::Fdatasync, every));
            let mut subject = FileWrites::open(&path, 2 << 20, Manner { sync, ..PLAIN }).unwrap();
            let samples = subject.round(&Load { limit, ..load(1, 0) }).await.unwrap();
            assert_eq!((samples.latencies.len(), samples.answered), (every, every));
            assert_eq!(subject.syncs.0.lock().unwrap()[0].latencies.len(), 1);
            assert!(!samples.elapsed.is_zero());
        }
        let mut subject = FileWrites::open(&path, 2 << 20, PLAIN).unwrap();
        let samples = subject.round(&Load { limit, ..load(1, 0) }).await.unwrap();
        assert_eq!(samples.latencies.len(), 1);
        let stopped = Load { limit, ..load(1, 0) };
        stopped.stop.set();
        assert!(subject.round(&stopped).await.is_err());
    }

    #[tokio::test]
    async fn writers_share_the_file_and_each_syncs_for_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        zeros(&path, 1 << 20);
        let sync = Some((Call::Fsync, 1));
        let mut subject = FileWrites::open(&path, 1 << 20, Manner { sync, ..PLAIN }).unwrap();
        subject.round(&load(7, 70)).await.unwrap();
        assert_eq!(subject.syncs.0.lock().unwrap()[0].latencies.len(), 70);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20);
    }

    #[tokio::test]
    async fn a_growing_file_begins_empty_and_never_exceeds_its_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        zeros(&path, 1 << 20);
        let mut subject =
            FileWrites::open(&path, 1 << 20, Manner { growing: true, ..PLAIN }).unwrap();
        for (operations, blocks) in [(3, 3), (256, 256), (257, 1)] {
            subject.round(&load(1, operations)).await.unwrap();
            let length = std::fs::metadata(&path).unwrap().len();
            assert_eq!(length, blocks * BLOCK as u64, "{operations} writes");
        }
        assert!(subject.syncs.p50_us().iter().all(|p50| p50.is_nan()));
    }
}
