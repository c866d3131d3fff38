//! Thin redundancy: a group that could not spare one more member syncs before it acknowledges.
//!
//! While more than a bare majority of voters is healthy, a power cut of one machine takes nothing that the others do not
//! hold, and acknowledgements run ahead of syncs. As soon as the leader sees only a bare majority, every member that it
//! reaches is told, with each append, to sync first, and clears its `lazy` mark. Power cuts that come one after another,
//! even of all machines, then lose nothing, and each machine comes back by itself. The idea is SAUCR's (OSDI 2018).
//!
//! What holds here:
//! - a member starts strict and stays so until a leader says otherwise; a leader starts its term strict;
//! - each change has a number within the leader's term, and a member that has heard of a later one does not go back for a
//!   late message of an earlier one;
//! - safety does not rest on any of this: a member may acknowledge either way at any time, as long as its own mark tells
//!   the truth about it.

use super::LocalMember;
use crate::core::ids::NodeId;
use crate::core::metrics::look_at;
use crate::core::runtime;
use crate::core::types::{TypeConfig, Vote};
use crate::storage::progress::Progress;
use crate::transport::Regime;
use cairn_engine::{Engine, Run};
use openraft::vote::RaftLeaderId;
use openraft::{RaftMetrics, ServerState};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often a leader looks at its followers.
const PAUSE: Duration = Duration::from_millis(50);
/// So many looks in a row, longer than an answer of a member that died since counts, must find enough healthy ones before
/// acknowledgements run ahead again.
const STEADY: u32 = 30;

/// This member's regime, as leader or as follower.
pub(crate) struct Redundancy {
    engine: Engine,
    regime: Mutex<Regime>,
    /// Members that asked this leader to bring them back: not healthy before they are level.
    returning: Mutex<BTreeMap<NodeId, Returning>>,
}

#[derive(Clone, Copy)]
struct Returning {
    run: Run,
    /// What was applied here when the record of its run was.
    level: Option<u64>,
}

impl Redundancy {
    pub(crate) fn new(engine: Engine) -> Redundancy {
        engine.hold_synced(true);
        let regime = Regime { term: 0, number: 0, lazy: false };
        Redundancy { engine, regime: Mutex::new(regime), returning: Mutex::default() }
    }

    /// What an append in `term` tells its receiver: nothing of another term.
    pub(crate) fn told(&self, vote: &Vote) -> Regime {
        let term = vote.leader_id().term();
        let regime = *self.regime.lock();
        match regime.term == term {
            true => regime,
            false => Regime { term, number: 0, lazy: false },
        }
    }

    /// An append of a leader says so.
    pub(crate) fn follow(&self, told: Regime) {
        let mut regime = self.regime.lock();
        if (told.term, told.number) > (regime.term, regime.number) {
            *regime = told;
            self.engine.hold_synced(!told.lazy);
        }
    }

    /// A member comes back under this leader.
    pub(crate) fn returning(&self, member: NodeId, run: Run) {
        self.returning.lock().insert(member, Returning { run, level: None });
    }

    /// Looks after the regime until the replica is gone or the member stops.
    pub(crate) async fn run(redundancy: Weak<Redundancy>, member: Arc<LocalMember>) {
        let patience = Duration::from_millis(member.config.election_min_ms);
        let mut enough = 0;
        loop {
            runtime::sleep(PAUSE).await;
            let Some(redundancy) = redundancy.upgrade().filter(|_| !member.stops()) else {
                return;
            };
            let leading = look_at(&member.raft, |metrics| {
                (metrics.state == ServerState::Leader).then(|| metrics.clone())
            });
            let Some(metrics) = leading else {
                enough = 0;
                redundancy.returning.lock().clear();
                continue;
            };
            let healthy = redundancy.healthy(&metrics, &member.progress, patience);
            enough = match spare(&metrics, &healthy) {
                true => enough + 1,
                false => 0,
            };
            redundancy.lead(metrics.current_term, enough >= STEADY);
        }
    }

    fn lead(&self, term: u64, lazy: bool) {
        let mut regime = self.regime.lock();
        let next = match regime.term == term {
            true if regime.lazy == lazy => return,
            true => Regime { term, number: regime.number + 1, lazy },
            false => Regime { term, number: 1, lazy: false },
        };
        if regime.term == term {
            tracing::info!(
                term,
                lazy = next.lazy,
                "{}",
                match next.lazy {
                    true => "more than a bare majority is healthy: acknowledgements run ahead of syncs",
                    false =>
                        "only a bare majority is healthy: every write is synced before it is acknowledged",
                }
            );
        }
        *regime = next;
        self.engine.hold_synced(!next.lazy);
    }

    /// The voters that have answered of late and are not on their way back, this one included.
    fn healthy(
        &self,
        metrics: &RaftMetrics<TypeConfig>,
        progress: &Progress,
        patience: Duration,
    ) -> BTreeSet<NodeId> {
        let matched = |id: &NodeId| {
            let replication = metrics.replication.as_ref()?;
            replication.get(id)?.as_ref().map(|matched| matched.index())
        };
        let mut returning = self.returning.lock();
        let applied = metrics.last_applied.as_ref().map(|applied| applied.index());
        for (id, back) in returning.iter_mut().filter(|(_, back)| back.level.is_none()) {
            back.level = applied.filter(|_| progress.has_start(*id, back.run));
        }
        returning.retain(|id, back| back.level.is_none() || matched(id) < back.level);
        let now = runtime::now();
        let answered = |id: &NodeId| {
            let acknowledged = metrics.heartbeat.as_ref().and_then(|all| all.get(id).copied().flatten());
            acknowledged.is_some_and(|at| now - *at < patience)
        };
        let voters = metrics.membership_config.voter_ids();
        voters.filter(|id| *id == metrics.id || answered(id) && !returning.contains_key(id)).collect()
    }
}

/// Whether one of the healthy members can be spared in each configuration that counts. A membership that is not committed
/// yet may be known to this member alone: with it gone, the others go by the one before.
fn spare(metrics: &RaftMetrics<TypeConfig>, healthy: &BTreeSet<NodeId>) -> bool {
    if metrics.committed_membership_config.log_id() != metrics.membership_config.log_id() {
        return false;
    }
    metrics.membership_config.membership().get_joint_config().iter().all(|voters| {
        let majority = voters.len() / 2 + 1;
        voters.intersection(healthy).count() > majority
    })
}
