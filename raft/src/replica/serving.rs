//! Whether a client that asks this member is served now, and why not.

use super::surveys::{Surveyed, Surveys};
use super::{PeerService, Replica};
use crate::core::ids::{GROUP, NodeId};
use crate::core::machine::Machine;
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime;
use crate::core::types::TypeConfig;
use crate::durability::{Act, LocalMember, QUORUM_TIMEOUTS, leadership};
use crate::membership::leaves_configuration;
use crate::transport::generation::is_uninitialized;
use crate::transport::{self, StopVerdict};
use openraft::{RaftMetrics, ServerState};
use std::sync::atomic::Ordering;
use std::time::Duration;

fn silence_limit(member: &LocalMember) -> Duration {
    Duration::from_millis(member.config.election_max_ms).saturating_mul(QUORUM_TIMEOUTS)
}

/// Whether this member leads with a majority, or hears a leader.
fn leader_contact(member: &LocalMember, metrics: &RaftMetrics<TypeConfig>) -> Result<(), String> {
    let limit = silence_limit(member);
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
        if member.stuck.load(Ordering::Relaxed) {
            return Err("nothing is committed: a majority answers this leader, and takes none of its entries".into());
        }
        let now = runtime::now();
        return match metrics.last_quorum_acked {
            Some(at) if now - *at < limit => Ok(()),
            Some(at) => Err(format!(
                "no majority: this member leads, and a majority last answered it {} s ago",
                (now - *at).as_secs()
            )),
            None => {
                Err("no majority: this member leads, and no majority has answered it yet".into())
            }
        };
    }
    match leadership::leader(metrics) {
        None => Err("no leader is known".into()),
        Some((leader, _)) if !member.heard_within(limit) => {
            Err(format!("no leader: {leader}, the last one known, is not heard"))
        }
        Some(_) => Ok(()),
    }
}

/// Records how far this member is behind its leader. Called at intervals.
pub(super) fn observe_lag(member: &LocalMember) {
    record_lag(member, &with_metrics(&member.raft, Clone::clone));
}

fn record_lag(member: &LocalMember, metrics: &RaftMetrics<TypeConfig>) {
    let heard = leader_contact(member, metrics).is_ok();
    let committed = metrics.cluster_committed.as_ref().map(|id| id.index());
    let applied = member.engine.applied(GROUP).map(|id| id.index);
    member.lag.observe(heard, (committed, applied), silence_limit(member));
}

/// The surveys for the callers of this member: those of the leader.
pub(super) fn surveys(service: &PeerService) -> Surveys {
    let service = service.clone();
    Surveys::start(move || survey(service.clone()))
}

async fn survey(service: PeerService) -> Surveyed {
    let member = &service.member;
    let metrics = with_metrics(&member.raft, Clone::clone);
    if metrics.state == ServerState::Leader {
        return service.surveys.answer().await;
    }
    leader_contact(member, &metrics)?;
    let (leader, _) = leadership::leader(&metrics).ok_or("no leader is known")?;
    transport::ask_safe_to_stop(&member.identity, &member.addresses, leader).await
}

impl Replica {
    /// Whether this member leads with a majority, or hears a leader, and holds what was committed a
    /// moment ago.
    ///
    /// # Errors
    /// Why not, in one sentence.
    pub fn leader_contact(&self) -> Result<(), String> {
        let member = &self.inner.member;
        let metrics = with_metrics(&member.raft, Clone::clone);
        leader_contact(member, &metrics)?;
        record_lag(member, &metrics);
        if member.lag.is_within(silence_limit(member)) {
            return Ok(());
        }
        let committed = metrics.cluster_committed.as_ref().map_or(0, |id| id.index());
        let applied = self.engine().applied(GROUP).map_or(0, |id| id.index);
        let copies = if member.receiver.receives() { ", and copies a snapshot" } else { "" };
        Err(format!(
            "catching up: {} committed entries are not applied here{copies}",
            committed.saturating_sub(applied)
        ))
    }

    /// For each member whether it may be stopped now, as the leader says after a quorum has confirmed
    /// it: without a member that may be, a majority of the voters is left that is reachable, active,
    /// caught up, and not being stopped, and one of them may lead. All members are asked after the
    /// call. Concurrent callers share the answers, and wait until the members may be asked again. May
    /// be cancelled.
    ///
    /// # Errors
    /// Why nobody can tell.
    pub async fn stop_verdicts(&self) -> Result<Vec<StopVerdict>, String> {
        if let Some(reason) = self.stopped() {
            return Err(format!("this member has stopped: {reason}"));
        }
        self.inner.surveys.answer().await
    }

    /// Why this identity is no longer a member, or is about to be none: another member said so, the
    /// log does, or the members agree on a configuration without it.
    pub fn removal(&self) -> Option<String> {
        let member = &self.inner.member;
        if let Some(reason) = self.removed_reason() {
            return Some(reason);
        }
        let metrics = with_metrics(&member.raft, Clone::clone);
        leaves_configuration(&metrics)
            .then(|| "the members agree on a configuration without this one".into())
    }

    /// Why the cluster is not formed yet; `None` if it is, as far as this member knows.
    pub fn not_formed(&self) -> Option<String> {
        let member = &self.inner.member;
        let formed = with_metrics(&member.raft, |metrics| {
            metrics.membership_config.voter_ids().next().is_some()
        });
        if formed || !is_uninitialized(&member.engine) || member.may(Act::Vouch).is_err() {
            return None;
        }
        if let Some(what) = member.identity.formation.waiting_for() {
            return Some(format!("not formed: {what}"));
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
