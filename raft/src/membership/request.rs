//! What a leader looks at when an operator asks for a change, and why it refuses one.

use super::reconciler::Reconciler;
use super::seen::is_settled;
use crate::core::ids::{MemberAddress, NodeId};
use crate::core::quorum::is_majority;
use crate::core::raft_metrics::with_metrics;
use crate::core::types::{Membership, TypeConfig};
use crate::durability::leadership;
use openraft::{RaftMetrics, ServerState};
use std::collections::BTreeSet;

/// Why a change is not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// This member does not lead.
    #[error("this member does not lead")]
    NotLeader {
        /// Who leads, if known.
        leader: Option<(NodeId, MemberAddress)>,
    },
    /// It would be unsafe or pointless; with the way out.
    #[error("{0}")]
    Refused(String),
    /// This member has stopped.
    #[error("this member has stopped: {0}")]
    Stopped(String),
}

pub(super) fn refused<T>(reason: impl Into<String>) -> Result<T, ChangeError> {
    Err(ChangeError::Refused(reason.into()))
}

/// What a leader sees when an operator asks for a change.
pub(super) struct Seen {
    pub(super) metrics: RaftMetrics<TypeConfig>,
    pub(super) voters: BTreeSet<NodeId>,
    pub(super) healthy: BTreeSet<NodeId>,
}

impl Seen {
    pub(super) fn membership(&self) -> &Membership {
        self.metrics.membership_config.membership()
    }
}

impl Reconciler {
    /// What this leader sees, or what a change waits for.
    pub(super) fn seen(&self) -> Result<Result<Seen, String>, ChangeError> {
        let metrics = with_metrics(&self.member.raft, Clone::clone);
        if let Err(fatal) = &metrics.running_state {
            return Err(ChangeError::Stopped(fatal.to_string()));
        }
        if metrics.state != ServerState::Leader {
            return Err(ChangeError::NotLeader { leader: leadership::leader(&metrics) });
        }
        let [voters] = metrics.membership_config.membership().get_joint_config().as_slice() else {
            return Ok(Err("another change of the members is under way".into()));
        };
        if !is_settled(&metrics) {
            return Ok(Err("the leader commits what was begun before".into()));
        }
        let voters = voters.clone();
        let healthy = self.ack_modes.healthy(&self.member, &metrics);
        if !is_majority(&voters, &healthy) {
            return Ok(Err("no majority of the voters is reachable and active".into()));
        }
        Ok(Ok(Seen { metrics, voters, healthy }))
    }
}
