//! One request's way to an answer: which node to ask next, how long to wait before, and when to give up.
//!
//! What a failure means is decided in [`Failure::of`] alone; above all whether the request may have had an effect.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tonic::{Code, Response, Status};

use crate::Error;
use crate::convert::{describe, error_detail, retry_after};
use crate::node::{Connection, Node};
use crate::pool::{Pool, Target};
use crate::proto;
use crate::proto::error_detail::Reason;

/// The first delay once every node was asked; doubles up to the maximum.
const BACKOFF: Duration = Duration::from_millis(10);
const MAX_BACKOFF: Duration = Duration::from_millis(250);

/// Hints are followed at once this many times; then they too wait, since nodes can disagree for a while.
const FREE_HOPS: u32 = 3;

/// Why one attempt gave no answer, and what that means for the next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Failure {
    /// Another node leads, perhaps the one at this address. The request had no effect.
    NotLeader(Option<String>),
    /// No node leads at the moment. The request had no effect.
    NoLeader,
    /// The node wants fewer requests. The request had no effect.
    Overloaded(Duration),
    /// The storage is full. The request had no effect.
    Full(Duration),
    /// The session is not known any more. This attempt had no effect.
    SessionExpired,
    /// The value exists and cannot be read here.
    Unreadable(String),
    /// The connection was refused: the request was not sent.
    NotSent(String),
    /// The request may have been received and may take effect, now or later.
    Lost { why: String, timed_out: bool },
    /// The request is refused for good. It had no effect.
    Refused(Error),
}

impl Failure {
    pub(crate) fn of(status: &Status) -> Failure {
        match error_detail(status) {
            Some(detail) => Failure::of_detail(&detail, status),
            None => Failure::of_status(status),
        }
    }

    fn of_detail(detail: &proto::ErrorDetail, status: &Status) -> Failure {
        let why = || status.message().to_owned();
        match detail.reason() {
            Reason::NotLeader => {
                let hint = detail.leader.as_ref().map(|leader| leader.client_address.clone());
                Failure::NotLeader(hint.filter(|address| !address.is_empty()))
            }
            Reason::NoLeader => Failure::NoLeader,
            Reason::Overloaded => Failure::Overloaded(retry_after(detail)),
            Reason::StorageFull => Failure::Full(retry_after(detail)),
            Reason::SessionExpired => Failure::SessionExpired,
            Reason::ValueUnreadable => Failure::Unreadable(why()),
            Reason::KeyInvalid => Failure::Refused(Error::InvalidKey {
                limit: detail.limit,
                actual: detail.actual,
            }),
            Reason::ValueTooLarge => Failure::Refused(Error::ValueTooLarge {
                limit: detail.limit,
                actual: detail.actual,
            }),
            Reason::RequestTooLarge => Failure::Refused(Error::RequestTooLarge {
                unit: if detail.limit <= u64::from(u16::MAX) {
                    "operations"
                } else {
                    "bytes"
                },
                limit: detail.limit,
                actual: detail.actual,
            }),
            Reason::OutcomeUnknown | Reason::Stopped | Reason::Unspecified => Failure::Lost {
                why: why(),
                timed_out: false,
            },
        }
    }

    fn of_status(status: &Status) -> Failure {
        if connection_refused(status) {
            return Failure::NotSent(describe(status));
        }
        match status.code() {
            Code::InvalidArgument => Failure::Refused(Error::InvalidRequest(status.message().to_owned())),
            Code::DeadlineExceeded | Code::Cancelled => Failure::Lost {
                why: status.message().to_owned(),
                timed_out: true,
            },
            _ => Failure::Lost {
                why: describe(status),
                timed_out: false,
            },
        }
    }

    /// If the attempt may have had an effect, or may have one yet: why that is not known.
    pub(crate) fn may_have_effect(&self) -> Option<&str> {
        match self {
            Failure::Lost { why, .. } => Some(why),
            _ => None,
        }
    }
}

/// A refused connection is told by its error and by nothing else: established connections never report it.
fn connection_refused(status: &Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return io.kind() == std::io::ErrorKind::ConnectionRefused;
        }
        cause = error.source();
    }
    false
}

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
        pool.doubt(self.target, node);
        self.avoid = Some(node.clone());
        self.hint = match &failure {
            Failure::NotLeader(Some(address)) => pool.at(address),
            _ => None,
        };
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
