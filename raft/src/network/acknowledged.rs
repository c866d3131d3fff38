//! What each follower has acknowledged to this leader, told to it when a connection begins.
//!
//! The story against which this stands: an older copy of a follower's disk, made since its last start, is put in its place.
//! No start of that disk is known to anybody that is not one of the copy too, its journal ends in order, and it has
//! forgotten what it acknowledged since. Only whoever heard the acknowledgements can tell.

use super::proto;
use crate::convert;
use crate::ids::NodeId;
use crate::types::{RaftLogId, Vote};
use std::sync::{Arc, OnceLock};

type Ask = Box<dyn Fn(NodeId, &Vote) -> Option<RaftLogId> + Send + Sync>;

/// Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Acknowledged(Arc<OnceLock<Ask>>);

impl Acknowledged {
    /// Whom to ask; once.
    pub(crate) fn ask(&self, matched: Ask) {
        self.0.set(matched).ok();
    }

    /// The last entry that a follower acknowledged in this leadership, as far as its leader knows.
    pub(super) fn by(&self, follower: NodeId, leadership: &Vote) -> Option<proto::LogId> {
        let matched = self.0.get().and_then(|ask| ask(follower, leadership));
        matched.as_ref().map(convert::log_id_to_proto)
    }
}
