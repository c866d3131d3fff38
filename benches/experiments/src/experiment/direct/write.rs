//! One file written from beginning to end, and how long that takes, until the last write has
//! returned and until the data is synced.

use crate::measure::{Stop, usage};
use crate::subject::stamp;
use anyhow::{Context, Result, anyhow, bail};
use cairn_engine::io::AlignedBuf;
use nix::fcntl::{FallocateFlags, PosixFadviseAdvice, fallocate, posix_fadvise};
use nix::libc;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of one write.
pub(super) const WRITE: usize = 128 << 10;

/// The most writes under way.
pub(super) const MOST_DEPTH: usize = 64;

/// What is written, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum How {
    /// A new file through the page cache.
    Buffered,
    /// A file that is there, filled with zeros, through the page cache, which holds none of it.
    BufferedZeroed,
    /// A new file with its space reserved by `fallocate`, with `O_DIRECT`.
    Preallocated,
    /// A file that is there, filled with zeros, with `O_DIRECT`.
    Zeroed,
}

impl How {
    pub(super) fn is_direct(self) -> bool {
        matches!(self, How::Preallocated | How::Zeroed)
    }

    /// Whether the file is there before, filled with zeros.
    pub(super) fn is_zeroed(self) -> bool {
        matches!(self, How::BufferedZeroed | How::Zeroed)
    }
}

/// One file to write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Task {
    /// Its name in the folder of the place.
    pub file: String,
    pub how: How,
    /// Threads that each wait for a write of their own.
    pub depth: usize,
    /// The most bytes: whole writes.
    pub bytes: u64,
    /// No write begins later than this.
    pub limit_ms: u64,
    /// Of the random bytes.
    pub seed: u64,
}

/// What came of it. The times begin before the file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    /// Bytes written: fewer than asked if the time ended before.
    pub bytes: u64,
    /// Seconds until the last write returned.
    pub write_s: f64,
    /// Seconds until fdatasync returned.
    pub safe_s: f64,
    /// Seconds of processor time outside the kernel, by this process.
    pub user_s: f64,
    /// The same inside the kernel.
    pub system_s: f64,
    /// Seconds of processor time of the whole machine.
    pub machine_s: f64,
}

impl Written {
    /// Whether these can be the figures of this task.
    ///
    /// # Errors
    /// What cannot be.
    pub(super) fn check(&self, task: &Task) -> Result<()> {
        let Written { bytes, write_s, safe_s, user_s, system_s, machine_s } = *self;
        let times = [write_s, safe_s, user_s, system_s, machine_s];
        if times.iter().any(|time| !time.is_finite() || *time < 0.0) || safe_s < write_s {
            bail!("times that cannot be: {self:?}");
        }
        if bytes == 0 || bytes > task.bytes {
            bail!("{bytes} bytes of {}", task.bytes);
        }
        Ok(())
    }
}

fn open(folder: &Path, task: &Task) -> Result<File> {
    let mut options = OpenOptions::new();
    options.write(true);
    if !task.how.is_zeroed() {
        options.create_new(true).mode(0o600);
    }
    if task.how.is_direct() {
        options.custom_flags(libc::O_DIRECT);
    }
    let file = options.open(folder.join(&task.file)).with_context(|| task.file.clone())?;
    if task.how == How::Preallocated {
        let bytes = i64::try_from(task.bytes).context("size")?;
        fallocate(&file, FallocateFlags::empty(), 0, bytes).context("fallocate")?;
    }
    Ok(file)
}

/// The writes of one file, shared by the threads.
struct Shared<'a> {
    file: &'a File,
    task: &'a Task,
    deadline: Instant,
    stop: &'a Stop,
    next: AtomicU64,
}

impl Shared<'_> {
    /// Returns the bytes that this thread wrote.
    fn write(&self, mut buf: AlignedBuf, mut rng: StdRng) -> Result<u64> {
        let mut written = 0;
        loop {
            let at = self.next.fetch_add(WRITE as u64, Ordering::Relaxed);
            let first = at == 0;
            if at >= self.task.bytes || !first && Instant::now() >= self.deadline {
                return Ok(written);
            }
            self.stop.check()?;
            stamp(&mut buf, &mut rng);
            self.file.write_all_at(&buf, at).context("write")?;
            written += WRITE as u64;
        }
    }
}

/// Writes the file in `folder`.
///
/// # Errors
/// The system's; a task that cannot be; `Stopped`.
pub(super) fn write_file(folder: &Path, task: &Task, stop: &Stop) -> Result<Written> {
    let whole = task.bytes > 0 && task.bytes.is_multiple_of(WRITE as u64);
    if !whole || !(1..=MOST_DEPTH).contains(&task.depth) {
        bail!("a task that cannot be: {task:?}");
    }
    let buffer = |thread: usize| {
        let mut rng = StdRng::seed_from_u64(task.seed ^ ((thread as u64) << 32));
        let mut buf = AlignedBuf::zeroed(WRITE);
        rng.fill_bytes(&mut buf);
        (buf, rng)
    };
    let buffers: Vec<_> = (0..task.depth).map(buffer).collect();
    let before = usage()?;
    let began = Instant::now();
    let file = open(folder, task)?;
    let deadline = began + Duration::from_millis(task.limit_ms);
    let shared = Shared { file: &file, task, deadline, stop, next: AtomicU64::new(0) };
    let written: Result<Vec<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = buffers
            .into_iter()
            .map(|(buf, rng)| {
                let shared = &shared;
                std::thread::Builder::new().spawn_scoped(scope, move || shared.write(buf, rng))
            })
            .collect();
        let joined = threads.into_iter().map(|thread| {
            thread
                .context("a thread cannot be started")?
                .join()
                .unwrap_or_else(|_| Err(anyhow!("a panic")))
        });
        joined.collect()
    });
    let bytes = written?.into_iter().sum();
    let write_s = began.elapsed().as_secs_f64();
    file.sync_data().context("fdatasync")?;
    let safe_s = began.elapsed().as_secs_f64();
    let used = usage()?.since(before);
    if task.how == How::BufferedZeroed {
        // The next row of this file must not find it in memory.
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).context("fadvise")?;
    }
    Ok(Written {
        bytes,
        write_s,
        safe_s,
        user_s: used.user.as_secs_f64(),
        system_s: used.system.as_secs_f64(),
        machine_s: used.machine.as_secs_f64(),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use cairn_engine::io::BLOCK;

    pub(in super::super) fn task(how: How, depth: usize, bytes: u64) -> Task {
        Task { file: "file".into(), how, depth, bytes, limit_ms: 60_000, seed: 1 }
    }

    #[test]
    fn every_block_is_written_and_differs_from_all_others() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = 2 << 20;
        let mut hows = vec![(How::Buffered, 1), (How::Buffered, 16)];
        let probe = cairn_engine::io::probe_directory(folder.path()).unwrap();
        if probe.direct {
            hows.extend([(How::Preallocated, 1), (How::Preallocated, 16), (How::Zeroed, 16)]);
            hows.push((How::BufferedZeroed, 1));
        }
        for (how, depth) in hows {
            let path = folder.path().join("file");
            if how.is_zeroed() {
                File::create_new(&path).unwrap().set_len(bytes).unwrap();
            }
            let task = task(how, depth, bytes);
            let written = write_file(folder.path(), &task, &Stop::default()).unwrap();
            written.check(&task).unwrap();
            assert_eq!(written.bytes, bytes);
            let found = std::fs::read(&path).unwrap();
            assert_eq!(found.len() as u64, bytes);
            let blocks: std::collections::BTreeSet<_> = found.chunks(BLOCK).collect();
            assert_eq!(blocks.len() as u64, bytes / BLOCK as u64, "{how:?}");
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn the_time_limit_cuts_a_file_and_a_stop_ends_it() {
        let folder = tempfile::tempdir().unwrap();
        let cut = Task { limit_ms: 0, ..task(How::Buffered, 1, 64 << 20) };
        let written = write_file(folder.path(), &cut, &Stop::default()).unwrap();
        assert_eq!(written.bytes, WRITE as u64, "one write at least");
        written.check(&cut).unwrap();
        let stop = Stop::default();
        stop.set();
        let stopped = Task { file: "other".into(), ..cut };
        assert!(write_file(folder.path(), &stopped, &stop).unwrap_err().is::<crate::Stopped>());
    }

    #[test]
    fn a_task_that_cannot_be_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for (depth, bytes) in [(0, WRITE as u64), (1, 0), (1, 1), (1000, WRITE as u64)] {
            let task = task(How::Buffered, depth, bytes);
            assert!(write_file(folder.path(), &task, &Stop::default()).is_err());
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
