//! Who leads, as an operator or a change of the members wants it.

use super::reconciler::Reconciler;
use super::request::{ChangeError, refused};
use super::step;
use crate::core::ids::NodeId;
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime;
use crate::durability::leadership::{CATCHES_UP, Near, To};
use crate::durability::{LocalMember, leadership};
use crate::transport;
use openraft::ServerState;
use std::collections::BTreeSet;
use std::time::Duration;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl Reconciler {
    /// Has the voter of `to`, or the best one, lead. Returns who leads then.
    pub(crate) async fn move_leader(&self, to: Option<u16>) -> Result<NodeId, ChangeError> {
        let metrics = with_metrics(&self.member.raft, Clone::clone);
        if metrics.state != ServerState::Leader {
            return Err(ChangeError::NotLeader { leader: leadership::leader(&metrics) });
        }
        let own = self.member.identity.id();
        let to = match to {
            Some(slot) if slot == own.slot() => return Ok(own),
            Some(slot) => {
                let voters: BTreeSet<NodeId> = metrics.membership_config.voter_ids().collect();
                let Some(voter) = step::voter_of(&voters, slot) else {
                    return refused(format!("slot {slot} has no voter"));
                };
                self.until_fit_to_lead(voter).await?;
                Some(voter)
            }
            None => None,
        };
        if metrics.membership_config.voter_ids().all(|id| id == own) {
            return refused(
                "this member is the only voter: add another one first (`cairn members add`)",
            );
        }
        let limit = leadership::HAND_OVER_LIMIT;
        leadership::hand_over(&self.member, to.map_or(To::Best, To::Voter), limit).await;
        // The new leader is known with its first message.
        let (leader, _) = leadership::another_leader(&self.member, limit).await.ok_or_else(|| {
            ChangeError::Refused(
                "no other member took over in time: it is drained, or lacks entries; try again, or name another".into(),
            )
        })?;
        match to.filter(|to| *to != leader) {
            None => Ok(leader),
            Some(to) => refused(format!(
                "member {leader} leads now, since {to} did not take over in time: try again"
            )),
        }
    }

    /// A leader of this moment has not heard of every voter yet, so it looks again for a while.
    async fn until_fit_to_lead(&self, voter: NodeId) -> Result<(), ChangeError> {
        let LocalMember { raft, config, identity, addresses, .. } = &*self.member;
        let until = runtime::now() + Duration::from_millis(config.election_max_ms);
        let mut near = Near::new();
        loop {
            let metrics = with_metrics(raft, Clone::clone);
            let near = near.has(&metrics, voter);
            let healthy = self.ack_modes.healthy(&self.member, &metrics).contains(&voter);
            let answer = transport::ask(identity, addresses, voter).await;
            let reason = match answer.map(|answer| answer.may_lead) {
                Some(true) if healthy && near => return Ok(()),
                Some(true) if healthy => format!(
                    "it stores entries more than {} ms after this leader, and no writes would be taken meanwhile",
                    CATCHES_UP.as_millis()
                ),
                Some(false) => format!(
                    "it recovers, its disk stalls, or an operator drains it (`cairn leader drain {} --end`)",
                    voter.slot()
                ),
                _ => "it is not active and reachable".into(),
            };
            if runtime::now() > until {
                return refused(format!("member {voter} may not lead: {reason}"));
            }
            runtime::sleep(POLL_INTERVAL).await;
        }
    }

    /// A leader that leaves hands leadership over first, so that the next leader removes it.
    ///
    /// The story behind "first": the member of slot 4 led, and was to be replaced. It refuses whoever
    /// claims its own slot, so it never heard the request to join of the node that should take over,
    /// and waited for that request for good.
    pub(super) async fn leaves(&self, leaves: NodeId) -> Result<(), ChangeError> {
        if leaves != self.member.identity.id() {
            return Ok(());
        }
        leadership::hand_over(&self.member, To::Best, leadership::HAND_OVER_LIMIT).await;
        let metrics = with_metrics(&self.member.raft, Clone::clone);
        match metrics.state {
            ServerState::Leader => refused(
                "the member leads, and no other member could take over: try again, or choose one with `cairn leader move`",
            ),
            _ => Err(ChangeError::NotLeader { leader: leadership::leader(&metrics) }),
        }
    }
}
