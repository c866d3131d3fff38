//! Saving a state that a cluster streams, key by key.
//!
//! A backup may build on others: on a finished one, or on one that was broken off. The cluster leaves
//! out the values that they have, and the records of the new backup name the objects there.
//!
//! What holds here: a value that the cluster leaves out is found in one of these under the same version
//! and hash, or the backup fails. An object of records is written when every object that it names is. At
//! the end every object is there with its length, and then the manifest is written, if it can be read.

use crate::error::{Error, Result, shown};
use crate::manifest::{
    FOLDERS_MAX, Head, Manifest, Object, RECORDS_BYTES_MAX, RESUMED_MAX, VALUES_BYTES_MAX,
};
use crate::prune::{UNDER_WAY, is_younger};
use crate::read::{Records, decode_piece, decompress};
use crate::record::{Item, Named, Piece, Record, Summary, matches};
use crate::target::{Found, Target, first_records, folder_of, head_path, manifest_path, path_of};
use bytes::Bytes;
use prost::Message;
use real_tokio::task::{JoinSet, spawn_blocking};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{SystemTime, UNIX_EPOCH};

/// How large objects are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Bytes of values in an object, before compression. A larger value is alone in one.
    pub(crate) values: usize,
    /// Bytes of keys and records in an object.
    pub(crate) records: usize,
    /// New values after which the records are written, however few: what a break costs.
    pub(crate) unrecorded: u64,
}

impl Sizes {
    const USUAL: Sizes = Sizes { values: 16 << 20, records: 4 << 20, unrecorded: 256 << 20 };
}

/// About the bytes of a record beside its key.
const RECORD_BYTES: usize = 48;
/// Objects that are written at once.
const WRITES: usize = 4;
/// zstd's level. Values are rarely worth more.
const LEVEL: i32 = 1;
/// An object is kept compressed if that saves this part of it.
const WORTH_PART: usize = 10;

/// Values that the saver has, and the cluster need not send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Written by an entry of this term and index, or by an earlier one.
    pub through: (u64, u64),
    /// Of keys up to this one; `None`: of all keys.
    pub through_key: Option<Bytes>,
}

/// A backup that another one builds on.
struct Source {
    name: String,
    held: Held,
    records: Records,
    /// The next record.
    next: Option<Record>,
    objects: HashMap<u32, Object>,
}

impl Source {
    /// The folders of the objects that it has, and its own.
    fn folders(&self) -> BTreeSet<String> {
        let of_values = self.objects.values().map(|object| folder_of(&object.path));
        of_values.chain([self.name.as_str()]).map(str::to_owned).collect()
    }

    /// The record of a key. Keys are asked for in order.
    async fn find(&mut self, key: &Bytes) -> Result<Option<&Record>> {
        while self.next.as_ref().is_none_or(|record| record.key < key) {
            match self.records.next().await? {
                Some(record) => self.next = Some(record),
                None => return Ok(None),
            }
        }
        Ok(self.next.as_ref().filter(|record| record.key == key))
    }
}

/// What a new backup builds on.
#[derive(Default)]
pub struct Sources {
    all: Vec<Source>,
    base: Option<String>,
    left_out: Option<(String, usize)>,
    resumes: Vec<String>,
}

impl Sources {
    /// The finished backup `base`, and, with `resume`, the latest of this cluster that were broken off.
    /// A base that needs the objects of 24 folders is left out: so a chain of backups renews itself
    /// before it is slow to read.
    ///
    /// # Errors
    /// [`Error::Missing`] or [`Error::Damaged`], of `base`; [`Error::Store`].
    pub async fn find(
        target: &Target,
        cluster: &str,
        generation: u32,
        base: Option<&str>,
        resume: bool,
    ) -> Result<Sources> {
        let found = target.find().await?;
        let mut sources = Sources::default();
        let mut folders = BTreeSet::new();
        if let Some(name) = base {
            let manifest = Manifest::load(target, name).await?;
            let needs = manifest.sources();
            if needs < FOLDERS_MAX {
                let source = finished(target, name, manifest, &found)?;
                folders = source.folders();
                sources.base = Some(name.to_owned());
                sources.all.push(source);
            } else {
                sources.left_out = Some((name.to_owned(), needs));
            }
        }
        // A prune removes what is older, and does not see who begins to build on it.
        let now = SystemTime::now();
        let unfinished = found.iter().filter(|(_, found)| {
            let rest = found.finished || found.removed;
            resume && !rest && is_younger(found.latest, UNDER_WAY / 2, now)
        });
        let mut unfinished: Vec<_> = unfinished.map(|(name, f)| (f.latest, name)).collect();
        unfinished.sort_unstable();
        while let Some((_, name)) = unfinished.pop().filter(|_| sources.resumes.len() < RESUMED_MAX)
        {
            let Ok(Some(head)) = Head::load(target, name).await else { continue };
            if (head.cluster.as_str(), head.generation) != (cluster, generation) {
                continue;
            }
            let Some(source) = broken_off(target, name, &head, &found).await? else { continue };
            // A save that breaks off often takes over the folders of all its attempts.
            let more: BTreeSet<String> = folders.union(&source.folders()).cloned().collect();
            if more.len() < FOLDERS_MAX + RESUMED_MAX {
                folders = more;
                sources.resumes.push(name.clone());
                sources.all.push(source);
            }
        }
        Ok(sources)
    }

    /// What the cluster need not send.
    pub fn held(&self) -> Vec<Held> {
        self.all.iter().map(|source| source.held.clone()).collect()
    }

    /// The base that was asked for, if it is left out, and how many folders it needs.
    pub fn left_out(&self) -> Option<(&str, usize)> {
        self.left_out.as_ref().map(|(name, needs)| (name.as_str(), *needs))
    }

    /// The backups that were broken off, and that this one goes on with.
    pub fn resumes(&self) -> &[String] {
        &self.resumes
    }
}

/// Whether the object is there as it was written.
fn is_there(object: &Object, found: &BTreeMap<String, Found>) -> bool {
    let found = found.get(folder_of(&object.path));
    found.and_then(|found| found.objects.get(&object.path)) == Some(&object.bytes)
}

fn finished(
    target: &Target,
    name: &str,
    manifest: Manifest,
    found: &BTreeMap<String, Found>,
) -> Result<Source> {
    if let Some(gone) = manifest.objects().find(|object| !is_there(object, found)) {
        let what = format!("object `{}` is not there, or has another length", gone.path);
        return Err(Error::Damaged { name: name.into(), what });
    }
    let through = (manifest.head.term, manifest.head.index);
    Ok(Source {
        name: name.to_owned(),
        held: Held { through, through_key: None },
        records: Records::new(target, name, &manifest.records),
        next: None,
        objects: manifest.values.into_iter().map(|object| (object.number, object)).collect(),
    })
}

/// `None` if nothing of it can be used.
async fn broken_off(
    target: &Target,
    name: &str,
    head: &Head,
    found: &BTreeMap<String, Found>,
) -> Result<Option<Source>> {
    let (mut records, mut objects, mut last) = (Vec::new(), HashMap::new(), None);
    loop {
        let path = path_of(name, "records", records.len());
        let Ok(Some(stored)) = target.get(&path, RECORDS_BYTES_MAX).await else { break };
        let (bytes, crc32) = (stored.len() as u64, crc32fast::hash(&stored));
        let raw = spawn_blocking(move || decompress(&stored, RECORDS_BYTES_MAX)).await;
        let Ok(Ok(raw)) = raw else { break };
        let Ok(Piece { named, records: piece }) = decode_piece(name, &raw) else { break };
        let named: Vec<Object> = named.iter().map(Object::from).collect();
        if !named.iter().all(|object| object.is_values() && is_there(object, found)) {
            break;
        }
        objects.extend(named.into_iter().map(|object| (object.number, object)));
        last = piece.last().map(|record| record.key.clone()).or(last);
        let raw_bytes = raw.len() as u64;
        records.push(Object { number: 0, path, bytes, raw_bytes, zstd: true, crc32 });
    }
    let through = (head.term, head.index);
    Ok(last.map(|last| Source {
        name: name.to_owned(),
        held: Held { through, through_key: Some(last) },
        records: Records::new(target, name, &records),
        next: None,
        objects,
    }))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Writes a backup.
pub struct Saver {
    target: Target,
    manifest: Manifest,
    sources: Sources,
    summary: Summary,
    /// The number of each object with values, by its path.
    numbers: HashMap<String, u32>,
    /// Objects that no object of records names yet.
    named: Vec<Named>,
    records: Vec<Record>,
    record_bytes: usize,
    /// Values of the next object.
    values: Vec<u8>,
    /// Bytes of new values that no object of records names yet.
    unrecorded: u64,
    /// New objects with values so far, in this backup's own folder.
    own: usize,
    writes: JoinSet<Result<Object>>,
    sizes: Sizes,
}

impl Saver {
    /// Begins a backup of this name.
    ///
    /// # Errors
    /// [`Error::Target`], if this is no name; [`Error::Missing`], if a prune removed what it builds on;
    /// [`Error::Store`], also if there is one of that name.
    pub async fn begin(target: &Target, name: &str, head: Head, sources: Sources) -> Result<Saver> {
        Saver::begin_with(target, name, head, sources, Sizes::USUAL).await
    }

    pub(crate) async fn begin_with(
        target: &Target,
        name: &str,
        head: Head,
        sources: Sources,
        sizes: Sizes,
    ) -> Result<Saver> {
        let head = Head {
            base: sources.base.clone(),
            resumes: sources.resumes.clone(),
            began: now(),
            ..head
        };
        head.store(target, name).await?;
        // From now on a prune sees it. One that was faster has taken a manifest by now, or the first
        // records of what had one until then.
        let found = target.find().await?;
        let is_finished = |name: &&String| found.get(*name).is_some_and(|found| found.finished);
        let has_records = |name: &&String| {
            let path = first_records(name);
            found.get(*name).is_some_and(|found| found.objects.contains_key(&path))
        };
        let mut gone = head.base.iter().filter(|name| !is_finished(name));
        let mut broken = head.resumes.iter().filter(|name| !has_records(name));
        if let Some(gone) = gone.next().or_else(|| broken.next()) {
            // It keeps no prune from removing anything.
            target.remove(&head_path(name)).await?;
            return Err(Error::Missing { target: target.text().into(), name: gone.clone() });
        }
        Ok(Saver {
            target: target.clone(),
            manifest: Manifest::new(name.to_owned(), head),
            sources,
            summary: Summary::default(),
            numbers: HashMap::new(),
            named: Vec::new(),
            records: Vec::new(),
            record_bytes: 0,
            values: Vec::new(),
            unrecorded: 0,
            own: 0,
            writes: JoinSet::new(),
            sizes,
        })
    }

    /// Adds the next key.
    ///
    /// # Errors
    /// [`Error::Sent`], if keys are out of order or a value does not have its hash;
    /// [`Error::History`], if a value was left out that no source has; [`Error::Store`];
    /// [`Error::Damaged`], of a source.
    pub async fn add(&mut self, item: Item) -> Result<()> {
        let record = match &item.value {
            _ if item.length == 0 => Record::of(&item, 0, 0),
            Some(value) => self.put(&item, value).await?,
            None => self.known(&item).await?,
        };
        self.summary.add(&record)?;
        self.record_bytes += record.key.len() + RECORD_BYTES;
        self.records.push(record);
        if self.record_bytes >= self.sizes.records || self.unrecorded >= self.sizes.unrecorded {
            self.write_records().await?;
        }
        Ok(())
    }

    async fn put(&mut self, item: &Item, value: &Bytes) -> Result<Record> {
        if value.len() as u64 > VALUES_BYTES_MAX {
            let (key, bytes) = (shown(&item.key), value.len());
            return Err(Error::Sent(format!("the value of key {key} has {bytes} bytes")));
        }
        if self.values.len() + value.len() > self.sizes.values {
            self.write_values().await?;
        }
        let path = path_of(&self.manifest.name, "values", self.own);
        let number = self.number(path);
        let record = Record::of(item, number, self.values.len() as u64);
        if !matches(&record, value) {
            let what = format!("the value of key {} does not have its hash", shown(&item.key));
            return Err(Error::Sent(what));
        }
        self.values.extend_from_slice(value);
        self.unrecorded += value.len() as u64;
        Ok(record)
    }

    async fn known(&mut self, item: &Item) -> Result<Record> {
        let mut known = None;
        for source in &mut self.sources.all {
            let Some(record) = source.find(&item.key).await?.filter(|record| record.is(item))
            else {
                continue;
            };
            let (offset, number) = (record.offset, record.object);
            if let Some(object) = source.objects.get(&number) {
                known = Some((object.clone(), offset));
                break;
            }
        }
        let Some((object, offset)) = known else {
            let names: Vec<&str> = self.sources.all.iter().map(|s| s.name.as_str()).collect();
            return Err(Error::History { base: names.join(", "), key: shown(&item.key) });
        };
        let is_new = !self.numbers.contains_key(&object.path);
        let number = self.number(object.path.clone());
        if is_new {
            self.name(Object { number, ..object });
        }
        Ok(Record::of(item, number, offset))
    }

    fn number(&mut self, path: String) -> u32 {
        let next = self.numbers.len() as u32;
        *self.numbers.entry(path).or_insert(next)
    }

    fn name(&mut self, object: Object) {
        self.named.push(Named::from(&object));
        self.manifest.values.push(object);
    }

    /// Begins to write the values that wait.
    async fn write_values(&mut self) -> Result<()> {
        if self.values.is_empty() {
            return Ok(());
        }
        while self.writes.len() >= WRITES {
            self.wait_for_one().await?;
        }
        let path = path_of(&self.manifest.name, "values", self.own);
        let number = self.number(path.clone());
        self.own += 1;
        let raw = std::mem::take(&mut self.values);
        let target = self.target.clone();
        self.writes.spawn(async move { write(&target, path, number, raw, false).await });
        Ok(())
    }

    async fn wait_for_one(&mut self) -> Result<()> {
        if let Some(written) = self.writes.join_next().await {
            let written = written.map_err(|error| Error::Task(error.to_string()))??;
            self.name(written);
        }
        Ok(())
    }

    /// Writes the records that wait, once all that they name is written.
    async fn write_records(&mut self) -> Result<()> {
        self.write_values().await?;
        while !self.writes.is_empty() {
            self.wait_for_one().await?;
        }
        let named = std::mem::take(&mut self.named);
        let records = std::mem::take(&mut self.records);
        (self.record_bytes, self.unrecorded) = (0, 0);
        let raw = Piece { named, records }.encode_to_vec();
        let number = self.manifest.records.len();
        let path = path_of(&self.manifest.name, "records", number);
        self.manifest.records.push(write(&self.target, path, number as u32, raw, true).await?);
        Ok(())
    }

    /// Writes what waits, for the next one to go on with: this one cannot be finished.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn break_off(mut self) -> Result<()> {
        match self.records.is_empty() {
            true => Ok(()),
            false => self.write_records().await,
        }
    }

    /// Finishes the backup. It is there when this returns.
    ///
    /// # Errors
    /// [`Error::Store`]; [`Error::Sent`], if the cluster said another number of keys;
    /// [`Error::TooMuch`]; [`Error::Damaged`], if an object is gone meanwhile, or the backup could not be
    /// read.
    pub async fn finish(mut self, keys: u64) -> Result<Manifest> {
        if keys != self.summary.keys {
            let sent = self.summary.keys;
            return Err(Error::Sent(format!("{sent} of {keys} keys")));
        }
        if !self.records.is_empty() {
            self.write_records().await?;
        }
        let Saver { target, mut manifest, summary, .. } = self;
        manifest.values.sort_unstable_by_key(|object| object.number);
        manifest.keys = summary.keys;
        manifest.value_bytes = summary.value_bytes;
        manifest.state = summary.hash();
        manifest.ended = now();
        manifest.check(&manifest.name)?;
        let sealed = manifest.encode()?;
        let all_there = async |manifest: &Manifest| {
            let found = target.find().await?;
            let gone = manifest.objects().find(|object| !is_there(object, &found));
            gone.map_or(Ok(()), |gone| {
                let what = format!("object `{}` is gone while it was saved", gone.path);
                Err(Error::Damaged { name: manifest.name.clone(), what })
            })
        };
        all_there(&manifest).await?;
        let path = manifest_path(&manifest.name);
        target.create(&path, sealed).await?;
        // A prune by a clock that is a day ahead took it for broken off. From now on it sees the manifest.
        if let Err(error) = all_there(&manifest).await {
            target.remove(&path).await?;
            return Err(error);
        }
        Ok(manifest)
    }
}

/// Writes an object, compressed if that is worth it.
async fn write(
    target: &Target,
    path: String,
    number: u32,
    raw: Vec<u8>,
    always: bool,
) -> Result<Object> {
    let raw_bytes = raw.len() as u64;
    let packed = spawn_blocking(move || {
        let packed = zstd::stream::encode_all(&raw[..], LEVEL)?;
        let worth = always || packed.len() + raw.len() / WORTH_PART <= raw.len();
        let (bytes, zstd) = if worth { (packed, true) } else { (raw, false) };
        Ok::<_, std::io::Error>((crc32fast::hash(&bytes), bytes, zstd))
    });
    let packed = packed.await.map_err(|error| Error::Task(error.to_string()))?;
    let (crc32, bytes, zstd) = packed.map_err(|error| Error::Task(error.to_string()))?;
    let length = bytes.len() as u64;
    target.create(&path, Bytes::from(bytes)).await?;
    Ok(Object { number, path, bytes: length, raw_bytes, zstd, crc32 })
}
