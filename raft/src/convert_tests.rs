//! Messages from the network: what is refused, and that nothing panics.

use super::*;
use crate::codec;
use crate::command::{Command, Condition, Operation};
use crate::terms::Terms;
use crate::types::Payload;
use proptest::prelude::*;
use prost::Message;

fn leader(term: u64) -> Option<proto::Vote> {
    Some(proto::Vote { term, node_id: NodeId::new(1, 1).as_u64(), committed: true })
}

fn blank(term: u64, index: u64) -> proto::Entry {
    proto::Entry { term, index, meta: vec![0].into(), values: vec![] }
}

fn from_other(message: proto::AppendRequest) -> Result<AppendRequest, Malformed> {
    append_from_proto(message, Terms::default().said_by(NodeId::new(2, 2)))
}

fn request(previous: Option<(u64, u64)>, entries: Vec<proto::Entry>) -> proto::AppendRequest {
    proto::AppendRequest {
        envelope: None,
        vote: leader(5),
        previous: previous.map(|(term, index)| proto::LogId { term, index }),
        entries,
        committed: None,
        regime: 0,
        lazy: false,
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

/// The story: one message with the last of all terms. It was stored and passed on, and no later term exists.
#[test]
fn a_term_or_position_that_leaves_no_room_for_later_ones_is_refused() {
    let terms = Terms::default();
    let from = terms.said_by(NodeId::new(2, 2));
    let vote = |term| vote_from_proto(Some(proto::Vote { term, node_id: 1, committed: false }), from);
    assert!(vote(1 << 32).is_ok() && vote((1 << 32) + 1).is_err() && vote(u64::MAX).is_err());
    let id = |term, index| log_id_from_proto(proto::LogId { term, index });
    assert!(id((1 << 62) - 1, (1 << 62) - 1).is_ok());
    assert!(id(1 << 62, 1).is_err() && id(1, u64::MAX).is_err());
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
            Entry::new(RaftLogId::new_term_index(5, 11), Payload::Normal(codec::encode_command(command, 1))),
        ],
        leader_commit: Some(RaftLogId::new_term_index(4, 8)),
    };
    let bytes =
        append_to_proto(request.clone(), None, Regime { term: 5, number: 2, lazy: true }).encode_to_vec();
    let back = from_other(proto::AppendRequest::decode(&bytes[..]).unwrap()).unwrap();
    assert_eq!(format!("{back:?}"), format!("{request:?}"));
    assert_eq!(back.entries, request.entries);
}

proptest! {
    #[test]
    fn no_bytes_make_the_append_decoder_panic(bytes: Vec<u8>) {
        if let Ok(message) = proto::AppendRequest::decode(&bytes[..]) {
            let _ = from_other(message);
        }
    }

    #[test]
    fn no_numbers_make_the_append_decoder_panic(
        term: u64, node_id: u64, committed: bool,
        previous: Option<(u64, u64)>,
        entries in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<Vec<u8>>()), 0..4),
    ) {
        let entries = entries.into_iter();
        let _ = from_other(proto::AppendRequest {
            envelope: None,
            vote: Some(proto::Vote { term, node_id, committed }),
            previous: previous.map(|(term, index)| proto::LogId { term, index }),
            entries: entries
                .map(|(term, index, meta)| proto::Entry { term, index, meta: meta.into(), values: vec![] })
                .collect(),
            committed: None,
            regime: 0,
            lazy: false,
        matched: None,
        });
    }

    #[test]
    fn no_bytes_make_the_snapshot_decoder_panic(bytes: Vec<u8>) {
        if let Ok(message) = proto::SnapshotMeta::decode(&bytes[..]) {
            let _ = snapshot_meta_from_proto(Some(message));
        }
    }
}
