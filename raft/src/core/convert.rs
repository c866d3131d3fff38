//! Log ids and memberships between openraft's types and the protobuf messages that are sent and
//! stored.
//!
//! What holds here: values that no log and no cluster can have produced are refused.

use super::error::Malformed;
use super::ids::{MemberAddress, NodeId};
use super::proto;
use super::types::{Membership, RaftLogId, engine_log_id};
use cairn_engine::LogId;
use std::collections::{BTreeMap, BTreeSet};

/// No cluster ever reaches a term or an index as large as this.
pub(crate) const BOUND: u64 = 1 << 62;

impl From<LogId> for proto::LogId {
    fn from(LogId { term, index }: LogId) -> proto::LogId {
        proto::LogId { term, index }
    }
}

/// Unchecked: to be compared, not to be stored.
impl From<proto::LogId> for LogId {
    fn from(proto::LogId { term, index }: proto::LogId) -> LogId {
        LogId { term, index }
    }
}

pub(crate) fn log_id_to_proto(id: &RaftLogId) -> proto::LogId {
    engine_log_id(id).into()
}

pub(crate) fn log_id_from_proto(id: proto::LogId) -> Result<RaftLogId, Malformed> {
    match id.term < BOUND && id.index < BOUND {
        true => Ok(RaftLogId::new_term_index(id.term, id.index)),
        false => Err(Malformed("a term or index beyond the bound")),
    }
}

pub(crate) fn membership_to_proto(membership: &Membership) -> proto::Membership {
    proto::Membership {
        configurations: membership
            .get_joint_config()
            .iter()
            .map(|voters| proto::VoterSet {
                node_ids: voters.iter().map(|id| id.as_u64()).collect(),
            })
            .collect(),
        members: membership
            .nodes()
            .map(|(id, address)| proto::MemberNode {
                node_id: id.as_u64(),
                peer_address: address.peer.clone(),
                client_address: address.client.clone(),
            })
            .collect(),
    }
}

pub(crate) fn membership_from_proto(message: proto::Membership) -> Result<Membership, Malformed> {
    if message.configurations.is_empty() && message.members.is_empty() {
        return Ok(Membership::default());
    }
    let configurations = message
        .configurations
        .into_iter()
        .map(|voters| voters.node_ids.into_iter().map(NodeId::from_u64).collect::<BTreeSet<_>>())
        .collect();
    let nodes: BTreeMap<NodeId, MemberAddress> = message
        .members
        .into_iter()
        .map(|member| {
            let address =
                MemberAddress { peer: member.peer_address, client: member.client_address };
            (NodeId::from_u64(member.node_id), address)
        })
        .collect();
    Membership::new(configurations, nodes).map_err(|_| Malformed("an impossible membership"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_or_index_beyond_the_bound_is_refused() {
        let id = |term, index| log_id_from_proto(proto::LogId { term, index });
        assert!(id((1 << 62) - 1, (1 << 62) - 1).is_ok());
        assert!(id(1 << 62, 1).is_err() && id(1, u64::MAX).is_err());
    }
}
