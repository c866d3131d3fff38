//! Where backups are: a folder, or a bucket with a prefix.

use crate::error::{Error, Result};
use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use std::collections::BTreeMap;
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
}

/// What is below one name.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Whether there is a manifest: the backup is finished.
    pub finished: bool,
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
            let kinds = ["values", "records"].iter().any(|kind| is_path(path, kind));
            if !kinds && path != head_path(name) && path != manifest_path(name) {
                continue;
            }
            found.finished |= path == manifest_path(name);
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
            .with_fsync(true);
        Ok(Target { text: text.into(), store: Arc::new(store) })
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
