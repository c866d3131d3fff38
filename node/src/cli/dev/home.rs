//! The folder of a development cluster, locked while the cluster runs.

use super::super::connect::{ENDPOINTS_FILE, HTTP_FILE};
use super::super::exit::UsageError;
use super::layout;
use anyhow::Context;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The folder, and the lock on it.
pub(super) struct Home {
    pub(super) path: PathBuf,
    endpoints: PathBuf,
    http: PathBuf,
    _lock: File,
    _temporary: Option<TempDir>,
}

impl Home {
    /// A folder that is kept.
    pub(super) fn open(path: &Path) -> anyhow::Result<Home> {
        std::fs::create_dir_all(path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        let path = std::fs::canonicalize(path)?;
        if path.starts_with(std::fs::canonicalize(".")?.join(".cairn")) {
            // Files below .cairn should not end up in a repository.
            std::fs::write(".cairn/.gitignore", "*\n")?;
        }
        Home::lock(path, None)
    }

    /// A folder that is removed when this is dropped.
    pub(super) fn temporary() -> anyhow::Result<Home> {
        let folder = tempfile::Builder::new().prefix("cairn-dev-").tempdir()?;
        // The members' command lines have this name, by which they are found.
        Home::lock(std::fs::canonicalize(folder.path())?, Some(folder))
    }

    fn lock(path: PathBuf, temporary: Option<TempDir>) -> anyhow::Result<Home> {
        let mut lock = lock_file(&path)?;
        if lock.try_lock().is_err() {
            return Err(in_use(&path, read_id(&mut lock)).into());
        }
        lock.set_len(0)?;
        write!(lock, "{}", std::process::id())?;
        let here = std::env::current_dir()?;
        let (endpoints, http) = (here.join(ENDPOINTS_FILE), here.join(HTTP_FILE));
        Ok(Home { path, endpoints, http, _lock: lock, _temporary: temporary })
    }

    /// Writes the endpoints and HTTP ports for later commands in this folder, and the file that says that the
    /// cluster is ready.
    pub(super) fn remember(&self, endpoints: &[String], http: &[String]) -> anyhow::Result<()> {
        let text = |addresses: &[String]| addresses.join("\n") + "\n";
        let (ready, endpoints) = (self.path.join(layout::READY), text(endpoints));
        // First the ports: whoever finds the endpoints finds no ports of an earlier cluster.
        let files =
            [(&self.http, &text(http)), (&self.endpoints, &endpoints), (&ready, &endpoints)];
        for (file, text) in files {
            if let Some(folder) = file.parent() {
                std::fs::create_dir_all(folder)?;
            }
            std::fs::write(file, text)
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(())
    }

    /// Removes what [`Home::remember`] wrote, unless another cluster has replaced it since.
    pub(super) fn forget(&self) {
        let ready = self.path.join(layout::READY);
        let ours = std::fs::read(&ready).unwrap_or_default();
        if std::fs::read(&self.endpoints).is_ok_and(|found| found == ours) {
            let _ = std::fs::remove_file(&self.endpoints);
            let _ = std::fs::remove_file(&self.http);
        }
        let _ = std::fs::remove_file(ready);
    }
}

/// Why no other cluster begins in this folder.
pub(super) fn in_use(path: &Path, holder: Option<i32>) -> UsageError {
    let id = holder.map(|id| format!(" (process {id})")).unwrap_or_default();
    UsageError(format!(
        "a cluster already runs in {}{id}; use it, stop it with Ctrl-C or `{}`, or give another --dir",
        path.display(),
        super::stop_command(path)
    ))
}

fn lock_file(path: &Path) -> anyhow::Result<File> {
    let path = path.join("lock");
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))
}

fn read_id(lock: &mut File) -> Option<i32> {
    let mut text = String::new();
    lock.rewind().ok()?;
    lock.read_to_string(&mut text).ok()?;
    text.trim().parse().ok().filter(|id| *id > 0)
}

/// The process that holds the lock of the folder, if any.
pub(super) fn holder(path: &Path) -> anyhow::Result<Option<i32>> {
    if !path.join("lock").exists() {
        return Ok(None);
    }
    let mut lock = lock_file(path)?;
    if lock.try_lock().is_ok() {
        return Ok(None);
    }
    read_id(&mut lock)
        .map(Some)
        .with_context(|| format!("{} holds no process id", path.join("lock").display()))
}
