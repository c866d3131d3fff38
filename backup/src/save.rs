//! Saving a state that a cluster streams, key by key.
//!
//! A backup may build on others: on a finished one, or on one that was broken off. The cluster leaves
//! out the values that they have, and the records of the new backup name the objects there.
//!
//! What holds here: a value that the cluster leaves out is found in one of these under the same version
//! and hash, or the backup fails; it is read back where an encrypted source may be made up. So it does where a term shows that one of these is of another history. An object of records is written when every object that it names is. It
//! is encrypted before it is first sent, so a call that is made again has the same bytes. At the end every
//! object is there with its length, and then the manifest is written, if it can be read.

use crate::encryption::Encryption;
use crate::error::{Error, Result};
use crate::manifest::{Head, MANIFEST_BYTES_MAX, Manifest, Object, VALUES_BYTES_MAX};
use crate::paths::{first_records, head_path, manifest_path, path_of};
use crate::record::{Item, Named, Piece, Record, Summary, matches};
use crate::shown::key_text;
use crate::sources::{Sources, are_there};
use crate::target::Target;
use bytes::Bytes;
use prost::Message;
use real_tokio::task::{JoinSet, spawn_blocking};
use std::collections::HashMap;
use std::sync::Arc;
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
    /// The most bytes of the manifest.
    pub(crate) manifest: u64,
}

impl Sizes {
    pub(crate) const USUAL: Sizes = Sizes {
        values: 16 << 20,
        records: 4 << 20,
        unrecorded: 256 << 20,
        manifest: MANIFEST_BYTES_MAX,
    };
}

/// About the bytes of a record beside its key.
const RECORD_BYTES: usize = 48;
/// Objects that are written at once.
const WRITES: usize = 4;
/// zstd's level. Values are rarely worth more.
const LEVEL: i32 = 1;
/// An object is kept compressed if that saves this part of it.
const WORTH_PART: usize = 10;

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
    /// Bytes of the objects in the manifest.
    listed: u64,
    writes: JoinSet<Result<Object>>,
    sizes: Sizes,
}

impl Saver {
    /// Begins a backup of this name.
    ///
    /// # Errors
    /// [`Error::Target`], if this is no name; [`Error::Missing`], if a prune removed what it builds on; [`Error::Unreadable`], if this
    /// process may not read that any more;
    /// [`Error::OtherHistory`], if that is of another one; [`Error::Store`], also if there is one of that name.
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
            recipients: sources
                .encryption
                .as_ref()
                .map_or_else(Vec::new, |encryption| encryption.recipients().to_vec()),
            ..head
        };
        sources.check_head(&head)?;
        if let Some(fault) = head.fault() {
            return Err(Error::Sent(fault));
        }
        head.store(target, name).await?;
        // From now on a prune sees it. One that was faster has taken a manifest by now, or the first
        // records of what had one until then.
        let seen = target.survey().await?.listed();
        let found = |name: &String| seen.found.get(name);
        let is_finished = |name: &&String| found(name).is_some_and(|found| found.finished);
        let has_records = |name: &&String| {
            let path = first_records(name);
            found(name).is_some_and(|found| found.objects.contains_key(&path))
        };
        let mut gone = head.base.iter().filter(|name| !is_finished(name));
        let mut broken = head.resumes.iter().filter(|name| !has_records(name));
        if let Some(gone) = gone.next().or_else(|| broken.next()) {
            // It keeps no prune from removing anything.
            target.remove(&head_path(name)).await?;
            let missing = || Error::Missing { target: target.text().into(), name: gone.clone() };
            return Err(seen.hides(gone).map_or_else(missing, |folder| target.unreadable(folder)));
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
            listed: 0,
            writes: JoinSet::new(),
            sizes,
        })
    }

    /// Adds the next key.
    ///
    /// # Errors
    /// [`Error::Sent`], if keys are out of order or a value does not have its hash;
    /// [`Error::History`], if a value was left out that no source has, or the key has a version that is not of
    /// the history of one; [`Error::OtherHistory`]; [`Error::TooMuch`], as soon as the manifest is too long;
    /// [`Error::Store`]; [`Error::Damaged`], of a source.
    pub async fn add(&mut self, item: Item) -> Result<()> {
        self.sources.check_item(&item)?;
        let record = match &item.value {
            _ if item.length == 0 => Record::of(&item, 0, 0),
            Some(value) => self.put(&item, value).await?,
            None => self.known(&item).await?,
        };
        self.summary.add(&record).map_err(Error::Sent)?;
        self.record_bytes += record.key.len() + RECORD_BYTES;
        self.records.push(record);
        if self.record_bytes >= self.sizes.records || self.unrecorded >= self.sizes.unrecorded {
            self.write_records().await?;
        }
        Ok(())
    }

    async fn put(&mut self, item: &Item, value: &Bytes) -> Result<Record> {
        if value.len() as u64 > VALUES_BYTES_MAX {
            let (key, bytes) = (key_text(&item.key), value.len());
            return Err(Error::Sent(format!("the value of key {key} has {bytes} bytes")));
        }
        if self.values.len() + value.len() > self.sizes.values {
            self.write_values().await?;
        }
        let path = path_of(&self.manifest.name, "values", self.own);
        let number = self.number(path);
        let record = Record::of(item, number, self.values.len() as u64);
        if !matches(&record, value) {
            let what = format!("the value of key {} does not have its hash", key_text(&item.key));
            return Err(Error::Sent(what));
        }
        self.values.extend_from_slice(value);
        self.unrecorded += value.len() as u64;
        Ok(record)
    }

    async fn known(&mut self, item: &Item) -> Result<Record> {
        let mut known = None;
        for source in &mut self.sources.all {
            known = source.value_of(item).await?;
            if known.is_some() {
                break;
            }
        }
        let Some((object, offset)) = known else {
            let names: Vec<&str> = self.sources.all.iter().map(|s| s.name.as_str()).collect();
            return Err(Error::History { base: names.join(", "), key: key_text(&item.key) });
        };
        let is_new = !self.numbers.contains_key(&object.path);
        let number = self.number(object.path.clone());
        if is_new {
            self.name(Object { number, ..object })?;
        }
        Ok(Record::of(item, number, offset))
    }

    fn number(&mut self, path: String) -> u32 {
        let next = self.numbers.len() as u32;
        *self.numbers.entry(path).or_insert(next)
    }

    fn name(&mut self, object: Object) -> Result<()> {
        self.named.push(Named::from(&object));
        self.list(&object)?;
        self.manifest.values.push(object);
        Ok(())
    }

    /// Counts an object that the manifest gets. Hours may pass until that is written: one that nobody
    /// could read is refused at the object that is too much.
    fn list(&mut self, object: &Object) -> Result<()> {
        self.listed += object.listed_bytes();
        match (self.listed, self.sizes.manifest) {
            (bytes, most) if bytes > most => Err(Error::TooMuch { bytes, most }),
            _ => Ok(()),
        }
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
        let encryption = self.sources.encryption.clone();
        self.writes.spawn(async move {
            write(&target, path, number, raw, Kind::Values, encryption).await
        });
        Ok(())
    }

    async fn wait_for_one(&mut self) -> Result<()> {
        if let Some(written) = self.writes.join_next().await {
            let written = written??;
            self.name(written)?;
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
        let encryption = self.sources.encryption.clone();
        let written =
            write(&self.target, path, number as u32, raw, Kind::Records, encryption).await?;
        self.list(&written)?;
        self.manifest.records.push(written);
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
    /// read; [`Error::Unreadable`], if this process may not look for one any more; [`Error::NotLookedAt`].
    pub async fn finish(mut self, keys: u64) -> Result<Manifest> {
        if keys != self.summary.keys {
            let sent = self.summary.keys;
            return Err(Error::Sent(format!("{sent} of {keys} keys")));
        }
        if !self.records.is_empty() {
            self.write_records().await?;
        }
        let Saver { target, mut manifest, summary, sources, .. } = self;
        manifest.values.sort_unstable_by_key(|object| object.number);
        manifest.keys = summary.keys;
        manifest.value_bytes = summary.value_bytes;
        manifest.state = match &sources.encryption {
            Some(encryption) => encryption.text(&summary.hash()).map_err(ended_early)?,
            None => summary.hash(),
        };
        manifest.ended = now();
        manifest.check(&manifest.name)?;
        let sealed = manifest.encode()?;
        let all_there = async |manifest: &Manifest| {
            let seen = target.survey().await?.listed();
            are_there(manifest, (&target, &seen), "is gone while it was saved")
        };
        all_there(&manifest).await?;
        let path = manifest_path(&manifest.name);
        target.create(&path, sealed).await?;
        // A prune by a clock that is a day ahead took it for broken off. From now on it sees the manifest.
        match all_there(&manifest).await {
            Ok(()) => Ok(manifest),
            Err(gone @ Error::Damaged { .. }) => {
                target.remove(&path).await?;
                Err(gone)
            }
            // It is whole, unless such a prune ran just now. So it is if a folder that it needs may not be read since.
            Err(error) => Err(Error::NotLookedAt { name: manifest.name, error: Box::new(error) }),
        }
    }
}

fn ended_early(error: impl std::fmt::Display) -> Error {
    Error::Task(error.to_string())
}

/// What is in an object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Values,
    /// Always compressed, and encrypted to this process too: it may go on with them.
    Records,
}

/// Writes an object, compressed if that is worth it, and then encrypted.
pub(crate) async fn write(
    target: &Target,
    path: String,
    number: u32,
    raw: Vec<u8>,
    kind: Kind,
    encryption: Option<Arc<Encryption>>,
) -> Result<Object> {
    let raw_bytes = raw.len() as u64;
    let packed = spawn_blocking(move || {
        let packed = zstd::stream::encode_all(&raw[..], LEVEL)?;
        let worth = kind == Kind::Records || packed.len() + raw.len() / WORTH_PART <= raw.len();
        let (packed, zstd) = if worth { (packed, true) } else { (raw, false) };
        let bytes = match (encryption, kind) {
            (None, _) => packed,
            (Some(encryption), Kind::Values) => encryption.values(&packed)?,
            (Some(encryption), Kind::Records) => encryption.records(&packed)?,
        };
        Ok::<_, std::io::Error>((crc32fast::hash(&bytes), bytes, zstd))
    });
    let (crc32, bytes, zstd) = packed.await?.map_err(ended_early)?;
    let length = bytes.len() as u64;
    target.create(&path, Bytes::from(bytes)).await?;
    Ok(Object { number, path, bytes: length, raw_bytes, zstd, crc32 })
}
