//! Who leads, who could next, and giving leadership away.

use crate::core::ids::{MemberAddress, NodeId};
use crate::core::metrics::look;
use crate::core::runtime;
use crate::core::types::TypeConfig;
use crate::storage::Raft;
use openraft::async_runtime::WatchReceiver;
use openraft::{RaftMetrics, ServerState};
use std::time::Duration;

/// Entries that a member catches up within a moment.
const HEIR_BEHIND: u64 = 1000;

/// Who leads, if known.
pub(crate) fn leader(metrics: &RaftMetrics<TypeConfig>) -> Option<(NodeId, MemberAddress)> {
    let id = metrics.current_leader?;
    let address = metrics.membership_config.get_node(&id)?;
    Some((id, address.clone()))
}

/// Who could lead next: of the other voters the one whose log reaches furthest, if it is not far behind.
pub(crate) fn heir(metrics: &RaftMetrics<TypeConfig>) -> Option<NodeId> {
    let replication = metrics.replication.as_ref().filter(|_| metrics.state == ServerState::Leader)?;
    let voters = metrics.membership_config.voter_ids().filter(|id| *id != metrics.id);
    let matched = |id: &NodeId| replication.get(id).cloned().flatten().map(|matched| matched.index());
    let (index, heir) = voters.filter_map(|id| matched(&id).map(|index| (index, id))).max()?;
    let behind = metrics.last_log_index.unwrap_or(0).saturating_sub(index);
    (behind <= HEIR_BEHIND).then_some(heir)
}

/// Asks another member that can take over at once to do so, if this one leads, and waits until it has. Spares the cluster
/// the time until it misses its leader.
pub(crate) async fn hand_over(raft: &Raft, patience: Duration) {
    let mut metrics = raft.metrics();
    let Some(heir) = look(&metrics, heir) else {
        return;
    };
    if raft.trigger().transfer_leader(heir).await.is_err() {
        return;
    }
    let leads = async {
        while look(&metrics, |seen| seen.state == ServerState::Leader) && metrics.changed().await.is_ok() {}
    };
    if runtime::timeout(patience, leads).await.is_none() {
        tracing::info!(node = %raft.node_id(), %heir, "leadership was not taken over in time");
    }
}
