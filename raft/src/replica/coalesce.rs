//! One round of work for many callers, such as a question to the other members.
//!
//! What holds here:
//! - A caller that arrives during a round is served by the next one: the running round may have asked
//!   before what the caller must see.
//! - One round runs at a time, and all callers that wait share the next one.
//! - A round goes on after its callers have gone away. Callers that come and go keep no other one from
//!   its answer.

use crate::core::runtime;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

type Caller<T> = oneshot::Sender<T>;

/// At most this many callers wait for a round; more callers wait to enqueue.
const MAX_WAITING: usize = 65_536;

/// The callers' handle.
#[derive(Clone)]
pub(super) struct Coalescer<T> {
    callers: mpsc::Sender<Caller<T>>,
}

impl<T: Clone + Send + 'static> Coalescer<T> {
    /// Starts the rounds; they end with the last handle. A round begins at least `interval` after
    /// the one before began.
    pub(super) fn start<R>(
        interval: Duration,
        round: impl Fn() -> R + Send + Sync + 'static,
    ) -> Coalescer<T>
    where
        R: Future<Output = T> + Send + 'static,
    {
        let (sender, callers) = mpsc::channel(MAX_WAITING);
        runtime::spawn(serve(callers, interval, round));
        Coalescer { callers: sender }
    }

    /// The answer of a round that begins after the call. `None`: the rounds have ended. May be
    /// cancelled.
    pub(super) async fn call(&self) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        self.callers.send(sender).await.ok()?;
        receiver.await.ok()
    }
}

/// Runs round after round, each for the callers that came before it began.
async fn serve<T, R>(
    mut callers: mpsc::Receiver<Caller<T>>,
    interval: Duration,
    round: impl Fn() -> R,
) where
    T: Clone,
    R: Future<Output = T>,
{
    let mut served = Vec::new();
    while callers.recv_many(&mut served, MAX_WAITING).await > 0 {
        let begun = runtime::now();
        let result = round().await;
        for caller in served.drain(..) {
            // The caller may have gone away.
            caller.send(result.clone()).ok();
        }
        let pause = interval.saturating_sub(runtime::now() - begun);
        // A timer takes a millisecond, also for no time.
        if !pause.is_zero() {
            runtime::sleep(pause).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Semaphore;
    use tokio::task::JoinHandle;

    /// Rounds that answer with their number, each once it may end.
    struct Rounds {
        coalescer: Coalescer<usize>,
        begun: Arc<AtomicUsize>,
        end: Arc<Semaphore>,
    }

    impl Rounds {
        fn start(interval: Duration) -> Rounds {
            let (begun, end) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
            let round = {
                let (begun, end) = (begun.clone(), end.clone());
                move || {
                    let number = begun.fetch_add(1, Ordering::SeqCst) + 1;
                    let end = end.clone();
                    async move {
                        end.acquire().await.unwrap().forget();
                        number
                    }
                }
            };
            Rounds { coalescer: Coalescer::start(interval, round), begun, end }
        }

        fn call(&self) -> JoinHandle<Option<usize>> {
            let coalescer = self.coalescer.clone();
            tokio::spawn(async move { coalescer.call().await })
        }

        /// How many have begun, once all tasks have done what they can.
        async fn begun(&self) -> usize {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            self.begun.load(Ordering::SeqCst)
        }
    }

    /// A round's heartbeats may be older than a caller that arrives during it: another member may
    /// lead by then, and have acknowledged what the caller must see.
    #[tokio::test]
    async fn a_caller_that_comes_while_a_round_runs_is_served_by_the_next() {
        let rounds = Rounds::start(Duration::ZERO);
        let early = rounds.call();
        assert_eq!(rounds.begun().await, 1);
        let late = [rounds.call(), rounds.call()];
        assert_eq!(rounds.begun().await, 1, "one at a time");
        rounds.end.add_permits(1);
        assert_eq!(early.await.unwrap(), Some(1));
        assert_eq!(rounds.begun().await, 2, "one more round");
        assert!(
            late.iter().all(|late| !late.is_finished()),
            "served by the round that had begun before them"
        );
        rounds.end.add_permits(1);
        for late in late {
            assert_eq!(late.await.unwrap(), Some(2), "one round for both");
        }
    }

    #[tokio::test]
    async fn the_next_round_does_not_begin_before_the_interval_has_passed() {
        let rounds = Rounds::start(Duration::from_secs(24 * 3600));
        rounds.end.add_permits(2);
        assert_eq!(rounds.coalescer.call().await, Some(1));
        let late = [rounds.call(), rounds.call()];
        assert_eq!(rounds.begun().await, 1);
        assert!(late.iter().all(|late| !late.is_finished()));
    }

    /// Otherwise callers that go away at once would end one round after another, and those behind
    /// them would wait for ever.
    #[tokio::test]
    async fn a_round_goes_on_after_its_caller_has_gone_away() {
        let rounds = Rounds::start(Duration::ZERO);
        let gone = rounds.call();
        assert_eq!(rounds.begun().await, 1);
        let late = rounds.call();
        gone.abort();
        assert_eq!(rounds.begun().await, 1, "it has not ended");
        rounds.end.add_permits(2);
        assert_eq!(late.await.unwrap(), Some(2));
    }
}
