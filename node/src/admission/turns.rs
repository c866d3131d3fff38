//! Whose turn it is to delete a range. One range takes as long to apply as thousands of deletes: many at once
//! would keep all others waiting.
//!
//! What holds here: one range at a time has a turn. Of the ranges of one client, one at a time waits for it beside
//! those of other clients, and the others wait behind that one. A client is kept only while a range of it waits
//! or has its turn.
//!
//! The story: all ranges waited in one queue. One client with hundreds of them kept it full, and a range of one key
//! of another client was refused at its deadline.

use super::refusal;
use super::shares::Owner;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tonic::Status;

/// Deletions of ranges that are under way at once.
const RANGES: usize = 1;
/// How often a command that waits for its turn asks whether this member leads still.
const LEADS_STILL: Duration = Duration::from_millis(100);
/// A range that has less time left is not proposed: its outcome would mostly stay unknown.
const LEAST: Duration = Duration::from_millis(10);

/// The turns of all clients.
pub(crate) struct Turns {
    all: Arc<Semaphore>,
    clients: Clients,
}

/// By client, its own queue.
type Clients = Arc<Mutex<BTreeMap<Owner, Queue>>>;

struct Queue {
    own: Arc<Semaphore>,
    /// The ranges that wait or have their turn.
    ranges: usize,
}

/// The right of a command to delete a range. Dropping it gives the turn to the next one.
pub(crate) struct Turn {
    // Given back in this order: a range of another client goes first.
    _all: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
    _queued: Queued,
}

/// A range that is counted in its client's queue.
struct Queued {
    clients: Clients,
    owner: Owner,
}

impl Turns {
    pub(crate) fn new() -> Turns {
        Turns { all: Arc::new(Semaphore::new(RANGES)), clients: Clients::default() }
    }

    /// Waits for a turn, as long as there is time left to delete the range after it, and as long as `leads` holds:
    /// nothing is proposed yet, and another member may lead.
    pub(crate) async fn wait<F: Future<Output = Result<(), Status>>>(
        &self,
        owner: Owner,
        budget: Duration,
        leads: impl Fn() -> F,
    ) -> Result<Turn, Status> {
        let end = Instant::now() + waits(budget);
        let mut waiting = pin!(self.turn(owner));
        loop {
            let left = || end.saturating_duration_since(Instant::now());
            match tokio::time::timeout(left(), leads()).await {
                Ok(leads) => leads?,
                Err(_) => return Err(refusal::ranges_overloaded()),
            }
            let left = left();
            match tokio::time::timeout(left.min(LEADS_STILL), &mut waiting).await {
                Ok(Ok(turn)) if Instant::now() < end => return Ok(turn),
                // The semaphores are never closed.
                Ok(Err(closed)) => return Err(refusal::stopped(closed)),
                Err(_) if !left.is_zero() => {}
                Ok(Ok(_)) | Err(_) => return Err(refusal::ranges_overloaded()),
            }
        }
    }

    async fn turn(&self, owner: Owner) -> Result<Turn, AcquireError> {
        let (queued, own) = self.queue(owner);
        let own = own.acquire_owned().await?;
        let all = self.all.clone().acquire_owned().await?;
        Ok(Turn { _all: all, _own: own, _queued: queued })
    }

    /// Counts a range in its client's queue.
    fn queue(&self, owner: Owner) -> (Queued, Arc<Semaphore>) {
        let mut clients = self.clients.lock();
        let queue = clients
            .entry(owner)
            .or_insert_with(|| Queue { own: Arc::new(Semaphore::new(1)), ranges: 0 });
        queue.ranges += 1;
        (Queued { clients: Arc::clone(&self.clients), owner }, Arc::clone(&queue.own))
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        let mut clients = self.clients.lock();
        if let Some(queue) = clients.get_mut(&self.owner) {
            queue.ranges -= 1;
            if queue.ranges == 0 {
                clients.remove(&self.owner);
            }
        }
    }
}

/// How much of its budget a range may wait. One that has little in all keeps half of it.
fn waits(budget: Duration) -> Duration {
    budget.saturating_sub(LEAST.min(budget / 2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{Ready, ready};
    use std::task::Poll;

    const ADA: Owner = Owner::Name(1);
    const BEN: Owner = Owner::Connection(1);
    const LONG: Duration = Duration::from_secs(600);

    fn leads() -> Ready<Result<(), Status>> {
        ready(Ok(()))
    }

    #[tokio::test]
    async fn a_range_waits_for_one_of_another_client_however_many_that_one_has() {
        let turns = Turns::new();
        let held = turns.wait(ADA, LONG, leads).await.expect("nobody else waits");
        let mut greedy: Vec<_> = (0..16).map(|_| Box::pin(turns.turn(ADA))).collect();
        for waiting in &mut greedy {
            assert!(futures::poll!(waiting).is_pending(), "one at a time");
        }
        let mut small = Box::pin(turns.turn(BEN));
        assert!(futures::poll!(&mut small).is_pending(), "one at a time");
        drop(held);
        let Poll::Ready(small) = futures::poll!(&mut small) else { panic!("it is the next one") };
        drop(small.expect("never closed"));
        let mut done = 0;
        for waiting in greedy {
            drop(waiting.await.expect("never closed"));
            done += 1;
        }
        assert_eq!(done, 16);
    }

    #[tokio::test]
    async fn a_client_is_kept_only_while_a_range_of_it_waits_or_has_its_turn() {
        let turns = Turns::new();
        let kept = || turns.clients.lock().keys().copied().collect::<Vec<_>>();
        let held = turns.wait(ADA, LONG, leads).await.expect("nobody else waits");
        let (mut own, mut other) = (Box::pin(turns.turn(ADA)), Box::pin(turns.turn(BEN)));
        assert!(futures::poll!(&mut own).is_pending() && futures::poll!(&mut other).is_pending());
        assert_eq!(kept(), [BEN, ADA]);
        drop(other);
        assert_eq!(kept(), [ADA]);
        drop(held);
        assert_eq!(kept(), [ADA], "another range of it waits");
        drop(own);
        assert!(kept().is_empty());
    }

    /// The story: a range whose turn came in the last milliseconds was proposed, and its outcome stayed unknown.
    #[tokio::test]
    async fn a_range_whose_turn_comes_too_late_is_refused_and_keeps_nobody_waiting() {
        let least = |budget| Duration::from_millis(budget) - waits(Duration::from_millis(budget));
        assert_eq!(least(1_000), LEAST);
        assert_eq!(least(8), Duration::from_millis(4));
        let turns = Turns::new();
        let late = turns.wait(ADA, Duration::ZERO, leads).await.err().expect("no time is left");
        assert_eq!(late.code(), tonic::Code::ResourceExhausted);
        assert!(turns.wait(BEN, LONG, leads).await.is_ok());
    }

    #[tokio::test]
    async fn a_range_that_waits_at_a_member_that_leads_no_more_is_refused() {
        let turns = Turns::new();
        let _held = turns.wait(ADA, LONG, leads).await.expect("nobody else waits");
        let asked = std::cell::Cell::new(0);
        let deposed = || {
            asked.set(asked.get() + 1);
            ready(if asked.get() < 3 { Ok(()) } else { Err(refusal::no_leader()) })
        };
        let refused = turns.wait(BEN, LONG, deposed).await.err().expect("it leads no more");
        assert_eq!(refused.code(), refusal::no_leader().code());
        assert_eq!(asked.get(), 3);
    }
}
