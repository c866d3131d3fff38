//! What is stored of each key, and the hash over all of it.

use crate::error::{Error, Result, shown};
use crate::manifest::Object;
use bytes::Bytes;
use prost::Message;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

/// A key of the cluster's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The key.
    pub key: Bytes,
    /// The term of the entry that wrote it.
    pub term: u64,
    /// The index of that entry: the version.
    pub index: u64,
    /// Bytes of the value.
    pub length: u32,
    /// XXH3-128 of the value.
    pub hash: u128,
    /// The value; absent where an earlier backup has it.
    pub value: Option<Bytes>,
}

/// A key in an object of records.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Record {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(uint64, tag = "2")]
    pub(crate) term: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) index: u64,
    #[prost(uint32, tag = "4")]
    pub(crate) length: u32,
    /// 16 bytes, little-endian.
    #[prost(bytes = "bytes", tag = "5")]
    pub(crate) hash: Bytes,
    /// Which object has the value, and where it begins there once that is decompressed.
    #[prost(uint32, tag = "6")]
    pub(crate) object: u32,
    #[prost(uint64, tag = "7")]
    pub(crate) offset: u64,
}

/// An object that records name, in an object of records: so that a backup which was never finished can
/// be built upon.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Named {
    #[prost(uint32, tag = "1")]
    number: u32,
    #[prost(string, tag = "2")]
    path: String,
    #[prost(uint64, tag = "3")]
    bytes: u64,
    #[prost(uint64, tag = "4")]
    raw_bytes: u64,
    #[prost(bool, tag = "5")]
    zstd: bool,
    #[prost(fixed32, tag = "6")]
    crc32: u32,
}

/// The content of an object of records.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Piece {
    /// Objects that no earlier piece names.
    #[prost(message, repeated, tag = "1")]
    pub(crate) named: Vec<Named>,
    /// Keys in order.
    #[prost(message, repeated, tag = "2")]
    pub(crate) records: Vec<Record>,
}

impl From<&Object> for Named {
    fn from(object: &Object) -> Named {
        let Object { number, path, bytes, raw_bytes, zstd, crc32 } = object.clone();
        Named { number, path, bytes, raw_bytes, zstd, crc32 }
    }
}

impl From<&Named> for Object {
    fn from(named: &Named) -> Object {
        let Named { number, path, bytes, raw_bytes, zstd, crc32 } = named.clone();
        Object { number, path, bytes, raw_bytes, zstd, crc32 }
    }
}

impl Record {
    pub(crate) fn of(item: &Item, object: u32, offset: u64) -> Record {
        let hash = Bytes::copy_from_slice(&item.hash.to_le_bytes());
        let (term, index, length) = (item.term, item.index, item.length);
        Record { key: item.key.clone(), term, index, length, hash, object, offset }
    }

    pub(crate) fn hash(&self) -> Option<u128> {
        <[u8; 16]>::try_from(&self.hash[..]).ok().map(u128::from_le_bytes)
    }

    /// Whether it is of this very write.
    pub(crate) fn is(&self, item: &Item) -> bool {
        (self.term, self.index, self.length) == (item.term, item.index, item.length)
            && self.hash() == Some(item.hash)
            && self.key == item.key
    }
}

/// Counts and hashes a state, key by key.
#[derive(Default)]
pub(crate) struct Summary {
    pub(crate) keys: u64,
    pub(crate) value_bytes: u64,
    hash: Xxh3Default,
    last: Bytes,
}

impl Summary {
    /// Adds the next key.
    pub(crate) fn add(&mut self, record: &Record) -> Result<()> {
        let (key, last) = (&record.key, &self.last);
        if key.is_empty() || self.keys > 0 && key <= last || record.hash.len() != 16 {
            let what = format!("key {} behind {}", shown(key), shown(last));
            return Err(Error::Sent(what));
        }
        self.keys += 1;
        self.value_bytes += u64::from(record.length);
        self.hash.update(&(key.len() as u64).to_le_bytes());
        self.hash.update(key);
        for number in [record.term, record.index, u64::from(record.length)] {
            self.hash.update(&number.to_le_bytes());
        }
        self.hash.update(&record.hash);
        self.last = key.clone();
        Ok(())
    }

    pub(crate) fn hash(&self) -> String {
        format!("{:032x}", self.hash.digest128())
    }
}

/// Whether these are the bytes of the value.
pub(crate) fn matches(record: &Record, value: &[u8]) -> bool {
    value.len() as u64 == u64::from(record.length) && Some(xxh3_128(value)) == record.hash()
}
