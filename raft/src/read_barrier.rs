//! Linearizable reads by ReadIndex, many callers to a round.
//!
//! A round asks a quorum whether this member still leads, with heartbeats sent after the round began, and then waits
//! until everything committed by then is applied. A caller that arrives while a round runs is served by the next one,
//! since the running round's heartbeats may be older than what the caller must see. Leases are not used: they are
//! forgotten by a restart, and depend on clocks.

use crate::error::ReadError;
use crate::progress::Progress;
use crate::runtime;
use crate::types::{Raft, TypeConfig};
use openraft::errors::{ForwardReason, ForwardToLeader, LinearizableReadError, RaftError};
use openraft::{LinearizerOption, ReadPolicy};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

type Caller = oneshot::Sender<Result<(), ReadError>>;

/// Callers that wait for a round, at most, beyond which they wait to wait.
const WAITING: usize = 65_536;

/// The callers' end.
#[derive(Clone)]
pub(crate) struct ReadBarrier {
    callers: mpsc::Sender<Caller>,
}

/// The end that makes the rounds.
struct Rounds {
    raft: Raft,
    progress: Arc<Progress>,
    callers: mpsc::Receiver<Caller>,
    patience: Duration,
}

impl ReadBarrier {
    /// Starts the rounds; they end with the last handle.
    pub(crate) fn start(raft: Raft, progress: Arc<Progress>, patience: Duration) -> ReadBarrier {
        let (sender, callers) = mpsc::channel(WAITING);
        runtime::spawn(Rounds { raft, progress, callers, patience }.run());
        ReadBarrier { callers: sender }
    }

    /// Returns when this member has applied everything that was acknowledged before the call.
    pub(crate) async fn wait(&self) -> Result<(), ReadError> {
        let stopped = || ReadError::Stopped("replication has ended".into());
        let (sender, receiver) = oneshot::channel();
        self.callers.send(sender).await.map_err(|_| stopped())?;
        receiver.await.map_err(|_| stopped())?
    }
}

impl Rounds {
    async fn run(mut self) {
        let mut served = Vec::new();
        while self.callers.recv_many(&mut served, WAITING).await > 0 {
            let result = self.round().await;
            for caller in served.drain(..) {
                // A caller that went away does not want it.
                caller.send(result.clone()).ok();
            }
        }
    }

    async fn round(&self) -> Result<(), ReadError> {
        let option = LinearizerOption::from(ReadPolicy::ReadIndex).with_wait_timeout(self.patience);
        let read = match self.raft.get_read_linearizer(option).await {
            Ok(linearizer) => linearizer.read_log_id().index(),
            Err(error) => return Err(read_error(error)),
        };
        match runtime::timeout(self.patience, self.progress.wait_applied(read)).await {
            Some(()) => Ok(()),
            None => Err(ReadError::NoLeader),
        }
    }
}

fn read_error(error: RaftError<TypeConfig, LinearizableReadError<TypeConfig>>) -> ReadError {
    match error {
        RaftError::APIError(LinearizableReadError::ForwardToLeader(forward)) => match leader(forward) {
            Some(leader) => ReadError::NotLeader { leader: Some(leader) },
            None => ReadError::NoLeader,
        },
        RaftError::APIError(_) => ReadError::NoLeader,
        RaftError::Fatal(fatal) => ReadError::Stopped(fatal.to_string()),
    }
}

/// Whom openraft names as leader: another member that it knows.
pub(crate) fn leader(
    forward: ForwardToLeader<TypeConfig>,
) -> Option<(crate::ids::NodeId, crate::ids::MemberAddress)> {
    match forward.reason {
        ForwardReason::LeaseExpired => None,
        ForwardReason::NotLeader | ForwardReason::LeadershipTransfer => {
            Some((forward.leader_id?, forward.leader_node?))
        }
    }
}
