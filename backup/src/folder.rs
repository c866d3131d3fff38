//! A folder for backups: what is in it.
//!
//! What holds here: no symbolic link is followed. A folder that is one has nothing of ours. Nor has a folder with one
//! where an object should be: somebody put it there, so nobody knows what else is as it was, and it is left alone as a
//! whole. The folder for backups itself may be a link: the configuration names it. What has no backup's name is not
//! opened: other programs' folders may be beside the backups, and refuse.

use std::fs::{read_dir, symlink_metadata};
use std::io::{ErrorKind, Result};
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
            let objects = objects(&entry.path(), &name, is_object)?;
            listing.folders.push((name, objects));
        }
    }
    Ok(listing)
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
        } else if !metadata.is_dir() {
            let (bytes, written) = (metadata.len(), metadata.modified().ok());
            objects.files.push(Listed { path, bytes, written });
        }
    }
    Ok(objects)
}

/// The first link on the way from a folder to this path in it.
pub(crate) fn link_in(folder: &Path, path: &str) -> Result<Option<PathBuf>> {
    let mut at = folder.to_owned();
    for part in path.split('/') {
        at.push(part);
        match symlink_metadata(&at) {
            Ok(metadata) if metadata.is_symlink() => return Ok(Some(at)),
            Ok(_) => {}
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir, write};

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
