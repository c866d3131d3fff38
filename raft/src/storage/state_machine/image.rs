//! The machine image: the part of the state that is not keys. Each checkpoint and snapshot contains
//! it.

use super::identities::{BootEpochsImage, RemovedImage};
use super::recoveries::{RecoveryRecords, UnsafeRecoveries};
use super::sessions::Sessions;
use crate::core::boot::Boot;
use crate::core::error::Malformed;
use crate::core::ids::NodeId;
use crate::core::types::{StoredMembership, engine_log_id};
use crate::core::version::{Feature, RELEASE_BYTES_MAX};
use crate::core::{codec, convert, proto, repeated};
use cairn_engine::{BootEpoch, LogId, MachineImage, Mode};
use prost::Message;
use std::sync::Arc;

/// Membership, sessions and boot epochs after some entry. A copy is O(1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) membership: Arc<StoredMembership>,
    pub(crate) sessions: Sessions,
    pub(crate) unsafe_recoveries: UnsafeRecoveries,
    pub(crate) recovery_records: RecoveryRecords,
    pub(crate) removed: RemovedImage,
    /// The latest logged boot of each member. In the image because a snapshot may skip the
    /// entry.
    pub(crate) boot_epochs: BootEpochsImage,
    /// The least that an acknowledgement means. `None`: not logged yet.
    pub(crate) mode: Option<Mode>,
    /// The index of the entry that set it.
    pub(crate) mode_index: u64,
    /// The cluster's version; 0: nobody has raised it.
    pub(crate) version: u32,
}

impl Image {
    /// Equal images have equal bytes. Empty bytes are the image before the first entry.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Image, Malformed> {
        repeated::check(
            bytes,
            repeated::MACHINE_IMAGE,
            ELEMENTS_PER_BYTE * bytes.len() + ELEMENT_BYTES,
        )?;
        let message =
            proto::MachineImage::decode(bytes).map_err(|_| Malformed("no machine image"))?;
        let membership = convert::membership_from_proto(message.membership.unwrap_or_default())?;
        let log_id = message.membership_log_id.map(convert::log_id_from_proto).transpose()?;
        Ok(Image {
            unsafe_recoveries: UnsafeRecoveries {
                count: message.unsafe_recoveries,
                last_index: message.last_unsafe_recovery_index,
                last_term: message.last_unsafe_recovery_term,
            },
            recovery_records: RecoveryRecords::from_proto(
                message.unsafe_recovery_records,
                message.last_of_earlier_terms,
            )?,
            removed: Arc::new(message.removed.into_iter().map(NodeId::from_u64).collect()),
            boot_epochs: Arc::new(
                message.boot_epochs.into_iter().map(boot_from_proto).collect::<Result<_, _>>()?,
            ),
            membership: Arc::new(StoredMembership::new(log_id, membership)),
            sessions: Sessions::from_proto(message.evicted_through, message.sessions)?,
            mode: match message.mode {
                0 => None,
                number => Some(codec::mode_from_number(number).ok_or(Malformed("no mode"))?),
            },
            mode_index: message.mode_index,
            version: message.version,
        })
    }
}

impl Image {
    /// Whether it names unsafe recoveries one by one: so that equal states have equal bytes, every member has
    /// to do so from the same entry on.
    pub(crate) fn lists_recoveries(&self) -> bool {
        Feature::UnsafeRecoveryRecords.is_used(self.version)
    }

    /// Some entries of the history that led to it.
    pub(crate) fn known_entries(&self) -> impl Iterator<Item = LogId> {
        let membership = self.membership.log_id().as_ref().map(engine_log_id);
        self.recovery_records.entries(self.unsafe_recoveries).chain(membership)
    }
}

/// What the elements of an image may take decoded: so many times its bytes, as results of operations
/// without a key do, and so many more.
const ELEMENTS_PER_BYTE: usize = 8;
const ELEMENT_BYTES: usize = 1 << 20;

/// Upper bounds: for a boot, a removed identity or a record of an unsafe recovery, and for a membership.
const ITEM_BYTES: u64 = 64 + RELEASE_BYTES_MAX as u64;
const MEMBERSHIP_BYTES: u64 = 16 << 10;

impl MachineImage for Image {
    fn encode(&self) -> Vec<u8> {
        let (evicted_through, sessions) = self.sessions.to_proto();
        let (unsafe_recovery_records, last_of_earlier_terms) = self.recovery_records.to_proto();
        let message = proto::MachineImage {
            membership_log_id: self.membership.log_id().as_ref().map(convert::log_id_to_proto),
            membership: Some(convert::membership_to_proto(self.membership.membership())),
            evicted_through,
            sessions,
            unsafe_recoveries: self.unsafe_recoveries.count,
            last_unsafe_recovery_index: self.unsafe_recoveries.last_index,
            last_unsafe_recovery_term: self.unsafe_recoveries.last_term,
            unsafe_recovery_records,
            last_of_earlier_terms,
            removed: self.removed.iter().map(|id| id.as_u64()).collect(),
            boot_epochs: self.boot_epochs.iter().map(boot_to_proto).collect(),
            mode: self.mode.map_or(0, codec::mode_to_number),
            mode_index: self.mode_index,
            version: self.version,
        };
        message.encode_to_vec()
    }

    fn encoded_bytes(&self) -> u64 {
        let items = self.removed.len() + self.boot_epochs.len() + self.recovery_records.count();
        self.sessions.bytes() + items as u64 * ITEM_BYTES + MEMBERSHIP_BYTES
    }
}

fn boot_from_proto(logged: proto::MemberEpoch) -> Result<(NodeId, Boot), Malformed> {
    if logged.release.len() > RELEASE_BYTES_MAX {
        return Err(Malformed("a release with a name that is too long"));
    }
    let epoch = BootEpoch { number: logged.boot_epoch, nonce: logged.boot_nonce };
    let boot = Boot { epoch, version: logged.version, release: logged.release.into() };
    Ok((NodeId::from_u64(logged.node_id), boot))
}

fn boot_to_proto((member, boot): (&NodeId, &Boot)) -> proto::MemberEpoch {
    proto::MemberEpoch {
        node_id: member.as_u64(),
        boot_epoch: boot.epoch.number,
        boot_nonce: boot.epoch.nonce,
        version: boot.version,
        release: boot.release.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    /// A message with something in every field.
    fn example() -> proto::MachineImage {
        let (node_id, index) = (NodeId::new(1, 7).as_u64(), 4);
        let log_id = Some(proto::LogId { term: 2, index });
        let member =
            proto::MemberNode { node_id, peer_address: "p:1".into(), client_address: "c:2".into() };
        let voters = proto::VoterSet { node_ids: vec![node_id] };
        let operation = proto::OperationResult {
            condition_held: true,
            existed: true,
            version: 3,
            deleted: 300,
            more: true,
        };
        let result = |sequence| proto::SessionResult {
            sequence,
            term: 2,
            index,
            applied: true,
            operations: vec![operation; 2],
        };
        let session = |id| proto::SessionImage {
            client_id: Bytes::copy_from_slice(&[id; 16]),
            last_used: index,
            lowest_pending: 1,
            results: vec![result(1), result(2)],
        };
        proto::MachineImage {
            membership_log_id: log_id,
            membership: Some(proto::Membership {
                configurations: vec![voters],
                members: vec![member],
            }),
            evicted_through: 1,
            sessions: vec![session(1), session(2)],
            unsafe_recoveries: 1,
            last_unsafe_recovery_index: 3,
            last_unsafe_recovery_term: 2,
            unsafe_recovery_records: vec![proto::UnsafeRecoveryRecord {
                recorded: Some(proto::LogId { term: 2, index: 3 }),
                kept: Some(proto::LogId { term: 1, index: 1 }),
            }],
            last_of_earlier_terms: Some(proto::LogId { term: 1, index: 1 }),
            removed: vec![5, 6],
            boot_epochs: vec![proto::MemberEpoch {
                node_id,
                boot_epoch: 3,
                boot_nonce: 9,
                version: 2,
                release: "1.2.3".into(),
            }],
            mode: 3,
            mode_index: 4,
            version: 2,
        }
    }

    #[test]
    fn any_bytes_decode_to_an_image_or_to_an_error() {
        cairn_fuzz::target!("image" => example().encode_to_vec()).for_each(|bytes| {
            let most = 256 * bytes.len() + (16 << 10);
            let Ok(image) = cairn_fuzz::within(most, || Image::decode(bytes)) else { return };
            let again = image.encode();
            assert_eq!(Image::decode(&again).as_ref(), Ok(&image));
            // The bound leaves room for the membership of any cluster, but not for an invented one.
            let membership = convert::membership_to_proto(image.membership.membership());
            let rest = again.len().saturating_sub(membership.encoded_len()) as u64;
            assert!(rest <= image.encoded_bytes());
        });
    }

    /// A release that kept no list of the unsafe recoveries wrote it.
    #[test]
    fn an_image_of_an_earlier_release_decodes_to_what_it_had_and_is_written_as_it_was() {
        let earlier = proto::MachineImage {
            unsafe_recovery_records: Vec::new(),
            last_of_earlier_terms: None,
            ..example()
        };
        let image = Image::decode(&earlier.encode_to_vec()).unwrap();
        assert_eq!(
            image.unsafe_recoveries,
            UnsafeRecoveries { count: 1, last_index: 3, last_term: 2 }
        );
        let id = |index| LogId { term: 2, index };
        let known: Vec<LogId> = image.known_entries().collect();
        assert_eq!(known, [id(2), id(3), id(4)]);
        assert_eq!(image.encode(), earlier.encode_to_vec());
    }

    #[test]
    fn an_image_names_the_beginning_of_the_term_of_an_unsafe_recovery() {
        let image = Image::decode(&example().encode_to_vec()).unwrap();
        let known: Vec<LogId> = image.known_entries().collect();
        assert!(known.contains(&LogId { term: 1, index: 1 }), "{known:?}");
        assert!(known.contains(&LogId { term: 2, index: 2 }), "{known:?}");
    }
}
