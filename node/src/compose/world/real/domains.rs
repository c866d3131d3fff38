//! Logs which voters fail together, and what is then true of the promise.
//!
//! What holds here: each sentence is logged once while this node leads, and only when two looks in a
//! row agree: a new leader hears of the members one after another.

use crate::durability::in_force;
use crate::failure_domains::exceptions;
use crate::promise::SyncWindow;
use cairn_raft::Replica;
use std::time::Duration;
use tracing::warn;

const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Runs until dropped.
pub(super) async fn watch(replica: Replica, window: SyncWindow) {
    let (mut before, mut logged) = (Vec::new(), Vec::new());
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let found =
            exceptions(&replica, in_force(&replica, replica.engine().status().mode), window);
        if found == before && found != logged {
            for sentence in &found {
                warn!(node = %replica.node_id(), "{sentence}");
            }
            logged.clone_from(&found);
        }
        before = found;
    }
}
