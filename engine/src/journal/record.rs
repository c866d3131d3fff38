//! The records of the journal.
//!
//! A record is self-contained: if recovery stops after any record, the result is a prefix of
//! history. So a group commit of several records needs no begin and end marks.
//!
//! What holds here: a record has one spelling.

use crate::codec::{Reader, VARINT_BYTES_MAX, put_varint, varint_bytes};
use crate::types::{GroupId, LogId};
use crate::value_ref::ValueRef;
use bytes::Bytes;

const ENTRY_INLINE: u8 = 1;
const ENTRY_SPILLED: u8 = 2;
const TRUNCATE: u8 = 3;
const PURGE: u8 = 4;
const APPLIED: u8 = 5;
const MOVED: u8 = 6;
const ENTRY_CARRIED: u8 = 7;

/// The longest body kept in the record; a longer one goes into an extent, so that the journal stays
/// short.
pub(crate) const MAX_INLINE_BODY: usize = 1024;

/// An entry's body: its values and its meta bytes, in the record itself or in an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Inline(Bytes),
    Spilled(ValueRef),
    /// In the record itself, with the bytes of its values, one behind another.
    Carried {
        body: Bytes,
        values: Bytes,
    },
}

/// A value that was copied to a new place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    pub group: GroupId,
    /// The entry that wrote the value.
    pub id: LogId,
    /// The key that refers to it, if the entry is applied.
    pub key: Bytes,
    pub from: ValueRef,
    /// The same length and hash at the new place.
    pub to: ValueRef,
}

/// One step of a group's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// An entry was appended.
    Entry { group: GroupId, id: LogId, body: Body },
    /// Every entry above `last` was removed; `None` removes all.
    Truncate { group: GroupId, last: Option<u64> },
    /// Every entry up to `through` was removed.
    Purge { group: GroupId, through: LogId },
    /// Entries up to `through` were applied. Extents that this freed may be reused once this record
    /// is synced.
    Applied { group: GroupId, through: LogId },
    /// Entry and key refer to the value's new place from here on.
    Moved(Moved),
}

/// What bytes begin with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A record, and how many bytes it takes.
    Record(Record, usize),
    /// A part of a record, or nothing.
    Part,
    /// Neither.
    Damaged,
}

impl Record {
    /// Appends the record: length of what follows, kind (u8), fields.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        match self {
            Record::Entry { group, id, body: Body::Inline(bytes) } => {
                put_position(out, ENTRY_INLINE, *group, *id);
                out.extend_from_slice(bytes);
            }
            Record::Entry { group, id, body: Body::Spilled(at) } => {
                put_position(out, ENTRY_SPILLED, *group, *id);
                at.encode(out);
            }
            Record::Entry { group, id, body: Body::Carried { body, values } } => {
                put_position(out, ENTRY_CARRIED, *group, *id);
                put_varint(out, body.len() as u64);
                out.extend_from_slice(body);
                out.extend_from_slice(values);
            }
            Record::Truncate { group, last } => {
                out.push(TRUNCATE);
                put_varint(out, group.0.into());
                out.push(u8::from(last.is_some()));
                last.iter().for_each(|last| put_varint(out, *last));
            }
            Record::Purge { group, through } => put_position(out, PURGE, *group, *through),
            Record::Applied { group, through } => put_position(out, APPLIED, *group, *through),
            Record::Moved(Moved { group, id, key, from, to }) => {
                put_position(out, MOVED, *group, *id);
                put_varint(out, key.len() as u64);
                out.extend_from_slice(key);
                to.encode(out);
                from.encode_location(out);
            }
        }
        let mut length = Vec::with_capacity(VARINT_BYTES_MAX);
        put_varint(&mut length, (out.len() - start) as u64);
        out.splice(start..start, length);
    }

    /// Reads what `bytes` begin with.
    pub(crate) fn next(bytes: &[u8]) -> Next {
        let mut r = Reader::new(bytes);
        let Some(len) = r.varint() else {
            let is_cut = bytes.len() < VARINT_BYTES_MAX && bytes.iter().all(|byte| *byte >= 0x80);
            return if is_cut { Next::Part } else { Next::Damaged };
        };
        let Some(fields) = usize::try_from(len).ok().and_then(|len| r.bytes(len)) else {
            return Next::Part;
        };
        match Record::decode(fields) {
            Some(record) => Next::Record(record, bytes.len() - r.remaining()),
            None => Next::Damaged,
        }
    }

    /// Reads a record without its length.
    fn decode(bytes: &[u8]) -> Option<Record> {
        let mut r = Reader::new(bytes);
        let kind = r.u8()?;
        let group = GroupId(r.varint32()?);
        let record = match kind {
            ENTRY_INLINE => {
                let id = log_id(&mut r)?;
                let body = Body::Inline(Bytes::copy_from_slice(r.bytes(r.remaining())?));
                Record::Entry { group, id, body }
            }
            ENTRY_SPILLED => {
                let id = log_id(&mut r)?;
                Record::Entry { group, id, body: Body::Spilled(ValueRef::decode(&mut r)?) }
            }
            ENTRY_CARRIED => {
                let id = log_id(&mut r)?;
                let len = usize::try_from(r.varint()?).ok()?;
                let body = Bytes::copy_from_slice(r.bytes(len)?);
                let values = Bytes::copy_from_slice(r.bytes(r.remaining())?);
                Record::Entry { group, id, body: Body::Carried { body, values } }
            }
            TRUNCATE => {
                let last = match r.u8()? {
                    0 => None,
                    1 => Some(r.varint()?),
                    _ => return None,
                };
                Record::Truncate { group, last }
            }
            PURGE => Record::Purge { group, through: log_id(&mut r)? },
            APPLIED => Record::Applied { group, through: log_id(&mut r)? },
            MOVED => {
                let id = log_id(&mut r)?;
                let len = usize::try_from(r.varint()?).ok()?;
                let key = Bytes::copy_from_slice(r.bytes(len)?);
                let to = ValueRef::decode(&mut r)?;
                let from = ValueRef::decode_location(&mut r, to.len, to.hash)?;
                Record::Moved(Moved { group, id, key, from, to })
            }
            _ => return None,
        };
        (r.remaining() == 0).then_some(record)
    }
}

fn put_position(out: &mut Vec<u8>, kind: u8, group: GroupId, id: LogId) {
    out.push(kind);
    put_varint(out, group.0.into());
    put_log_id(out, id);
}

pub(crate) fn put_log_id(out: &mut Vec<u8>, id: LogId) {
    put_varint(out, id.term);
    put_varint(out, id.index);
}

/// No entry has the last index of all: none could follow it.
pub(crate) fn log_id(r: &mut Reader<'_>) -> Option<LogId> {
    let id = LogId { term: r.varint()?, index: r.varint()? };
    (id.index < u64::MAX).then_some(id)
}

/// Bytes of an entry's body.
pub(crate) fn body_bytes(values: &[ValueRef], meta: &[u8]) -> usize {
    let refs: usize = values.iter().map(ValueRef::encoded_bytes).sum();
    varint_bytes(values.len() as u64) + refs + meta.len()
}

/// An entry's body: number of values, the values, the meta bytes.
pub(crate) fn encode_body(values: &[ValueRef], meta: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body_bytes(values, meta));
    put_varint(&mut out, values.len() as u64);
    values.iter().for_each(|value| value.encode(&mut out));
    out.extend_from_slice(meta);
    out
}

/// Reads a body back.
pub(crate) fn decode_body(body: &[u8]) -> Option<(Box<[ValueRef]>, Bytes)> {
    let mut r = Reader::new(body);
    let count = r.varint()?;
    // A reference takes at least a length and a hash: a count that is not true allocates nothing.
    if count > (r.remaining() / (1 + size_of::<u128>())) as u64 {
        return None;
    }
    let values = (0..count).map(|_| ValueRef::decode(&mut r)).collect::<Option<_>>()?;
    Some((values, Bytes::copy_from_slice(r.bytes(r.remaining())?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value_ref::tests::any_ref;
    use proptest::prelude::*;

    fn log_id() -> impl Strategy<Value = LogId> {
        (any::<u64>(), 0..u64::MAX).prop_map(|(term, index)| LogId { term, index })
    }

    fn record() -> impl Strategy<Value = Record> {
        let group = any::<u32>().prop_map(GroupId);
        let inline = prop::collection::vec(any::<u8>(), 0..MAX_INLINE_BODY)
            .prop_map(|b| Body::Inline(b.into()));
        let bytes = || prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from);
        let carried = (bytes(), bytes()).prop_map(|(body, values)| Body::Carried { body, values });
        let body = prop_oneof![inline, any_ref().prop_map(Body::Spilled), carried];
        let key = prop::collection::vec(any::<u8>(), 0..40);
        (group, log_id(), body, any::<Option<u64>>(), 0..5u8, any_ref(), key).prop_map(
            |(group, id, body, last, kind, from, key)| match kind {
                0 => Record::Entry { group, id, body },
                1 => Record::Truncate { group, last },
                2 => Record::Purge { group, through: id },
                3 => Record::Applied { group, through: id },
                _ => Record::Moved(Moved { group, id, key: key.into(), to: from.clone(), from }),
            },
        )
    }

    const GROUP: GroupId = GroupId(1);
    const ID: LogId = LogId { term: 2, index: 300 };

    fn at(offset: u64) -> ValueRef {
        ValueRef::contiguous(offset, 5, 9).unwrap()
    }

    fn moved() -> Record {
        let key = Bytes::from_static(b"k");
        Record::Moved(Moved { group: GROUP, id: ID, key, from: at(100), to: at(8192) })
    }

    fn encoded(records: &[Record]) -> Vec<u8> {
        let mut out = Vec::new();
        records.iter().for_each(|record| record.encode(&mut out));
        out
    }

    /// The records at the beginning of `bytes`, and the bytes that they take.
    fn decoded(bytes: &[u8]) -> (Vec<Record>, usize) {
        let (mut records, mut read) = (Vec::new(), 0);
        while let Next::Record(record, len) = Record::next(&bytes[read..]) {
            records.push(record);
            read += len;
        }
        (records, read)
    }

    #[test]
    fn the_bytes_are_those_of_the_format_document() {
        let entry = |body| Record::Entry { group: GROUP, id: ID, body };
        let hash = 9u128.to_le_bytes();
        let position = [1, 2, 0xac, 2];
        let with = |len: u8, kind: u8, rest: &[u8]| [&[len, kind], &position[..], rest].concat();
        let inline = entry(Body::Inline(Bytes::from_static(b"x")));
        assert_eq!(encoded(&[inline]), with(6, 1, b"x"));
        let reference = [&[5], &hash[..], &[0x80, 0x40]].concat();
        assert_eq!(encoded(&[entry(Body::Spilled(at(8192)))]), with(24, 2, &reference));
        assert_eq!(
            encoded(&[Record::Truncate { group: GROUP, last: Some(300) }]),
            [5, 3, 1, 1, 0xac, 2]
        );
        assert_eq!(encoded(&[Record::Truncate { group: GROUP, last: None }]), [3, 3, 1, 0]);
        assert_eq!(encoded(&[Record::Purge { group: GROUP, through: ID }]), with(5, 4, &[]));
        assert_eq!(encoded(&[Record::Applied { group: GROUP, through: ID }]), with(5, 5, &[]));
        let (body, values) = (Bytes::from_static(b"body"), Bytes::from_static(b"v"));
        let carried = encoded(&[entry(Body::Carried { body, values })]);
        assert_eq!(carried, with(11, 7, b"\x04bodyv"));
        let rest = [&[1, b'k'], &reference[..], &[100]].concat();
        assert_eq!(encoded(&[moved()]), with(27, 6, &rest));
        let body = [&[1], &reference[..], b"meta"].concat();
        assert_eq!(encode_body(&[at(8192)], b"meta"), body);
    }

    #[test]
    fn any_bytes_decode_to_records_or_end_them() {
        let (group, id) = (GROUP, ID);
        let entry = |body| Record::Entry { group, id, body };
        let body = encode_body(&[at(0)], b"meta").into();
        let entries = [entry(Body::Inline(body)), entry(Body::Spilled(at(0)))];
        let body = encode_body(&[at(0)], b"meta").into();
        let carried = [entry(Body::Carried { body, values: Bytes::from_static(b"value") })];
        let removals = [
            Record::Truncate { group, last: Some(2) },
            Record::Truncate { group, last: None },
            Record::Purge { group, through: id },
        ];
        let applied = [Record::Applied { group, through: id }];
        let last_index = LogId { term: 2, index: u64::MAX };
        let unfollowed = [Record::Purge { group, through: last_index }];
        cairn_fuzz::target!(
            "entries" => encoded(&entries),
            "carried" => encoded(&carried),
            "removals" => encoded(&removals),
            "applied" => encoded(&applied),
            "moved" => encoded(&[moved()]),
            "unfollowed" => encoded(&unfollowed),
        )
        .for_each(|bytes| {
            let (records, read) = cairn_fuzz::within(64 * bytes.len() + 1024, || decoded(bytes));
            assert_eq!(encoded(&records), bytes[..read]);
        });
    }

    #[test]
    fn any_bytes_decode_to_a_body_or_to_nothing() {
        let values = encode_body(&[at(0), at(8192)], b"meta");
        cairn_fuzz::target!("empty" => encode_body(&[], &[]), "values" => values).for_each(
            |bytes| {
                let body = cairn_fuzz::within(64 * bytes.len() + 1024, || decode_body(bytes));
                if let Some((values, meta)) = body {
                    assert_eq!(encode_body(&values, &meta), bytes);
                }
            },
        );
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(records in prop::collection::vec(record(), 0..5)) {
            let bytes = encoded(&records);
            prop_assert_eq!(decoded(&bytes), (records, bytes.len()));
        }

        #[test]
        fn a_part_of_a_record_is_known_as_a_part(record in record(), cut: prop::sample::Index) {
            let bytes = encoded(&[record]);
            prop_assert_eq!(Record::next(&bytes[..cut.index(bytes.len())]), Next::Part);
        }

        #[test]
        fn bodies_round_trip(values in prop::collection::vec(any_ref(), 0..9), meta in prop::collection::vec(any::<u8>(), 0..99)) {
            let (v, m) = decode_body(&encode_body(&values, &meta)).unwrap();
            prop_assert_eq!((&*v, &m[..]), (&values[..], &meta[..]));
        }
    }
}
