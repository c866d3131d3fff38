//! A leader whose process has ended: its followers do not wait for its lease.
//!
//! The lease keeps a follower from voting while its leader may only be slow. A process that was killed
//! closes its connections and its ports, so the system of its machine refuses whoever connects, and
//! there is nothing to wait for. A machine that lost power answers nothing; then the lease runs out.
//!
//! What holds here:
//! - A follower that has missed [`MISSED`] heartbeats looks at each address of its leader. If all
//!   refuse, it takes the lease of that leadership for ended. It votes from then on, and asks for
//!   votes after an election timeout without the lease before it.
//! - Each follower looks for itself, and still answers pre-votes by its own lease. So one that a
//!   firewall keeps from the leader deposes nobody.
//! - Safety does not rest on a lease: votes count by terms and logs, and no read uses a lease.

use crate::core::ids::NodeId;
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime;
use crate::core::types::{TypeConfig, Vote};
use crate::durability::LocalMember;
use crate::transport;
use openraft::raft::TransferLeaderRequest;
use openraft::{RaftMetrics, ServerState};
use std::sync::Arc;
use std::time::Duration;

/// So many heartbeats may be late before a follower looks whether its leader's process is there.
const MISSED: u32 = 3;

/// The leadership that this member follows.
fn followed(metrics: &RaftMetrics<TypeConfig>) -> Option<(NodeId, Vote)> {
    let leader = metrics.current_leader.filter(|leader| *leader != metrics.id)?;
    (metrics.state == ServerState::Follower && metrics.vote.is_committed())
        .then_some((leader, metrics.vote))
}

/// Ends the lease of a leader whose process has ended. Runs until the member stops.
pub(crate) async fn end_leases(member: Arc<LocalMember>) {
    let heartbeat = Duration::from_millis(member.config.heartbeat_ms);
    let mut ended = None;
    while !member.stops() {
        runtime::sleep(heartbeat).await;
        let silent = || !member.heard_within(heartbeat.saturating_mul(MISSED));
        let Some((leader, vote)) = with_metrics(&member.raft, followed) else { continue };
        if ended == Some(vote) || !silent() {
            continue;
        }
        if transport::refuses(&member.identity, &member.addresses, leader).await && silent() {
            // openraft takes it only if it still follows this leadership.
            let ends = TransferLeaderRequest::new(vote, NodeId::from_u64(0), None);
            if member.raft.handle_transfer_leader(ends).await.is_err() {
                return;
            }
            let node = member.identity.id();
            tracing::info!(%node, %leader, "the leader's process has ended: this member waits for no lease of it");
            ended = Some(vote);
        }
    }
}
