//! What the repeated fields of a message take in memory, counted before it is decoded.
//!
//! An element of a repeated field has two encoded bytes at least, and up to a hundred times as many
//! decoded: a message of 68 MiB could take gigabytes before anybody asks who sent it.

use super::error::Malformed;
use super::proto;
use bytes::{Buf, Bytes};
use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// A field with elements, or with a message that has such fields.
pub(crate) struct Repeated {
    field: u32,
    /// What an element takes, beside the bytes of its encoding.
    bytes: usize,
    within: &'static [Repeated],
}

impl Repeated {
    /// A repeated field whose elements are `T`.
    pub(crate) const fn of<T>(field: u32, within: &'static [Repeated]) -> Repeated {
        Repeated { field, bytes: size_of::<T>(), within }
    }

    /// A single message. It is merged if it comes more than once, with the elements of all.
    pub(crate) const fn one(field: u32, within: &'static [Repeated]) -> Repeated {
        Repeated { field, bytes: 0, within }
    }
}

pub(crate) const MEMBERSHIP: &[Repeated] =
    &[Repeated::of::<proto::VoterSet>(1, &[]), Repeated::of::<proto::MemberNode>(2, &[])];
pub(crate) const SNAPSHOT_META: &[Repeated] = &[Repeated::one(3, MEMBERSHIP)];
pub(crate) const ENTRIES: &[Repeated] =
    &[Repeated::of::<proto::Entry>(4, &[Repeated::of::<Bytes>(4, &[])])];
pub(crate) const MACHINE_IMAGE: &[Repeated] = &[
    Repeated::one(2, MEMBERSHIP),
    Repeated::of::<proto::SessionImage>(
        4,
        &[Repeated::of::<proto::SessionResult>(
            4,
            &[Repeated::of::<proto::OperationResult>(5, &[])],
        )],
    ),
    Repeated::of::<proto::MemberEpoch>(9, &[]),
    Repeated::of::<proto::UnsafeRecoveryRecord>(12, &[]),
];

/// Refuses a message whose elements would take more than `most` bytes decoded.
pub(crate) fn check(encoded: &[u8], repeated: &[Repeated], most: usize) -> Result<(), Malformed> {
    match count(encoded, repeated, &mut most.clone()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Malformed("a message of too many parts")),
        Err(_) => Err(Malformed("a message of another kind")),
    }
}

/// Takes what the elements need from `left`. Returns whether it sufficed.
fn count(mut encoded: &[u8], repeated: &[Repeated], left: &mut usize) -> Result<bool, DecodeError> {
    while encoded.has_remaining() {
        let (field, wire_type) = decode_key(&mut encoded)?;
        let known = repeated.iter().find(|known| known.field == field);
        let Some(known) = known.filter(|_| wire_type == WireType::LengthDelimited) else {
            skip_field(wire_type, field, &mut encoded, DecodeContext::default())?;
            continue;
        };
        let Some(rest) = left.checked_sub(known.bytes) else { return Ok(false) };
        *left = rest;
        let length = usize::try_from(decode_varint(&mut encoded)?).unwrap_or(usize::MAX);
        let Some((content, rest)) = encoded.split_at_checked(length) else {
            // Decoding it fails at the same place.
            return Ok(true);
        };
        encoded = rest;
        if !known.within.is_empty() && !count(content, known.within, left)? {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    fn taken(message: &impl Message, repeated: &[Repeated]) -> usize {
        let encoded = message.encode_to_vec();
        let fits = |most: &usize| check(&encoded, repeated, *most).is_ok();
        (0..=1 << 12).find(fits).expect("a few kilobytes")
    }

    #[test]
    fn elements_count_with_those_within_them() {
        let entry = |values: usize| proto::Entry {
            term: 1,
            index: 2,
            meta: "not a message".into(),
            values: vec![Bytes::new(); values],
            ..Default::default()
        };
        let entries = vec![entry(0), entry(3)];
        let vote = Some(proto::Vote { term: 3, node_id: 4, committed: true });
        let append = proto::AppendRequest { vote, entries, ..Default::default() };
        let bytes = 2 * size_of::<proto::Entry>() + 3 * size_of::<Bytes>();
        assert_eq!(taken(&append, ENTRIES), bytes);
        let membership = proto::Membership {
            configurations: vec![proto::VoterSet { node_ids: vec![7, 8] }],
            members: vec![proto::MemberNode::default(); 2],
        };
        let bytes = size_of::<proto::VoterSet>() + 2 * size_of::<proto::MemberNode>();
        assert_eq!(taken(&membership, MEMBERSHIP), bytes);
        let meta = proto::SnapshotMeta { membership: Some(membership), ..Default::default() };
        assert_eq!(taken(&meta, SNAPSHOT_META), bytes);
        // Merged, as the decoder does.
        let twice = [meta.encode_to_vec(), meta.encode_to_vec()].concat();
        assert!(check(&twice, SNAPSHOT_META, 2 * bytes).is_ok());
        assert!(check(&twice, SNAPSHOT_META, 2 * bytes - 1).is_err());
    }

    #[test]
    fn the_elements_of_an_image_count() {
        let operations = vec![proto::OperationResult::default(); 5];
        let result = proto::SessionResult { operations, ..Default::default() };
        let session = proto::SessionImage { results: vec![result; 2], ..Default::default() };
        let image = proto::MachineImage {
            sessions: vec![session],
            boot_epochs: vec![proto::MemberEpoch::default(); 3],
            unsafe_recovery_records: vec![proto::UnsafeRecoveryRecord::default(); 4],
            removed: vec![1, 2, 3],
            ..Default::default()
        };
        let bytes = size_of::<proto::SessionImage>()
            + 2 * size_of::<proto::SessionResult>()
            + 10 * size_of::<proto::OperationResult>()
            + 3 * size_of::<proto::MemberEpoch>()
            + 4 * size_of::<proto::UnsafeRecoveryRecord>();
        assert_eq!(taken(&image, MACHINE_IMAGE), bytes);
    }

    /// The story: 34 million entries of two bytes each took 4 GB before the sender's identity was
    /// looked at.
    #[test]
    fn elements_beyond_the_limit_are_refused_before_they_are_decoded() {
        let empty = [4 << 3 | 2, 0].repeat(1 << 20);
        let refused = || check(&empty, ENTRIES, 32 << 20);
        assert_eq!(
            cairn_fuzz::within(1 << 10, refused),
            Err(Malformed("a message of too many parts"))
        );
        assert!(check(&empty, ENTRIES, 256 << 20).is_ok());
    }
}
