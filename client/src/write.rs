//! Puts and deletes of one key, and the retries of every write.
//!
//! A write keeps its session and sequence number over all attempts, so retrying it is safe while
//! the servers know the session. Once an attempt may have had an effect, only a result ends the
//! write. Any other end is an unknown outcome.

use std::pin::pin;

use bytes::Bytes;

use crate::attempts::Attempts;
use crate::convert;
use crate::error::Why;
use crate::failure::Failure;
use crate::limits::check_operations;
use crate::node::Connection;
use crate::pool::{Pool, Target};
use crate::proto;
use crate::session::Ticket;
use crate::spans;
use crate::types::{Condition, FailedCondition, Version, WriteInfo};
use crate::{Client, Error};

impl Client {
    /// Puts a value, whether or not the key exists.
    ///
    /// # Errors
    /// [`Error::OutcomeUnknown`] if the write may have been applied; all others mean that it was
    /// not.
    pub async fn put(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> Result<WriteInfo, Error> {
        self.put_if(key, value, Condition::None).await
    }

    /// Puts a value if the key does not exist.
    ///
    /// # Errors
    /// [`Error::ConditionFailed`] if it exists; else as [`Client::put`].
    pub async fn put_if_absent(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> Result<WriteInfo, Error> {
        self.put_if(key, value, Condition::Absent).await
    }

    /// Puts a value if the key exists with exactly this version.
    ///
    /// # Errors
    /// [`Error::ConditionFailed`] if it does not; else as [`Client::put`].
    pub async fn put_if_version(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        version: Version,
    ) -> Result<WriteInfo, Error> {
        self.put_if(key, value, Condition::Version(version)).await
    }

    /// Puts a value if the condition holds.
    ///
    /// # Errors
    /// [`Error::ConditionFailed`] if it does not; else as [`Client::put`].
    pub async fn put_if(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        condition: Condition,
    ) -> Result<WriteInfo, Error> {
        self.write_one(convert::put(key.into(), value.into(), condition)).await
    }

    /// Deletes a key. [`WriteInfo::previous`] says whether it existed.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub async fn delete(&self, key: impl Into<Bytes>) -> Result<WriteInfo, Error> {
        self.delete_if(key, Condition::None).await
    }

    /// Deletes a key if it exists with exactly this version.
    ///
    /// # Errors
    /// [`Error::ConditionFailed`] if it does not; else as [`Client::put`].
    pub async fn delete_if_version(
        &self,
        key: impl Into<Bytes>,
        version: Version,
    ) -> Result<WriteInfo, Error> {
        self.delete_if(key, Condition::Version(version)).await
    }

    /// Deletes a key if the condition holds.
    ///
    /// # Errors
    /// [`Error::ConditionFailed`] if it does not; else as [`Client::put`].
    pub async fn delete_if(
        &self,
        key: impl Into<Bytes>,
        condition: Condition,
    ) -> Result<WriteInfo, Error> {
        self.write_one(convert::delete(key.into(), condition)).await
    }

    async fn write_one(&self, operation: proto::Operation) -> Result<WriteInfo, Error> {
        let response = self.write(vec![operation]).await?;
        Ok(WriteInfo {
            version: Version(response.index),
            term: response.term,
            previous: response.results.first().and_then(convert::previous),
        })
    }

    /// Applies all of the operations or none, and at most once.
    pub(crate) async fn write(
        &self,
        operations: Vec<proto::Operation>,
    ) -> Result<proto::WriteResponse, Error> {
        let span = spans::write(operations.len(), self.synced);
        let work = pin!(self.applied(operations));
        spans::within(span, work, |response| Some(response.index)).await
    }

    async fn applied(
        &self,
        operations: Vec<proto::Operation>,
    ) -> Result<proto::WriteResponse, Error> {
        let pool = &self.pool;
        check_operations(pool.view.limits(), &operations)?;
        // One attempt may take all the time: a slow node that gets the same write again is slower.
        let mut attempts =
            Attempts::new(Target::Leader, self.deadline).answered_within(self.deadline);
        let permits = &pool.sessions.permits;
        let _permit = match permits.try_acquire() {
            Ok(permit) => Ok(permit),
            // The semaphore is never closed.
            Err(_) => tokio::time::timeout(attempts.remaining(), permits.acquire())
                .await
                .map_err(|_| Error::deadline_exceeded("waiting for other writes of this client"))?,
        };
        let mut write = Write { operations, synced: self.synced, ticket: None, in_doubt: None };
        match write.run(pool, &mut attempts).await {
            Ok(response) if response.applied => Ok(response),
            Ok(response) => Err(write.condition_failed(&response)),
            Err(error) => Err(match write.in_doubt {
                Some(why) => Error::outcome_unknown(why),
                None => error,
            }),
        }
    }
}

/// A write that is being sent.
struct Write {
    operations: Vec<proto::Operation>,
    synced: bool,
    ticket: Option<Ticket>,
    /// Why the outcome of an attempt is unknown; of the last such attempt.
    in_doubt: Option<Why>,
}

impl Write {
    async fn run(
        &mut self,
        pool: &Pool,
        attempts: &mut Attempts,
    ) -> Result<proto::WriteResponse, Error> {
        loop {
            let (node, connection) = attempts.connection(pool).await?;
            if self.ticket.is_none() {
                // This connection may have been the first to report the limits.
                check_operations(pool.view.limits(), &self.operations)?;
            }
            let ticket = self.ticket.get_or_insert_with(|| pool.sessions.begin(&pool.random));
            let session = Some(ticket.to_proto());
            let message = proto::WriteRequest {
                session,
                operations: self.operations.clone(),
                synced: self.synced,
            };
            let answer = attempts
                .call(pool, &node, &connection, message, |stub, request, timeout| async move {
                    stub.write(request, timeout).await
                })
                .await;
            let failure = match answer {
                Ok(response) => {
                    pool.sessions.observe(response.index);
                    return Ok(response);
                }
                Err(failure) => failure,
            };
            match &failure {
                // The client has come to stay with another generation than the one that this was sent
                // to.
                Failure::Refused(error @ Error::ClusterMismatch { .. }) => {
                    self.in_doubt = Some(error.to_string().into());
                    return Err(error.clone());
                }
                Failure::Refused(error) => {
                    return Err(error.clone().of_counted("operations", self.operations.len()));
                }
                // If an earlier attempt is in doubt, its result may still become known when there
                // is space again.
                Failure::Full(retry_after, why) if self.in_doubt.is_none() => {
                    return Err(Error::StorageFull { retry_after: *retry_after, why: why.clone() });
                }
                Failure::SessionExpired => {
                    self.start_new_session(pool, attempts, &connection).await?
                }
                _ => {}
            }
            if let Some(why) = failure.may_have_effect() {
                self.in_doubt = Some(why.clone());
            }
            attempts.failed(pool, &node, failure).await?;
        }
    }

    /// Starts a new session after the servers forgot this write's session. If that fails, the next
    /// attempt meets the forgotten session again.
    ///
    /// # Errors
    /// If an earlier attempt may have had an effect: then the write must not be sent under another
    /// session, or it could be applied twice.
    async fn start_new_session(
        &mut self,
        pool: &Pool,
        attempts: &Attempts,
        connection: &Connection,
    ) -> Result<(), Error> {
        if let Some(why) = self.in_doubt.take() {
            let text = format!("{why}; then the session expired");
            return Err(Error::outcome_unknown(Why { text, ..why }));
        }
        let Some(ticket) = self.ticket.take() else {
            return Ok(());
        };
        let mut stub = connection.stub();
        let timeout = attempts.remaining().min(pool.options.attempt_timeout);
        let base = async { stub.hello(timeout).await.map(|hello| hello.applied_index) };
        let renewed = tokio::time::timeout(timeout, pool.sessions.renew(&ticket, base)).await;
        tracing::debug!(
            renewed = matches!(renewed, Ok(Ok(()))),
            "the servers forgot this client's session"
        );
        Ok(())
    }

    fn condition_failed(&self, response: &proto::WriteResponse) -> Error {
        let failed = self.operations.iter().zip(&response.results).enumerate();
        let failed = failed.filter(|(_, (_, result))| !result.condition_held).map(
            |(operation, (op, result))| FailedCondition {
                operation,
                key: Bytes::copy_from_slice(convert::key_and_value(op).0),
                version: convert::previous(result),
            },
        );
        Error::ConditionFailed { failed: failed.collect(), at: Version(response.index) }
    }
}
