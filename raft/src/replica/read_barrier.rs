//! Linearizable reads by ReadIndex, many callers to a round.
//!
//! A leader's round sends heartbeats and so asks a quorum whether this member still leads. Then it waits
//! until everything that was committed by then is applied. Any other member's round asks the leader for
//! the index that such a round found, and waits until this member has applied it. A caller that arrives
//! during a round is served by the next one, since the running round's heartbeats may be older than what
//! the caller must see. No leases: a restart forgets them, and they depend on clocks.

use crate::core::error::ReadError;
use crate::core::ids::{MemberAddress, NodeId};
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime;
use crate::core::types::{TypeConfig, engine_log_id};
use crate::durability::{LocalMember, leadership};
use crate::storage::Raft;
use crate::storage::progress::Progress;
use crate::transport::ReadIndexes;
use cairn_engine::LogId;
use futures::future::{Either, select};
use openraft::errors::{ForwardReason, ForwardToLeader, LinearizableReadError, RaftError};
use openraft::{LinearizerOption, ReadPolicy};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tonic::Code;

/// The caller gets an entry that is applied here.
type Caller = oneshot::Sender<Result<LogId, ReadError>>;

/// At most this many callers wait for a round; more callers wait to enqueue.
const MAX_WAITING: usize = 65_536;

/// How often a member that asks the leader looks whether another one leads.
const LEADER_CHECK: Duration = Duration::from_millis(50);

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
    /// The leader, as another member asks it.
    indexes: ReadIndexes,
}

impl Rounds {
    fn of(member: &LocalMember, timeout: Duration) -> Rounds {
        Rounds {
            raft: member.raft.clone(),
            progress: member.progress.clone(),
            timeout,
            indexes: ReadIndexes::new(member.identity.clone(), member.addresses.clone()),
        }
    }
}

impl ReadBarrier {
    /// Starts the rounds of a member that leads; they end with the last handle. Those of one that does
    /// not fail.
    pub(crate) fn of_leader(member: &LocalMember, timeout: Duration) -> ReadBarrier {
        let rounds = Rounds::of(member, timeout);
        ReadBarrier::start(|callers| async move { serve(callers, || rounds.lead()).await })
    }

    /// The same for a member that does not lead.
    pub(crate) fn of_follower(member: &LocalMember, timeout: Duration) -> ReadBarrier {
        let rounds = Rounds::of(member, timeout);
        ReadBarrier::start(|callers| async move { serve(callers, || rounds.follow()).await })
    }

    fn start<F>(serve: impl FnOnce(mpsc::Receiver<Caller>) -> F) -> ReadBarrier
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, callers) = mpsc::channel(MAX_WAITING);
        runtime::spawn(serve(callers));
        ReadBarrier { callers: sender }
    }

    /// Returns when this member has applied everything that was acknowledged before the call, up to the
    /// returned entry at least.
    pub(crate) async fn wait(&self) -> Result<LogId, ReadError> {
        let stopped = || ReadError::Stopped("replication has ended".into());
        let (sender, receiver) = oneshot::channel();
        self.callers.send(sender).await.map_err(|_| stopped())?;
        receiver.await.map_err(|_| stopped())?
    }
}

/// Runs round after round, each for the callers that came before it began.
async fn serve<R>(mut callers: mpsc::Receiver<Caller>, round: impl Fn() -> R)
where
    R: Future<Output = Result<LogId, ReadError>>,
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
    async fn lead(&self) -> Result<LogId, ReadError> {
        let option = LinearizerOption::from(ReadPolicy::ReadIndex).with_wait_timeout(self.timeout);
        let read = match self.raft.get_read_linearizer(option).await {
            Ok(linearizer) => engine_log_id(linearizer.read_log_id().log_id()),
            Err(error) => return Err(read_error(error)),
        };
        self.applied(read, self.timeout).await.ok_or(ReadError::NoLeader)
    }

    /// A leader that does not answer is not named: it may be gone. One that answers may serve what this
    /// member cannot.
    async fn follow(&self) -> Result<LogId, ReadError> {
        let until = runtime::now() + self.timeout;
        let asked = runtime::timeout(self.timeout, self.ask()).await;
        let (leader, read) = asked.unwrap_or(Err(ReadError::NoLeader))?;
        let applied = self.applied(read, until - runtime::now()).await;
        applied.ok_or(ReadError::NotLeader { leader })
    }

    /// Asks the leader, and the next one if another one leads meanwhile.
    async fn ask(&self) -> Result<((NodeId, MemberAddress), LogId), ReadError> {
        loop {
            let leader = self.leader().ok_or(ReadError::NoLeader)?;
            let asked = {
                let asked = pin!(self.indexes.ask(&leader));
                match select(asked, pin!(self.until_another_leads(leader.0))).await {
                    Either::Left((asked, _)) => Some(asked),
                    Either::Right(_) => None,
                }
            };
            let error = match asked {
                Some(Ok(read)) => return Ok((leader, read)),
                Some(Err(error)) => error,
                None => continue,
            };
            tracing::debug!(leader = %leader.0, %error, "the leader does not say how far a read must wait");
            return match error.code() {
                // It is of a release that does not know the question.
                Code::Unimplemented => Err(ReadError::NotLeader { leader }),
                _ => Err(ReadError::NoLeader),
            };
        }
    }

    fn leader(&self) -> Option<(NodeId, MemberAddress)> {
        with_metrics(&self.raft, |metrics| {
            leadership::leader(metrics).filter(|(leader, _)| *leader != metrics.id)
        })
    }

    async fn until_another_leads(&self, leader: NodeId) {
        while self.leader().is_some_and(|(known, _)| known == leader) {
            runtime::sleep(LEADER_CHECK).await;
        }
    }

    /// `None`: it takes longer, or what is applied here contradicts the entry.
    async fn applied(&self, read: LogId, limit: Duration) -> Option<LogId> {
        let applied = runtime::timeout(limit, self.progress.wait_entry(read)).await;
        applied.filter(|holds| *holds).map(|_| read)
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
                    Ok(LogId::default())
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
