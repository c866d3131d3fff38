//! A store that keeps each object in a file of its own, as many stores do: it writes a temporary
//! file, and renames it to the object's name.

use anyhow::{Context, Result};
use cairn_engine::io::AlignedBuf;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Subfolders that share the objects, so that no folder becomes large.
const SHARDS: u64 = 256;

/// What is synced before a put is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSync {
    /// Nothing.
    Nothing,
    /// The temporary file, before the rename.
    File,
    /// That, and the folder after the rename. Without it the rename may be lost.
    FileAndFolder,
}

impl FileSync {
    /// What has the data when a put is answered.
    pub fn answered_by(self) -> &'static str {
        match self {
            FileSync::Nothing => "page cache",
            FileSync::File => "disk, but the name may be lost",
            FileSync::FileAndFolder => "disk",
        }
    }
}

/// Objects as files. Each user of it has a number of its own, for temporary files.
#[derive(Clone, Debug)]
pub struct FileStore {
    folder: PathBuf,
    direct: bool,
    sync: FileSync,
}

impl FileStore {
    /// Makes the subfolders in a new folder.
    ///
    /// # Errors
    /// The system's.
    pub fn make(folder: &Path, direct: bool, sync: FileSync) -> Result<FileStore> {
        let store = FileStore { folder: folder.to_path_buf(), direct, sync };
        for shard in 0..SHARDS {
            let path = store.shard(shard);
            fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        }
        Ok(store)
    }

    /// Writes an object, a new one or instead of an old one. With `O_DIRECT`, `value` must be whole,
    /// aligned blocks.
    ///
    /// # Errors
    /// The system's.
    pub fn put(&self, user: usize, object: u64, value: &[u8]) -> Result<()> {
        let shard = self.shard(object);
        let temporary = shard.join(format!("put-{user}"));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        if self.direct {
            options.custom_flags(nix::libc::O_DIRECT);
        }
        let written = options.open(&temporary).and_then(|mut file| {
            file.write_all(value)?;
            if self.sync != FileSync::Nothing {
                file.sync_all()?;
            }
            fs::rename(&temporary, self.file(object))
        });
        written.with_context(|| format!("writing {}", temporary.display()))?;
        self.sync_folder(&shard)
    }

    fn sync_folder(&self, shard: &Path) -> Result<()> {
        if self.sync == FileSync::FileAndFolder {
            let synced = File::open(shard).and_then(|folder| folder.sync_all());
            synced.with_context(|| format!("syncing {}", shard.display()))?;
        }
        Ok(())
    }

    /// Reads an object. False if there is none.
    ///
    /// # Errors
    /// The system's.
    pub fn get(&self, object: u64, into: &mut Vec<u8>) -> Result<bool> {
        into.clear();
        let path = self.file(object);
        match File::open(&path).and_then(|mut file| file.read_to_end(into)) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
        }
    }

    /// Reads an object past the page cache, with `O_DIRECT`. Returns its bytes, at most those of the
    /// buffer; none if there is no such object.
    ///
    /// # Errors
    /// The system's.
    pub fn get_direct(&self, object: u64, into: &mut AlignedBuf) -> Result<Option<usize>> {
        let path = self.file(object);
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(nix::libc::O_DIRECT);
        match options.open(&path).and_then(|mut file| file.read(into)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
        }
    }

    /// Removes an object. False if there is none.
    ///
    /// # Errors
    /// The system's.
    pub fn delete(&self, object: u64) -> Result<bool> {
        let path = self.file(object);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            removed => removed.with_context(|| format!("removing {}", path.display()))?,
        }
        self.sync_folder(&self.shard(object))?;
        Ok(true)
    }

    fn shard(&self, object: u64) -> PathBuf {
        self.folder.join(format!("{:02x}", object % SHARDS))
    }

    fn file(&self, object: u64) -> PathBuf {
        self.shard(object).join(format!("{object:016x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_read_back_until_it_is_deleted() {
        for sync in [FileSync::Nothing, FileSync::File, FileSync::FileAndFolder] {
            let folder = tempfile::tempdir().unwrap();
            let store = FileStore::make(folder.path(), false, sync).unwrap();
            let mut found = Vec::new();
            assert!(!store.get(7, &mut found).unwrap());
            for byte in [1, 2] {
                store.put(0, 7, &[byte; 4096]).unwrap();
                assert!(store.get(7, &mut found).unwrap());
                assert_eq!(found, [byte; 4096]);
            }
            assert!(store.delete(7).unwrap() && !store.delete(7).unwrap());
            let shard = folder.path().join("07");
            assert_eq!(fs::read_dir(shard).unwrap().count(), 0, "no temporary file is left");
        }
    }
}
