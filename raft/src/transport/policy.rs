//! What the floors above say about what is sent.

use super::messages::Regime;
use crate::core::ids::NodeId;
use crate::core::types::{RaftLogId, Vote};

/// Asked whenever it matters: what it says changes at any time.
pub(crate) trait SendPolicy: Send + Sync {
    /// Whether this member may ask for votes.
    fn may_campaign(&self, member: NodeId) -> bool;

    /// What an append of this leadership tells its receiver about acknowledging ahead of syncs.
    fn ack_mode(&self, leadership: &Vote) -> Regime;

    /// The last entry that a follower acknowledged in this leadership, as far as its leader knows: told to it when a
    /// connection begins.
    ///
    /// The story against which this stands: an older copy of a follower's disk, made since its last start, is put in its
    /// place. No start of that disk is known to anybody that is not one of the copy too, its journal ends in order, and it
    /// has forgotten what it acknowledged since. Only whoever heard the acknowledgements can tell.
    fn acknowledged(&self, follower: NodeId, leadership: &Vote) -> Option<RaftLogId>;
}
