//! What this floor tells the network about what it sends.

use super::{Gate, Redundancy};
use crate::core::ids::NodeId;
use crate::core::metrics::LateMetrics;
use crate::core::types::{RaftLogId, Vote};
use crate::transport::{Regime, SendPolicy};
use std::sync::Arc;

/// The gate's word, the regime, and what followers have acknowledged.
pub(crate) struct Policy {
    pub(crate) gate: Arc<Gate>,
    pub(crate) redundancy: Arc<Redundancy>,
    pub(crate) metrics: LateMetrics,
}

impl SendPolicy for Policy {
    fn may_campaign(&self, member: NodeId) -> bool {
        self.gate.may_campaign(member)
    }

    fn ack_mode(&self, leadership: &Vote) -> Regime {
        self.redundancy.told(leadership)
    }

    fn acknowledged(&self, follower: NodeId, leadership: &Vote) -> Option<RaftLogId> {
        let matched = self.metrics.look(|seen| {
            (seen.vote == *leadership).then_some(())?;
            seen.replication.as_ref()?.get(&follower).copied().flatten()
        });
        matched.flatten()
    }
}
