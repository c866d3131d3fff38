//! The vote as the engine stores it: version 1, term, node id, committed; 18 bytes, little-endian.

use crate::core::error::Malformed;
use crate::core::ids::{GROUP, NodeId};
use crate::core::types::Vote;
use bytes::{Buf, BufMut};
use cairn_engine::Engine;
use openraft::vote::RaftLeaderId;
use std::io;

const VERSION: u8 = 1;
const BYTES: usize = 18;

pub(crate) fn encode(vote: &Vote) -> Vec<u8> {
    let mut out = Vec::with_capacity(BYTES);
    out.put_u8(VERSION);
    out.put_u64_le(vote.leader_id().term());
    out.put_u64_le(vote.leader_id().node_id().as_u64());
    out.put_u8(u8::from(vote.is_committed()));
    out
}

/// The vote that a restart would find.
pub(crate) fn stored_vote(engine: &Engine) -> Result<Option<Vote>, io::Error> {
    engine.vote(GROUP).map(|bytes| decode(&bytes).map_err(io::Error::other)).transpose()
}

/// The term, for whom the vote is, and whether a quorum granted it.
pub fn vote_of(bytes: &[u8]) -> Option<(u64, NodeId, bool)> {
    let vote = decode(bytes).ok()?;
    Some((vote.leader_id().term(), *vote.leader_id().node_id(), vote.is_committed()))
}

pub(super) fn decode(mut bytes: &[u8]) -> Result<Vote, Malformed> {
    if bytes.len() != BYTES || bytes.get_u8() != VERSION {
        return Err(Malformed("not a vote"));
    }
    let (term, node_id) = (bytes.get_u64_le(), NodeId::from_u64(bytes.get_u64_le()));
    match bytes.get_u8() {
        0 => Ok(Vote::new(term, node_id)),
        1 => Ok(Vote::new_committed(term, node_id)),
        _ => Err(Malformed("not a vote")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_vote_has_these_bytes() {
        let vote = Vote::new_committed(0x0102, NodeId::new(3, 4));
        let expected = [1, 2, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 3, 0, 1];
        assert_eq!(encode(&vote), expected);
    }

    #[test]
    fn any_bytes_decode_to_a_vote_or_to_an_error() {
        let granted = encode(&Vote::new_committed(0x0102, NodeId::new(3, 4)));
        let asked = encode(&Vote::new(1, NodeId::new(1, 2)));
        cairn_fuzz::target!("granted" => granted, "asked" => asked).for_each(|bytes| {
            if let Ok(vote) = decode(bytes) {
                assert_eq!(encode(&vote), bytes);
            }
        });
    }

    proptest! {
        #[test]
        fn a_vote_is_read_back_as_it_was_written(term: u64, node: u64, committed: bool) {
            let mut vote = Vote::new(term, NodeId::from_u64(node));
            vote.committed = committed;
            prop_assert_eq!(decode(&encode(&vote)), Ok(vote));
        }
    }
}
