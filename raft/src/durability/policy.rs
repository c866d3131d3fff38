//! What the network layer asks this floor before it sends a message.

use super::{AckModes, CheckQuorum, Gate};
use crate::core::ids::NodeId;
use crate::core::raft_metrics::LateMetrics;
use crate::core::types::{RaftLogId, Vote};
use crate::transport::{AckMode, SendPolicy};
use std::sync::Arc;

/// The gate, check-quorum, the ack mode, and what followers have acknowledged.
pub(crate) struct Policy {
    pub(crate) gate: Arc<Gate>,
    pub(crate) ack_modes: Arc<AckModes>,
    pub(crate) check_quorum: Arc<CheckQuorum>,
    pub(crate) metrics: LateMetrics,
}

impl SendPolicy for Policy {
    fn may_campaign(&self, member: NodeId) -> bool {
        self.gate.may_campaign(member)
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
