//! A member's identity, and where it can be reached.

use cairn_engine::GroupId;
use std::fmt;

/// The group of the engine that a replica uses: the only one, for now.
pub const GROUP: GroupId = GroupId(0);

const INCARNATION_BITS: u32 = 48;
const INCARNATION_MASK: u64 = (1 << INCARNATION_BITS) - 1;

/// A member's identity: its slot in the cluster (16 high bits) and a random incarnation (48 low
/// bits).
///
/// A member votes and acknowledges under it. A member that may have lost either for good gets a new
/// incarnation, so the others do not take the new one for the old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u64);

impl NodeId {
    /// From a slot and the low 48 bits of `incarnation`.
    pub const fn new(slot: u16, incarnation: u64) -> NodeId {
        NodeId(((slot as u64) << INCARNATION_BITS) | (incarnation & INCARNATION_MASK))
    }

    /// The number of the member's slot in the cluster.
    pub const fn slot(self) -> u16 {
        (self.0 >> INCARNATION_BITS) as u16
    }

    /// Tells apart the identities that had this slot, one after another.
    pub const fn incarnation(self) -> u64 {
        self.0 & INCARNATION_MASK
    }

    /// The number that travels on the wire.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// From the number that travels on the wire.
    pub const fn from_u64(id: u64) -> NodeId {
        NodeId(id)
    }
}

impl From<u64> for NodeId {
    fn from(id: u64) -> NodeId {
        NodeId::from_u64(id)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}", self.slot(), self.incarnation())
    }
}

/// Where a member listens, `host:port` each.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberAddress {
    /// For the other members.
    pub peer: String,
    /// For clients.
    pub client: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_its_slot_and_its_incarnation() {
        let id = NodeId::new(2, 0x1f3a_0000_0001);
        assert_eq!((id.slot(), id.incarnation()), (2, 0x1f3a_0000_0001));
        assert_eq!(NodeId::from_u64(id.as_u64()), id);
        assert_eq!(id.to_string(), "2.1f3a00000001");
    }

    #[test]
    fn an_incarnation_never_spills_into_the_slot() {
        assert_eq!(NodeId::new(1, u64::MAX).slot(), 1);
    }
}
