//! Whether a client that asks this member is served now, and why not.

use super::Replica;
use crate::core::ids::NodeId;
use crate::core::machine::Machine;
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime;
use crate::durability::{QUORUM_TIMEOUTS, leadership};
use crate::transport::identity::is_uninitialized;
use openraft::ServerState;
use std::time::Duration;

impl Replica {
    /// Whether this member leads with a majority, or hears a leader.
    ///
    /// # Errors
    /// Why not, in one sentence.
    pub fn leader_contact(&self) -> Result<(), String> {
        let member = &self.inner.member;
        let metrics = with_metrics(&member.raft, Clone::clone);
        let limit =
            Duration::from_millis(member.config.election_max_ms).saturating_mul(QUORUM_TIMEOUTS);
        if member.check_quorum.is_suspended() {
            return Err(
                "no majority: this member was elected, and serves nobody until a majority answers it"
                    .into(),
            );
        }
        if metrics.state == ServerState::Leader {
            if metrics.membership_config.voter_ids().all(|voter| voter == metrics.id) {
                return Ok(());
            }
            let now = runtime::now();
            return match metrics.last_quorum_acked {
                Some(at) if now - *at < limit => Ok(()),
                Some(at) => Err(format!(
                    "no majority: this member leads, and a majority last answered it {} s ago",
                    (now - *at).as_secs()
                )),
                None => {
                    Err("no majority: this member leads, and no majority has answered it yet"
                        .into())
                }
            };
        }
        match leadership::leader(&metrics) {
            None => Err("no leader is known".into()),
            Some((leader, _)) if !member.gate.leader_contact_within(limit) => {
                Err(format!("no leader: {leader}, the last one known, is not heard"))
            }
            Some(_) => Ok(()),
        }
    }

    /// Why the cluster is not formed yet; `None` if it is, as far as this member knows.
    pub fn not_formed(&self) -> Option<String> {
        let member = &self.inner.member;
        let formed = with_metrics(&member.raft, |metrics| {
            metrics.membership_config.voter_ids().next().is_some()
        });
        if formed || !is_uninitialized(&member.engine) || !member.gate.is_open() {
            return None;
        }
        if let Some(what) = member.identity.formation.waiting_for() {
            let way_out = "start every member, or correct its address in `members`";
            return Some(format!("not formed: {what}; {way_out}"));
        }
        let (slot, address) = member.config.initial_members.first_key_value()?;
        match *slot == self.node_id().slot() {
            true => Some("not formed: waiting for the answers of the other members".into()),
            false => Some(format!(
                "not formed: waiting for slot {slot} at {}, which forms the cluster",
                address.peer
            )),
        }
    }

    /// The machines of the voters, as far as they are known: each voter with its own.
    pub fn machines(&self) -> Vec<(NodeId, Machine)> {
        let machines = &self.inner.member.identity.machines;
        let voters: Vec<NodeId> = with_metrics(&self.inner.member.raft, |metrics| {
            let configurations = metrics.membership_config.membership().get_joint_config();
            configurations.last().into_iter().flatten().copied().collect()
        });
        let own = self.node_id();
        let machine = |voter: NodeId| match voter == own {
            true => Some(machines.own().clone()),
            false => machines.get(voter),
        };
        voters.into_iter().filter_map(|voter| Some((voter, machine(voter)?))).collect()
    }
}
