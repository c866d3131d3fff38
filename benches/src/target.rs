//! The disk under test: a directory for both sides, with engine directories and the file of the raw
//! line in it.

use crate::load::Worker;
use crate::progress::bytes_bar;
use anyhow::{Context, Result};
use cairn_engine::io::{AlignedBuf, BLOCK, Backend, Device, Directory, FileDirectory, FileKind};
use cairn_engine::{Engine, Geometry, Identity, Mode, Options};
use clap::{Args, ValueEnum};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where files are made.
#[derive(Args, Clone)]
pub struct DiskArguments {
    /// A directory on the disk to measure. The files that the benchmark makes in it are removed
    /// afterwards.
    #[arg(long, default_value = "target/bench")]
    pub dir: PathBuf,
}

impl DiskArguments {
    /// A new directory for this run, removed when dropped.
    pub fn scratch(&self) -> Result<tempfile::TempDir> {
        std::fs::create_dir_all(&self.dir).with_context(|| self.dir.display().to_string())?;
        let dir = self.dir.canonicalize().with_context(|| self.dir.display().to_string())?;
        tempfile::Builder::new().prefix("run-").tempdir_in(dir).context("temporary directory")
    }
}

/// How the engine reaches the disk.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum BackendArgument {
    /// io_uring if the system allows it, else threads.
    Auto,
    /// io_uring.
    IoUring,
    /// Threads with `pread` and `pwrite`.
    Threads,
}

impl From<BackendArgument> for Backend {
    fn from(argument: BackendArgument) -> Backend {
        match argument {
            BackendArgument::Auto => Backend::Auto,
            BackendArgument::IoUring => Backend::IoUring,
            BackendArgument::Threads => Backend::Threads,
        }
    }
}

/// Makes the five files of a data directory, filled with zeros, and opens them.
pub fn make_directory(
    path: &Path,
    geometry: &Geometry,
    backend: BackendArgument,
) -> Result<FileDirectory> {
    let bar = bytes_bar("zeroing", 0);
    FileDirectory::create(path, geometry, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    Ok(FileDirectory::open(path, backend.into())?)
}

/// A formatted, open engine in `path`.
pub async fn make_engine(
    path: &Path,
    total_bytes: u64,
    mode: Mode,
    backend: BackendArgument,
) -> Result<Engine> {
    let geometry = Geometry::for_total(total_bytes)?;
    let directory = make_directory(path, &geometry, backend)?;
    let identity = Identity { cluster: "bench".to_owned(), slot: 1, incarnation: 1 };
    Engine::format(&directory, geometry, &identity).await?;
    let boot = cairn_engine::io::boot_id().context("boot id")?;
    Ok(Engine::open(Arc::new(directory), None, Options::new(mode, boot, 1)).await?)
}

/// The raw line's device: a preallocated file of the same size, through the same backend as the
/// engine.
pub fn make_raw_device(
    path: &Path,
    bytes: u64,
    backend: BackendArgument,
) -> Result<Arc<dyn Device>> {
    let small = Geometry::for_total(64 << 20)?;
    let geometry = Geometry { data_bytes: bytes, ..small };
    let directory = make_directory(path, &geometry, backend)?;
    directory.open(FileKind::Data).context("raw device")
}

/// One writer of the raw line: it writes 4 KiB at random offsets, over and over.
pub struct RawWriter {
    device: Arc<dyn Device>,
    buf: Option<AlignedBuf>,
    rng: StdRng,
}

impl RawWriter {
    /// `depth` writers.
    pub fn many(device: &Arc<dyn Device>, depth: usize, seed: u64) -> Vec<RawWriter> {
        (0..depth as u64)
            .map(|slot| {
                let mut rng = StdRng::seed_from_u64(seed ^ (slot << 32));
                let mut buf = AlignedBuf::zeroed(BLOCK);
                rng.fill_bytes(&mut buf);
                RawWriter { device: Arc::clone(device), buf: Some(buf), rng }
            })
            .collect()
    }
}

impl Worker for RawWriter {
    async fn step(&mut self) -> Result<()> {
        let block = self.rng.random_range(0..self.device.size() / BLOCK as u64);
        let mut buf = self.buf.take().context("the buffer was lost with a failed write")?;
        // Eight new bytes make the content differ each time. More would cost the raw line processor
        // time.
        if let Some(stamp) = buf.get_mut(..8) {
            stamp.copy_from_slice(&self.rng.next_u64().to_le_bytes());
        }
        let (outcome, buf) = self.device.write(block * BLOCK as u64, buf).await;
        outcome.context("raw write")?;
        self.buf = Some(buf);
        Ok(())
    }
}
