//! Changes of the members, and what an operator is told of them.

use crate::proto;
use crate::proto::change_members_request::Kind;

/// A change of who belongs to the cluster, or of where a member is. Slots are from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemberChange {
    /// The node of this slot that asks to join becomes a learner, and a voter once it has caught up.
    Add(u16),
    /// The voter or learner of this slot leaves. Its identity is refused from then on.
    Remove(u16),
    /// The node of this slot that asks to join takes over from the slot's voter, which is alive.
    /// (A voter that is gone is replaced without an operator.)
    Replace(u16),
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
            | MemberChange::Replace(slot)
            | MemberChange::Promote(slot)
            | MemberChange::Move(slot, _) => *slot,
        }
    }

    pub(crate) fn to_proto(&self) -> proto::ChangeMembersRequest {
        let (kind, peer_address) = match self {
            MemberChange::Add(_) => (Kind::Add, ""),
            MemberChange::Remove(_) => (Kind::Remove, ""),
            MemberChange::Replace(_) => (Kind::Replace, ""),
            MemberChange::Promote(_) => (Kind::Promote, ""),
            MemberChange::Move(_, address) => (Kind::Move, address.as_str()),
        };
        proto::ChangeMembersRequest {
            kind: kind.into(),
            slot: u32::from(self.slot()),
            peer_address: peer_address.to_owned(),
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
        Leader { node_id: leader.node_id, client_address: leader.client_address }
    }
}
