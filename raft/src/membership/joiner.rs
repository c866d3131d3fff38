//! The joining node's side: it asks the leader to add it until it votes. A voter without a leader
//! finds out whether it was removed.

use crate::core::ids::MemberAddress;
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime;
use crate::durability::LocalMember;
use crate::transport::{self, PendingJoin};
use openraft::ServerState;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Between two rounds of asking; less than the time for which a leader keeps a join request.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A voter that had no contact with a leader for this long asks the others whether they refuse it.
const NO_LEADER_AFTER: Duration = Duration::from_secs(5);

/// The task of a member that may have to join.
pub(crate) struct Joiner(pub(crate) Arc<LocalMember>);

/// Whether this member votes, as far as it knows.
enum VoteStatus {
    Votes,
    /// A voter by its own log, without contact with a leader.
    NoLeader,
    Joins,
}

impl Joiner {
    /// Runs until the member stops.
    pub(crate) async fn run(self) {
        let began = runtime::now();
        let mut logged = BTreeMap::new();
        while !self.0.stops() {
            runtime::sleep(POLL_INTERVAL).await;
            match self.vote_status() {
                VoteStatus::Votes => *self.0.removed_reason.lock() = None,
                VoteStatus::NoLeader if runtime::now() - began > NO_LEADER_AFTER => {
                    self.ask_all(false, &mut logged).await
                }
                VoteStatus::NoLeader => {}
                VoteStatus::Joins => self.ask_all(true, &mut logged).await,
            }
        }
    }

    fn vote_status(&self) -> VoteStatus {
        let metrics = with_metrics(&self.0.raft, Clone::clone);
        if !metrics.membership_config.voter_ids().any(|voter| voter == metrics.id) {
            return VoteStatus::Joins;
        }
        // openraft may report the leader that it knew before its restart, and a leader that was
        // replaced while its machine was suspended continues without a quorum.
        let now = runtime::now();
        let leads = metrics.state == ServerState::Leader
            && metrics.last_quorum_acked.is_some_and(|at| now - *at < NO_LEADER_AFTER);
        match leads || self.0.gate.leader_contact_within(NO_LEADER_AFTER) {
            true => VoteStatus::Votes,
            false => VoteStatus::NoLeader,
        }
    }

    /// Asks all members that answer, and with `join` asks the leader to add this one.
    async fn ask_all(&self, join: bool, logged: &mut BTreeMap<u16, String>) {
        let (identity, members) = (&self.0.identity, &self.0.config.initial_members);
        let node = identity.id();
        let Some(own) = members.get(&node.slot()) else { return };
        for (slot, MemberAddress { peer, .. }) in
            members.iter().filter(|(slot, _)| **slot != node.slot())
        {
            let answer = match transport::hello(identity, *slot, peer).await {
                Ok(answer) if answer.uninitialized || !join => continue,
                Ok(answer) => {
                    let (address, active) = (own.clone(), self.0.gate.is_open());
                    let pending_join = PendingJoin { id: node, address, active };
                    transport::ask_to_join(identity, answer.id, peer, pending_join).await
                }
                Err(status) => Err(status),
            };
            match answer {
                Ok(_) => {
                    *self.0.removed_reason.lock() = None;
                    return;
                }
                Err(status) if status.code() == transport::REFUSED_IDENTITY => {
                    let reason = status.message().to_string();
                    if self.0.removed_reason.lock().replace(reason.clone()).is_none() {
                        tracing::warn!(%node, reason, "this identity is no longer a member of the cluster");
                    }
                    return;
                }
                Err(status) => {
                    let before = logged.insert(*slot, status.message().to_string());
                    if before.is_none_or(|before| before != status.message()) {
                        let what = if join {
                            "not added to the cluster yet"
                        } else {
                            "no contact with a leader, and another member refuses this one"
                        };
                        tracing::info!(%node, member = slot, reason = status.message(), "{what}");
                    }
                }
            }
        }
    }
}
