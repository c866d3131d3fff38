//! Writes of 4 KiB values to one file, with one thread for each request under way, and the calm
//! after a round.
//!
//! What holds here: rows that differ in one field of [`BlockWrites`] differ in nothing else. A round
//! ends with its time, whatever the disk's speed is.

use super::{Load, Subject};
use crate::measure::{BlockingWorker, Limit, Samples, Stop, drive_blocking};
use anyhow::{Context, Result};
use cairn_engine::io::{AlignedBuf, BLOCK};
use futures::future::BoxFuture;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::libc::{O_APPEND, O_DIRECT, O_DSYNC};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BLOCK_BYTES: u64 = BLOCK as u64;

/// How a write gets to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durable {
    /// It is written only.
    No,
    /// `O_DSYNC`: the write itself is synced.
    Dsync,
    /// `fdatasync` after each write.
    Fdatasync,
}

/// The state of the file's blocks before they are written, and where writes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileState {
    /// Written before. Writes go to random places.
    Written,
    /// Written before. Writes go in order, to each block once in a round.
    WrittenInOrder,
    /// Allocated anew for each round, and never written. Writes go in order, to each block once.
    Unwritten,
    /// Empty at the begin of each round. Each write appends, until the file has its size.
    Grows,
}

/// Writes of random values to one file.
#[derive(Clone, Debug)]
pub(crate) struct BlockWrites {
    /// The file. It is there for `Written` and `WrittenInOrder`, and made for each round otherwise.
    pub path: PathBuf,
    /// Its blocks of 4 KiB that take values. A journal follows them.
    pub blocks: u64,
    /// Whether it is open with `O_DIRECT`.
    pub direct: bool,
    pub durable: Durable,
    pub state: FileState,
    /// Values of 4 KiB in one write. The requests under way are divided by it.
    pub values: usize,
    /// Whether a block in the journal follows each write, before the answer.
    pub journal: bool,
}

impl BlockWrites {
    /// Blocks of the journal after the file's blocks. They are written over and over, in order.
    pub(crate) const JOURNAL_BLOCKS: u64 = 256;

    /// Makes the file where each round has its own.
    ///
    /// # Errors
    /// The system's, such as a filesystem that cannot allocate without writing.
    pub(crate) fn prepare(&self) -> Result<()> {
        if !self.is_made_each_round() {
            return Ok(());
        }
        self.discard()?;
        let file = OpenOptions::new().write(true).create_new(true).open(&self.path);
        let file = file.with_context(|| self.path.display().to_string())?;
        if self.state == FileState::Unwritten {
            let bytes = i64::try_from(self.blocks * BLOCK_BYTES)?;
            fallocate(&file, FallocateFlags::empty(), 0, bytes).context("fallocate")?;
        }
        file.sync_all().context("fsync")
    }

    /// Removes the file where each round has its own.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn discard(&self) -> Result<()> {
        if !self.is_made_each_round() {
            return Ok(());
        }
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("removing {}", self.path.display()))
            }
            _ => Ok(()),
        }
    }

    fn is_made_each_round(&self) -> bool {
        matches!(self.state, FileState::Unwritten | FileState::Grows)
    }

    fn open(&self) -> Result<Arc<File>> {
        let mut flags = 0;
        if self.direct {
            flags |= O_DIRECT;
        }
        if self.durable == Durable::Dsync {
            flags |= O_DSYNC;
        }
        if self.state == FileState::Grows {
            flags |= O_APPEND;
        }
        let file = OpenOptions::new().write(true).custom_flags(flags).open(&self.path);
        Ok(Arc::new(file.with_context(|| self.path.display().to_string())?))
    }

    fn writers(&self, file: &Arc<File>, next: &Arc<AtomicU64>, load: &Load) -> Vec<BlockWriter> {
        let journal_next = Arc::new(AtomicU64::new(0));
        (0..(load.depth / self.values).max(1) as u64)
            .map(|slot| {
                let mut rng = StdRng::seed_from_u64(load.seed ^ (slot << 32));
                let mut value = AlignedBuf::zeroed(self.values * BLOCK);
                rng.fill_bytes(&mut value);
                let journal = self.journal.then(|| Journal {
                    first: self.blocks,
                    next: Arc::clone(&journal_next),
                    record: AlignedBuf::copied_from(value.get(..BLOCK).unwrap_or_default()),
                });
                BlockWriter {
                    file: Arc::clone(file),
                    state: self.state,
                    places: (self.blocks / self.values as u64).max(1),
                    next: Arc::clone(next),
                    sync: self.durable == Durable::Fdatasync,
                    value,
                    journal,
                    rng,
                }
            })
            .collect()
    }

    /// Random places: the load's limit. In order: an eighth of the blocks to warm up and the rest to
    /// measure, each cut by the load's times.
    async fn run(&self, load: &Load) -> Result<Samples> {
        let subject = self.clone();
        blocking(move || subject.prepare()).await?;
        let (file, next) = (self.open()?, Arc::new(AtomicU64::new(0)));
        let samples = match (self.state, load.limit) {
            (FileState::Written, limit) => {
                drive_blocking(self.writers(&file, &next, load), limit, &load.stop).await?
            }
            (_, limit) => {
                let (warm_up, measured) = match limit {
                    Limit::Time { warm_up, measured } => (warm_up, measured),
                    Limit::Bounded { time, .. } => (Duration::ZERO, time),
                    // The blocks end it.
                    Limit::Operations(_) => (Duration::ZERO, Duration::from_secs(3600)),
                };
                let warm_up = Limit::Bounded { operations: self.blocks / 8, time: warm_up };
                drive_blocking(self.writers(&file, &next, load), warm_up, &load.stop).await?;
                let operations = self.blocks.saturating_sub(next.load(Ordering::Relaxed));
                let limit = Limit::Bounded { operations, time: measured };
                drive_blocking(self.writers(&file, &next, load), limit, &load.stop).await?
            }
        };
        drop(file);
        let subject = self.clone();
        blocking(move || subject.discard()).await?;
        each_value(&samples, self.values as u64)
    }
}

impl Subject for BlockWrites {
    fn round<'a>(&'a mut self, load: &'a Load) -> BoxFuture<'a, Result<Samples>> {
        Box::pin(self.run(load))
    }
}

/// The load of the raw rows, for a comparison with other tools: one round of writes of random
/// blocks, with `O_DIRECT`, to a file that is written in full, one thread for each of `depth`.
///
/// # Errors
/// The system's.
pub async fn raw_writes(
    file: &Path,
    blocks: u64,
    depth: usize,
    dsync: bool,
    limit: Limit,
) -> Result<Samples> {
    let writes = BlockWrites {
        path: file.to_path_buf(),
        blocks,
        direct: true,
        durable: if dsync { Durable::Dsync } else { Durable::No },
        state: FileState::Written,
        values: 1,
        journal: false,
    };
    writes.run(&Load { depth, limit, seed: 1, stop: Stop::default() }).await
}

/// Counts the answer of a write for each value in it: they all had to wait for it.
fn each_value(writes: &Samples, values: u64) -> Result<Samples> {
    let mut samples = Samples::new()?;
    for bar in writes.latencies.iter_recorded() {
        let count = bar.count_at_value() * values;
        samples.latencies.record_n(bar.value_iterated_to(), count).context("histogram")?;
    }
    samples.answered = writes.answered * values;
    samples.elapsed = writes.elapsed;
    Ok(samples)
}

struct Journal {
    first: u64,
    next: Arc<AtomicU64>,
    record: AlignedBuf,
}

struct BlockWriter {
    file: Arc<File>,
    state: FileState,
    /// Places of the size of one write.
    places: u64,
    next: Arc<AtomicU64>,
    sync: bool,
    value: AlignedBuf,
    journal: Option<Journal>,
    rng: StdRng,
}

impl BlockingWorker for BlockWriter {
    fn step(&mut self) -> Result<()> {
        stamp(&mut self.value, &mut self.rng);
        let bytes = self.value.len() as u64;
        match self.state {
            FileState::Written => {
                let place = self.rng.random_range(0..self.places);
                self.file.write_all_at(&self.value, place * bytes)
            }
            FileState::WrittenInOrder | FileState::Unwritten => {
                let place = self.next.fetch_add(1, Ordering::Relaxed) % self.places;
                self.file.write_all_at(&self.value, place * bytes)
            }
            FileState::Grows => {
                self.next.fetch_add(1, Ordering::Relaxed);
                (&*self.file).write_all(&self.value)
            }
        }
        .context("write")?;
        if let Some(journal) = &mut self.journal {
            stamp(&mut journal.record, &mut self.rng);
            let at = journal.next.fetch_add(1, Ordering::Relaxed) % BlockWrites::JOURNAL_BLOCKS;
            let at = (journal.first + at) * BLOCK_BYTES;
            self.file.write_all_at(&journal.record, at).context("journal write")?;
        }
        if self.sync {
            self.file.sync_data().context("fdatasync")?;
        }
        Ok(())
    }
}

/// Makes each block differ from what it was, at little cost: random bytes for all of it would cost
/// a row processor time.
pub(crate) fn stamp(buf: &mut [u8], rng: &mut StdRng) {
    for block in buf.chunks_mut(BLOCK) {
        if let Some(head) = block.get_mut(..8) {
            head.copy_from_slice(&rng.next_u64().to_le_bytes());
        }
    }
}

/// A subject that leaves nothing unsynced: after each round, outside of the measured time,
/// everything on the filesystem is synced. Without it, a row pays for what the row before it left:
/// data in memory, files that were removed.
pub(crate) struct Settled {
    pub subject: Box<dyn Subject>,
    /// A folder on the filesystem.
    pub folder: PathBuf,
}

impl Subject for Settled {
    fn round<'a>(&'a mut self, load: &'a Load) -> BoxFuture<'a, Result<Samples>> {
        Box::pin(async move {
            let samples = self.subject.round(load).await?;
            sync_filesystem(&self.folder).await?;
            Ok(samples)
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        self.subject.close()
    }
}

/// Syncs the whole filesystem of a folder.
///
/// # Errors
/// The system's.
pub async fn sync_filesystem(folder: &Path) -> Result<()> {
    let folder = folder.to_path_buf();
    blocking(move || {
        let opened = File::open(&folder).with_context(|| folder.display().to_string())?;
        nix::unistd::syncfs(&opened).context("syncfs")
    })
    .await
}

/// What a new file is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Zeros,
    /// Blocks that all differ.
    Random,
}

/// Makes a file, on the disk when this returns. Ends early once `limit` is over, with fewer bytes.
/// With `O_DIRECT` none of it is left in memory. Returns its bytes.
///
/// # Errors
/// The system's; [`Stopped`](crate::Stopped).
pub(crate) async fn fill_file(
    path: &Path,
    bytes: u64,
    content: Content,
    direct: bool,
    limit: Duration,
    stop: &Stop,
) -> Result<u64> {
    let (path, stop) = (path.to_path_buf(), stop.clone());
    blocking(move || {
        let at = || path.display().to_string();
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).custom_flags(if direct { O_DIRECT } else { 0 });
        let mut file = options.open(&path).with_context(at)?;
        let mut chunk = AlignedBuf::zeroed(1 << 20);
        let mut rng = StdRng::seed_from_u64(bytes);
        if content == Content::Random {
            rng.fill_bytes(&mut chunk);
        }
        let (began, mut done) = (Instant::now(), 0);
        while done < bytes && began.elapsed() < limit {
            stop.check()?;
            if content == Content::Random {
                stamp(&mut chunk, &mut rng);
            }
            let length = usize::try_from(bytes - done).unwrap_or(usize::MAX).min(chunk.len());
            file.write_all(chunk.get(..length).unwrap_or_default()).with_context(at)?;
            done += length as u64;
        }
        file.sync_all().with_context(at)?;
        Ok(done)
    })
    .await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.context("the work ended early")?
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: u64 = 64;

    fn writes(folder: &Path, state: FileState) -> BlockWrites {
        BlockWrites {
            path: folder.join("file"),
            blocks: BLOCKS,
            direct: false,
            durable: Durable::No,
            state,
            values: 1,
            journal: false,
        }
    }

    async fn zeros(path: &Path, bytes: u64) {
        let (zeros, stop) = (Content::Zeros, Stop::default());
        let filled = fill_file(path, bytes, zeros, false, Duration::MAX, &stop).await;
        assert_eq!(filled.unwrap(), bytes);
    }

    #[tokio::test]
    async fn a_file_is_filled_until_its_time_is_over_or_the_run_is_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let (path, bytes, stop) = (folder.path().join("file"), (2 << 20) + 5, Stop::default());
        let fill = |limit| fill_file(&path, bytes, Content::Random, false, limit, &stop);
        assert_eq!(fill(Duration::MAX).await.unwrap(), bytes);
        let found = fs::read(&path).unwrap();
        let blocks: std::collections::BTreeSet<_> = found.chunks(BLOCK).collect();
        assert_eq!((found.len() as u64, blocks.len()), (bytes, 513), "all blocks differ");
        let words: std::collections::BTreeSet<_> = found[..1 << 20].chunks(8).collect();
        assert_eq!(words.len(), (1 << 20) / 8, "not in their heads alone");
        fs::remove_file(&path).unwrap();
        assert_eq!(fill(Duration::ZERO).await.unwrap(), 0);
        fs::remove_file(&path).unwrap();
        stop.set();
        assert!(fill(Duration::MAX).await.unwrap_err().is::<crate::Stopped>());
    }

    fn load(limit: Limit) -> Load {
        Load { depth: 4, limit, seed: 1, stop: Stop::default() }
    }

    fn blocks_with_data(path: &Path) -> usize {
        let bytes = fs::read(path).unwrap();
        bytes.chunks(BLOCK).filter(|block| block.iter().any(|byte| *byte != 0)).count()
    }

    #[tokio::test]
    async fn each_block_is_written_once_in_order_and_never_twice() {
        let folder = tempfile::tempdir().unwrap();
        let hour = Duration::from_secs(3600);
        let load = load(Limit::Time { warm_up: hour, measured: hour });
        for state in [FileState::WrittenInOrder, FileState::Unwritten, FileState::Grows] {
            let mut subject = writes(folder.path(), state);
            if state == FileState::WrittenInOrder {
                let bytes = BLOCKS * BLOCK_BYTES;
                zeros(&subject.path, bytes).await;
            }
            // The blocks end it, since the time is long.
            let samples = subject.round(&load).await.unwrap();
            assert_eq!(samples.latencies.len(), BLOCKS - BLOCKS / 8, "{state:?}");
            match state {
                FileState::WrittenInOrder => {
                    assert_eq!(blocks_with_data(&subject.path), BLOCKS as usize);
                    fs::remove_file(&subject.path).unwrap();
                }
                _ => assert!(!subject.path.exists(), "{state:?}: the space is free again"),
            }
        }
    }

    #[tokio::test]
    async fn values_that_share_a_write_count_each_and_the_journal_lies_behind_them() {
        let folder = tempfile::tempdir().unwrap();
        let subject = writes(folder.path(), FileState::Written);
        let mut subject = BlockWrites { values: 4, journal: true, ..subject };
        let load = load(Limit::Operations(10));
        let all = BLOCKS + BlockWrites::JOURNAL_BLOCKS;
        zeros(&subject.path, all * BLOCK_BYTES).await;
        let samples = subject.round(&load).await.unwrap();
        assert_eq!((samples.latencies.len(), samples.answered), (40, 40));
        let bytes = fs::read(&subject.path).unwrap();
        assert_eq!(bytes.len() as u64, all * BLOCK_BYTES, "the file keeps its size");
        let journal = &bytes[BLOCKS as usize * BLOCK..];
        let written = journal.chunks(BLOCK).filter(|block| block.iter().any(|byte| *byte != 0));
        assert_eq!(written.count(), 10);
    }
}
