//! Giving leadership away.

use crate::metrics::look;
use crate::runtime;
use crate::status;
use crate::types::Raft;
use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use std::time::Duration;

/// Asks another member that can take over at once to do so, if this one leads, and waits until it has. Spares the cluster
/// the time until it misses its leader.
pub(crate) async fn hand_over(raft: &Raft, patience: Duration) {
    let mut metrics = raft.metrics();
    let Some(heir) = look(&metrics, status::heir) else {
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
