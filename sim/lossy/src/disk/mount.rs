//! A mounted disk that never outlives the program.
//!
//! Three things ensure that. The mount ends with its guard, also in a panic. Mounts are made in the
//! program's own mount namespace ([`isolate`]), which ends with the program and all processes that
//! it started, however they end. Only what was mounted here is ever unmounted.

use super::filesystem::{LossyFilesystem, Names};
use super::store::{Behaviour, Disk, Flip};
use anyhow::{Context, Result};
use fuser::{BackgroundSession, Config, MountOption};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Threads that serve one disk's requests.
const THREADS: usize = 2;

/// What this machine lacks for a lossy disk; `None` if it can have one.
pub fn missing() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some(
            "a lossy disk is a FUSE filesystem mounted by root, and this is not root".to_owned(),
        );
    }
    match std::fs::File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => None,
        Err(error) => Some(format!("/dev/fuse cannot be opened: {error}")),
    }
}

/// Gives the calling thread, and all threads and processes that it starts from now on, mounts of
/// their own.
///
/// # Errors
/// If the system refuses a mount namespace: it needs the right to mount (CAP_SYS_ADMIN).
pub fn isolate() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)
        .context("a mount namespace of our own; this needs CAP_SYS_ADMIN")?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .context("keeping our mounts to ourselves")
}

/// A disk that is mounted until this is dropped.
pub struct LossyMount {
    disk: Disk,
    names: Arc<Mutex<Names>>,
    below: PathBuf,
    path: PathBuf,
    session: Option<BackgroundSession>,
}

impl LossyMount {
    /// Mounts the folder `below` as a disk at `path`, an empty folder. [`isolate`] must be called
    /// first.
    ///
    /// # Errors
    /// If the system refuses the mount.
    pub fn new(below: &Path, path: &Path, behaviour: Behaviour) -> Result<LossyMount> {
        let disk = Disk::new(behaviour);
        let names = Arc::new(Mutex::new(Names::new(below.to_owned())));
        let mut config = Config::default();
        config.mount_options =
            vec![MountOption::FSName("cairn-lossy".to_owned()), MountOption::DefaultPermissions];
        config.n_threads = Some(THREADS);
        let filesystem = LossyFilesystem { disk: disk.clone(), names: Arc::clone(&names) };
        let session = fuser::spawn_mount(filesystem, path, &config)
            .with_context(|| format!("mounting a lossy disk at {}", path.display()))?;
        let (below, path) = (below.to_owned(), path.to_owned());
        Ok(LossyMount { disk, names, below, path, session: Some(session) })
    }

    /// The disk: cuts, counts.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Flips one bit in a random used block of the file at `path`, relative to the disk. `None` if
    /// it has no such block.
    ///
    /// # Errors
    /// If there is no such file, or it was not opened since the disk was mounted.
    pub fn flip(&self, path: &str, rng: &mut StdRng) -> Result<Option<Flip>> {
        self.flip_within(path, 0..u64::MAX, rng)
    }

    /// Like [`LossyMount::flip`], in one of these 4 KiB blocks.
    ///
    /// # Errors
    /// As [`LossyMount::flip`].
    pub fn flip_within(
        &self,
        path: &str,
        blocks: Range<u64>,
        rng: &mut StdRng,
    ) -> Result<Option<Flip>> {
        let file = self.names.lock().number(&self.below.join(path));
        self.disk
            .flip_within(file, blocks, rng)
            .with_context(|| format!("flipping a bit of {path}"))
    }
}

impl Drop for LossyMount {
    fn drop(&mut self) {
        // Detached: a process that still holds one of its files blocks nobody, and loses the file
        // when the process ends.
        if let Err(error) = umount2(&self.path, MntFlags::MNT_DETACH) {
            eprintln!("unmounting {}: {error}", self.path.display());
        }
        // Not joined: its threads end when the last open file is closed, which may be after this.
        drop(self.session.take());
    }
}
