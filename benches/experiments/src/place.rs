//! The folder that a run makes in the user's directory, and what this place allows.
//!
//! What holds here: nothing outside the folder is written. The folder has a file that is locked
//! while a run uses it. A folder of this name without that file belongs to somebody else and is
//! never touched. The kernel releases a killed run's lock, so the next run knows that the folder is
//! left over, and removes it.

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The folder's name.
pub const FOLDER: &str = "cairn-bench-disk";

/// The locked file in it.
const MARK: &str = "made-by-cairn-bench-disk";

/// Space that stays free on the user's filesystem beside what a run needs.
pub(crate) const SPARE_BYTES: u64 = 64 << 20;

/// A directory in which nothing can be measured, and what to do instead.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct Refused {
    /// The directory as given, or the folder in it.
    pub path: PathBuf,
    /// Why, and the way out.
    pub reason: String,
}

impl Refused {
    fn new(path: &Path, reason: impl Into<String>) -> Refused {
        Refused { path: path.to_path_buf(), reason: reason.into() }
    }
}

/// The folder of one run. Dropping it removes the folder with all that is in it.
#[derive(Debug)]
pub struct Place {
    folder: PathBuf,
    /// Whether files can be opened with `O_DIRECT`, or why not.
    direct: Result<(), String>,
    _lock: Flock<File>,
}

impl Place {
    /// Makes the folder in an existing directory, after removing what a killed run left.
    ///
    /// # Errors
    /// [`Refused`] if the directory is not there or not writable, if another run uses it, if a
    /// folder of this name belongs to somebody else, or if there is less free space than `bytes`.
    pub fn make(directory: &Path, bytes: u64) -> Result<Place> {
        let found = directory.canonicalize().map_err(|error| {
            Refused::new(directory, format!("{error}; name a directory that exists"))
        })?;
        if !found.is_dir() {
            return Err(Refused::new(directory, "is not a directory; name one").into());
        }
        let folder = found.join(FOLDER);
        remove_left_over(&folder)?;
        let free = cairn_engine::io::free_space(&found)
            .map_err(|error| Refused::new(directory, format!("free space is unknown: {error}")))?;
        let needed = bytes.saturating_add(SPARE_BYTES);
        if free.free_bytes < needed {
            let reason = format!(
                "the run needs {} MiB and {} MiB are free; choose a smaller --size, fewer experiments with --only, or another directory",
                needed.div_ceil(1 << 20),
                free.free_bytes >> 20
            );
            return Err(Refused::new(directory, reason).into());
        }
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|error| Refused::new(directory, cannot_write(&error)))?;
        let lock = match lock_new(&folder) {
            Ok(lock) => lock,
            Err(error) => {
                // Nothing but the mark can be in it.
                let _ = fs::remove_file(folder.join(MARK));
                let _ = fs::remove_dir(&folder);
                return Err(error);
            }
        };
        let direct = direct(&folder);
        Ok(Place { folder, direct, _lock: lock })
    }

    /// Whether `O_DIRECT` works here, or why not.
    pub fn direct(&self) -> Result<(), String> {
        self.direct.clone()
    }

    /// The path of a subfolder that is not there yet.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A new, empty subfolder.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn subfolder(&self, name: &str) -> Result<PathBuf> {
        let path = self.path(name);
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// Removes a file or a subfolder with all that is in it.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        let removed =
            if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("removing {}", path.display()))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = remove_folder(&self.folder) {
            let mut err = io::stderr().lock();
            // A closed standard error leaves no way to say it.
            let _ = writeln!(
                err,
                "cannot remove {}: {error}; the next run removes it",
                self.folder.display()
            );
        }
    }
}

fn cannot_write(error: &io::Error) -> String {
    let way_out = match error.kind() {
        ErrorKind::ReadOnlyFilesystem => {
            "mounted read-only; name a directory on a writable filesystem"
        }
        ErrorKind::PermissionDenied => "name a directory that you may write to",
        ErrorKind::StorageFull => "free some space or inodes first",
        _ => "name a directory that can be written to",
    };
    format!("cannot make a folder: {error}; {way_out}")
}

fn lock_new(folder: &Path) -> Result<Flock<File>> {
    let path = folder.join(MARK);
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&path);
    let file = file.map_err(|error| Refused::new(folder, cannot_write(&error)))?;
    let locked = Flock::lock(file, FlockArg::LockExclusiveNonblock);
    locked.map_err(|(_, error)| {
        let reason =
            format!("cannot lock {MARK}: {error}; name a directory whose filesystem has locks");
        Refused::new(folder, reason).into()
    })
}

/// Removes the folder if a killed run left it.
fn remove_left_over(folder: &Path) -> Result<()> {
    let metadata = match fs::symlink_metadata(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        metadata => metadata.map_err(|error| Refused::new(folder, error.to_string()))?,
    };
    let foreign =
        "was not made by this command, so it is not touched; rename it, or name another directory";
    if !metadata.is_dir() {
        return Err(Refused::new(folder, foreign).into());
    }
    let mark = folder.join(MARK);
    let is_file = fs::symlink_metadata(&mark).is_ok_and(|mark| mark.is_file());
    if !is_file {
        // A run that is killed between its first two steps leaves an empty folder.
        return match fs::remove_dir(folder) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(_) => Err(Refused::new(folder, foreign).into()),
        };
    }
    let file = File::open(&mark).map_err(|error| Refused::new(&mark, error.to_string()))?;
    // Locks conflict between open descriptions, whatever they are open for.
    let Ok(_lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
        let reason = "another run is measuring here; wait for its end, or name another directory";
        return Err(Refused::new(folder, reason).into());
    };
    remove_folder(folder).map_err(|error| {
        let reason = format!("a killed run left it and it cannot be removed: {error}; remove it");
        Refused::new(folder, reason).into()
    })
}

/// The mark goes last, so that a run that is killed here leaves what the next run recognises.
fn remove_folder(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name() == MARK {
            continue;
        }
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    match fs::remove_file(folder.join(MARK)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => fs::remove_dir(folder),
    }
}

/// Whether blocks can be written with `O_DIRECT`.
fn direct(folder: &Path) -> Result<(), String> {
    let probe = cairn_engine::io::probe_directory(folder).map_err(|error| error.to_string())?;
    if !probe.direct {
        return Err("the filesystem refuses O_DIRECT".to_owned());
    }
    probe.transfer.map_err(|error| format!("a direct write fails: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(directory: &Path, bytes: u64) -> String {
        let error = Place::make(directory, bytes).expect_err("refused");
        error.downcast::<Refused>().expect("a refusal").to_string()
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn the_folder_goes_with_all_that_is_in_it() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("mine"), "x").unwrap();
        let place = Place::make(directory.path(), 0).unwrap();
        fs::write(place.subfolder("a").unwrap().join("file"), "x").unwrap();
        assert_eq!(names(directory.path()).len(), 2);
        drop(place);
        assert_eq!(names(directory.path()), ["mine"]);
    }

    #[test]
    fn a_folder_whose_mark_or_self_is_gone_is_removed_without_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::make(directory.path(), 0).unwrap();
        fs::remove_file(place.path(MARK)).unwrap();
        remove_folder(&place.path("")).unwrap();
        assert!(names(directory.path()).is_empty());
        remove_folder(&place.path("")).unwrap();
    }

    #[test]
    fn what_a_killed_run_left_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join(FOLDER);
        fs::create_dir_all(folder.join("engine")).unwrap();
        fs::write(folder.join(MARK), "").unwrap();
        fs::write(folder.join("engine/data"), "x").unwrap();
        let place = Place::make(directory.path(), 0).unwrap();
        assert_eq!(names(&folder), [MARK]);
        drop(place);
        // It may have been killed before it made the mark.
        fs::create_dir(&folder).unwrap();
        drop(Place::make(directory.path(), 0).unwrap());
        assert!(names(directory.path()).is_empty());
    }

    #[test]
    fn a_folder_of_somebody_else_is_not_touched() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join(FOLDER);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("thesis"), "x").unwrap();
        assert!(refused(directory.path(), 0).contains("was not made by this command"));
        assert_eq!(names(&folder), ["thesis"]);
        fs::remove_dir_all(&folder).unwrap();
        // Not even a link to a folder that a run made.
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join(MARK), "").unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), &folder).unwrap();
        assert!(refused(directory.path(), 0).contains("was not made by this command"));
        assert_eq!(names(elsewhere.path()), [MARK]);
    }

    #[test]
    fn two_runs_do_not_use_one_directory() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::make(directory.path(), 0).unwrap();
        let kept = place.subfolder("kept").unwrap();
        assert!(refused(directory.path(), 0).contains("another run"));
        assert!(kept.is_dir());
    }

    #[test]
    fn a_place_that_cannot_be_used_is_refused_with_the_way_out() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(refused(&file, 0).contains("is not a directory"));
        assert!(
            refused(&directory.path().join("none"), 0).contains("name a directory that exists")
        );
        assert!(refused(directory.path(), u64::MAX).contains("--size"));
        assert_eq!(names(directory.path()), ["file"]);
    }
}
