//! Reads: when the engine may be read, values that are repaired where they are damaged, and a copy of
//! the state.

use super::Replica;
use crate::core::error::ReadError;
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime;
use crate::storage::state_machine::StateReader;
use bytes::Bytes;
use cairn_engine::{KeyEntry, ListItem, View};
use openraft::ServerState;
use std::time::Duration;

impl Replica {
    /// Returns when this replica has applied everything that was acknowledged before the call: a
    /// read of the engine after it is linearizable. A member that does not lead asks the leader, after
    /// which entry that is. Concurrent callers share a round to the quorum.
    ///
    /// # Errors
    /// See [`ReadError`]. A barrier changes nothing, so it can always be retried.
    pub async fn read_barrier(&self) -> Result<(), ReadError> {
        if self.inner.member.check_quorum.is_suspended() {
            return Err(ReadError::NoLeader);
        }
        let leads = || {
            with_metrics(&self.inner.member.raft, |metrics| metrics.state == ServerState::Leader)
        };
        let applied = match self.inner.barrier.wait().await {
            // One that hands leadership over names the next leader.
            Err(ReadError::NotLeader { .. }) if !leads() => {
                self.inner.follower_barrier.wait().await
            }
            led => led,
        };
        match applied {
            Ok(_) => Ok(()),
            Err(ReadError::NotLeader { leader }) => {
                Err(ReadError::NotLeader { leader: self.at_present(leader) })
            }
            Err(ReadError::NoLeader) => {
                let next = self.next_leader(false).await;
                Err(next.map_or(ReadError::NoLeader, |leader| ReadError::NotLeader { leader }))
            }
            Err(stopped) => Err(stopped),
        }
    }

    /// Returns when this replica has applied everything that was acknowledged longer than `most` before the
    /// call, by this machine's monotonic clock, which does not count the time in which the machine was
    /// suspended. Asks nobody if a barrier succeeded here that began within that time, unless this member has learnt since
    /// that an unsafe recovery discarded what it holds.
    ///
    /// # Errors
    /// As [`Replica::read_barrier`].
    pub async fn read_barrier_within(&self, most: Duration) -> Result<(), ReadError> {
        match self.inner.newest_round.within(most, runtime::now()) {
            true => Ok(()),
            false => self.read_barrier().await,
        }
    }

    /// A key's state and value. If the value is damaged here, this fetches it from another member
    /// and repairs it, which takes some milliseconds. May be cancelled.
    ///
    /// # Errors
    /// Those of [`Engine::get`](cairn_engine::Engine::get); `Corrupt` only if no member that
    /// answers has the value.
    pub async fn get(&self, key: &[u8]) -> cairn_engine::Result<Option<(KeyEntry, Bytes)>> {
        self.inner.member.repairer.get(key).await
    }

    /// The value of a listed key. Repairs a damaged value as [`Replica::get`] does.
    ///
    /// # Errors
    /// Those of [`View::read`]; `Corrupt` only if no member that answers has the value.
    pub async fn read(&self, view: &View, item: &ListItem) -> cairn_engine::Result<Bytes> {
        self.inner.member.repairer.read(view, &item.key, &item.entry).await
    }

    /// The present state, for a copy of all of it. What is deleted or overwritten meanwhile keeps its
    /// space until this is dropped.
    pub fn state(&self) -> StateReader {
        StateReader::new(self.engine(), self.inner.member.repairer.clone())
    }
}
