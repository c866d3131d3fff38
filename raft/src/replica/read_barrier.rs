//! Linearizable reads by ReadIndex, many callers to a round.
//!
//! A leader's round sends heartbeats and so asks a quorum whether this member still leads. Then it waits
//! until everything that was committed by then is applied. Any other member's round asks the leader for
//! the index that such a round found, and waits until this member has applied it. A caller that arrives
//! during a round is served by the next one, since the running round's heartbeats may be older than what
//! the caller must see. No leases: a restart forgets them, and they depend on clocks.
//!
//! A caller that says how old its answer may be needs no round of its own, if one began lately: the state has
//! everything that was acknowledged before that. What holds here: age counts from a round's beginning. What is
//! acknowledged while it runs it may not have seen. Once this member knows that an unsafe recovery discarded what it has
//! applied, no round counts that began before.

use super::coalesce::Coalescer;
use crate::core::error::ReadError;
use crate::core::ids::{MemberAddress, NodeId};
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime::{self, Instant};
use crate::core::types::{TypeConfig, engine_log_id};
use crate::durability::{LocalMember, leadership};
use crate::storage::Raft;
use crate::storage::progress::Progress;
use crate::transport::ReadIndexes;
use cairn_engine::LogId;
use futures::future::{Either, select};
use openraft::errors::{ForwardReason, ForwardToLeader, LinearizableReadError, RaftError};
use openraft::{LinearizerOption, ReadPolicy};
use parking_lot::Mutex;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tonic::Code;

/// How often a member that asks the leader looks whether another one leads.
const LEADER_CHECK: Duration = Duration::from_millis(50);

/// The callers' handle. They get an entry that is applied here.
#[derive(Clone)]
pub(crate) struct ReadBarrier(Coalescer<Result<LogId, ReadError>>);

/// The newest round that succeeded, of one that leads or of another. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct NewestRound(Arc<Mutex<Kept>>);

#[derive(Clone, Copy, Default)]
struct Kept {
    /// When it began: the state here has everything that was acknowledged before.
    began: Option<Instant>,
    /// Rounds that began before this do not count.
    forgotten: Option<Instant>,
}

impl NewestRound {
    /// Does a round, and keeps it if it succeeds and the rounds are not forgotten meanwhile.
    pub(super) async fn of(
        &self,
        round: impl Future<Output = Result<LogId, ReadError>>,
    ) -> Result<LogId, ReadError> {
        // Before it asks anybody: see the head of this file.
        let began = runtime::now();
        let read = round.await?;
        let mut kept = self.0.lock();
        if Some(began) > kept.began.max(kept.forgotten) {
            kept.began = Some(began);
        }
        Ok(read)
    }

    /// Whether the newest round began no longer than `most` before `now`.
    pub(super) fn within(&self, most: Duration, now: Instant) -> bool {
        let kept = *self.0.lock();
        kept.began.is_some_and(|began| now - began <= most)
    }

    /// What is applied here was discarded, as a leader's log shows: what an earlier round waited for is no
    /// part of the cluster's log any more. A round that is under way does not count either.
    ///
    /// The story: a member was cut off while an operator discarded what it held. Back among the others it refused
    /// their entries, and answered reads within a bound from the discarded state until the bound was over. A client
    /// wrote on the condition of a version that by then was another write's.
    pub(super) fn forget(&self) {
        let mut kept = self.0.lock();
        *kept = Kept { began: None, forgotten: Some(runtime::now()) };
    }
}

/// The parts that a round uses.
struct Rounds {
    raft: Raft,
    progress: Arc<Progress>,
    timeout: Duration,
    /// The leader, as another member asks it.
    indexes: ReadIndexes,
    newest: NewestRound,
}

impl Rounds {
    fn of(member: &LocalMember, timeout: Duration, newest: &NewestRound) -> Rounds {
        Rounds {
            raft: member.raft.clone(),
            progress: member.progress.clone(),
            timeout,
            indexes: ReadIndexes::new(member.identity.clone(), member.addresses.clone()),
            newest: newest.clone(),
        }
    }
}

impl ReadBarrier {
    /// Starts the rounds of a member that leads; they end with the last handle. Those of one that does
    /// not fail. Those that succeed are kept in `newest`.
    pub(crate) fn of_leader(
        member: &LocalMember,
        timeout: Duration,
        newest: &NewestRound,
    ) -> ReadBarrier {
        let rounds = Arc::new(Rounds::of(member, timeout, newest));
        let lead = move || {
            let rounds = rounds.clone();
            async move { rounds.newest.of(rounds.lead()).await }
        };
        ReadBarrier(Coalescer::start(Duration::ZERO, lead))
    }

    /// The same for a member that does not lead.
    pub(crate) fn of_follower(
        member: &LocalMember,
        timeout: Duration,
        newest: &NewestRound,
    ) -> ReadBarrier {
        let rounds = Arc::new(Rounds::of(member, timeout, newest));
        let follow = move || {
            let rounds = rounds.clone();
            async move { rounds.newest.of(rounds.follow()).await }
        };
        ReadBarrier(Coalescer::start(Duration::ZERO, follow))
    }

    /// Returns when this member has applied everything that was acknowledged before the call, up to the
    /// returned entry at least.
    pub(crate) async fn wait(&self) -> Result<LogId, ReadError> {
        let stopped = || Err(ReadError::Stopped("replication has ended".into()));
        self.0.call().await.unwrap_or_else(stopped)
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
        if applied == Some(false) {
            self.newest.forget();
        }
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

    const READ: LogId = LogId { term: 1, index: 7 };

    /// A round that takes a while, and when it ended.
    async fn round(newest: &NewestRound, result: Result<LogId, ReadError>) -> Instant {
        let mut ended = None;
        let round = async {
            runtime::sleep(Duration::from_millis(20)).await;
            ended = Some(runtime::now());
            result
        };
        newest.of(round).await.ok();
        ended.expect("the round was done")
    }

    /// While a round runs, others acknowledge writes that it may not have seen.
    #[tokio::test]
    async fn the_age_of_a_read_counts_from_the_beginning_of_the_round_that_it_relies_on() {
        let newest = NewestRound::default();
        let before = runtime::now();
        assert!(!newest.within(Duration::MAX, before), "no round has succeeded");
        let ended = round(&newest, Ok(READ)).await;
        let now = runtime::now();
        assert!(newest.within(now - before, now));
        assert!(!newest.within(now - ended, now), "it began before that");
    }

    #[tokio::test]
    async fn a_round_that_fails_does_not_make_an_earlier_one_newer() {
        let newest = NewestRound::default();
        let before = runtime::now();
        round(&newest, Ok(READ)).await;
        let between = runtime::now();
        round(&newest, Err(ReadError::NoLeader)).await;
        let now = runtime::now();
        assert!(newest.within(now - before, now));
        assert!(!newest.within(now - between, now));
        round(&newest, Ok(READ)).await;
        let now = runtime::now();
        assert!(newest.within(now - between, now));
    }

    #[tokio::test]
    async fn once_what_is_applied_is_known_to_be_discarded_only_later_rounds_count() {
        let newest = NewestRound::default();
        let counts = || newest.within(Duration::MAX, runtime::now());
        round(&newest, Ok(READ)).await;
        assert!(counts());
        newest.forget();
        assert!(!counts());
        let under_way = async {
            newest.forget();
            Ok(READ)
        };
        newest.of(under_way).await.unwrap();
        assert!(!counts(), "it began before that was known");
        // The clock may be coarse.
        let known = runtime::now();
        while runtime::now() <= known {
            tokio::task::yield_now().await;
        }
        round(&newest, Err(ReadError::NoLeader)).await;
        assert!(!counts());
        round(&newest, Ok(READ)).await;
        assert!(counts());
    }
}
