//! Reading a backup back, in key order.
//!
//! What holds here: nothing is returned that does not have its checksum and its hash, and the end is
//! reached only if all of it together is the state that the manifest says.

use crate::error::{Error, Result, shown};
use crate::manifest::{Manifest, Object};
use crate::record::{Item, Piece, Record, Summary, matches};
use crate::target::{Target, folder_of, manifest_path};
use bytes::Bytes;
use real_tokio::task::{JoinHandle, spawn_blocking};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io::Read;

/// The bytes of the objects with values that are held at once: 32 of the usual ones. Each folder is read
/// from its first object to its last, so what is read twice is an object of which a value is needed
/// rarely. Between two of these at least eight objects are read for the first time, if the folders are 24.
const HELD_BYTES: u64 = 512 << 20;
/// With so many folders the next object of each may be held beside the one that is read.
const AHEAD_FOLDERS: usize = 4;

/// A finished backup.
pub struct Backup {
    target: Target,
    manifest: Manifest,
}

impl Backup {
    /// Opens a backup. Only its manifest is read.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Damaged`], [`Error::Newer`], [`Error::Store`].
    pub async fn open(target: &Target, name: &str) -> Result<Backup> {
        Ok(Backup { target: target.clone(), manifest: Manifest::load(target, name).await? })
    }

    /// What it says of itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// All keys with their values, in order.
    pub fn items(&self) -> Items {
        Items {
            records: Records::new(&self.target, &self.manifest.name, &self.manifest.records),
            summary: Summary::default(),
            expected: self.manifest.clone(),
            values: Values::new(&self.target, &self.manifest.name, &self.manifest.values),
        }
    }

    /// Reads all of it. Returns the number of keys.
    ///
    /// # Errors
    /// [`Error::Damaged`] with the first damage that it finds; [`Error::Store`].
    pub async fn verify(&self, mut progress: impl FnMut(&Item)) -> Result<u64> {
        let (mut items, mut keys) = (self.items(), 0);
        while let Some(item) = items.next().await? {
            progress(&item);
            keys += 1;
        }
        Ok(keys)
    }
}

/// The keys of a backup. A stream that is not read to its end has not been checked to its end.
pub struct Items {
    records: Records,
    summary: Summary,
    expected: Manifest,
    pub(crate) values: Values,
}

impl Items {
    /// The next key with its value; `None` once all were returned and are what the manifest says.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Store`].
    pub async fn next(&mut self) -> Result<Option<Item>> {
        let damaged = |what: String| Error::Damaged { name: self.expected.name.clone(), what };
        let Some(record) = self.records.next().await? else {
            let Manifest { keys, value_bytes, state, .. } = &self.expected;
            let found = (self.summary.keys, self.summary.value_bytes, self.summary.hash());
            if found != (*keys, *value_bytes, state.clone()) {
                return Err(damaged(format!("its records are not those of {keys} keys")));
            }
            return Ok(None);
        };
        self.summary.add(&record).map_err(|error| damaged(error.to_string()))?;
        let head = &self.expected.head;
        if record.term > head.term || record.index > head.index {
            let key = shown(&record.key);
            return Err(damaged(format!("key {key} has a version behind the backup's own index")));
        }
        let value = match record.length {
            0 => Bytes::new(),
            _ => self.values.read(&record).await?,
        };
        if !matches(&record, &value) {
            let key = shown(&record.key);
            return Err(damaged(format!("the value of key {key} does not have its hash")));
        }
        let hash = record.hash().unwrap_or_default();
        let Record { key, term, index, length, .. } = record;
        Ok(Some(Item { key, term, index, length, hash, value: Some(value) }))
    }
}

/// The records of a backup, in key order.
pub(crate) struct Records {
    target: Target,
    name: String,
    objects: VecDeque<Object>,
    next: Option<Loading>,
    piece: VecDeque<Record>,
}

impl Records {
    pub(crate) fn new(target: &Target, name: &str, objects: &[Object]) -> Records {
        Records {
            target: target.clone(),
            name: name.to_owned(),
            objects: objects.iter().cloned().collect(),
            next: None,
            piece: VecDeque::new(),
        }
    }

    fn load(&mut self) -> Option<Loading> {
        let object = self.objects.pop_front()?;
        Some(spawn_fetch(&self.target, &self.name, object))
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Record>> {
        while self.piece.is_empty() {
            let Some(loading) = self.next.take().or_else(|| self.load()) else { return Ok(None) };
            self.next = self.load();
            let bytes = joined(loading).await?;
            self.piece = decode_piece(&self.name, &bytes)?.records.into();
        }
        Ok(self.piece.pop_front())
    }
}

/// Reads a piece of records.
pub(crate) fn decode_piece(name: &str, bytes: &Bytes) -> Result<Piece> {
    Piece::read(bytes)
        .map_err(|error| Error::Damaged { name: name.into(), what: format!("records: {error}") })
}

/// Objects with values. What is held are the latest used ones.
pub(crate) struct Values {
    target: Target,
    name: String,
    objects: BTreeMap<u32, Object>,
    /// The next object of the same folder, of each that is not read ahead yet.
    ahead: HashMap<u32, u32>,
    /// By number, each with the time of its last use.
    held: HashMap<u32, (u64, Load)>,
    /// The numbers of these, by that time.
    used: BTreeMap<u64, u32>,
    uses: u64,
    held_bytes: u64,
    pub(crate) held_bytes_max: u64,
    #[cfg(test)]
    pub(crate) loads: usize,
}

enum Load {
    Begun(Loading),
    Done(Bytes),
}

impl Values {
    fn new(target: &Target, name: &str, objects: &[Object]) -> Values {
        let objects: BTreeMap<u32, Object> =
            objects.iter().map(|object| (object.number, object.clone())).collect();
        let folder = |object: &Object| folder_of(&object.path).to_owned();
        let folders: HashSet<String> = objects.values().map(folder).collect();
        let (mut ahead, mut next) = (HashMap::new(), HashMap::new());
        if folders.len() <= AHEAD_FOLDERS {
            for (number, object) in objects.iter().rev() {
                let following = next.insert(folder(object), *number);
                ahead.extend(following.map(|following| (*number, following)));
            }
        }
        Values {
            target: target.clone(),
            name: name.to_owned(),
            objects,
            ahead,
            held: HashMap::new(),
            used: BTreeMap::new(),
            uses: 0,
            held_bytes: 0,
            held_bytes_max: HELD_BYTES,
            #[cfg(test)]
            loads: 0,
        }
    }

    async fn read(&mut self, record: &Record) -> Result<Bytes> {
        let damaged = |what: &str| {
            let what = format!("the value of key {} {what}", shown(&record.key));
            Error::Damaged { name: self.name.clone(), what }
        };
        let lacks = damaged("is in no object that the manifest names");
        let outside = damaged("lies outside of its object");
        if !self.objects.contains_key(&record.object) {
            return Err(lacks);
        }
        let bytes = self.object(record.object).await?;
        let begin = usize::try_from(record.offset).unwrap_or(usize::MAX);
        let end = begin.saturating_add(record.length as usize);
        if end > bytes.len() {
            return Err(outside);
        }
        Ok(bytes.slice(begin..end))
    }

    async fn object(&mut self, number: u32) -> Result<Bytes> {
        let load = self.take(number).or_else(|| self.begin(number));
        if let Some(next) = self.ahead.remove(&number)
            && !self.held.contains_key(&next)
            && let Some(load) = self.begin(next)
        {
            self.hold(next, load);
        }
        let bytes = match load {
            Some(Load::Done(bytes)) => bytes,
            Some(Load::Begun(loading)) => joined(loading).await?,
            None => Bytes::new(),
        };
        self.hold(number, Load::Done(bytes.clone()));
        Ok(bytes)
    }

    fn take(&mut self, number: u32) -> Option<Load> {
        let (used, load) = self.held.remove(&number)?;
        self.used.remove(&used);
        self.held_bytes -= self.bytes(number);
        Some(load)
    }

    /// Holds one that is not held, and drops what was not used for the longest time.
    fn hold(&mut self, number: u32, load: Load) {
        self.uses += 1;
        self.held.insert(number, (self.uses, load));
        self.used.insert(self.uses, number);
        self.held_bytes += self.bytes(number);
        while self.held_bytes > self.held_bytes_max
            && self.held.len() > 2
            && let Some(oldest) = self.used.first_key_value().map(|(_, number)| *number)
        {
            self.take(oldest);
        }
    }

    fn bytes(&self, number: u32) -> u64 {
        self.objects.get(&number).map_or(0, |object| object.raw_bytes)
    }

    fn begin(&mut self, number: u32) -> Option<Load> {
        let object = self.objects.get(&number)?.clone();
        #[cfg(test)]
        {
            self.loads += 1;
        }
        Some(Load::Begun(spawn_fetch(&self.target, &self.name, object)))
    }
}

/// An object that is being read, for as long as somebody may want it.
struct Loading(JoinHandle<Result<Bytes>>);

impl Drop for Loading {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn joined(mut loading: Loading) -> Result<Bytes> {
    (&mut loading.0).await.map_err(|error| Error::Task(error.to_string()))?
}

fn spawn_fetch(target: &Target, name: &str, object: Object) -> Loading {
    let (target, name) = (target.clone(), name.to_owned());
    Loading(real_tokio::spawn(async move { fetch(&target, &name, &object).await }))
}

/// An object's bytes, decompressed, once they have their checksum.
pub(crate) async fn fetch(target: &Target, name: &str, object: &Object) -> Result<Bytes> {
    let Object { path, bytes: length, raw_bytes, zstd, crc32, .. } = object.clone();
    let damaged = |what: String| Error::Damaged { name: name.into(), what };
    let stored = target.get(&path, length).await;
    let stored = match stored {
        Err(Error::TooLong { bytes, .. }) => {
            return Err(damaged(format!("object `{path}` has {bytes} of {length} bytes")));
        }
        stored => stored?,
    };
    let Some(stored) = stored else {
        return Err(match target.has(&manifest_path(name)).await? {
            true => damaged(format!("object `{path}` is not there")),
            false => Error::Removed(name.into()),
        });
    };
    if stored.len() as u64 != length {
        return Err(damaged(format!("object `{path}` has {} of {length} bytes", stored.len())));
    }
    let raw = spawn_blocking(move || {
        if crc32fast::hash(&stored) != crc32 {
            return Err("does not have its checksum".to_owned());
        }
        if !zstd {
            return Ok(stored);
        }
        decompress(&stored, raw_bytes)
    });
    let raw = raw.await.map_err(|error| Error::Task(error.to_string()))?;
    let raw = raw.map_err(|what| damaged(format!("object `{path}` {what}")))?;
    match raw.len() as u64 == raw_bytes {
        true => Ok(raw),
        false => Err(damaged(format!("object `{path}` holds {} of {raw_bytes} bytes", raw.len()))),
    }
}

/// At most so many bytes, however many a hostile object would make.
pub(crate) fn decompress(stored: &[u8], most: u64) -> std::result::Result<Bytes, String> {
    let mut raw = Vec::new();
    let decoder = zstd::stream::read::Decoder::new(stored).map_err(|error| error.to_string())?;
    let read = decoder.take(most + 1).read_to_end(&mut raw);
    read.map_err(|error| format!("cannot be decompressed: {error}"))?;
    if raw.len() as u64 > most {
        return Err(format!("holds more than {most} bytes"));
    }
    Ok(raw.into())
}
