//! What the network layer asks this floor before it sends a message.

use super::{AckModes, Act, CheckQuorum, Standing};
use crate::core::ids::NodeId;
use crate::core::raft_metrics::LateMetrics;
use crate::core::runtime;
use crate::core::types::{RaftLogId, Vote};
use crate::transport::{AckMode, SendPolicy};
use parking_lot::Mutex;
use std::sync::Arc;

/// What the member may do, check-quorum, the ack mode, and what followers have acknowledged.
pub(crate) struct Policy {
    pub(crate) standing: Arc<Mutex<Standing>>,
    pub(crate) ack_modes: Arc<AckModes>,
    pub(crate) check_quorum: Arc<CheckQuorum>,
    pub(crate) metrics: LateMetrics,
}

impl SendPolicy for Policy {
    fn may_ask_for_votes(&self) -> Result<(), String> {
        let may = self.standing.lock().may(Act::AskForVotes, runtime::now());
        may.map_err(|refusal| refusal.to_string())
    }

    fn is_suspended(&self) -> bool {
        self.check_quorum.is_suspended()
    }

    fn is_there(&self, follower: NodeId) {
        self.check_quorum.is_there(follower);
    }

    fn ack_mode(&self, leadership: &Vote) -> AckMode {
        self.ack_modes.mode_for_append(leadership)
    }

    fn acknowledged(&self, follower: NodeId, leadership: &Vote) -> Option<RaftLogId> {
        let matched = self.metrics.read_metrics(|seen| {
            (seen.vote == *leadership).then_some(())?;
            seen.replication.as_ref()?.get(&follower).copied().flatten()
        });
        matched.flatten()
    }
}
