//! What a leader knows of the voters, for the question which of them may be stopped.
//!
//! What holds here: what a member says of itself is asked anew for each answer. A member that has
//! just started again may still count as healthy by what it acknowledged before.

use super::reconciler::Reconciler;
use super::safe_to_stop::{Health, Seen, obstacles};
use super::seen::{caught_up, is_settled};
use crate::core::ids::NodeId;
use crate::core::raft_metrics::with_metrics;
use crate::core::types::TypeConfig;
use crate::durability::Act;
use crate::transport::StopVerdict;
use openraft::{RaftMetrics, ServerState};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a member may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_millis(500);

impl Reconciler {
    /// For each member whether it may be stopped now. The caller has a quorum confirm before that
    /// this member leads. `None`: it does not lead any more.
    pub(crate) async fn stop_verdicts(&self) -> Option<Vec<StopVerdict>> {
        let before = with_metrics(&self.member.raft, Clone::clone);
        let answers =
            self.member.answers_of(before.membership_config.voter_ids(), ANSWER_LIMIT).await;
        let metrics = with_metrics(&self.member.raft, Clone::clone);
        let leads = metrics.state == ServerState::Leader;
        if !leads || metrics.current_term != before.current_term {
            return None;
        }
        let membership = metrics.membership_config.membership();
        let recovering = self.ack_modes.recovering_members();
        let healthy = self.ack_modes.healthy(&self.member, &metrics);
        let health = |id: NodeId| {
            let answer = answers.get(&id);
            let health = match answer {
                _ if id == metrics.id => self.own_health(),
                None => Health::Unreachable,
                Some(answer) if answer.stopping => Health::Stopping,
                Some(answer) if answer.recovering || recovering.contains(&id) => Health::Recovering,
                Some(_) if !healthy.contains(&id) => Health::Unreachable,
                Some(answer) => {
                    behind(&metrics, id).unwrap_or(Health::Healthy { may_lead: answer.may_lead })
                }
            };
            (id, health)
        };
        let voters: BTreeMap<NodeId, Health> = membership.voter_ids().map(health).collect();
        let joining: BTreeSet<NodeId> = membership.learner_ids().collect();
        let seen = Seen {
            configurations: membership.get_joint_config(),
            settled: is_settled(&metrics),
            voters: &voters,
            joining: &joining,
        };
        let members = voters.keys().chain(&joining);
        let verdict = |id: &NodeId| StopVerdict { member: *id, obstacles: obstacles(&seen, *id) };
        Some(members.map(verdict).collect())
    }

    fn own_health(&self) -> Health {
        let member = &self.member;
        match member.may(Act::Vouch) {
            _ if member.standing().leaves() => Health::Stopping,
            Err(_) => Health::Recovering,
            Ok(()) => Health::Healthy { may_lead: member.is_fit_to_lead().is_ok() },
        }
    }
}

/// How far a member's log is behind the leader's, if that is too far.
fn behind(metrics: &RaftMetrics<TypeConfig>, id: NodeId) -> Option<Health> {
    let matched = metrics.replication.as_ref().and_then(|all| all.get(&id)?.as_ref());
    let matched = matched.map(|matched| matched.index());
    let purged = metrics.purged.as_ref().map(|purged| purged.index());
    let snapshot = matched < purged;
    if caught_up(metrics).contains(&id) && !snapshot {
        return None;
    }
    let last = metrics.last_log_index.unwrap_or(0);
    let entries = last.saturating_sub(matched.unwrap_or(0));
    Some(Health::Behind { entries, snapshot })
}
