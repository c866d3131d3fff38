//! The records of a commit block.
//!
//! A record is self-contained: if recovery stops after any record, the result is a prefix of
//! history. So a group commit of several blocks needs no begin and end marks.

use crate::codec::Reader;
use crate::types::{GroupId, LogId, ValueRef};
use bytes::{BufMut, Bytes};

const ENTRY_INLINE: u8 = 1;
const ENTRY_SPILLED: u8 = 2;
const TRUNCATE: u8 = 3;
const PURGE: u8 = 4;
const APPLIED: u8 = 5;

/// The longest body kept in the record; a longer one goes into an extent, so that blocks stay well
/// packed.
pub(crate) const MAX_INLINE_BODY: usize = 1024;
/// Bytes of an encoded [`ValueRef`].
pub(crate) const VALUE_REF_BYTES: usize = 28;

/// An entry's body: its values and its meta bytes, in the record itself or in an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Inline(Bytes),
    Spilled(ValueRef),
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
}

impl Record {
    /// Appends the record: length of what follows (u16), kind (u8), fields.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.put_u16_le(0);
        match self {
            Record::Entry { group, id, body } => {
                let inline = matches!(body, Body::Inline(_));
                out.put_u8(if inline { ENTRY_INLINE } else { ENTRY_SPILLED });
                put_position(out, *group, *id);
                match body {
                    Body::Inline(bytes) => out.put_slice(bytes),
                    Body::Spilled(at) => put_value_ref(out, at),
                }
            }
            Record::Truncate { group, last } => {
                out.put_u8(TRUNCATE);
                out.put_u32_le(group.0);
                out.put_u8(u8::from(last.is_some()));
                out.put_u64_le(last.unwrap_or(0));
            }
            Record::Purge { group, through } => {
                out.put_u8(PURGE);
                put_position(out, *group, *through);
            }
            Record::Applied { group, through } => {
                out.put_u8(APPLIED);
                put_position(out, *group, *through);
            }
        }
        let len = (out.len() - start - 2) as u16;
        if let Some(field) = out.get_mut(start..start + 2) {
            field.copy_from_slice(&len.to_le_bytes());
        }
    }

    /// Reads the next record; `None` if the bytes are not one.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Option<Record> {
        let len = usize::from(reader.u16()?);
        let mut r = Reader::new(reader.bytes(len)?);
        let kind = r.u8()?;
        let record = match kind {
            ENTRY_INLINE | ENTRY_SPILLED => {
                let (group, id) = position(&mut r)?;
                let body = if kind == ENTRY_INLINE {
                    Body::Inline(Bytes::copy_from_slice(r.bytes(r.remaining())?))
                } else {
                    Body::Spilled(value_ref(&mut r)?)
                };
                Record::Entry { group, id, body }
            }
            TRUNCATE => {
                let group = GroupId(r.u32()?);
                let some = r.u8()?;
                let last = r.u64()?;
                Record::Truncate { group, last: (some == 1).then_some(last) }
            }
            PURGE | APPLIED => {
                let (group, through) = position(&mut r)?;
                match kind == PURGE {
                    true => Record::Purge { group, through },
                    false => Record::Applied { group, through },
                }
            }
            _ => return None,
        };
        (r.remaining() == 0).then_some(record)
    }
}

fn put_position(out: &mut Vec<u8>, group: GroupId, id: LogId) {
    out.put_u32_le(group.0);
    out.put_u64_le(id.term);
    out.put_u64_le(id.index);
}

fn position(r: &mut Reader<'_>) -> Option<(GroupId, LogId)> {
    Some((GroupId(r.u32()?), log_id(r)?))
}

/// No entry has the last index of all: none could follow it.
pub(crate) fn log_id(r: &mut Reader<'_>) -> Option<LogId> {
    let id = LogId { term: r.u64()?, index: r.u64()? };
    (id.index < u64::MAX).then_some(id)
}

pub(crate) fn put_value_ref(out: &mut Vec<u8>, value: &ValueRef) {
    out.put_u64_le(value.offset);
    out.put_u32_le(value.len);
    out.put_u128_le(value.hash);
}

pub(crate) fn value_ref(r: &mut Reader<'_>) -> Option<ValueRef> {
    Some(ValueRef { offset: r.u64()?, len: r.u32()?, hash: r.u128()? })
}

/// An entry's body: number of values (u16), the values, the meta bytes.
pub(crate) fn encode_body(values: &[ValueRef], meta: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 + values.len() * VALUE_REF_BYTES + meta.len());
    out.put_u16_le(values.len() as u16);
    for value in values {
        put_value_ref(&mut out, value);
    }
    out.put_slice(meta);
    out
}

/// Reads a body back.
pub(crate) fn decode_body(body: &[u8]) -> Option<(Box<[ValueRef]>, Bytes)> {
    let mut r = Reader::new(body);
    let count = r.u16()?;
    let values = (0..count).map(|_| value_ref(&mut r)).collect::<Option<Box<[_]>>>()?;
    Some((values, Bytes::copy_from_slice(r.bytes(r.remaining())?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn log_id() -> impl Strategy<Value = LogId> {
        (any::<u64>(), 0..u64::MAX).prop_map(|(term, index)| LogId { term, index })
    }

    fn at() -> impl Strategy<Value = ValueRef> {
        (any::<u64>(), any::<u32>(), any::<u128>()).prop_map(|(offset, len, hash)| ValueRef {
            offset,
            len,
            hash,
        })
    }

    fn record() -> impl Strategy<Value = Record> {
        let group = any::<u32>().prop_map(GroupId);
        let inline = prop::collection::vec(any::<u8>(), 0..MAX_INLINE_BODY)
            .prop_map(|b| Body::Inline(b.into()));
        let body = prop_oneof![inline, at().prop_map(Body::Spilled)];
        (group, log_id(), body, any::<Option<u64>>(), 0..4u8).prop_map(
            |(group, id, body, last, kind)| match kind {
                0 => Record::Entry { group, id, body },
                1 => Record::Truncate { group, last },
                2 => Record::Purge { group, through: id },
                _ => Record::Applied { group, through: id },
            },
        )
    }

    #[test]
    fn the_bytes_are_those_of_the_format_document() {
        let mut out = Vec::new();
        let id = LogId { term: 2, index: 3 };
        Record::Entry { group: GroupId(1), id, body: Body::Inline(Bytes::from_static(b"x")) }
            .encode(&mut out);
        let mut expected =
            vec![22, 0, 1, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0];
        expected.push(b'x');
        assert_eq!(out, expected);
    }

    const AT: ValueRef = ValueRef { offset: 8192, len: 5, hash: 9 };

    fn encoded(records: &[Record]) -> Vec<u8> {
        let mut out = Vec::new();
        records.iter().for_each(|record| record.encode(&mut out));
        out
    }

    #[test]
    fn any_bytes_decode_to_records_or_end_them() {
        let (group, id) = (GroupId(1), LogId { term: 2, index: 3 });
        let entry = |body| Record::Entry { group, id, body };
        let entries =
            [entry(Body::Inline(encode_body(&[AT], b"meta").into())), entry(Body::Spilled(AT))];
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
            "removals" => encoded(&removals),
            "applied" => encoded(&applied),
            "unfollowed" => encoded(&unfollowed),
        )
        .for_each(|bytes| {
            let mut reader = Reader::new(bytes);
            let mut read = 0;
            let records = cairn_fuzz::within(16 * bytes.len() + 1024, || {
                let next = || {
                    let record = Record::decode(&mut reader)?;
                    read = bytes.len() - reader.remaining();
                    Some(record)
                };
                std::iter::from_fn(next).collect::<Vec<_>>()
            });
            let again = encoded(&records);
            assert_eq!(again.len(), read);
            let mut reader = Reader::new(&again);
            assert!(
                records.iter().all(|record| Record::decode(&mut reader).as_ref() == Some(record))
            );
            // Only a truncate's flag and the index that it makes void can be spelt differently.
            let spelt_once =
                |record: &Record| !matches!(record, Record::Truncate { last: None, .. });
            assert!(again == bytes[..read] || !records.iter().all(spelt_once));
        });
    }

    #[test]
    fn any_bytes_decode_to_a_body_or_to_nothing() {
        let values = encode_body(&[AT, AT], b"meta");
        cairn_fuzz::target!("empty" => encode_body(&[], &[]), "values" => values).for_each(
            |bytes| {
                let body = cairn_fuzz::within(6 * bytes.len() + 1024, || decode_body(bytes));
                if let Some((values, meta)) = body {
                    assert_eq!(encode_body(&values, &meta), bytes);
                }
            },
        );
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(records in prop::collection::vec(record(), 0..5)) {
            let mut out = Vec::new();
            for record in &records { record.encode(&mut out); }
            let mut reader = Reader::new(&out);
            let mut decoded = Vec::new();
            while reader.remaining() > 0 { decoded.push(Record::decode(&mut reader).unwrap()); }
            prop_assert_eq!(decoded, records);
        }

        #[test]
        fn bodies_round_trip(values in prop::collection::vec(at(), 0..9), meta in prop::collection::vec(any::<u8>(), 0..99)) {
            let (v, m) = decode_body(&encode_body(&values, &meta)).unwrap();
            prop_assert_eq!((&*v, &m[..]), (&values[..], &meta[..]));
        }
    }
}
