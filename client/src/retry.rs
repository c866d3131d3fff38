//! One request's way to an answer: which node to ask next, how long to wait before, and when to give up.
//!
//! What a failure means is decided in [`Failure::of`]; here only what to do about it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tonic::{Response, Status};

use crate::Error;
use crate::convert::error_detail;
use crate::failure::Failure;
use crate::node::{Connection, Node};
use crate::pool::{Pool, Target};

/// The first delay once every node was asked; doubles up to the maximum.
const BACKOFF: Duration = Duration::from_millis(10);
const MAX_BACKOFF: Duration = Duration::from_millis(250);

/// Hints are followed at once this many times; then they too wait, since nodes can disagree for a while.
const FREE_HOPS: u32 = 3;

/// The attempts of one request.
pub(crate) struct Attempts {
    target: Target,
    deadline: Instant,
    failures: u32,
    cursor: Option<usize>,
    hint: Option<Arc<Node>>,
    /// The node that failed last: another goes first.
    avoid: Option<Arc<Node>>,
    tried: Vec<String>,
    last: Option<Failure>,
}

impl Attempts {
    pub(crate) fn new(target: Target, deadline: Duration) -> Self {
        Attempts {
            target,
            deadline: Instant::now() + deadline,
            failures: 0,
            cursor: None,
            hint: None,
            avoid: None,
            tried: Vec::new(),
            last: None,
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Nodes that were tried so far.
    pub(crate) fn tried(&self) -> usize {
        self.tried.len()
    }

    /// A connection to the node to ask next.
    ///
    /// # Errors
    /// The request's final error, if the deadline passes first or a node belongs to another cluster.
    pub(crate) async fn connection(&mut self, pool: &Pool) -> Result<(Arc<Node>, Arc<Connection>), Error> {
        loop {
            let node = match self.choose(pool, Instant::now()) {
                Ok(node) => node,
                Err(wait) => {
                    self.pause(wait).await?;
                    continue;
                }
            };
            if let Some(connection) = node.connection() {
                return Ok((node, connection));
            }
            let why = match tokio::time::timeout(self.remaining(), pool.connect(&node)).await {
                Ok(Ok(connection)) => return Ok((node, connection)),
                Ok(Err(error @ Error::ClusterMismatch { .. })) => return Err(error),
                Ok(Err(Error::Unavailable { last_error, .. })) => last_error,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no connection before the deadline".to_owned(),
            };
            self.failed(pool, &node, Failure::NotSent(why)).await?;
        }
    }

    /// The node to ask next, or how long to wait until there is one.
    fn choose(&mut self, pool: &Pool, now: Instant) -> Result<Arc<Node>, Duration> {
        if let Some(hint) = self.hint.take().filter(|node| node.cooling(now).is_none()) {
            return Ok(hint);
        }
        let avoided = |node: &Arc<Node>| self.avoid.as_ref().is_some_and(|avoid| Arc::ptr_eq(avoid, node));
        if let Some(node) = pool.favourite(self.target, now).filter(|node| !avoided(node)) {
            return Ok(node);
        }
        let from = self.cursor.unwrap_or(pool.start());
        let mut until: Option<Instant> = None;
        let mut last_resort = None;
        for position in from..from + pool.len() {
            let Some(node) = pool.nth(position) else { continue };
            if let Some(cooling) = node.cooling(now) {
                until = Some(until.map_or(cooling, |earliest| earliest.min(cooling)));
            } else if avoided(&node) {
                last_resort = Some(node);
            } else {
                self.cursor = Some(position + 1);
                return Ok(node);
            }
        }
        let wait = until.map_or(MAX_BACKOFF, |until| until.saturating_duration_since(now));
        last_resort.ok_or(wait)
    }

    /// Takes in that asking `node` failed, and waits as long as that calls for.
    ///
    /// # Errors
    /// The request's final error.
    pub(crate) async fn failed(
        &mut self,
        pool: &Pool,
        node: &Arc<Node>,
        failure: Failure,
    ) -> Result<(), Error> {
        self.failures = self.failures.saturating_add(1);
        if !self.tried.iter().any(|address| address == node.address()) {
            self.tried.push(node.address().to_owned());
        }
        self.hint = match &failure {
            Failure::NotLeader(Some(address)) => pool.at(address),
            // The node that said so leads, and gave the new session its base.
            Failure::SessionExpired => Some(node.clone()),
            _ => None,
        };
        if failure != Failure::SessionExpired {
            pool.doubt(self.target, node);
            self.avoid = Some(node.clone());
        }
        let delay = self.delay(pool, &failure);
        self.last = Some(failure);
        self.pause(delay).await
    }

    fn delay(&self, pool: &Pool, failure: &Failure) -> Duration {
        let nodes = u32::try_from(pool.len()).unwrap_or(u32::MAX);
        let asked_for = match failure {
            Failure::Overloaded(after) | Failure::Full(after) => Some(*after),
            _ => None,
        };
        let hinted = self.hint.is_some() && self.failures <= FREE_HOPS;
        if asked_for.is_none() && (hinted || self.failures < nodes) {
            return Duration::ZERO;
        }
        let doublings = self.failures.saturating_sub(nodes).min(8);
        let backoff = BACKOFF.saturating_mul(1 << doublings).min(MAX_BACKOFF);
        pool.random.jitter(backoff).max(asked_for.unwrap_or_default())
    }

    async fn pause(&self, delay: Duration) -> Result<(), Error> {
        let remaining = self.remaining();
        if remaining.is_zero() || delay >= remaining {
            return Err(self.exhausted());
        }
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        Ok(())
    }

    /// Why the request is given up at its deadline.
    pub(crate) fn exhausted(&self) -> Error {
        let tried = self.tried.clone();
        match &self.last {
            None => Error::DeadlineExceeded {
                last_error: "nothing was sent".to_owned(),
            },
            Some(Failure::NotLeader(_) | Failure::NoLeader) => Error::NoLeader { tried },
            Some(Failure::Overloaded(retry_after)) => Error::Overloaded {
                retry_after: *retry_after,
            },
            Some(Failure::Full(retry_after)) => Error::StorageFull {
                retry_after: *retry_after,
            },
            Some(Failure::SessionExpired) => Error::Unavailable {
                tried,
                last_error: "session expired".to_owned(),
            },
            Some(Failure::Lost { why, timed_out: true }) => Error::DeadlineExceeded {
                last_error: why.clone(),
            },
            Some(Failure::Lost { why, .. } | Failure::NotSent(why)) => Error::Unavailable {
                tried,
                last_error: why.clone(),
            },
            Some(Failure::Unreadable(message)) => Error::ValueUnreadable {
                key: Bytes::new(),
                message: message.clone(),
            },
            Some(Failure::Refused(error)) => error.clone(),
        }
    }

    /// Makes one call over `connection`, no longer than the deadline and an attempt's time-out allow. A connection on
    /// which a whole attempt's time passes without an answer, or which breaks, is not used again.
    pub(crate) async fn call<M, T, F>(
        &self,
        pool: &Pool,
        node: &Arc<Node>,
        connection: &Arc<Connection>,
        message: M,
        call: impl FnOnce(crate::node::Stub, tonic::Request<M>) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let limit = pool.options.attempt_timeout;
        let timeout = self.remaining().min(limit);
        let mut request = tonic::Request::new(message);
        request.set_timeout(timeout);
        let answer = match tokio::time::timeout(timeout, call(connection.stub(), request)).await {
            Ok(answer) => answer,
            Err(_) => Err(Status::deadline_exceeded(format!(
                "{} did not answer within {timeout:?}",
                node.address()
            ))),
        };
        let status = match answer {
            Ok(response) => {
                pool.succeeded(self.target, node);
                return Ok(response.into_inner());
            }
            Err(status) => status,
        };
        let failure = Failure::of(&status);
        match &failure {
            Failure::Lost { timed_out: true, .. } if timeout < limit => {}
            Failure::Lost { .. } if error_detail(&status).is_none() => node.discard(connection),
            Failure::NotSent(why) => node.failed(why, &pool.random),
            _ => {}
        }
        tracing::debug!(endpoint = node.address(), ?failure, "attempt failed");
        Err(failure)
    }
}
