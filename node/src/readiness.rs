//! Whether this node serves clients now, and why not: what `/ready`, gRPC health and `cairn status`
//! say.
//!
//! What holds here: a node is ready only if it is an active voter, its disk works, and it either leads
//! with a majority that answers it, or hears a leader to which it sends its clients.

use crate::outage::ElectionBlockedState;
use cairn_engine::MemberState;
use cairn_raft::Replica;

/// Whether the node serves clients now.
///
/// # Errors
/// Why not, in one sentence.
pub(crate) fn readiness(replica: &Replica, state: &ElectionBlockedState) -> Result<(), String> {
    let status = replica.status();
    let stopped = status.stopped_reason.or_else(|| replica.engine().status().failed);
    if let Some(why) = stopped.or_else(|| replica.removed_reason()) {
        return Err(format!("stopped: {why}"));
    }
    if let Some(sentence) = state.no_service(replica) {
        return Err(sentence);
    }
    if status.member_state == MemberState::Recovering {
        return Err("recovering: catching up with a leader".into());
    }
    if !replica.votes() {
        let slot = status.node_id.slot();
        return Err(match status.members.iter().any(|member| member.id == status.node_id) {
            true => "joining: not a voter of the cluster yet".into(),
            false => format!(
                "joining: not a member of the cluster yet; if slot {slot} has none, `cairn members add {slot}` makes it one"
            ),
        });
    }
    replica.leader_contact()
}
