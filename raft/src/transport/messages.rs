//! Converts between openraft's types and the peer protocol's messages.
//!
//! What holds here: a message from the network reaches openraft only if every part that openraft
//! needs is present.

use super::terms::Sender;
use crate::core::convert::{
    log_id_from_proto, log_id_to_proto, membership_from_proto, membership_to_proto,
};
use crate::core::error::Malformed;
use crate::core::ids::NodeId;
use crate::core::types::{AppendRequest, Entry, RaftLogId, SnapshotMeta, StoredMembership, Vote};
use crate::core::{codec, proto};
use cairn_engine::Value;
use openraft::entry::RaftEntry;
use openraft::vote::RaftLeaderId;

/// Of one hash.
const HASH_BYTES: usize = size_of::<u128>();

/// The ack mode, with the term and number of its latest change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AckMode {
    /// The leader's term.
    pub(crate) term: u64,
    /// Counts changes within the term.
    pub(crate) number: u64,
    pub(crate) fast: bool,
}

pub(crate) fn vote_to_proto(vote: &Vote) -> proto::Vote {
    let leader = vote.leader_id();
    proto::Vote {
        term: leader.term(),
        node_id: leader.node_id().as_u64(),
        committed: vote.is_committed(),
    }
}

/// A vote, if its term is accepted from its sender.
pub(crate) fn vote_from_proto(
    vote: Option<proto::Vote>,
    from: Sender<'_>,
) -> Result<Vote, Malformed> {
    let vote = vote.ok_or(Malformed("no vote"))?;
    from.check(vote.term)?;
    let node_id = NodeId::from_u64(vote.node_id);
    Ok(match vote.committed {
        true => Vote::new_committed(vote.term, node_id),
        false => Vote::new(vote.term, node_id),
    })
}

pub(crate) fn entry_to_proto(entry: Entry) -> proto::Entry {
    let id = entry.log_id;
    let (meta, values) = codec::encode_payload(entry.payload);
    let mut hashes = Vec::with_capacity(values.len() * HASH_BYTES);
    let with_hash = |value: Value| {
        let (bytes, hash) = value.into_parts();
        hashes.extend_from_slice(&hash.to_le_bytes());
        bytes
    };
    let values = values.into_iter().map(with_hash).collect();
    let hashes = hashes.into();
    proto::Entry { term: id.committed_leader_id().term, index: id.index(), meta, values, hashes }
}

fn entry_from_proto(entry: proto::Entry) -> Result<Entry, Malformed> {
    let (hashes, rest) = entry.hashes.as_chunks::<HASH_BYTES>();
    if hashes.len() != entry.values.len() || !rest.is_empty() {
        return Err(Malformed("not as many hashes as values"));
    }
    let hashed = entry.values.into_iter().zip(hashes);
    let values = hashed.map(|(bytes, hash)| Value::received(bytes, u128::from_le_bytes(*hash)));
    let values = values.collect::<Option<Vec<_>>>().ok_or(Malformed("a damaged value"))?;
    let payload = codec::validate(entry.meta, values)?;
    Ok(Entry::new(RaftLogId::new_term_index(entry.term, entry.index), payload))
}

/// The request as a message, with `envelope`. `matched`: what the receiver acknowledged.
pub(crate) fn append_to_proto(
    request: AppendRequest,
    envelope: Option<proto::Envelope>,
    matched: Option<RaftLogId>,
    ack_mode: AckMode,
) -> proto::AppendRequest {
    proto::AppendRequest {
        envelope,
        ack_mode_number: ack_mode.number,
        ack_fast: ack_mode.fast,
        matched: matched.as_ref().map(log_id_to_proto),
        vote: Some(vote_to_proto(&request.vote)),
        previous: request.prev_log_id.as_ref().map(log_id_to_proto),
        entries: request.entries.into_iter().map(entry_to_proto).collect(),
        committed: request.leader_commit.as_ref().map(log_id_to_proto),
    }
}

/// The ack mode that an append carries.
pub(crate) fn ack_mode_from_proto(message: &proto::AppendRequest) -> AckMode {
    let term = message.vote.as_ref().map_or(0, |vote| vote.term);
    AckMode { term, number: message.ack_mode_number, fast: message.ack_fast }
}

/// Checks that entries follow `previous` without a hole and that terms never fall, which openraft
/// assumes.
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
    Ok((last.into(), named))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::command::{Command, Condition, Operation};
    use crate::core::types::Payload;
    use crate::transport::terms::Terms;
    use prost::Message;

    fn leader(term: u64) -> Option<proto::Vote> {
        Some(proto::Vote { term, node_id: NodeId::new(1, 1).as_u64(), committed: true })
    }

    fn blank(term: u64, index: u64) -> proto::Entry {
        proto::Entry { term, index, meta: vec![0].into(), ..Default::default() }
    }

    fn from_other(message: proto::AppendRequest) -> Result<AppendRequest, Malformed> {
        append_from_proto(message, Terms::default().votes_from(NodeId::new(2, 2)))
    }

    fn request(previous: Option<(u64, u64)>, entries: Vec<proto::Entry>) -> proto::AppendRequest {
        proto::AppendRequest {
            envelope: None,
            vote: leader(5),
            previous: previous.map(|(term, index)| proto::LogId { term, index }),
            entries,
            committed: None,
            ack_mode_number: 0,
            ack_fast: false,
            matched: None,
        }
    }

    #[test]
    fn entries_that_follow_each_other_are_taken() {
        let taken = from_other(request(Some((3, 9)), vec![blank(3, 10), blank(5, 11)])).unwrap();
        assert_eq!(taken.entries.len(), 2);
        assert_eq!(taken.prev_log_id, Some(RaftLogId::new_term_index(3, 9)));
    }

    #[test]
    fn the_first_entry_of_all_has_index_0() {
        assert!(from_other(request(None, vec![blank(5, 0)])).is_ok());
        assert!(from_other(request(None, vec![blank(5, 1)])).is_err());
    }

    #[test]
    fn a_hole_in_the_entries_is_refused() {
        assert!(from_other(request(Some((3, 9)), vec![blank(3, 10), blank(3, 12)])).is_err());
    }

    #[test]
    fn terms_that_fall_are_refused() {
        assert!(from_other(request(Some((3, 9)), vec![blank(2, 10)])).is_err());
    }

    #[test]
    fn an_entry_of_a_later_term_than_its_leader_is_refused() {
        assert!(from_other(request(Some((3, 9)), vec![blank(6, 10)])).is_err());
        assert!(from_other(request(Some((6, 9)), vec![])).is_err());
    }

    #[test]
    fn an_append_by_a_mere_candidate_is_refused() {
        let mut message = request(None, vec![]);
        message.vote.as_mut().unwrap().committed = false;
        assert!(from_other(message).is_err());
    }

    #[test]
    fn an_index_at_the_end_of_numbers_is_refused() {
        assert!(from_other(request(Some((3, u64::MAX)), vec![])).is_err());
        assert!(from_other(request(Some((3, u64::MAX - 1)), vec![blank(3, u64::MAX)])).is_err());
    }

    /// The story: one message with the greatest possible term. It was stored and passed on, and no
    /// later term existed.
    #[test]
    fn a_term_or_index_beyond_the_bound_is_refused() {
        let terms = Terms::default();
        let from = terms.votes_from(NodeId::new(2, 2));
        let vote =
            |term| vote_from_proto(Some(proto::Vote { term, node_id: 1, committed: false }), from);
        assert!(vote(1 << 32).is_ok() && vote((1 << 32) + 1).is_err() && vote(u64::MAX).is_err());
        assert!(from_other(request(Some((3, u64::MAX - 1)), vec![])).is_err());
        let committed = Some(proto::LogId { term: 3, index: u64::MAX });
        assert!(from_other(proto::AppendRequest { committed, ..request(None, vec![]) }).is_err());
    }

    #[test]
    fn an_append_is_read_back_as_it_was_written() {
        let command = Command {
            synced: false,
            session: None,
            operations: vec![Operation::Put {
                key: "k".into(),
                value: vec![7; 5000].into(),
                condition: Condition::None,
            }],
        };
        let request = AppendRequest {
            vote: Vote::new_committed(5, NodeId::new(1, 1)),
            prev_log_id: Some(RaftLogId::new_term_index(4, 9)),
            entries: vec![
                Entry::new(RaftLogId::new_term_index(5, 10), Payload::Blank),
                Entry::new(
                    RaftLogId::new_term_index(5, 11),
                    Payload::Normal(codec::encode_command(command, 1)),
                ),
            ],
            leader_commit: Some(RaftLogId::new_term_index(4, 8)),
        };
        let bytes = append_to_proto(
            request.clone(),
            None,
            None,
            AckMode { term: 5, number: 2, fast: true },
        )
        .encode_to_vec();
        let back = from_other(proto::AppendRequest::decode(&bytes[..]).unwrap()).unwrap();
        assert_eq!(format!("{back:?}"), format!("{request:?}"));
        assert_eq!(back.entries, request.entries);
    }

    /// The story: a value was damaged in a buffer on its way to a follower, and the follower's own hash
    /// sealed it as good.
    #[test]
    fn a_value_that_its_hash_does_not_fit_is_refused() {
        let sent = append_with_a_command();
        assert!(from_other(sent.clone()).is_ok());
        let command = |change: &dyn Fn(&mut proto::Entry)| {
            let mut message = sent.clone();
            message.entries.iter_mut().filter(|entry| !entry.values.is_empty()).for_each(change);
            from_other(message).map(drop)
        };
        let damaged = Err(Malformed("a damaged value"));
        assert_eq!(command(&|entry| entry.values = vec!["w".into()]), damaged);
        assert_eq!(command(&|entry| entry.hashes = vec![0; 16].into()), damaged);
        let fewer = Err(Malformed("not as many hashes as values"));
        for hashes in [0, 15, 17, 32] {
            assert_eq!(command(&|entry| entry.hashes = vec![0; hashes].into()), fewer);
        }
    }

    fn append_with_a_command() -> proto::AppendRequest {
        let command = Command {
            synced: false,
            session: None,
            operations: vec![Operation::Put {
                key: "k".into(),
                value: "v".into(),
                condition: Condition::None,
            }],
        };
        let proposal = codec::encode_command(command, 1);
        let command =
            entry_to_proto(Entry::new(RaftLogId::new_term_index(5, 11), Payload::Normal(proposal)));
        let committed = Some(proto::LogId { term: 3, index: 9 });
        let entries = vec![blank(3, 10), command];
        proto::AppendRequest { committed, ..request(Some((3, 9)), entries) }
    }

    #[test]
    fn any_bytes_decode_to_an_append_or_to_an_error() {
        cairn_fuzz::target!(
            "heartbeat" => request(Some((3, 9)), vec![]).encode_to_vec(),
            "first" => request(None, vec![blank(5, 0)]).encode_to_vec(),
            "append" => append_with_a_command().encode_to_vec(),
        )
        .for_each(|bytes| {
            let most = 256 * bytes.len() + 4096;
            let decode = || proto::AppendRequest::decode(bytes);
            let Ok(message) = cairn_fuzz::within(most, decode) else { return };
            let (ack_mode, meant) = (ack_mode_from_proto(&message), message.clone());
            let taken = cairn_fuzz::within(most, || from_other(message));
            let Ok(request) = taken else { return };
            assert!(request.vote.is_committed());
            let led = request.vote.leader_id().term();
            let before = request.prev_log_id.iter();
            let ids: Vec<_> =
                before.chain(request.entries.iter().map(|entry| &entry.log_id)).collect();
            assert!(ids.first().is_none_or(|id| request.prev_log_id.is_some() || id.index() == 0));
            for pair in ids.windows(2) {
                assert_eq!(pair[0].index() + 1, pair[1].index());
                assert!(pair[0].committed_leader_id() <= pair[1].committed_leader_id());
            }
            assert!(ids.last().is_none_or(|id| id.committed_leader_id().term <= led));
            let again = append_to_proto(request.clone(), meant.envelope, None, ack_mode);
            assert_eq!(again.entries.len(), meant.entries.len());
            let again = from_other(again).unwrap();
            assert_eq!(format!("{again:?}"), format!("{request:?}"));
            assert_eq!(again.entries, request.entries);
        });
    }

    #[test]
    fn any_bytes_decode_to_a_snapshots_name_or_to_an_error() {
        let id = NodeId::new(1, 7).as_u64();
        let address = String::from("a:1");
        let node = proto::MemberNode { node_id: id, peer_address: address, ..Default::default() };
        let voters = proto::VoterSet { node_ids: vec![id] };
        let membership = proto::Membership { configurations: vec![voters], members: vec![node] };
        let log_id = Some(proto::LogId { term: 5, index: 9 });
        let meta = proto::SnapshotMeta {
            last_log_id: log_id,
            membership_log_id: log_id,
            membership: Some(membership),
        };
        cairn_fuzz::target!("meta" => meta.encode_to_vec()).for_each(|bytes| {
            let most = 256 * bytes.len() + (16 << 10);
            let decode = || snapshot_meta_from_proto(proto::SnapshotMeta::decode(bytes).ok());
            let Ok((last, meta)) = cairn_fuzz::within(most, decode) else { return };
            assert_eq!(meta.last_log_id, Some(RaftLogId::new_term_index(last.term, last.index)));
            let again = snapshot_meta_from_proto(Some(snapshot_meta_to_proto(&meta)));
            assert_eq!(again, Ok((last, meta)));
        });
    }
}
