//! Linearizable reads by ReadIndex, many callers to a round.
//!
//! A round sends heartbeats and so asks a quorum whether this member still leads. Then it waits
//! until everything that was committed by then is applied. A caller that arrives during a round is
//! served by the next one, since the running round's heartbeats may be older than what the caller
//! must see. No leases: a restart forgets them, and they depend on clocks.

use crate::core::error::ReadError;
use crate::core::ids::{MemberAddress, NodeId};
use crate::core::runtime;
use crate::core::types::TypeConfig;
use crate::storage::Raft;
use crate::storage::progress::Progress;
use openraft::errors::{ForwardReason, ForwardToLeader, LinearizableReadError, RaftError};
use openraft::{LinearizerOption, ReadPolicy};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

type Caller = oneshot::Sender<Result<(), ReadError>>;

/// At most this many callers wait for a round; more callers wait to enqueue.
const MAX_WAITING: usize = 65_536;

/// The callers' handle.
#[derive(Clone)]
pub(crate) struct ReadBarrier {
    callers: mpsc::Sender<Caller>,
}

/// The parts that a round uses.
struct Rounds {
    raft: Raft,
    progress: Arc<Progress>,
    timeout: Duration,
}

impl ReadBarrier {
    /// Starts the rounds; they end with the last handle.
    pub(crate) fn start(raft: Raft, progress: Arc<Progress>, timeout: Duration) -> ReadBarrier {
        let (sender, callers) = mpsc::channel(MAX_WAITING);
        let rounds = Rounds { raft, progress, timeout };
        runtime::spawn(async move { serve(callers, || rounds.round()).await });
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

/// Runs round after round, each for the callers that came before it began.
async fn serve<R>(mut callers: mpsc::Receiver<Caller>, round: impl Fn() -> R)
where
    R: Future<Output = Result<(), ReadError>>,
{
    let mut served = Vec::new();
    while callers.recv_many(&mut served, MAX_WAITING).await > 0 {
        let result = round().await;
        for caller in served.drain(..) {
            // The caller may have gone away.
            caller.send(result.clone()).ok();
        }
    }
}

impl Rounds {
    async fn round(&self) -> Result<(), ReadError> {
        let option = LinearizerOption::from(ReadPolicy::ReadIndex).with_wait_timeout(self.timeout);
        let read = match self.raft.get_read_linearizer(option).await {
            Ok(linearizer) => linearizer.read_log_id().index(),
            Err(error) => return Err(read_error(error)),
        };
        match runtime::timeout(self.timeout, self.progress.wait_applied(read)).await {
            Some(()) => Ok(()),
            None => Err(ReadError::NoLeader),
        }
    }
}

fn read_error(error: RaftError<TypeConfig, LinearizableReadError<TypeConfig>>) -> ReadError {
    match error {
        RaftError::APIError(LinearizableReadError::ForwardToLeader(forward)) => {
            leader(forward).map_or(ReadError::NoLeader, |leader| ReadError::NotLeader { leader })
        }
        RaftError::APIError(_) => ReadError::NoLeader,
        RaftError::Fatal(fatal) => ReadError::Stopped(fatal.to_string()),
    }
}

/// The leader that openraft reports: another member that it knows.
pub(crate) fn leader(forward: ForwardToLeader<TypeConfig>) -> Option<(NodeId, MemberAddress)> {
    match forward.reason {
        ForwardReason::LeaseExpired => None,
        ForwardReason::NotLeader | ForwardReason::LeadershipTransfer => {
            Some((forward.leader_id?, forward.leader_node?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Semaphore;

    /// A round's heartbeats may be older than a caller that arrives during it: another member may
    /// lead by then, and have acknowledged what the caller must see.
    #[tokio::test]
    async fn a_caller_that_comes_while_a_round_runs_is_served_by_the_next() {
        let (sender, callers) = mpsc::channel(MAX_WAITING);
        let barrier = ReadBarrier { callers: sender };
        let (begun, end) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let round = {
            let (begun, end) = (begun.clone(), end.clone());
            move || {
                begun.fetch_add(1, Ordering::SeqCst);
                let end = end.clone();
                async move {
                    end.acquire().await.unwrap().forget();
                    Ok(())
                }
            }
        };
        tokio::spawn(serve(callers, round));
        let call = || {
            let barrier = barrier.clone();
            tokio::spawn(async move { barrier.wait().await })
        };
        let yield_often = || async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        };
        let early = call();
        yield_often().await;
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        let late = [call(), call()];
        yield_often().await;
        end.add_permits(1);
        early.await.unwrap().unwrap();
        yield_often().await;
        assert_eq!(begun.load(Ordering::SeqCst), 2, "one more round");
        assert!(
            late.iter().all(|late| !late.is_finished()),
            "served by the round that had begun before them"
        );
        end.add_permits(1);
        for late in late {
            late.await.unwrap().unwrap();
        }
        assert_eq!(begun.load(Ordering::SeqCst), 2, "one round for both");
    }
}
