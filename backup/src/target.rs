//! Where backups are: a folder, or a bucket with a prefix.
//!
//! What holds here: what is listed and removed has a name that a backup gives its objects, or is an
//! unfinished file of such a name. A folder that is empty then goes too.

use crate::error::{Error, Result};
use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use real_tokio::task::spawn_blocking;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The longest name of a backup.
const NAME_BYTES: usize = 64;

/// Whether this may be the name of a backup.
pub(crate) fn is_name(name: &str) -> bool {
    let usual = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=NAME_BYTES).contains(&name.len()) && name.bytes().all(usual)
}

/// Where the manifest of a backup is: with it the backup is finished.
pub(crate) fn manifest_path(name: &str) -> String {
    format!("{name}/manifest")
}

/// Where the head of a backup is: its first object.
pub(crate) fn head_path(name: &str) -> String {
    format!("{name}/head")
}

/// Where a prune says that it removed the manifest.
pub(crate) fn removed_path(name: &str) -> String {
    format!("{name}/removed")
}

/// Where an object with values or records is.
pub(crate) fn path_of(name: &str, kind: &str, number: usize) -> String {
    format!("{name}/{kind}-{number:06}")
}

/// The first records: a prune removes them before other objects.
pub(crate) fn first_records(name: &str) -> String {
    path_of(name, "records", 0)
}

/// The name of the backup that wrote an object.
pub(crate) fn folder_of(path: &str) -> &str {
    path.split('/').next().unwrap_or_default()
}

/// Whether a backup of this name, or a prune, writes this path.
fn is_written(path: &str, name: &str) -> bool {
    folder_of(path) == name
        && (is_path(path, "values")
            || is_path(path, "records")
            || [head_path, manifest_path, removed_path].iter().any(|of| path == of(name)))
}

/// Whether this may be the path of an object: a name, a kind and a number.
pub(crate) fn is_path(path: &str, kind: &str) -> bool {
    let file = path.split_once('/').filter(|(name, _)| is_name(name)).map(|(_, file)| file);
    let number = file.and_then(|file| file.strip_prefix(kind)?.strip_prefix('-'));
    number.is_some_and(|number| {
        (6..10).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit())
    })
}

/// A place for backups. Clones share it.
#[derive(Clone)]
pub struct Target {
    text: Arc<str>,
    store: Arc<dyn ObjectStore>,
    folder: PathBuf,
}

/// What is below one name.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Whether there is a manifest: the backup is finished.
    pub finished: bool,
    /// Whether a prune removed its manifest.
    pub removed: bool,
    /// The objects, with their lengths.
    pub objects: BTreeMap<String, u64>,
    /// When the latest of them was written.
    pub latest: Option<SystemTime>,
}

impl Found {
    /// What a backup of this name wrote; `None` if it wrote nothing.
    fn of(name: &str, objects: &[ObjectMeta]) -> Option<Found> {
        let mut found = Found::default();
        for meta in objects {
            let path = meta.location.as_ref();
            if !is_written(path, name) {
                continue;
            }
            found.finished |= path == manifest_path(name);
            found.removed |= path == removed_path(name);
            found.objects.insert(path.to_owned(), meta.size);
            let written = u64::try_from(meta.last_modified.timestamp()).unwrap_or_default();
            let written = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(written));
            found.latest = found.latest.max(written);
        }
        (!found.objects.is_empty()).then_some(found)
    }
}

impl Target {
    /// A folder that is there.
    ///
    /// # Errors
    /// [`Error::Target`].
    pub fn open(text: &str) -> Result<Target> {
        let refused = |reason: String| Error::Target { text: text.to_owned(), reason };
        if let Some((scheme, _)) = text.split_once("://") {
            return Err(refused(format!("`{scheme}` is not served; expected a folder")));
        }
        if !std::path::Path::new(text).is_dir() {
            return Err(refused("expected a folder".into()));
        }
        let store = LocalFileSystem::new_with_prefix(text)
            .map_err(|error| refused(error.to_string()))?
            .with_fsync(true)
            .with_automatic_cleanup(true);
        Ok(Target { text: text.into(), store: Arc::new(store), folder: text.into() })
    }

    /// The same; it is made if it is not there.
    ///
    /// # Errors
    /// [`Error::Target`].
    pub fn make(text: &str) -> Result<Target> {
        if !text.contains("://") && !text.is_empty() {
            std::fs::create_dir_all(text).map_err(|error| Error::Target {
                text: text.to_owned(),
                reason: error.to_string(),
            })?;
        }
        Target::open(text)
    }

    fn failed(&self, source: object_store::Error) -> Error {
        Error::Store { target: self.text.to_string(), source }
    }

    /// Stores an object under a new path.
    pub(crate) async fn create(&self, path: &str, bytes: Bytes) -> Result<()> {
        let options = PutOptions::from(PutMode::Create);
        let put = self.store.put_opts(&Path::from(path), bytes.into(), options).await;
        put.map(drop).map_err(|error| self.failed(error))
    }

    /// The same, if it is not there yet.
    pub(crate) async fn create_once(&self, path: &str, bytes: Bytes) -> Result<()> {
        match self.create(path, bytes).await {
            Err(Error::Store { source: object_store::Error::AlreadyExists { .. }, .. }) => Ok(()),
            created => created,
        }
    }

    /// Whether there is such an object.
    pub(crate) async fn has(&self, path: &str) -> Result<bool> {
        match self.store.head(&Path::from(path)).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// An object's bytes, at most so many; `None` if it is not there.
    pub(crate) async fn get(&self, path: &str, most: u64) -> Result<Option<Bytes>> {
        let got = match self.store.get(&Path::from(path)).await {
            Ok(got) if got.meta.size > most => {
                return Err(Error::TooLong {
                    path: format!("{}/{path}", self.text),
                    bytes: got.meta.size,
                    most,
                });
            }
            Ok(got) => got.bytes().await,
            Err(error) => Err(error),
        };
        match got {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Removes an object. One that is not there is removed.
    pub(crate) async fn remove(&self, path: &str) -> Result<()> {
        match self.store.delete(&Path::from(path)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Removes the files of this name that a killed save left unfinished: `PATH#NUMBER`. The store
    /// neither lists nor removes them.
    pub(crate) async fn remove_unfinished(&self, name: &str) -> Result<()> {
        let (folder, name) = (self.folder.join(name), name.to_owned());
        let removed = spawn_blocking(move || remove_unfinished(&folder, &name)).await;
        let removed = removed.map_err(|error| Error::Task(error.to_string()))?;
        removed.map_err(|error| {
            self.failed(object_store::Error::Generic { store: "folder", source: error.into() })
        })
    }

    /// Everything at the target, by the name of its backup. What no backup wrote is left out.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn find(&self) -> Result<BTreeMap<String, Found>> {
        let mut found: BTreeMap<String, Found> = BTreeMap::new();
        let folders = self.store.list_with_delimiter(None).await.map_err(|e| self.failed(e))?;
        for folder in folders.common_prefixes {
            let name = folder.as_ref().to_owned();
            if is_name(&name) {
                let objects = self.store.list_with_delimiter(Some(&folder)).await;
                let objects = objects.map_err(|error| self.failed(error))?.objects;
                let of_name = Found::of(&name, &objects);
                found.extend(of_name.map(|of_name| (name, of_name)));
            }
        }
        Ok(found)
    }

    /// As it was given.
    pub fn text(&self) -> &str {
        &self.text
    }
}

fn remove_unfinished(folder: &std::path::Path, name: &str) -> std::io::Result<()> {
    let entries = match std::fs::read_dir(folder) {
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
        let unfinished = is_number && is_written(&format!("{name}/{file}"), name);
        if !unfinished || !entry.file_type()?.is_file() {
            continue;
        }
        match std::fs::remove_file(entry.path()) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            removed => removed?,
        }
    }
    Ok(())
}
