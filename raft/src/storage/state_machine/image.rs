//! The machine image: the part of the state that is not keys. It goes with every checkpoint and snapshot.

use super::retired::RetiredImage;
use super::sessions::Sessions;
use super::starts::StartsImage;
use crate::core::error::Malformed;
use crate::core::ids::NodeId;
use crate::core::types::StoredMembership;
use crate::core::{convert, proto};
use cairn_engine::{MachineImage, Run};
use prost::Message;
use std::sync::Arc;

/// How often an operator gave up what no member held any more, and the index of the entry that last said so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// How often.
    pub count: u64,
    /// Versions up to this one may be of a history that lacks acknowledged writes.
    pub last_index: u64,
}

/// Membership, sessions and starts after some entry. A copy is O(1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) membership: Arc<StoredMembership>,
    pub(crate) sessions: Sessions,
    /// How often an operator has given up what no member held any more, and the entry that last said so.
    pub(crate) losses: u64,
    pub(crate) last_loss: u64,
    pub(crate) last_loss_term: u64,
    /// The identities that were members and are none any more.
    pub(crate) retired: RetiredImage,
    /// The latest start of each member. In the image because a snapshot may leap over the entry.
    pub(crate) starts: StartsImage,
}

impl Image {
    pub(crate) fn losses(&self) -> Losses {
        Losses { count: self.losses, last_index: self.last_loss }
    }

    /// Equal images have equal bytes. No bytes are the image before the first entry.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Image, Malformed> {
        let message = proto::MachineImage::decode(bytes).map_err(|_| Malformed("no machine image"))?;
        let membership = convert::membership_from_proto(message.membership.unwrap_or_default())?;
        let log_id = message.membership_log_id.map(convert::log_id_from_proto).transpose()?;
        Ok(Image {
            losses: message.losses,
            last_loss: message.last_loss,
            last_loss_term: message.last_loss_term,
            retired: Arc::new(message.retired.into_iter().map(NodeId::from_u64).collect()),
            starts: Arc::new(message.starts.iter().map(start_from_proto).collect()),
            membership: Arc::new(StoredMembership::new(log_id, membership)),
            sessions: Sessions::from_proto(message.evicted_through, message.sessions)?,
        })
    }
}

/// More than a start or a retired identity takes, and than a membership does.
const ITEM_BYTES: u64 = 64;
const MEMBERSHIP_BYTES: u64 = 16 << 10;

impl MachineImage for Image {
    fn encode(&self) -> Vec<u8> {
        let (evicted_through, sessions) = self.sessions.to_proto();
        let message = proto::MachineImage {
            membership_log_id: self.membership.log_id().as_ref().map(convert::log_id_to_proto),
            membership: Some(convert::membership_to_proto(self.membership.membership())),
            evicted_through,
            sessions,
            losses: self.losses,
            last_loss: self.last_loss,
            last_loss_term: self.last_loss_term,
            retired: self.retired.iter().map(|id| id.as_u64()).collect(),
            starts: self.starts.iter().map(start_to_proto).collect(),
        };
        message.encode_to_vec()
    }

    fn encoded_bytes(&self) -> u64 {
        let fixed = (self.retired.len() + self.starts.len()) as u64;
        self.sessions.bytes() + fixed * ITEM_BYTES + MEMBERSHIP_BYTES
    }
}

fn start_from_proto(start: &proto::MemberStart) -> (NodeId, Run) {
    (NodeId::from_u64(start.node_id), Run { start: start.start, nonce: start.run })
}

fn start_to_proto((member, run): (&NodeId, &Run)) -> proto::MemberStart {
    proto::MemberStart { node_id: member.as_u64(), start: run.start, run: run.nonce }
}
