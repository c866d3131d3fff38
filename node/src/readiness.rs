//! Whether this node serves clients now, and why not: what `/ready`, gRPC health and `cairn status`
//! say.
//!
//! What holds here: a node is ready only if it is an active voter that nobody stops or removes, its
//! disk works, it either leads with a majority that answers it, or hears a leader to which it sends
//! its clients, and it holds what that leader had committed a moment ago. So a node that came back is
//! ready once it could take over.

use crate::outage::ElectionBlockedState;
use cairn_raft::{Part, Replica};

/// Whether the node serves clients now.
///
/// # Errors
/// Why not, in one sentence.
pub(crate) fn readiness(replica: &Replica, state: &ElectionBlockedState) -> Result<(), String> {
    let status = replica.status();
    if let Some(why) = status.stopped_reason.or_else(|| replica.engine().status().failed) {
        return Err(format!("stopped: {why}"));
    }
    if replica.leaves() {
        return Err(
            "stopping: this node was asked to stop, and sends its clients to the others".into()
        );
    }
    if let Some(why) = replica.removal() {
        return Err(format!("removed: {why}"));
    }
    if let Some(sentence) = state.no_service(replica) {
        return Err(sentence);
    }
    let slot = status.node_id.slot();
    match replica.part() {
        Part::Removed(why) => Err(format!("removed: {why}")),
        Part::Recovering => Err(
            "recovering: its machine lost power with acknowledged writes unsynced, or its journal or checkpoints were damaged; \
             it neither votes nor serves until it has caught up with a leader"
                .into(),
        ),
        Part::Joining if status.members.iter().any(|member| member.id == status.node_id) => {
            Err("joining: not a voter of the cluster yet; it copies what the others hold".into())
        }
        Part::Joining => Err(format!(
            "joining: not a member of the cluster yet; it takes slot {slot} once the leader had no contact with the slot's old \
             identity for 5 s and everything is copied; if the slot has none, `cairn members add {slot}` makes it one"
        )),
        Part::Active => replica.leader_contact(),
    }
}
