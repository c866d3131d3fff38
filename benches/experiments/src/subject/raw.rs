//! Engines and raw files in a folder: both made at full size and filled with zeros before anything
//! is measured.

use crate::measure::{BlockingWorker, Worker};
use anyhow::{Context, Result};
use cairn_engine::io::{
    AlignedBuf, BLOCK, Backend, Device, Directory, FileDirectory, FileKind, Progress,
};
use cairn_engine::{Engine, Geometry, Identity, KernelBootId, Mode, Options};
use nix::libc::O_DIRECT;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// Makes the five files of a data directory, filled with zeros, and opens them.
fn make_directory(
    path: &Path,
    geometry: &Geometry,
    backend: Backend,
    zeroed: Progress<'_>,
) -> Result<FileDirectory> {
    FileDirectory::create(path, geometry, zeroed)?;
    open_directory(path, backend)
}

/// As a server opens it: I/O runs on the caller's runtime.
fn open_directory(path: &Path, backend: Backend) -> Result<FileDirectory> {
    Ok(FileDirectory::open_as_task(path, backend, |ring| drop(tokio::spawn(ring)))?)
}

/// A formatted, open engine in `path`, which does not exist yet.
///
/// # Errors
/// The engine's, such as too little space or too small a size.
pub async fn make_engine(
    path: &Path,
    total_bytes: u64,
    mode: Mode,
    backend: Backend,
    zeroed: Progress<'_>,
) -> Result<Engine> {
    make_engine_with(path, total_bytes, backend, zeroed, |boot| Options::new(mode, boot, 1)).await
}

/// The same with options of one's own.
pub(crate) async fn make_engine_with(
    path: &Path,
    total_bytes: u64,
    backend: Backend,
    zeroed: Progress<'_>,
    options: impl FnOnce(KernelBootId) -> Options,
) -> Result<Engine> {
    let geometry = Geometry::for_total(total_bytes)?;
    let directory = make_directory(path, &geometry, backend, zeroed)?;
    let identity = Identity { cluster: "bench".to_owned(), slot: 1, incarnation: 1 };
    Engine::format(&directory, geometry, &identity).await?;
    open_in(directory, options).await
}

/// Opens an engine again. All handles of an earlier open are gone, or go within a second.
///
/// # Errors
/// The engine's.
pub async fn open_engine(path: &Path, mode: Mode, backend: Backend) -> Result<Engine> {
    open_engine_with(path, backend, |boot| Options::new(mode, boot, 1)).await
}

/// The same with options of one's own.
///
/// # Errors
/// The engine's.
pub(crate) async fn open_engine_with(
    path: &Path,
    backend: Backend,
    options: impl FnOnce(KernelBootId) -> Options,
) -> Result<Engine> {
    open_in(open_directory(path, backend)?, options).await
}

async fn open_in(
    directory: FileDirectory,
    options: impl FnOnce(KernelBootId) -> Options,
) -> Result<Engine> {
    let boot = cairn_engine::io::boot_id().context("boot id")?;
    Ok(Engine::open(Arc::new(directory), None, options(boot)).await?)
}

/// A raw file of `bytes`, reached through the same code as the engine's files. Its name in `path` is
/// that of the data area.
///
/// # Errors
/// The engine's, such as too little space.
pub fn make_raw_device(
    path: &Path,
    bytes: u64,
    backend: Backend,
    zeroed: Progress<'_>,
) -> Result<Arc<dyn Device>> {
    let small = Geometry::for_total(64 << 20)?;
    let geometry = Geometry { data_bytes: bytes, ..small };
    let directory = make_directory(path, &geometry, backend, zeroed)?;
    directory.open(FileKind::Data).context("raw device")
}

/// One writer of a raw file: it writes at random offsets, over and over.
pub struct RawWriter {
    device: Arc<dyn Device>,
    buf: Option<AlignedBuf>,
    rng: StdRng,
}

impl RawWriter {
    /// `depth` writers of `bytes` at a time, a multiple of [`BLOCK`].
    pub fn many(device: &Arc<dyn Device>, bytes: usize, depth: usize, seed: u64) -> Vec<RawWriter> {
        (0..depth as u64)
            .map(|slot| {
                let mut rng = StdRng::seed_from_u64(seed ^ (slot << 32));
                let mut buf = AlignedBuf::zeroed(bytes);
                rng.fill_bytes(&mut buf);
                RawWriter { device: Arc::clone(device), buf: Some(buf), rng }
            })
            .collect()
    }
}

impl Worker for RawWriter {
    async fn step(&mut self) -> Result<()> {
        let mut buf = self.buf.take().context("the buffer was lost with a failed write")?;
        let bytes = buf.len() as u64;
        let place = self.rng.random_range(0..(self.device.size() / bytes).max(1));
        // Eight new bytes make the content differ each time. More would cost the raw line processor
        // time.
        if let Some(stamp) = buf.get_mut(..8) {
            stamp.copy_from_slice(&self.rng.next_u64().to_le_bytes());
        }
        let (outcome, buf) = self.device.write(place * bytes, buf).await;
        outcome.context("raw write")?;
        self.buf = Some(buf);
        Ok(())
    }
}

/// One reader of a raw file: it reads 4 KiB at random offsets, over and over.
pub struct RawReader {
    device: Arc<dyn Device>,
    buf: Option<AlignedBuf>,
    rng: StdRng,
}

impl RawReader {
    /// `depth` readers.
    pub fn many(device: &Arc<dyn Device>, depth: usize, seed: u64) -> Vec<RawReader> {
        (0..depth as u64)
            .map(|slot| RawReader {
                device: Arc::clone(device),
                buf: Some(AlignedBuf::zeroed(BLOCK)),
                rng: StdRng::seed_from_u64(seed ^ (slot << 32)),
            })
            .collect()
    }
}

impl Worker for RawReader {
    async fn step(&mut self) -> Result<()> {
        let block = self.rng.random_range(0..self.device.size() / BLOCK as u64);
        let buf = self.buf.take().context("the buffer was lost with a failed read")?;
        let (outcome, buf) = self.device.read(block * BLOCK as u64, buf).await;
        outcome.context("raw read")?;
        self.buf = Some(buf);
        Ok(())
    }
}

/// A thread that does the same with a file, without the engine's device code.
pub struct FileReader {
    file: Arc<File>,
    blocks: u64,
    buf: AlignedBuf,
    rng: StdRng,
}

impl FileReader {
    /// `depth` readers of one file, open with `O_DIRECT`.
    ///
    /// # Errors
    /// The system's.
    pub fn many(path: &Path, depth: usize, seed: u64) -> Result<Vec<FileReader>> {
        let file = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(path);
        let file = Arc::new(file.with_context(|| path.display().to_string())?);
        let blocks = file.metadata().context("raw file")?.len() / BLOCK as u64;
        let reader = |slot| FileReader {
            file: Arc::clone(&file),
            blocks: blocks.max(1),
            buf: AlignedBuf::zeroed(BLOCK),
            rng: StdRng::seed_from_u64(seed ^ (slot << 32)),
        };
        Ok((0..depth as u64).map(reader).collect())
    }
}

impl BlockingWorker for FileReader {
    fn step(&mut self) -> Result<()> {
        let block = self.rng.random_range(0..self.blocks);
        self.file.read_exact_at(&mut self.buf, block * BLOCK as u64).context("raw read")
    }
}
