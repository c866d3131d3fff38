//! What is stored of each key, and the hash over all of it.

use crate::manifest::Object;
use crate::shown::key_text;
use bytes::{Buf, Bytes};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::{DecodeError, Message};
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

impl Item {
    /// Whether the value is there, with the length and the hash that the cluster says.
    pub fn is_intact(&self) -> bool {
        self.value.as_ref().is_some_and(|value| {
            value.len() as u64 == u64::from(self.length) && xxh3_128(value) == self.hash
        })
    }
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

/// The longest key of a cluster. One that is longer would make the next request of a save longer than a member takes, and
/// what a restore gives to the engine at once larger than memory.
const KEY_BYTES_MAX: usize = 2048;
/// The fewest bytes of a record, which has a hash of 16, and of a named object, which has a path and a
/// checksum.
const ENTRY_BYTES_MIN: usize = 20;

impl Piece {
    /// Reads a piece, if it is none that takes far more memory than it has bytes: a hostile one has
    /// millions of empty records.
    pub(crate) fn read(bytes: &Bytes) -> Result<Piece, String> {
        let entries = entries(bytes).map_err(|error| error.to_string())?;
        if entries > bytes.len() / ENTRY_BYTES_MIN {
            return Err(format!("{entries} in {} bytes", bytes.len()));
        }
        let piece = Piece::decode(bytes.clone()).map_err(|error| error.to_string())?;
        let mut lengths = piece.records.iter().map(|record| record.key.len());
        match lengths.find(|length| *length > KEY_BYTES_MAX) {
            Some(length) => Err(format!("a key has {length} bytes")),
            None => Ok(piece),
        }
    }
}

/// The objects and records of a piece that is not decoded yet.
fn entries(mut bytes: &[u8]) -> Result<usize, DecodeError> {
    let mut entries = 0;
    while bytes.has_remaining() {
        let (tag, wire) = decode_key(&mut bytes)?;
        if wire != WireType::LengthDelimited {
            skip_field(wire, tag, &mut bytes, DecodeContext::default())?;
            continue;
        }
        let length = usize::try_from(decode_varint(&mut bytes)?).unwrap_or(usize::MAX);
        // The decoder says what is wrong with one that is cut.
        bytes = bytes.get(length..).unwrap_or_default();
        entries += 1;
    }
    Ok(entries)
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
    /// Adds the next key, or says why it is none.
    pub(crate) fn add(&mut self, record: &Record) -> Result<(), String> {
        let (key, last) = (&record.key, &self.last);
        if key.is_empty() || self.keys > 0 && key <= last || record.hash.len() != 16 {
            return Err(format!("key {} behind {}", key_text(key), key_text(last)));
        }
        if key.len() > KEY_BYTES_MAX {
            return Err(format!("key {} has {} bytes", key_text(key), key.len()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_intact_with_its_value_alone() {
        let (key, value) = (Bytes::from_static(b"k"), Bytes::from_static(b"value"));
        let (length, hash) = (5, xxh3_128(&value));
        let item = Item { key, term: 1, index: 2, length, hash, value: Some(value) };
        assert!(item.is_intact());
        for value in [None, Some(&b"valuf"[..]), Some(b"valu"), Some(b"")] {
            let value = value.map(Bytes::from_static);
            assert!(!Item { value, ..item.clone() }.is_intact());
        }
        assert!(!Item { length: 4, ..item.clone() }.is_intact());
        assert!(!Item { hash: hash ^ 1, ..item }.is_intact());
    }

    #[test]
    fn a_piece_of_the_shortest_records_is_read() {
        let hash = Bytes::from(vec![0; 16]);
        let record = Record { key: Bytes::from_static(b"k"), hash, ..Record::default() };
        let piece = Piece { named: Vec::new(), records: vec![record; 1000] };
        assert_eq!(Piece::read(&piece.encode_to_vec().into()), Ok(piece));
        let named = Named { path: "a/values-000000".into(), crc32: 1, ..Named::default() };
        let piece = Piece { named: vec![named; 1000], records: Vec::new() };
        assert_eq!(Piece::read(&piece.encode_to_vec().into()), Ok(piece));
    }

    /// The story: a batch of a restore has thousands of keys, and each could have 16 MiB.
    #[test]
    fn a_piece_with_a_key_that_no_cluster_has_is_refused() {
        let of = |bytes: usize| {
            let (key, hash) = (Bytes::from(vec![b'k'; bytes]), Bytes::from(vec![0; 16]));
            let record = Record { key, hash, ..Record::default() };
            Piece { named: Vec::new(), records: vec![record] }
        };
        let longest = of(KEY_BYTES_MAX);
        assert_eq!(Piece::read(&longest.encode_to_vec().into()).as_ref(), Ok(&longest));
        assert!(Summary::default().add(&longest.records[0]).is_ok());
        let longer = of(KEY_BYTES_MAX + 1);
        let refused = Piece::read(&longer.encode_to_vec().into());
        assert_eq!(refused, Err("a key has 2049 bytes".to_owned()));
        // A save writes none that could not be read.
        let refused = Summary::default().add(&longer.records[0]).unwrap_err().to_string();
        assert!(refused.contains("has 2049 bytes"), "{refused}");
    }

    /// 16 MiB of empty records would take a gigabyte once they are decoded.
    #[test]
    fn a_piece_of_empty_records_is_refused_before_it_is_decoded() {
        for piece in [
            Piece { named: Vec::new(), records: vec![Record::default(); 1000] },
            Piece { named: vec![Named::default(); 1000], records: Vec::new() },
        ] {
            let refused = Piece::read(&piece.encode_to_vec().into()).unwrap_err();
            assert!(refused.contains("1000 in 2000 bytes"), "{refused}");
        }
    }

    #[test]
    fn any_bytes_are_a_piece_that_is_read_as_it_is_written_or_are_refused() {
        let record = |key: &'static [u8], length| Record {
            key: Bytes::from_static(key),
            term: 2,
            index: 7,
            length,
            hash: Bytes::copy_from_slice(&xxh3_128(b"value").to_le_bytes()),
            object: 3,
            offset: 1 << 20,
        };
        let named = Named {
            number: 3,
            path: "a/values-000000".into(),
            bytes: 10,
            raw_bytes: 2 << 20,
            zstd: true,
            crc32: 1,
        };
        let whole = Piece { named: vec![named], records: vec![record(b"a", 5), record(b"b", 0)] };
        // Out of order: it is a piece, and no state.
        let odd = Piece { named: Vec::new(), records: vec![record(b"b", 5), record(b"a", 5)] };
        cairn_fuzz::target!("whole" => whole.encode_to_vec(), "odd" => odd.encode_to_vec())
            .for_each(|bytes| {
                let given = Bytes::copy_from_slice(bytes);
                let most = 64 * bytes.len() + (4 << 10);
                let read = cairn_fuzz::within(most, || Piece::read(&given));
                let Ok(piece) = read else { return };
                assert_eq!(Piece::decode(&piece.encode_to_vec()[..]).as_ref(), Ok(&piece));
                let entries = piece.named.len() + piece.records.len();
                assert!(entries <= bytes.len() / ENTRY_BYTES_MIN);
                for named in &piece.named {
                    assert_eq!(Named::from(&Object::from(named)), *named);
                }
                let mut summary = Summary::default();
                let added = piece.records.iter().take_while(|record| summary.add(record).is_ok());
                let keys: Vec<&Bytes> = added.map(|record| &record.key).collect();
                assert!(keys.is_sorted_by(|one, next| one < next));
                assert!(keys.iter().all(|key| (1..=KEY_BYTES_MAX).contains(&key.len())));
                assert_eq!(summary.keys, keys.len() as u64);
            });
    }
}
