//! The disk under test: a directory for both sides, with engine directories and the file of the raw
//! line in it.

use crate::progress::bytes_bar;
use anyhow::{Context, Result};
use cairn_engine::io::{Backend, Device};
use cairn_engine::{Engine, Mode};
use clap::{Args, ValueEnum};
use std::ops::ControlFlow;
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

/// A formatted, open engine in `path`.
pub async fn make_engine(
    path: &Path,
    total_bytes: u64,
    mode: Mode,
    backend: BackendArgument,
) -> Result<Engine> {
    let bar = bytes_bar("zeroing", 0);
    let zeroed = &mut |done, total| show(&bar, done, total);
    let made =
        cairn_experiments::make_engine(path, total_bytes, mode, backend.into(), zeroed).await;
    bar.finish_and_clear();
    made
}

/// The raw line's device: a preallocated file of the same size, through the same backend as the
/// engine.
pub fn make_raw_device(
    path: &Path,
    bytes: u64,
    backend: BackendArgument,
) -> Result<Arc<dyn Device>> {
    let bar = bytes_bar("zeroing", 0);
    let zeroed = &mut |done, total| show(&bar, done, total);
    let made = cairn_experiments::make_raw_device(path, bytes, backend.into(), zeroed);
    bar.finish_and_clear();
    made
}

fn show(bar: &indicatif::ProgressBar, done: u64, total: u64) -> ControlFlow<()> {
    bar.set_length(total);
    bar.set_position(done);
    ControlFlow::Continue(())
}
