//! What the floors above decide about messages that are sent.

use super::messages::AckMode;
use crate::core::ids::NodeId;
use crate::core::types::{RaftLogId, Vote};

/// Called for each message: the answers change at any time.
pub(crate) trait SendPolicy: Send + Sync {
    /// Whether this member may ask for votes, or why not.
    fn may_ask_for_votes(&self) -> Result<(), String>;

    /// Whether this member, as leader, must send no heartbeats, appends or snapshots: no quorum
    /// answers it. It asks its followers in place of each heartbeat whether they are there.
    fn is_suspended(&self) -> bool;

    /// A follower has answered that question.
    fn is_there(&self, follower: NodeId);

    /// The ack mode that an append of this leadership carries.
    fn ack_mode(&self, leadership: &Vote) -> AckMode;

    /// The last entry that a follower acknowledged in this leadership, as far as its leader knows.
    /// The leader sends it to the follower on every new connection and with each heartbeat.
    ///
    /// The story behind it: an older copy of a follower's disk, made after its last boot, is put in
    /// its place. Every boot epoch of that disk that the members know is in the copy's fencing
    /// history too, the copy's journal ends in order, and it lacks what the follower acknowledged
    /// since. Only the leader that received those acknowledgements can tell.
    fn acknowledged(&self, follower: NodeId, leadership: &Vote) -> Option<RaftLogId>;
}
