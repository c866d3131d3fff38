//! Reading a backup back, in key order.
//!
//! What holds here: nothing is returned that does not have its checksum and its hash, and the end is
//! reached only if all of it together is the state that the manifest says. Of an encrypted backup nothing is
//! returned that was not encrypted.

use crate::encryption::{decrypt_text, may_read};
use crate::error::{Error, Result};
use crate::fetch::{Loading, Reader, check_stored, joined, spawn_fetch};
use crate::keys::Identities;
use crate::manifest::{Manifest, Object};
use crate::paths::folder_of;
use crate::record::{Item, Piece, Record, Summary, matches};
use crate::shown::key_text;
use crate::target::Target;
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

/// The bytes of the objects with values that are held at once: 32 of the usual ones. Each folder is read
/// from its first object to its last, so what is read twice is an object of which a value is needed
/// rarely. Between two of these at least eight objects are read for the first time, if the folders are 24.
const HELD_BYTES: u64 = 512 << 20;
/// With so many folders the next object of each may be held beside the one that is read.
const AHEAD_FOLDERS: usize = 4;
/// Objects of which only the checksums are compared, at once.
const CHECKS: usize = 4;

/// A finished backup.
pub struct Backup {
    reader: Reader,
    manifest: Manifest,
}

impl Backup {
    /// Opens a backup. Only its manifest is read.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Damaged`], [`Error::Newer`], [`Error::Store`].
    pub async fn open(target: &Target, name: &str) -> Result<Backup> {
        let manifest = Manifest::load(target, name).await?;
        let reader = Reader { target: target.clone(), name: name.to_owned(), identities: None };
        Ok(Backup { reader, manifest })
    }

    /// The same backup, whose keys and values can be read if it is encrypted. Whoever gives an identity
    /// expects that it is.
    ///
    /// # Errors
    /// [`Error::NoIdentity`], [`Error::WrongIdentity`]; [`Error::NotEncrypted`].
    pub fn unlock(mut self, identities: &Identities) -> Result<Backup> {
        let (name, recipients) = (&self.manifest.name, &self.manifest.head.recipients);
        if !recipients.is_empty() {
            may_read(name, recipients, identities)?;
            self.reader.identities = Some(identities.clone());
        } else if !identities.is_empty() {
            return Err(Error::NotEncrypted(name.clone()));
        }
        Ok(self)
    }

    /// What it says of itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// All keys with their values, in order.
    ///
    /// # Errors
    /// [`Error::NoIdentity`], if it is encrypted and was not unlocked; [`Error::Damaged`].
    pub fn items(&self) -> Result<Items> {
        let mut expected = self.manifest.clone();
        if expected.is_encrypted() {
            let none = Identities::default();
            let identities = self.reader.identities.as_ref().unwrap_or(&none);
            may_read(&expected.name, &expected.head.recipients, identities)?;
            expected.state = decrypt_text(&expected.state, identities).map_err(|why| {
                let (name, what) = (expected.name.clone(), format!("the hash of its state {why}"));
                Error::Damaged { name, what }
            })?;
        }
        Ok(Items {
            records: Records::new(&self.reader, &expected.records),
            summary: Summary::default(),
            values: Values::new(&self.reader, &expected.values),
            expected,
        })
    }

    /// Compares every object that the backup needs with its length and checksum, which needs no identity.
    /// What is in them is not looked at. `progress` gets the bytes of each. Returns how many they are.
    ///
    /// # Errors
    /// [`Error::Damaged`] with the first damage that it finds; [`Error::Removed`]; [`Error::Store`].
    pub async fn verify_stored(&self, mut progress: impl FnMut(u64)) -> Result<usize> {
        let checks = self.manifest.objects().map(|object| check_stored(&self.reader, object));
        let (mut checks, mut objects) = (stream::iter(checks).buffer_unordered(CHECKS), 0);
        while let Some(checked) = checks.next().await {
            progress(checked?);
            objects += 1;
        }
        Ok(objects)
    }

    /// Reads all of it. Returns the number of keys.
    ///
    /// # Errors
    /// [`Error::Damaged`] with the first damage that it finds; [`Error::NoIdentity`]; [`Error::Store`].
    pub async fn verify(&self, mut progress: impl FnMut(&Item)) -> Result<u64> {
        let (mut items, mut keys) = (self.items()?, 0);
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
        self.summary.add(&record).map_err(damaged)?;
        let head = &self.expected.head;
        if record.term > head.term || record.index > head.index {
            let key = key_text(&record.key);
            return Err(damaged(format!("key {key} has a version behind the backup's own index")));
        }
        let value = match record.length {
            0 => Bytes::new(),
            _ => self.values.read(&record).await?,
        };
        if !matches(&record, &value) {
            let key = key_text(&record.key);
            return Err(damaged(format!("the value of key {key} does not have its hash")));
        }
        let hash = record.hash().unwrap_or_default();
        let Record { key, term, index, length, .. } = record;
        // Copies: a part of an object keeps all of it in memory. A restore holds thousands of keys and values at once, and
        // each of a hostile backup is in another object.
        let [key, value] = [key, value].map(|bytes| Bytes::copy_from_slice(&bytes));
        Ok(Some(Item { key, term, index, length, hash, value: Some(value) }))
    }
}

/// The records of a backup, in key order.
pub(crate) struct Records {
    reader: Reader,
    objects: VecDeque<Object>,
    next: Option<Loading>,
    piece: VecDeque<Record>,
}

impl Records {
    pub(crate) fn new(reader: &Reader, objects: &[Object]) -> Records {
        Records {
            reader: reader.clone(),
            objects: objects.iter().cloned().collect(),
            next: None,
            piece: VecDeque::new(),
        }
    }

    fn load(&mut self) -> Option<Loading> {
        let object = self.objects.pop_front()?;
        Some(spawn_fetch(&self.reader, object))
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Record>> {
        while self.piece.is_empty() {
            let Some(loading) = self.next.take().or_else(|| self.load()) else { return Ok(None) };
            self.next = self.load();
            let bytes = joined(loading).await?;
            self.piece = decode_piece(&self.reader.name, &bytes)?.records.into();
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
    reader: Reader,
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
    pub(crate) fn new(reader: &Reader, objects: &[Object]) -> Values {
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
            reader: reader.clone(),
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

    /// The value of a record, not compared with its hash.
    pub(crate) async fn read(&mut self, record: &Record) -> Result<Bytes> {
        let damaged = |what: &str| {
            let what = format!("the value of key {} {what}", key_text(&record.key));
            Error::Damaged { name: self.reader.name.clone(), what }
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
        Some(Load::Begun(spawn_fetch(&self.reader, object)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Head;
    use crate::paths::path_of;
    use prost::Message;
    use std::path::Path;
    use xxhash_rust::xxh3::xxh3_128;

    /// What is in each of two objects with values.
    const VALUES: &[u8] = b"firstsecond";

    /// The record of a part of that.
    fn record(key: &'static [u8], object: u32, offset: usize, length: usize) -> Record {
        let hash = xxh3_128(&VALUES[offset..offset + length]).to_le_bytes();
        let hash = Bytes::copy_from_slice(&hash);
        let (key, length, offset) = (Bytes::from_static(key), length as u32, offset as u64);
        Record { key, term: 1, index: 9, length, hash, object, offset }
    }

    fn records() -> Vec<Record> {
        vec![record(b"a", 0, 0, 5), record(b"b", 1, 5, 6), record(b"c", 0, 0, 0)]
    }

    fn encoded(records: &[Record]) -> Vec<u8> {
        Piece { named: Vec::new(), records: records.to_vec() }.encode_to_vec()
    }

    /// A folder for the objects of the backup `a`.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("a")).unwrap();
        folder
    }

    /// The backup of the state of these tests, with these bytes in place of its records.
    fn backup(folder: &Path, bytes: &[u8]) -> Backup {
        let stored = |kind: &str, number: u32, bytes: &[u8]| {
            let path = path_of("a", kind, number as usize);
            std::fs::write(folder.join(&path), bytes).unwrap();
            let (crc32, bytes) = (crc32fast::hash(bytes), bytes.len() as u64);
            Object { number, path, bytes, raw_bytes: bytes, zstd: false, crc32 }
        };
        let mut summary = Summary::default();
        records().iter().for_each(|record| summary.add(record).unwrap());
        let manifest = Manifest {
            keys: summary.keys,
            value_bytes: summary.value_bytes,
            state: summary.hash(),
            records: vec![stored("records", 0, bytes)],
            values: vec![stored("values", 0, VALUES), stored("values", 1, VALUES)],
            ..Manifest::new("a".into(), Head::of_shop(9))
        };
        let target = Target::open(folder.to_str().unwrap()).unwrap();
        Backup { reader: Reader { target, name: "a".into(), identities: None }, manifest }
    }

    /// What is read of it, and how that ends.
    fn read(backup: &Backup) -> (Vec<Item>, Result<()>) {
        let runtime = real_tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut items, mut found) = (backup.items().unwrap(), Vec::new());
            loop {
                match items.next().await {
                    Ok(Some(item)) => found.push(item),
                    Ok(None) => return (found, Ok(())),
                    Err(error) => return (found, Err(error)),
                }
            }
        })
    }

    /// The story: a restore gives 16,384 keys and values to the engine at once. Of a hostile backup each was a part of
    /// another object of 16 MiB, and all of these stayed in memory.
    #[test]
    fn a_key_and_a_value_keep_no_object_in_memory() {
        let folder = folder();
        let (items, end) = read(&backup(folder.path(), &encoded(&records())));
        end.unwrap();
        let alone = |item: &Item| {
            let value = item.value.as_ref().unwrap();
            // An empty one has no memory at all.
            item.key.is_unique() && (value.is_empty() || value.is_unique())
        };
        assert!(items.len() == 3 && items.iter().all(alone));
    }

    #[test]
    fn any_bytes_are_the_records_of_the_state_or_are_refused() {
        let folder = folder();
        cairn_fuzz::target!("records" => encoded(&records())).for_each(|bytes| {
            let (items, end) = read(&backup(folder.path(), bytes));
            assert!(items.is_sorted_by(|one, next| one.key < next.key));
            assert!(items.iter().all(|item| item.is_intact() && item.term <= 1 && item.index <= 9));
            match end {
                Ok(()) => assert_eq!(items.len(), 3, "the hash is that of other records"),
                Err(Error::Damaged { name, .. }) => assert_eq!(name, "a"),
                Err(error) => panic!("{error}"),
            }
        });
    }
}
