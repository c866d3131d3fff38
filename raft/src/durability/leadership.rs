//! Who leads, the transferee, and handing leadership over.

use crate::core::ids::{MemberAddress, NodeId};
use crate::core::raft_metrics::read_metrics;
use crate::core::runtime;
use crate::core::types::TypeConfig;
use crate::storage::Raft;
use openraft::async_runtime::WatchReceiver;
use openraft::{RaftMetrics, ServerState};
use std::time::Duration;

/// A transferee may lack this many entries: it catches up within a moment.
const TRANSFEREE_BEHIND: u64 = 1000;

/// Who leads, if known.
pub(crate) fn leader(metrics: &RaftMetrics<TypeConfig>) -> Option<(NodeId, MemberAddress)> {
    let id = metrics.current_leader?;
    let address = metrics.membership_config.get_node(&id)?;
    Some((id, address.clone()))
}

/// The transferee: of the other voters the one with the most up-to-date log, if it is not far
/// behind.
pub(crate) fn transferee(metrics: &RaftMetrics<TypeConfig>) -> Option<NodeId> {
    let replication =
        metrics.replication.as_ref().filter(|_| metrics.state == ServerState::Leader)?;
    let voters = metrics.membership_config.voter_ids().filter(|id| *id != metrics.id);
    let matched =
        |id: &NodeId| replication.get(id).cloned().flatten().map(|matched| matched.index());
    let (index, transferee) =
        voters.filter_map(|id| matched(&id).map(|index| (index, id))).max()?;
    let behind = metrics.last_log_index.unwrap_or(0).saturating_sub(index);
    (behind <= TRANSFEREE_BEHIND).then_some(transferee)
}

/// If this member leads, asks a member that can take over at once to do so, and waits until it has.
/// Saves the cluster an election timeout.
pub(crate) async fn hand_over(raft: &Raft, limit: Duration) {
    hand_over_to(raft, None, limit).await;
}

/// The same, to this voter if one is named.
pub(crate) async fn hand_over_to(raft: &Raft, to: Option<NodeId>, limit: Duration) {
    let mut metrics = raft.metrics();
    let Some(transferee) = to.or_else(|| read_metrics(&metrics, transferee)) else {
        return;
    };
    if raft.trigger().transfer_leader(transferee).await.is_err() {
        return;
    }
    let leads = async {
        while read_metrics(&metrics, |seen| seen.state == ServerState::Leader)
            && metrics.changed().await.is_ok()
        {}
    };
    if runtime::timeout(limit, leads).await.is_none() {
        tracing::info!(node = %raft.node_id(), %transferee, "the transferee did not take over leadership in time");
    }
}
