//! A folder for backups: what is in it.
//!
//! What holds here: no symbolic link is followed. A folder that is one has nothing of ours. Nor has a folder with one
//! where an object should be: somebody put it there, so nobody knows what else is as it was, and it is left alone as a
//! whole. The folder for backups itself may be a link: the configuration names it. What has no backup's name is not
//! opened: other programs' folders may be beside the backups, and refuse. A folder with such a name that refuses is named apart. Only
//! regular files are objects.

use std::fs::{read_dir, remove_file, symlink_metadata};
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A file of a backup.
pub(crate) struct Listed {
    /// From the folder for backups on.
    pub(crate) path: String,
    pub(crate) bytes: u64,
    /// When it was written last.
    pub(crate) written: Option<SystemTime>,
}

/// What is in a folder for backups.
#[derive(Default)]
pub(crate) struct Listing {
    /// The folders, each with its objects.
    pub(crate) folders: Vec<(String, Objects)>,
    /// The names of links that stand where a folder may be.
    pub(crate) links: Vec<String>,
    /// The folders that this process may not read.
    pub(crate) unreadable: Vec<Unreadable>,
}

/// A folder with a backup's name that this process may not read.
pub(crate) struct Unreadable {
    pub(crate) name: String,
    /// What the system says.
    pub(crate) why: String,
}

/// What is in a folder with a backup's name.
#[derive(Default)]
pub(crate) struct Objects {
    /// Those that are files.
    pub(crate) files: Vec<Listed>,
    /// The paths at which an object should be, and a link is.
    pub(crate) links: Vec<String>,
}

/// What is in this folder. `is_name` says of a name whether a backup may have it. `is_object` says of a path, and of the
/// name before it, whether a backup writes it.
pub(crate) fn list(
    folder: &Path,
    is_name: fn(&str) -> bool,
    is_object: fn(&str, &str) -> bool,
) -> Result<Listing> {
    let mut listing = Listing::default();
    for entry in read_dir(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if !is_name(&name) {
            continue;
        }
        let kind = match entry.file_type() {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            kind => kind?,
        };
        if kind.is_symlink() {
            listing.links.push(name);
        } else if kind.is_dir() {
            match objects(&entry.path(), &name, is_object) {
                Ok(objects) => listing.folders.push((name, objects)),
                Err(error) => listing.unreadable.push(unreadable(&entry.path(), name, &error)?),
            }
        }
    }
    Ok(listing)
}

/// That this process may not read a folder. Any other error may be one of the moment: whoever goes on without the folder would take
/// the backup for one that is gone.
fn unreadable(folder: &Path, name: String, error: &Error) -> Result<Unreadable> {
    match error.kind() {
        ErrorKind::PermissionDenied => Ok(Unreadable { name, why: error.to_string() }),
        _ => Err(named(folder, error)),
    }
}

/// What the system says, if an error comes from that this process may not do something.
pub(crate) fn denied(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut causes = std::iter::successors(Some(error), |cause| cause.source());
    let by_system = causes.find_map(|cause| cause.downcast_ref::<Error>());
    by_system.filter(|error| error.kind() == ErrorKind::PermissionDenied).map(Error::to_string)
}

/// The error, with the path at which it was.
fn named(path: &Path, error: &Error) -> Error {
    Error::new(error.kind(), format!("`{}`: {error}", path.display()))
}

/// Nothing, if the folder is gone.
fn objects(folder: &Path, name: &str, is_object: fn(&str, &str) -> bool) -> Result<Objects> {
    let mut objects = Objects::default();
    let entries = match read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(objects),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let Ok(file) = entry.file_name().into_string() else { continue };
        let path = format!("{name}/{file}");
        if !is_object(&path, name) {
            continue;
        }
        // Of the entry itself, not of what a link leads to.
        let metadata = match entry.metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            metadata => metadata?,
        };
        if metadata.is_symlink() {
            objects.links.push(path);
        } else if metadata.is_file() {
            let (bytes, written) = (metadata.len(), metadata.modified().ok());
            objects.files.push(Listed { path, bytes, written });
        }
    }
    Ok(objects)
}

/// What no backup made, and what is in the way of one.
pub(crate) enum Obstacle {
    /// A symbolic link.
    Link(PathBuf),
    /// A pipe, a socket or a device: to open one may take for ever.
    NoFile(PathBuf),
    /// This folder, in which this process may not look at anything, and what the system says.
    Unreadable(PathBuf, String),
}

/// The first obstacle on the way from a folder to this path in it.
pub(crate) fn obstacle_in(folder: &Path, path: &str) -> Result<Option<Obstacle>> {
    let mut at = folder.to_owned();
    for part in path.split('/') {
        at.push(part);
        match symlink_metadata(&at) {
            Ok(metadata) if metadata.is_symlink() => return Ok(Some(Obstacle::Link(at))),
            Ok(metadata) if metadata.is_file() || metadata.is_dir() => {}
            Ok(_) => return Ok(Some(Obstacle::NoFile(at))),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Ok(None);
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                at.pop();
                return Ok(Some(Obstacle::Unreadable(at, error.to_string())));
            }
            Err(error) => return Err(named(&at, &error)),
        }
    }
    Ok(None)
}

/// Removes the files of this name that a killed save left unfinished.
pub(crate) fn remove_unfinished(
    folder: &Path,
    name: &str,
    is_object: fn(&str, &str) -> bool,
) -> Result<()> {
    let entries = match read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let file = entry.file_name();
        let Some((file, number)) = file.to_str().and_then(|file| file.split_once('#')) else {
            continue;
        };
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let unfinished = is_number && is_object(&format!("{name}/{file}"), name);
        if !unfinished || !entry.file_type()?.is_file() {
            continue;
        }
        match remove_file(entry.path()) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            removed => removed?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::fs::{create_dir, write};

    #[test]
    fn only_a_folder_that_may_not_be_read_is_left_out_and_each_other_error_names_it() {
        let folder = Path::new("/backups/b0");
        let of = |error: Errno| unreadable(folder, "b0".into(), &error.into());
        assert_eq!(of(Errno::ACCESS).unwrap().name, "b0");
        for failed in [Errno::STALE, Errno::IO, Errno::NOTCONN] {
            let said = of(failed).err().unwrap().to_string();
            assert!(said.starts_with("`/backups/b0`: "), "{said}");
        }
    }

    /// The story: a target was a mount point. Its `lost+found` is its administrator's alone, and every save, list and prune
    /// failed there with "permission denied".
    #[test]
    fn a_folder_that_no_backup_can_have_is_not_opened() {
        let root = tempfile::tempdir().unwrap();
        for name in ["b0", "lost+found"] {
            create_dir(root.path().join(name)).unwrap();
            write(root.path().join(name).join("head"), "new").unwrap();
        }
        let is_name = |name: &str| name == "b0";
        let is_object = |path: &str, name: &str| {
            assert_eq!(name, "b0", "{path} is in a folder that was opened");
            true
        };
        let listing = list(root.path(), is_name, is_object).unwrap();
        let names: Vec<&str> = listing.folders.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["b0"]);
        let files = listing.folders.iter().flat_map(|(_, objects)| &objects.files);
        assert_eq!(files.map(|file| file.path.as_str()).collect::<Vec<_>>(), ["b0/head"]);
    }
}
