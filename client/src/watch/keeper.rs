//! Keeps a watch at some node: begins it, and begins it anew where a node is left.
//!
//! What holds here: a node that is left is not asked first again, and one that fails again and again is asked with growing pauses,
//! until the watch has got any further. Neither time nor the number of failures alone ends a watch that has begun. It learns who is a
//! member while it lasts.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;

use crate::Error;
use crate::attempts::Attempts;
use crate::failure::Failure;
use crate::limits::check_range;
use crate::node::{Connection, Node, Stub};
use crate::options::LONGEST;
use crate::pool::{Pool, Target};
use crate::proto::{self, ErrorDetail};
use crate::types::Position;
use crate::watch_stream::inbox::Inbox;
use crate::watch_stream::{Left, Over, Watching};

/// A node that told a watch for so long did not fail at once.
const STEADY: Duration = Duration::from_secs(10);
/// How often a watch sees whether it is time to ask for the members.
const MEMBERS: Duration = Duration::from_secs(5);
/// What the error of a watch begins with whose node may not be believed. No other error of a watch does.
const BREACH: &str = "the node told what no node may tell";

/// What is needed to begin a watch at any node.
pub(super) struct Keeper {
    pub(super) pool: Arc<Pool>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) range: proto::Range,
    pub(super) keys_only: bool,
    /// A node has begun it once: then only what no node can change ends it.
    pub(super) has_begun: bool,
}

/// A watch that a node has begun.
pub(super) struct Begun {
    node: Arc<Node>,
    connection: Arc<Connection>,
    watching: Watching,
}

impl Keeper {
    /// Begins the watch at the next node that can, behind what was told.
    ///
    /// # Errors
    /// Why no node can, or none could before the deadline of the attempts.
    pub(super) async fn begin(&self, attempts: &mut Attempts) -> Result<Begun, Error> {
        let pool = &self.pool;
        loop {
            let (node, connection) = attempts.connection(pool).await?;
            if !self.has_begun
                && let Some(limits) = pool.view.limits()
            {
                // One that is too long would end the stream that other watches share.
                check_range(limits, &self.range)?;
            }
            let (turn, after) = self.inbox.restart();
            let begin = proto::WatchBegin {
                id: 0,
                range: Some(self.range.clone()),
                after: after.map(Position::to_proto),
                keys_only: self.keys_only,
            };
            let inbox = self.inbox.clone();
            let call = |stub: Stub, begin, timeout| async move {
                stub.watch(begin, (inbox, turn), timeout).await
            };
            match attempts.call(pool, &node, &connection, begin, call).await {
                Ok(Ok(watching)) => return Ok(Begun { node, connection, watching }),
                Ok(Err(over)) => self.over(attempts, &node, over).await?,
                Err(failure) => self.failed(attempts, &node, failure).await?,
            }
        }
    }

    /// Keeps the watch at some node until it is over.
    pub(super) async fn keep(mut self, mut begun: Begun) {
        self.has_begun = true;
        let mut attempts = resuming();
        let error = loop {
            let (told, since) = (self.inbox.told(), Instant::now());
            let Begun { node, connection, mut watching } = begun;
            let left = self.learning(&node, &connection, watching.left()).await;
            // It ends at the node now, also while the user does not read.
            drop(watching);
            if self.inbox.told() != told || since.elapsed() >= STEADY {
                attempts = resuming();
            }
            let next = match left {
                Left::Full => {
                    self.learning(&node, &connection, self.inbox.emptied()).await;
                    // Its user took as long as that.
                    attempts = resuming();
                    Ok(())
                }
                Left::Elsewhere(status) => {
                    self.left(&mut attempts, (&node, &connection), status).await
                }
                Left::Over(over) => self.over(&mut attempts, &node, over).await,
            };
            if let Err(error) = next {
                break error;
            }
            begun = match self.begin(&mut attempts).await {
                Ok(begun) => begun,
                Err(error) => break error,
            };
        };
        self.inbox.fail(error);
    }

    /// Waits for this, and asks the node for the members meanwhile. The story: a client only watched, so it never began a call
    /// and never learnt the members. All of them were replaced, one after another, and it waited for the first ones for ever.
    async fn learning<T>(
        &self,
        node: &Arc<Node>,
        connection: &Arc<Connection>,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = pin!(work);
        loop {
            if let Ok(done) = tokio::time::timeout(MEMBERS, work.as_mut()).await {
                return done;
            }
            self.pool.refresh_by(node, connection);
        }
    }

    /// The node at which the watch was cannot go on.
    async fn left(
        &self,
        attempts: &mut Attempts,
        (node, connection): (&Arc<Node>, &Arc<Connection>),
        status: Status,
    ) -> Result<(), Error> {
        let failure = Failure::of(&status);
        // Not what the node said: that may name the range.
        tracing::debug!(endpoint = node.address(), failure = failure.kind(), "watch left");
        if ErrorDetail::of(&status).is_none() {
            // The transport said it: what else uses the connection finds out, too.
            node.discard(connection);
        }
        self.failed(attempts, node, failure).await
    }

    /// The node ended the watch, and not for itself alone, or told what no node may tell.
    ///
    /// # Errors
    /// Why the watch is over, unless another node is to be asked.
    async fn over(
        &self,
        attempts: &mut Attempts,
        node: &Arc<Node>,
        over: Over,
    ) -> Result<(), Error> {
        match over {
            Over::Said(Error::Compacted { oldest, now }) => {
                self.failed(attempts, node, Failure::Compacted { oldest, now }).await
            }
            Over::Said(error) => Err(error),
            Over::Breach(breach) => {
                let why = format!("{BREACH}: {breach}");
                Err(Error::unavailable(node.address(), why))
            }
        }
    }

    async fn failed(
        &self,
        attempts: &mut Attempts,
        node: &Arc<Node>,
        failure: Failure,
    ) -> Result<(), Error> {
        let failure = if self.has_begun { of_begun(failure) } else { failure };
        match attempts.ended_by(&self.pool, node, &failure) {
            // The story: of an upgrade that went from member to member, the first one that knew watches was started again. All
            // others said that they know none, and the watches of the first one ended.
            Some(Error::Unsupported { .. }) if self.has_begun => {
                attempts.failed(&self.pool, node, failure).await?;
                attempts.ask_all_again();
                Ok(())
            }
            Some(error) => Err(error),
            None => attempts.failed(&self.pool, node, failure).await,
        }
    }
}

/// What a failure means for a watch that a node has begun. A stream may end for what another watch of it asked, or by what
/// stands between the client and a node: neither says that this watch is invalid.
fn of_begun(failure: Failure) -> Failure {
    match failure {
        Failure::Refused(error)
            if !error.is_denied() && !matches!(error, Error::ClusterMismatch { .. }) =>
        {
            Failure::Lost { why: error.to_string().into(), timed_out: false, answered: true }
        }
        failure => failure,
    }
}

/// Attempts to begin a watch anew: as long as it takes.
fn resuming() -> Attempts {
    Attempts::new(Target::Any, LONGEST).without_effect().lasting()
}
