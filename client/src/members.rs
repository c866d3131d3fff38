//! Changes of the members, and what an operator is told of them.

use crate::proto;
use crate::proto::change_members_request::Kind;
use crate::shown::of_node;

/// A node's identity has its slot above these bits.
const INCARNATION_BITS: u32 = 48;

/// A change of who belongs to the cluster, or of where a member is. Slots are from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemberChange {
    /// The node of this slot that asks to join becomes a learner, and a voter once it has caught up.
    Add(u16),
    /// The voter or learner of this slot leaves. Its identity is refused from then on.
    Remove(u16),
    /// Another node, which asks to join in the same slot, takes over from the voter of this identity
    /// ([`Member::node_id`](crate::Member::node_id)), which is alive. (A voter that is gone is
    /// replaced without an operator.)
    Replace(u64),
    /// The learner of this slot becomes a voter now.
    Promote(u16),
    /// The member of this slot is at this peer address, `host:port`. It counts once the member has
    /// answered there.
    Move(u16, String),
}

impl MemberChange {
    /// The slot that changes.
    pub fn slot(&self) -> u16 {
        match self {
            MemberChange::Add(slot)
            | MemberChange::Remove(slot)
            | MemberChange::Promote(slot)
            | MemberChange::Move(slot, _) => *slot,
            MemberChange::Replace(node_id) => (node_id >> INCARNATION_BITS) as u16,
        }
    }

    pub(crate) fn to_proto(&self) -> proto::ChangeMembersRequest {
        let (kind, peer_address, node_id) = match self {
            MemberChange::Add(_) => (Kind::Add, "", 0),
            MemberChange::Remove(_) => (Kind::Remove, "", 0),
            MemberChange::Replace(node_id) => (Kind::Replace, "", *node_id),
            MemberChange::Promote(_) => (Kind::Promote, "", 0),
            MemberChange::Move(_, address) => (Kind::Move, address.as_str(), 0),
        };
        proto::ChangeMembersRequest {
            kind: kind.into(),
            slot: u32::from(self.slot()),
            peer_address: peer_address.to_owned(),
            node_id,
        }
    }
}

/// The member that leads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// Its identity: slot in the high 16 bits, incarnation in the others.
    pub node_id: u64,
    /// `host:port` for clients.
    pub client_address: String,
}

impl Leader {
    pub(crate) fn of(leader: proto::Leader) -> Leader {
        Leader { node_id: leader.node_id, client_address: of_node(&leader.client_address) }
    }
}
