//! The keys of an etcd, from what `etcdctl snapshot save` writes: a bbolt database, and behind it the
//! SHA-256 of its bytes.
//!
//! The bucket `key` maps revisions to the key and value that each put wrote, or to the key that a delete
//! removed. What holds here: of each key the newest revision counts, and none that was deleted is left. In
//! memory is, of each key that is there, a hash and where it is in the file, at most 100 bytes; keys and
//! values are read again when they are needed, one at a time. Leases, users, roles and older revisions are
//! not read.

mod bbolt;
#[cfg(test)]
mod tests;

use bbolt::{Database, Element, Span, Walk};
use bytes::Bytes;
use cairn_node::config::VALUE_BYTES_MAX;
use prost::Message;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};

/// The bucket of keys and values.
const KEY_BUCKET: &[u8] = b"key";
/// The hash at the end of the file.
const HASH_BYTES: u64 = 32;
/// A database is so many bytes, over and over. A file with the hash has 32 more.
const DATABASE_UNIT_BYTES: u64 = 512;
/// The most keys: 2 GB of memory.
const KEYS_MAX: usize = 20_000_000;
/// What a message has beside its value: the key, which Cairn refuses far below this, and numbers.
const BESIDE_VALUE_BYTES: u64 = 64 << 10;
/// The longest message that is read whole. The value of a longer one is larger than any that a server takes.
const MESSAGE_BYTES_MAX: u64 = VALUE_BYTES_MAX + BESIDE_VALUE_BYTES;
/// A revision: 8 bytes, `_`, 8 bytes; and `t`, if it is that of a delete.
const REVISION_BYTES: usize = 17;
const DELETED: u8 = b't';
/// The tag of the first field of a message, which is the key.
const KEY_TAG: u8 = 0x0a;

/// Why a file is not imported.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    #[error(
        "it has no SHA-256 at its end, as `etcdctl snapshot save` writes it: its {0} bytes are not 32 more than a multiple of 512. Save \
         a snapshot with it; of a member's file `db` make a member, and save one of that"
    )]
    NoHash(u64),
    #[error("it is damaged: the SHA-256 of its bytes is not the one at its end")]
    Hash,
    #[error(transparent)]
    Database(#[from] bbolt::Error),
    #[error("it is damaged, or changed meanwhile: what is at byte {0} is no key with its value")]
    Item(u64),
    #[error("it has no bucket `key`, so it is none of etcd's")]
    NoKeys,
    #[error("it has more than {most} keys, which would take more than 2 GB of memory", most = KEYS_MAX)]
    TooMany,
}

/// `mvccpb.KeyValue`, without its revisions.
#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    value: Bytes,
    #[prost(int64, tag = "6")]
    lease: i64,
}

/// The same without the value.
#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(int64, tag = "6")]
    lease: i64,
}

/// Where a key and its newest value are in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    at: u64,
    length: u32,
    leased: bool,
}

/// A key that the snapshot has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Item {
        key: Bytes,
        value: Bytes,
    },
    /// The value is larger than any that a server takes.
    TooLarge {
        key: Bytes,
        bytes: u64,
    },
}

/// A snapshot that is being read.
pub(super) struct Snapshot<S> {
    database: Database<S>,
    /// In the order of the file.
    places: Vec<Place>,
    next: usize,
}

impl<S: Read + Seek> Snapshot<S> {
    /// Checks the hash, and finds the newest revision of each key. `hashed` is told how many bytes were
    /// read for the hash.
    ///
    /// # Errors
    /// If it is no snapshot, or damaged.
    pub(super) fn open(mut source: S, hashed: &dyn Fn(u64)) -> Result<Snapshot<S>, Error> {
        let bytes = source.seek(SeekFrom::End(0))?;
        let length = bytes.checked_sub(HASH_BYTES);
        let length = length.filter(|length| length.is_multiple_of(DATABASE_UNIT_BYTES));
        let length = length.ok_or(Error::NoHash(bytes))?;
        check_hash(&mut source, length, hashed)?;
        let mut database = Database::open(source, length)?;
        let places = newest(&mut database, KEYS_MAX)?;
        Ok(Snapshot { database, places, next: 0 })
    }

    /// How many keys it has.
    #[cfg(test)]
    pub(super) fn keys(&self) -> u64 {
        self.places.len() as u64
    }

    /// How many of them have a lease, and the first ones.
    pub(super) fn leased(&mut self, most: usize) -> Result<(u64, Vec<Bytes>), Error> {
        let leased = self.places.iter().filter(|place| place.leased);
        let (count, first) = (leased.clone().count(), leased.take(most).copied());
        let first: Vec<Place> = first.collect();
        let keys = first.into_iter().map(|place| self.read(place).map(Found::into_key));
        Ok((count as u64, keys.collect::<Result<_, _>>()?))
    }

    /// Begins at the first key again.
    pub(super) fn rewind(&mut self) {
        self.next = 0;
    }

    /// The next key; `None` behind the last one.
    pub(super) fn next(&mut self) -> Result<Option<Found>, Error> {
        let Some(place) = self.places.get(self.next).copied() else { return Ok(None) };
        self.next += 1;
        self.read(place).map(Some)
    }

    fn read(&mut self, place: Place) -> Result<Found, Error> {
        let length = u64::from(place.length);
        let most = length.min(MESSAGE_BYTES_MAX);
        let message = self.database.read(Span { at: place.at, length: most })?;
        let changed = || Error::Item(place.at);
        if length > MESSAGE_BYTES_MAX {
            let key = key_at_begin(message).ok_or_else(changed)?;
            return Ok(Found::TooLarge { key, bytes: length });
        }
        let message = KeyValue::decode(message).map_err(|_| changed())?;
        Ok(Found::Item { key: message.key, value: message.value })
    }
}

impl Found {
    fn into_key(self) -> Bytes {
        match self {
            Found::Item { key, .. } | Found::TooLarge { key, .. } => key,
        }
    }
}

fn check_hash<S: Read + Seek>(
    source: &mut S,
    length: u64,
    hashed: &dyn Fn(u64),
) -> Result<(), Error> {
    source.seek(SeekFrom::Start(0))?;
    let (mut hash, mut part, mut left) = (Sha256::new(), vec![0; 1 << 20], length);
    while left > 0 {
        let most = part.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let part = part.get_mut(..most).unwrap_or_default();
        source.read_exact(part)?;
        hash.update(&*part);
        left -= most as u64;
        hashed(length - left);
    }
    let mut at_end = [0; HASH_BYTES as usize];
    source.read_exact(&mut at_end)?;
    if hash.finalize()[..] != at_end {
        return Err(Error::Hash);
    }
    Ok(())
}

/// Where the newest revision of each key is that was not deleted, in the order of the file.
fn newest<S: Read + Seek>(database: &mut Database<S>, most: usize) -> Result<Vec<Place>, Error> {
    let bucket = database.bucket(&[KEY_BUCKET])?.ok_or(Error::NoKeys)?;
    let mut walk = Walk::new(database, bucket)?;
    let mut keys: HashMap<[u8; 16], Place> = HashMap::new();
    let mut before = [0; REVISION_BYTES];
    while let Some(element) = walk.next(database)? {
        let (revision, deleted) = revision(database, &element)?;
        // Then what comes later is newer.
        if revision <= before {
            return Err(element.damaged("revisions are out of order").into());
        }
        before = revision;
        let named = named(database, &element)?;
        let hash = Sha256::digest(&named.key);
        let Some(hash) = hash.first_chunk::<16>().copied() else { continue };
        if deleted {
            keys.remove(&hash);
            continue;
        }
        let Span { at, length } = element.value;
        let length = u32::try_from(length).map_err(|_| element.damaged("a value is too long"))?;
        keys.insert(hash, Place { at, length, leased: named.lease != 0 });
        if keys.len() > most {
            return Err(Error::TooMany);
        }
    }
    let mut places: Vec<Place> = keys.into_values().collect();
    places.sort_unstable();
    Ok(places)
}

/// The revision in its order, and whether it is that of a delete.
fn revision<S: Read + Seek>(
    database: &mut Database<S>,
    element: &Element,
) -> Result<([u8; REVISION_BYTES], bool), Error> {
    let wrong = || element.damaged("a key is no revision");
    if element.is_bucket || element.key.length > REVISION_BYTES as u64 + 1 {
        return Err(wrong().into());
    }
    let key = database.bytes(element, element.key)?;
    let (revision, mark) = key.split_first_chunk::<REVISION_BYTES>().ok_or_else(wrong)?;
    let deleted = match mark {
        [] => false,
        [DELETED] => true,
        _ => return Err(wrong().into()),
    };
    // Numbers of 63 bits.
    match revision {
        [0..0x80, _, _, _, _, _, _, _, b'_', 0..0x80, ..] => Ok((*revision, deleted)),
        _ => Err(wrong().into()),
    }
}

fn named<S: Read + Seek>(database: &mut Database<S>, element: &Element) -> Result<Named, Error> {
    let Span { at, length } = element.value;
    let span = Span { at, length: length.min(MESSAGE_BYTES_MAX) };
    let message = database.bytes(element, span)?;
    let named = match length > MESSAGE_BYTES_MAX {
        true => key_at_begin(message).map(|key| Named { key, lease: 0 }),
        false => Named::decode(message).ok(),
    };
    let named = named.filter(|named| !named.key.is_empty());
    named.ok_or_else(|| element.damaged("a value is none of etcd's").into())
}

/// The key of a message of which the end is not read.
fn key_at_begin(message: &[u8]) -> Option<Bytes> {
    let mut rest = message.strip_prefix(&[KEY_TAG])?;
    let length = prost::decode_length_delimiter(&mut rest).ok()?;
    rest.get(..length).map(Bytes::copy_from_slice)
}
