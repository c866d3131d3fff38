//! Between openraft's types and the peer protocol's messages.
//!
//! What holds here: nothing from the network reaches openraft unless every part of it that openraft needs is there.

use crate::codec::{self, Malformed};
use crate::ids::{MemberAddress, NodeId};
use crate::network::proto;
use crate::redundancy::Regime;
use crate::terms::{BOUND, Sender};
use crate::types::{AppendRequest, Entry, Membership, RaftLogId, SnapshotMeta, StoredMembership, Vote};
use openraft::entry::RaftEntry;
use openraft::vote::RaftLeaderId;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) fn log_id_to_proto(id: &RaftLogId) -> proto::LogId {
    proto::LogId { term: id.committed_leader_id().term, index: id.index() }
}

pub(crate) fn log_id_from_proto(id: proto::LogId) -> Result<RaftLogId, Malformed> {
    match id.term < BOUND && id.index < BOUND {
        true => Ok(RaftLogId::new_term_index(id.term, id.index)),
        false => Err(Malformed("a position that no log reaches")),
    }
}

pub(crate) fn vote_to_proto(vote: &Vote) -> proto::Vote {
    let leader = vote.leader_id();
    proto::Vote { term: leader.term(), node_id: leader.node_id().as_u64(), committed: vote.is_committed() }
}

/// A vote whose term is believed of its sender.
pub(crate) fn vote_from_proto(vote: Option<proto::Vote>, from: Sender<'_>) -> Result<Vote, Malformed> {
    let vote = vote.ok_or(Malformed("no vote"))?;
    from.check(vote.term)?;
    let node_id = NodeId::from_u64(vote.node_id);
    Ok(match vote.committed {
        true => Vote::new_committed(vote.term, node_id),
        false => Vote::new(vote.term, node_id),
    })
}

pub(crate) fn membership_to_proto(membership: &Membership) -> proto::Membership {
    proto::Membership {
        configurations: membership
            .get_joint_config()
            .iter()
            .map(|voters| proto::VoterSet { node_ids: voters.iter().map(|id| id.as_u64()).collect() })
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
            let address = MemberAddress { peer: member.peer_address, client: member.client_address };
            (NodeId::from_u64(member.node_id), address)
        })
        .collect();
    Membership::new(configurations, nodes).map_err(|_| Malformed("an impossible membership"))
}

pub(crate) fn entry_to_proto(entry: Entry) -> proto::Entry {
    let id = entry.log_id;
    let (meta, values) = codec::encode_payload(entry.payload);
    proto::Entry { term: id.committed_leader_id().term, index: id.index(), meta, values }
}

fn entry_from_proto(entry: proto::Entry) -> Result<Entry, Malformed> {
    let payload = codec::validate(entry.meta, entry.values)?;
    Ok(Entry::new(RaftLogId::new_term_index(entry.term, entry.index), payload))
}

/// The request, and whether it carries `envelope`.
pub(crate) fn append_to_proto(
    request: AppendRequest,
    envelope: Option<proto::Envelope>,
    regime: Regime,
) -> proto::AppendRequest {
    proto::AppendRequest {
        envelope,
        regime: regime.number,
        lazy: regime.lazy,
        matched: None,
        vote: Some(vote_to_proto(&request.vote)),
        previous: request.prev_log_id.as_ref().map(log_id_to_proto),
        entries: request.entries.into_iter().map(entry_to_proto).collect(),
        committed: request.leader_commit.as_ref().map(log_id_to_proto),
    }
}

/// What an append says that its receiver has acknowledged.
pub(crate) fn matched_from_proto(message: &proto::AppendRequest) -> Option<cairn_engine::LogId> {
    message.matched.map(|id| cairn_engine::LogId { term: id.term, index: id.index })
}

/// What an append says of acknowledging ahead of syncs.
pub(crate) fn regime_from_proto(message: &proto::AppendRequest) -> Regime {
    let term = message.vote.as_ref().map_or(0, |vote| vote.term);
    Regime { term, number: message.regime, lazy: message.lazy }
}

/// Entries must follow `previous` without a hole and no term may fall, which openraft takes for granted.
pub(crate) fn append_from_proto(
    message: proto::AppendRequest,
    from: Sender<'_>,
) -> Result<AppendRequest, Malformed> {
    let vote = vote_from_proto(message.vote, from.leading())?;
    if !vote.is_committed() {
        return Err(Malformed("an append by a member that does not lead"));
    }
    let mut term = message.previous.map_or(0, |id| id.term);
    let prev_log_id = message.previous.map(log_id_from_proto).transpose()?;
    let first = prev_log_id.map_or(0, |id| id.index() + 1);
    if term > vote.leader_id().term() {
        return Err(Malformed("terms out of order"));
    }
    let mut entries = Vec::with_capacity(message.entries.len());
    for (next, entry) in (first..).zip(message.entries) {
        if entry.index != next {
            return Err(Malformed("a hole in the entries"));
        }
        if entry.term < term || entry.term > vote.leader_id().term() {
            return Err(Malformed("terms out of order"));
        }
        term = entry.term;
        entries.push(entry_from_proto(entry)?);
    }
    Ok(AppendRequest {
        vote,
        prev_log_id,
        entries,
        leader_commit: message.committed.map(log_id_from_proto).transpose()?,
    })
}

pub(crate) fn snapshot_meta_to_proto(meta: &SnapshotMeta) -> proto::SnapshotMeta {
    proto::SnapshotMeta {
        last_log_id: meta.last_log_id.as_ref().map(log_id_to_proto),
        membership_log_id: meta.last_membership.log_id().as_ref().map(log_id_to_proto),
        membership: Some(membership_to_proto(meta.last_membership.membership())),
    }
}

/// A snapshot always has a last entry.
pub(crate) fn snapshot_meta_from_proto(
    meta: Option<proto::SnapshotMeta>,
) -> Result<(cairn_engine::LogId, SnapshotMeta), Malformed> {
    let meta = meta.ok_or(Malformed("no snapshot named"))?;
    let last = meta.last_log_id.ok_or(Malformed("a snapshot without a last entry"))?;
    let membership = membership_from_proto(meta.membership.unwrap_or_default())?;
    let membership_log_id = meta.membership_log_id.map(log_id_from_proto).transpose()?;
    let named = SnapshotMeta {
        last_log_id: Some(log_id_from_proto(last)?),
        last_membership: StoredMembership::new(membership_log_id, membership),
    };
    Ok((cairn_engine::LogId { term: last.term, index: last.index }, named))
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
