//! Ack modes, fast and safe: while the quorum is degraded, members sync before they acknowledge.
//!
//! While more than a bare majority of the voters is healthy, the leader uses the fast mode: members
//! acknowledge before they sync. If one machine then loses power, the others hold everything that
//! it lost. As soon as the leader sees only a bare majority, the quorum is degraded and the leader
//! uses the safe mode: each append asks its receiver to sync first, and each member clears its
//! unsynced-ack flag. Power cuts one after another, even of all machines, then lose nothing, and
//! each machine comes back without an operator. The idea is SAUCR's (OSDI 2018), which calls the
//! modes fast and slow.
//!
//! What holds here:
//! - a member starts in the safe mode and stays in it until a leader selects the fast one; a leader
//!   begins its term in the safe mode;
//! - each change has a number within the leader's term, and a member ignores a change that is not
//!   later than the latest it knows;
//! - safety does not rest on any of this: a member may acknowledge either way at any time, as long
//!   as its own unsynced-ack flag says so.

use super::LocalMember;
use crate::core::ids::NodeId;
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime;
use crate::core::types::{TypeConfig, Vote};
use crate::storage::modes::ModeInForce;
use crate::storage::progress::Progress;
use crate::transport::AckMode;
use cairn_engine::{BootEpoch, Mode};
use openraft::vote::RaftLeaderId;
use openraft::{RaftMetrics, ServerState};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How often a leader checks its followers.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The leader switches to the fast mode after this many checks in a row found enough healthy
/// members. That is longer than the last answer of a dead member counts.
const STABLE_ROUNDS: u32 = 30;

/// This member's ack mode, as leader or as follower.
pub(crate) struct AckModes {
    modes: Arc<ModeInForce>,
    ack_mode: Mutex<AckMode>,
    /// Members that asked this leader to help them recover: not healthy before they have caught up.
    recovering: Mutex<BTreeMap<NodeId, Recovering>>,
}

#[derive(Clone, Copy)]
struct Recovering {
    epoch: BootEpoch,
    /// This leader's applied index when it saw the member's boot-epoch record applied.
    caught_up: Option<u64>,
}

impl AckModes {
    pub(crate) fn new(modes: Arc<ModeInForce>) -> AckModes {
        AckModes { modes, ack_mode: Mutex::default(), recovering: Mutex::default() }
    }

    /// The ack mode that an append in the leader's term carries: safe and numbered 0 if the mode in
    /// force belongs to another term.
    pub(crate) fn mode_for_append(&self, vote: &Vote) -> AckMode {
        let term = vote.leader_id().term();
        let ack_mode = *self.ack_mode.lock();
        match ack_mode.term == term {
            true => ack_mode,
            false => AckMode { term, number: 0, fast: false },
        }
    }

    /// Adopts the mode that a leader's append carries, if it is later than the one in force.
    pub(crate) fn follow(&self, received: AckMode) {
        let mut ack_mode = self.ack_mode.lock();
        if (received.term, received.number) > (ack_mode.term, ack_mode.number) {
            *ack_mode = received;
            self.modes.set_fast(received.fast);
        }
    }

    /// A member recovers with the help of this leader.
    pub(crate) fn recovering(&self, member: NodeId, epoch: BootEpoch) {
        self.recovering.lock().insert(member, Recovering { epoch, caught_up: None });
    }

    /// The members that recover with the help of this leader.
    pub(crate) fn recovering_members(&self) -> BTreeSet<NodeId> {
        self.recovering.lock().keys().copied().collect()
    }

    /// Chooses the ack mode while this member leads. Runs until the member stops.
    pub(crate) async fn run(self: Arc<Self>, member: Arc<LocalMember>) {
        let timeout = Duration::from_millis(member.config.election_min_ms);
        let mut enough = 0;
        loop {
            runtime::sleep(POLL_INTERVAL).await;
            if member.stops() {
                return;
            }
            let leading = with_metrics(&member.raft, |metrics| {
                (metrics.state == ServerState::Leader).then(|| metrics.clone())
            });
            let Some(metrics) = leading else {
                enough = 0;
                self.recovering.lock().clear();
                continue;
            };
            let healthy = self.healthy(&metrics, &member.progress, timeout);
            let replicated = self.modes.binding() == Mode::Replicated;
            enough = match replicated && spare(&metrics, &healthy) {
                true => enough + 1,
                false => 0,
            };
            self.lead(metrics.current_term, enough >= STABLE_ROUNDS);
        }
    }

    fn lead(&self, term: u64, fast: bool) {
        let mut ack_mode = self.ack_mode.lock();
        let next = match ack_mode.term == term {
            true if ack_mode.fast == fast => return,
            true => AckMode { term, number: ack_mode.number + 1, fast },
            false => AckMode { term, number: 1, fast: false },
        };
        if ack_mode.term == term {
            tracing::info!(
                term,
                fast = next.fast,
                "{}",
                match next.fast {
                    true =>
                        "more than a bare majority is healthy: members acknowledge before they sync",
                    false =>
                        "only a bare majority is healthy, or the mode is not `replicated`: members sync every write before they acknowledge it",
                }
            );
        }
        *ack_mode = next;
        self.modes.set_fast(next.fast);
    }

    /// The voters that answered lately and do not recover, this one included. Leader only.
    pub(crate) fn healthy(
        &self,
        metrics: &RaftMetrics<TypeConfig>,
        progress: &Progress,
        timeout: Duration,
    ) -> BTreeSet<NodeId> {
        let matched = |id: &NodeId| {
            let replication = metrics.replication.as_ref()?;
            replication.get(id)?.as_ref().map(|matched| matched.index())
        };
        let mut recovering = self.recovering.lock();
        let applied = metrics.last_applied.as_ref().map(|applied| applied.index());
        for (id, back) in recovering.iter_mut().filter(|(_, back)| back.caught_up.is_none()) {
            back.caught_up = applied.filter(|_| progress.has_epoch(*id, back.epoch));
        }
        recovering.retain(|id, back| back.caught_up.is_none() || matched(id) < back.caught_up);
        let now = runtime::now();
        let answered = |id: &NodeId| {
            let acknowledged =
                metrics.heartbeat.as_ref().and_then(|all| all.get(id).copied().flatten());
            acknowledged.is_some_and(|at| now - *at < timeout)
        };
        let voters = metrics.membership_config.voter_ids();
        voters
            .filter(|id| *id == metrics.id || answered(id) && !recovering.contains_key(id))
            .collect()
    }
}

/// Whether every configuration in force can lose one healthy member and keep a majority. While the
/// membership is not committed, the answer is no: this member may be the only one that knows it,
/// and without this member the others use the one before.
fn spare(metrics: &RaftMetrics<TypeConfig>, healthy: &BTreeSet<NodeId>) -> bool {
    if metrics.committed_membership_config.log_id() != metrics.membership_config.log_id() {
        return false;
    }
    metrics.membership_config.membership().get_joint_config().iter().all(|voters| {
        let majority = voters.len() / 2 + 1;
        voters.intersection(healthy).count() > majority
    })
}
