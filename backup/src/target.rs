//! Where backups are: a folder, or a bucket with a prefix.
//!
//! What holds here: what is listed and removed has a name that a backup gives its objects, or is an
//! unfinished file of such a name. A folder that is empty then goes too; a bucket has neither. No symbolic link in a
//! folder is followed.

use crate::bucket::{Bucket, LIST_CALLS, Limits, Tries, is_conflict, is_half, variables};
use crate::error::{Error, Result};
use crate::folder::{self, Listed, Listing, Obstacle, Unreadable};
use crate::links::{self, Led};
use crate::paths::{folder_of, is_manifest, is_name, is_written, manifest_path, removed_path};
use crate::shown::{excerpt, redacted_url};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    GetResultPayload, ListResult, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
};
use real_tokio::task::spawn_blocking;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A place for backups. Clones share it.
#[derive(Clone)]
pub struct Target {
    text: Arc<str>,
    store: Arc<dyn ObjectStore>,
    /// Makes each request once.
    once: Arc<dyn ObjectStore>,
    place: Place,
}

#[derive(Clone)]
enum Place {
    Folder(PathBuf),
    Bucket(Arc<Bucket>),
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
    /// Whether a link is where an object should be. Nothing of it goes, and no list has it.
    pub(crate) has_links: bool,
}

/// All that is at a target, also what no list has.
pub(crate) struct Survey {
    /// By the name of its backup, also with links in it.
    pub(crate) found: BTreeMap<String, Found>,
    /// The names of links that stand where the folder of a backup may be.
    pub(crate) folder_links: Vec<String>,
    /// The paths of links that stand where an object of a backup may be.
    pub(crate) object_links: Vec<String>,
    /// The folders with the names of backups that this process may not read.
    pub(crate) unreadable: Vec<Unreadable>,
}

impl Survey {
    /// The same, if nothing is left out.
    ///
    /// # Errors
    /// [`Error::Unreadable`].
    pub(crate) fn readable(self, target: &Target) -> Result<Survey> {
        match self.unreadable.first() {
            Some(first) => Err(target.unreadable(first)),
            None => Ok(self),
        }
    }

    /// The same, without what no list has.
    pub(crate) fn listed(mut self) -> Survey {
        self.found.retain(|_, found| !found.has_links);
        self
    }

    /// The folder of this path, if that may not be read: what is not found there may be there.
    pub(crate) fn hides(&self, path: &str) -> Option<&Unreadable> {
        self.unreadable.iter().find(|folder| folder.name == folder_of(path))
    }
}

impl Found {
    /// What a backup of this name wrote; `None` if it wrote nothing.
    fn of(name: &str, objects: Vec<Listed>) -> Option<Found> {
        let mut found = Found::default();
        for Listed { path, bytes, written } in objects {
            if !is_written(&path, name) {
                continue;
            }
            found.finished |= path == manifest_path(name);
            found.removed |= path == removed_path(name);
            found.objects.insert(path, bytes);
            found.latest = found.latest.max(written.and_then(whole_seconds));
        }
        (!found.objects.is_empty()).then_some(found)
    }
}

/// As buckets tell times.
fn whole_seconds(time: SystemTime) -> Option<SystemTime> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(since.as_secs()))
}

fn listed(meta: ObjectMeta) -> Listed {
    let written = u64::try_from(meta.last_modified.timestamp()).unwrap_or_default();
    let written = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(written));
    Listed { path: meta.location.as_ref().to_owned(), bytes: meta.size, written }
}

impl Target {
    /// A folder that is there, or a bucket. That one is not asked yet.
    ///
    /// # Errors
    /// [`Error::Target`].
    pub fn open(text: &str) -> Result<Target> {
        match text.contains("://") {
            true => Target::bucket(text, variables(), None),
            false => Target::folder(text),
        }
    }

    fn folder(text: &str) -> Result<Target> {
        let refused = |reason: String| Error::Target { text: text.to_owned(), reason };
        if !std::path::Path::new(text).is_dir() {
            return Err(refused("expected a folder".into()));
        }
        let store = LocalFileSystem::new_with_prefix(text)
            .map_err(|error| refused(error.to_string()))?
            .with_fsync(true)
            .with_automatic_cleanup(true);
        let store: Arc<dyn ObjectStore> = Arc::new(store);
        let place = Place::Folder(text.into());
        Ok(Target { text: text.into(), store: store.clone(), once: store, place })
    }

    pub(crate) fn bucket(
        text: &str,
        variables: impl IntoIterator<Item = (String, String)>,
        limits: Option<Limits>,
    ) -> Result<Target> {
        let refused = |reason: String| Error::Target { text: redacted_url(text), reason };
        let bucket = Bucket::open(text, variables, limits).map_err(refused)?;
        let (store, once) = (bucket.store.clone(), bucket.once.clone());
        Ok(Target { text: text.into(), store, once, place: Place::Bucket(Arc::new(bucket)) })
    }

    /// The same; a folder is made if it is not there.
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

    fn failed(&self, error: object_store::Error) -> Error {
        let said = self.in_bucket().map(|bucket| bucket.explain(&error));
        let said = excerpt(&said.unwrap_or_else(|| error.to_string()));
        Error::Store { target: self.text.to_string(), said }
    }

    fn in_bucket(&self) -> Option<&Bucket> {
        match &self.place {
            Place::Bucket(bucket) => Some(bucket),
            Place::Folder(_) => None,
        }
    }

    /// Ends a call to a bucket that does not end by itself.
    async fn bounded<T>(
        &self,
        calls: u32,
        call: impl Future<Output = object_store::Result<T>>,
    ) -> object_store::Result<T> {
        match self.in_bucket() {
            Some(bucket) => bucket.bounded(calls, call).await,
            None => call.await,
        }
    }

    pub(crate) fn unreadable(&self, folder: &Unreadable) -> Error {
        let Unreadable { name, why } = folder;
        Error::Unreadable { path: format!("{}/{name}", self.text), why: why.clone() }
    }

    /// Why an object is not read. A file that this process may not read says nothing of the other backups.
    fn not_read(&self, path: &str, error: object_store::Error) -> Error {
        match folder::denied(&error).filter(|_| self.in_bucket().is_none()) {
            Some(why) => Error::Unreadable { path: format!("{}/{path}", self.text), why },
            None => self.failed(error),
        }
    }

    fn is_missing(&self, error: &object_store::Error) -> bool {
        match self.in_bucket() {
            Some(bucket) => bucket.is_missing(error),
            None => matches!(error, object_store::Error::NotFound { .. }),
        }
    }

    /// Stores an object under a new path.
    ///
    /// A line that breaks leaves it open whether a bucket has stored it. What is there at the next try
    /// with the same bytes is this one.
    pub(crate) async fn create(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.put(path, bytes).await?.then_some(()).ok_or_else(|| {
            let (path, source) = (path.to_owned(), "it is there".into());
            self.failed(object_store::Error::AlreadyExists { path, source })
        })
    }

    /// The same, if it is not there yet.
    pub(crate) async fn create_once(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.put(path, bytes).await.map(drop)
    }

    /// Whether it was not there.
    async fn put(&self, path: &str, bytes: Bytes) -> Result<bool> {
        self.see_way(path).await?;
        let mut tries = Tries::of(self.in_bucket());
        loop {
            let (at, options) = (Path::from(path), PutOptions::from(PutMode::Create));
            let put = self.once.put_opts(&at, bytes.clone().into(), options);
            let Err(error) = self.bounded(1, put).await else { return Ok(true) };
            let exists =
                matches!(error, object_store::Error::AlreadyExists { .. }) && !is_conflict(&error);
            if exists && !tries.unclear {
                return Ok(false);
            }
            if exists {
                match self.get(path, bytes.len() as u64).await {
                    Ok(Some(there)) => return Ok(there == bytes),
                    Err(Error::TooLong { .. }) => return Ok(false),
                    Err(error) => return Err(error),
                    Ok(None) => {}
                }
            }
            if !tries.again(&error).await {
                return Err(self.failed(error));
            }
        }
    }

    /// Whether there is such an object.
    pub(crate) async fn has(&self, path: &str) -> Result<bool> {
        self.see_way(path).await?;
        match self.bounded(1, self.store.head(&Path::from(path))).await {
            Ok(_) => Ok(true),
            Err(error) if self.is_missing(&error) => Ok(false),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// An object's bytes, at most so many; `None` if it is not there.
    pub(crate) async fn get(&self, path: &str, most: u64) -> Result<Option<Bytes>> {
        self.see_way(path).await?;
        let (at, mut tries) = (Path::from(path), Tries::of(self.in_bucket()));
        loop {
            match self.bounded(1, read(&*self.store, &at, most)).await {
                Ok(Ok(bytes)) => return Ok(Some(bytes)),
                Ok(Err(bytes)) => {
                    let path = format!("{}/{path}", self.text);
                    return Err(Error::TooLong { path, bytes, most });
                }
                Err(error) if self.is_missing(&error) => return Ok(None),
                Err(error) if tries.again(&error).await => {}
                Err(error) => return Err(self.not_read(path, error)),
            }
        }
    }

    /// Removes an object. One that is not there is removed.
    pub(crate) async fn remove(&self, path: &str) -> Result<()> {
        self.see_way(path).await?;
        let (at, mut tries) = (Path::from(path), Tries::of(self.in_bucket()));
        loop {
            match self.bounded(1, self.once.delete(&at)).await {
                Ok(()) => return Ok(()),
                Err(error) if self.is_missing(&error) => return Ok(()),
                Err(error) if tries.again(&error).await => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    /// Removes the files of this name that a killed save left unfinished: `PATH#NUMBER`. The store
    /// neither lists nor removes them.
    pub(crate) async fn remove_unfinished(&self, name: &str) -> Result<()> {
        let Place::Folder(folder) = &self.place else { return Ok(()) };
        self.see_way(name).await?;
        let (folder, name) = (folder.join(name), name.to_owned());
        self.blocking(move || folder::remove_unfinished(&folder, &name, is_written)).await
    }

    /// Refuses a path in a folder that leads elsewhere, to what is no file, or through a folder that may not be read.
    pub(crate) async fn see_way(&self, path: &str) -> Result<()> {
        let Place::Folder(folder) = &self.place else { return Ok(()) };
        let (folder, path) = (folder.clone(), path.to_owned());
        match self.blocking(move || folder::obstacle_in(&folder, &path)).await? {
            Some(Obstacle::Link(link)) => Err(Error::Link { path: link.display().to_string() }),
            Some(Obstacle::NoFile(at)) => Err(Error::NoFile { path: at.display().to_string() }),
            Some(Obstacle::Unreadable(at, why)) => {
                Err(Error::Unreadable { path: at.display().to_string(), why })
            }
            None => Ok(()),
        }
    }

    /// Where a link on this path in a folder leads.
    async fn led(&self, path: &str) -> Result<Led> {
        let Place::Folder(folder) = &self.place else { return Ok(Led::Nowhere) };
        links::led(folder, path).await.map_err(|error| {
            let source = format!("where `{path}` leads cannot be told: {error}").into();
            self.failed(object_store::Error::Generic { store: "folder", source })
        })
    }

    /// Whether the manifest of this name is behind a link, and nobody knows what it needs. A folder's link to a backup beside it
    /// hides nothing: that one says itself what it needs. A manifest is that of one name, so a link in its place never does.
    /// What leads nowhere has nothing that somebody could need.
    pub(crate) async fn hides_manifest(&self, name: &str, by_folder: bool) -> Result<bool> {
        Ok(match self.led(&manifest_path(name)).await? {
            Led::Nowhere => false,
            Led::Within(path) => !by_folder || !is_manifest(&path),
            Led::Away | Led::Unknown => true,
        })
    }

    /// Calls the system for a folder: it may wait for ever.
    async fn blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> std::io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let done = spawn_blocking(call).await?;
        done.map_err(|error| {
            self.failed(object_store::Error::Generic { store: "folder", source: error.into() })
        })
    }

    /// The paths in this folder to which these links lead: what they stand for is there.
    ///
    /// # Errors
    /// [`Error::Link`], of one of which the system does not say in time where it leads; [`Error::Store`].
    pub(crate) async fn led_to<'a>(
        &self,
        links: impl IntoIterator<Item = &'a String>,
    ) -> Result<BTreeSet<String>> {
        let mut paths = BTreeSet::new();
        for link in links {
            match self.led(link).await? {
                Led::Within(path) => {
                    paths.insert(path);
                }
                Led::Unknown => self.see_way(link).await?,
                Led::Nowhere | Led::Away => {}
            }
        }
        Ok(paths)
    }

    /// Everything at the target, by the name of its backup. What no backup wrote is left out, and so is a folder that
    /// is a symbolic link, has one where an object should be, or may not be read.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn find(&self) -> Result<BTreeMap<String, Found>> {
        Ok(self.survey().await?.listed().found)
    }

    /// The same, with the folders in which a link is, and the names of links and of folders that may not be read.
    pub(crate) async fn survey(&self) -> Result<Survey> {
        let mut found = BTreeMap::new();
        if let Place::Folder(folder) = &self.place {
            let folder = folder.clone();
            let listing = self.blocking(move || folder::list(&folder, is_name, is_written)).await?;
            let Listing { folders, links: folder_links, unreadable } = listing;
            let mut object_links = Vec::new();
            for (name, objects) in folders {
                let has_links = !objects.links.is_empty();
                object_links.extend(objects.links);
                let of_name = Found::of(&name, objects.files);
                found.extend(of_name.map(|of_name| (name, Found { has_links, ..of_name })));
            }
            return Ok(Survey { found, folder_links, object_links, unreadable });
        }
        for folder in self.list(None).await?.common_prefixes {
            let name = folder.as_ref().to_owned();
            if is_name(&name) {
                let objects = self.list(Some(&folder)).await?.objects;
                let of_name = Found::of(&name, objects.into_iter().map(listed).collect());
                found.extend(of_name.map(|of_name| (name, of_name)));
            }
        }
        let (folder_links, object_links, unreadable) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Survey { found, folder_links, object_links, unreadable })
    }

    async fn list(&self, folder: Option<&Path>) -> Result<ListResult> {
        let mut tries = Tries::of(self.in_bucket());
        loop {
            let list = self.store.list_with_delimiter(folder);
            match self.bounded(LIST_CALLS, list).await {
                Ok(list) => return Ok(list),
                Err(error) if is_half(&error) && tries.again(&error).await => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    /// As it was given.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// An object's bytes, or that it has more than so many, whatever its length is said to be.
async fn read(
    store: &dyn ObjectStore,
    at: &Path,
    most: u64,
) -> object_store::Result<std::result::Result<Bytes, u64>> {
    let got = store.get(at).await?;
    if got.meta.size > most {
        return Ok(Err(got.meta.size));
    }
    if !matches!(got.payload, GetResultPayload::Stream(_)) {
        return got.bytes().await.map(Ok);
    }
    // No more than is told, which is bounded: a vector that grows may be twice as long as what is in it.
    let told = usize::try_from(got.meta.size).unwrap_or_default();
    let (mut bytes, mut pieces) = (BytesMut::with_capacity(told), got.into_stream());
    while let Some(piece) = pieces.next().await {
        bytes.extend_from_slice(&piece?);
        if bytes.len() as u64 > most {
            return Ok(Err(bytes.len() as u64));
        }
    }
    Ok(Ok(bytes.freeze()))
}
