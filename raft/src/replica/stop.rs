//! The end of a replica: a stop that hands leadership over first, or openraft's own end, and why.

use super::Replica;
use crate::core::error::Error;
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime;
use crate::core::types::TypeConfig;
use crate::durability::Event;
use crate::durability::leadership::{self, To};
use openraft::ServerState;
use openraft::errors::Fatal;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often [`Replica::wait_stopped`] checks.
const STOPPED_POLL_INTERVAL: Duration = Duration::from_millis(100);

impl Replica {
    /// Resolves when replication stops without a call of `shutdown`, with the reason. Never
    /// resolves while it runs, nor after `shutdown`.
    ///
    /// Polls every [`STOPPED_POLL_INTERVAL`]: openraft's metrics change with every batch of
    /// entries, and a waiter that each change wakes costs a tenth of a busy leader's processor
    /// time.
    pub async fn wait_stopped(&self) -> String {
        loop {
            if let Some(reason) = self.stopped() {
                if self.inner.member.stops() {
                    return std::future::pending().await;
                }
                return reason;
            }
            runtime::sleep(STOPPED_POLL_INTERVAL).await;
        }
    }

    /// Prepares a stop. From now on this replica does not lead, and other leaders do not count on
    /// it; it still votes, acknowledges, and names the leader. Returns once another member leads, if
    /// this one led. If no other one can take over, returns after the time of an election: by waiting
    /// longer nothing would be gained. A second call does nothing.
    pub async fn leave(&self) {
        let member = &self.inner.member;
        if !member.change(Event::Leaves) || self.stopped().is_some() {
            return;
        }
        let leads = || with_metrics(&member.raft, |metrics| metrics.state == ServerState::Leader);
        if !leads() {
            return;
        }
        let limit = Duration::from_millis(member.config.election_max_ms);
        leadership::hand_over(member, To::Best, limit).await;
        if !leads() {
            // With its first message the new leader is known, and clients can be sent to it.
            leadership::another_leader(member, limit).await;
        }
    }

    /// Whether this replica is being stopped.
    pub fn leaves(&self) -> bool {
        self.inner.member.standing().leaves()
    }

    /// Stops replication, after [`Replica::leave`]. The engine stays open: the caller closes it next.
    ///
    /// # Errors
    /// `Stopped`, if a task ended abnormally.
    pub async fn shutdown(&self) -> Result<(), Error> {
        self.leave().await;
        self.inner.member.stopping.store(true, Ordering::SeqCst);
        self.inner.member.raft.shutdown().await.map_err(|error| Error::Stopped(error.to_string()))
    }

    pub(super) fn stopped(&self) -> Option<String> {
        let state = with_metrics(&self.inner.member.raft, |metrics| metrics.running_state.clone());
        state.err().map(|fatal| self.reason(&fatal))
    }

    /// Why openraft ended: the engine's own error, or the state machine's, if one of them failed first.
    pub(super) fn reason(&self, fatal: &Fatal<TypeConfig>) -> String {
        let failure = self.engine().status().failed;
        let failure = failure.or_else(|| self.inner.member.progress.failure());
        failure.unwrap_or_else(|| fatal.to_string())
    }
}
