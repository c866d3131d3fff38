//! One attempt: how long its node may take, and what the answer says of the node and of its connection.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;
use tracing::Instrument;

use super::{Attempts, Stays};
use crate::Error;
use crate::failure::Failure;
use crate::node::{Connection, Node, Stub};
use crate::pool::{Pool, Target};
use crate::proto::ErrorDetail;
use crate::spans;

impl Attempts {
    /// Makes one call over `connection`, limited by the deadline. If the connection breaks, or is
    /// silent for a whole attempt timeout, it is not used again. A node that answers other requests
    /// is alive, and bounds how long it works on this one; if it answers none for half the time, it
    /// is asked for a sign of life. The story: of 4,000 requests with large values some waited so
    /// long to be sent that they ran out of time; the client gave up the connection, and sent all of
    /// them again over another one.
    pub(crate) async fn call<M, T, F>(
        &self,
        pool: &Pool,
        node: &Arc<Node>,
        connection: &Arc<Connection>,
        message: M,
        call: impl FnOnce(Stub, M, Duration) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let _under_way = node.ask();
        let silence = pool.options.attempt_timeout;
        let timeout = self.remaining().min(silence.max(self.answer_within));
        let stub = connection.stub();
        let named = stub.named;
        let stays = || pool.stays(named, node.address()).map_err(Failure::Refused);
        let (began, probe) = (Instant::now(), stub.clone());
        let silent_since = || began.max(probe.heard.at());
        let mut unanswered = Unanswered { probe: Some(&probe), node, connection, silence };
        let span = spans::attempt(node.address());
        let mut work = std::pin::pin!(call(stub, message, timeout).instrument(span));
        let answer = loop {
            let silent = Instant::now() - silent_since();
            if silent >= silence || self.remaining().is_zero() {
                let waited = Instant::now() - began;
                break Err(Status::deadline_exceeded(format!(
                    "no answer within {} ms",
                    waited.as_millis()
                )));
            }
            let wait = if silent < silence / 2 { silence / 2 } else { silence } - silent;
            if let Ok(answer) = tokio::time::timeout(wait.min(self.remaining()), &mut work).await {
                break answer;
            }
            if Instant::now() - silent_since() >= silence / 2 {
                probe.probe(node, connection, silence / 2);
            }
        };
        let is_silent = Instant::now() - silent_since() >= silence;
        if ErrorDetail::is_from_node(&answer) {
            probe.heard.now();
            unanswered.probe = None;
        }
        let status = match answer {
            Ok(response) => {
                if self.stays != Stays::Never {
                    stays()?;
                }
                pool.succeeded(self.target, node);
                if self.target == Target::Reader && self.hinted {
                    // Another node named it as the leader.
                    pool.succeeded(Target::Leader, node);
                }
                return Ok(response);
            }
            Err(status) => status,
        };
        let mut failure = Failure::of(&status);
        if let Failure::Lost { why, .. } | Failure::NotSent(why) | Failure::Unsupported(why) =
            &mut failure
        {
            why.text.insert_str(0, &format!("{}: ", node.address()));
        }
        if failure.may_have_effect().is_some() && self.stays == Stays::Sent {
            stays()?;
        }
        match &failure {
            Failure::Lost { timed_out: true, .. } if !is_silent => {}
            Failure::Lost { .. } if ErrorDetail::of(&status).is_none() => node.discard(connection),
            Failure::NotSent(why) => {
                node.failed(Error::unavailable(node.address(), why.clone()), &pool.random)
            }
            _ => {}
        }
        // Not what the node said: that may name the key.
        tracing::debug!(endpoint = node.address(), failure = failure.kind(), "attempt failed");
        Err(failure)
    }
}

/// A call without an answer. Ended so, by a deadline or by a caller that stops waiting, it asks the
/// node for a sign of life. The story: requests with short deadlines were sent to a leader that had
/// lost power, one after another, and none of them waited long enough to find that out.
struct Unanswered<'a> {
    probe: Option<&'a Stub>,
    node: &'a Arc<Node>,
    connection: &'a Arc<Connection>,
    silence: Duration,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(probe) = self.probe {
            probe.probe(self.node, self.connection, self.silence);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    fn pool() -> Pool {
        Pool::new(Options::new(["a:1"]).seed(3)).unwrap()
    }

    /// How long an attempt takes whose node answers others every second, so many times, and then this
    /// one; and whether the connection is used again.
    async fn attempt_beside(
        answers: u32,
        deadline: Duration,
    ) -> (Result<(), Failure>, Duration, bool) {
        let pool = pool();
        let node = pool.nth(0).unwrap();
        let connection = node.connect_lazily();
        let attempts = Attempts::new(Target::Leader, deadline);
        let began = Instant::now();
        let work = |stub: Stub, (), _| async move {
            for _ in 0..answers {
                tokio::time::sleep(Duration::from_secs(1)).await;
                stub.heard.now();
            }
            if answers < 3 { std::future::pending().await } else { Ok(()) }
        };
        let answer = attempts.call(&pool, &node, &connection, (), work).await;
        (answer, began.elapsed(), node.connection().is_some())
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_ends_when_its_connection_is_silent_and_not_while_others_are_answered() {
        let seconds = Duration::from_secs;
        let (answer, took, kept) = attempt_beside(5, seconds(60)).await;
        assert_eq!((answer, took.as_secs(), kept), (Ok(()), 5, true));
        // The deadline ends it too, and says nothing against the connection.
        let ends = [(0, 60, 2500, false), (2, 60, 4500, false), (5, 4, 4000, true)];
        for (answers, deadline, ends_at, keeps) in ends {
            let (answer, took, kept) = attempt_beside(answers, seconds(deadline)).await;
            let Err(Failure::Lost { why, timed_out: true, .. }) = answer else {
                panic!("{answer:?}")
            };
            assert!(took.as_millis().abs_diff(ends_at) < 10, "{took:?}");
            assert_eq!(why.text, format!("a:1: no answer within {} ms", took.as_millis()));
            assert_eq!(kept, keeps);
        }
    }

    /// A call that ends by itself after the attempt timeout, as the transport ends a list's, does not
    /// end the connection that answers others.
    #[tokio::test(start_paused = true)]
    async fn a_call_that_times_out_itself_keeps_a_connection_that_is_not_silent() {
        let pool = pool();
        let node = pool.nth(0).unwrap();
        let connection = node.connect_lazily();
        let attempts = Attempts::new(Target::Leader, Duration::from_secs(60));
        let work = |stub: Stub, (), timeout: Duration| async move {
            tokio::time::sleep(timeout / 2).await;
            stub.heard.now();
            tokio::time::sleep(timeout / 2).await;
            Err::<(), _>(Status::deadline_exceeded("late"))
        };
        attempts.call(&pool, &node, &connection, (), work).await.unwrap_err();
        assert!(node.connection().is_some());
    }
}
