//! The machine image: the part of the state that is not keys. It goes with every checkpoint and snapshot.

use super::sessions::Sessions;
use crate::codec::Malformed;
use crate::convert;
use crate::network::proto;
use crate::types::StoredMembership;
use cairn_engine::MachineImage;
use prost::Message;
use std::sync::Arc;

/// Membership and sessions after some entry. A copy is O(1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) membership: Arc<StoredMembership>,
    pub(crate) sessions: Sessions,
}

impl Image {
    /// Equal images have equal bytes. No bytes are the image before the first entry.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Image, Malformed> {
        let message = proto::MachineImage::decode(bytes).map_err(|_| Malformed("no machine image"))?;
        let membership = convert::membership_from_proto(message.membership.unwrap_or_default())?;
        let log_id = message.membership_log_id.map(convert::log_id_from_proto);
        Ok(Image {
            membership: Arc::new(StoredMembership::new(log_id, membership)),
            sessions: Sessions::from_proto(message.evicted_through, message.sessions)?,
        })
    }
}

impl MachineImage for Image {
    fn encode(&self) -> Vec<u8> {
        let (evicted_through, sessions) = self.sessions.to_proto();
        let message = proto::MachineImage {
            membership_log_id: self.membership.log_id().as_ref().map(convert::log_id_to_proto),
            membership: Some(convert::membership_to_proto(self.membership.membership())),
            evicted_through,
            sessions,
        };
        message.encode_to_vec()
    }
}
