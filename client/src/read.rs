//! Reads of one key, and the retries of every read.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use tonic::Status;

use crate::attempts::Attempts;
use crate::limits::check_key;
use crate::node::Stub;
use crate::pool::Target;
use crate::proto;
use crate::spans;
use crate::types::{KeyValue, Version};
use crate::{Client, Error};

/// How to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadOptions {
    /// Answer from the applied state of the node that is asked, however old. Default: linearizable, or as
    /// [`Client::with_max_staleness`] says.
    pub stale: bool,
    /// Leave the value out.
    pub version_only: bool,
}

impl ReadOptions {
    /// A read from any node, however old its state.
    pub fn stale() -> Self {
        ReadOptions { stale: true, ..ReadOptions::default() }
    }

    /// Leaves the value out of the answer.
    pub fn version_only(mut self) -> Self {
        self.version_only = true;
        self
    }
}

impl Client {
    /// The value and version of a key, `None` if it does not exist. Linearizable.
    ///
    /// # Errors
    /// [`Error::ValueUnreadable`] if the key exists and its value is damaged; never `None` for
    /// that.
    pub async fn get(&self, key: impl Into<Bytes>) -> Result<Option<KeyValue>, Error> {
        self.get_with(key, ReadOptions::default()).await
    }

    /// The value and version of a key as some node has it, however old.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn get_stale(&self, key: impl Into<Bytes>) -> Result<Option<KeyValue>, Error> {
        self.get_with(key, ReadOptions::stale()).await
    }

    /// The value and version of a key as the node at `endpoint` (`host:port`) has it, however old.
    /// Asks no other node.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the reason if the node does not answer or may not be read now;
    /// [`Error::InvalidOptions`] if `endpoint` is not an address.
    pub async fn get_stale_at(
        &self,
        endpoint: &str,
        key: impl Into<Bytes>,
    ) -> Result<Option<KeyValue>, Error> {
        let key = key.into();
        check_key(self.pool.view.limits(), &key)?;
        let request =
            proto::GetRequest { key: key.clone(), stale: true, ..proto::GetRequest::default() };
        let call = |stub: Stub, timeout| async move { stub.get(request, timeout).await };
        let got = self.ask_one(endpoint, self.pool.options.attempt_timeout, call).await?;
        Ok(got.found.then_some(KeyValue { key, value: got.value, version: Version(got.version) }))
    }

    /// The version of a key, `None` if it does not exist. Linearizable; the value is not read.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn version(&self, key: impl Into<Bytes>) -> Result<Option<Version>, Error> {
        let item = self.get_with(key, ReadOptions::default().version_only()).await?;
        Ok(item.map(|item| item.version))
    }

    /// Reads a key with options.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn get_with(
        &self,
        key: impl Into<Bytes>,
        options: ReadOptions,
    ) -> Result<Option<KeyValue>, Error> {
        let work = pin!(self.found(key.into(), options));
        let version = |found: &Option<KeyValue>| found.as_ref().map(|item| item.version.0);
        spans::within(spans::get(options.stale), work, version).await
    }

    async fn found(&self, key: Bytes, options: ReadOptions) -> Result<Option<KeyValue>, Error> {
        check_key(self.pool.view.limits(), &key)?;
        let (target, max_stale_ms) = self.freshness(options.stale);
        let message = || proto::GetRequest {
            key: key.clone(),
            stale: options.stale,
            version_only: options.version_only,
            max_stale_ms,
        };
        let call = |stub: Stub, request, timeout| async move { stub.get(request, timeout).await };
        match self.read(target, message, call).await {
            Ok(got) => Ok(got.found.then_some(KeyValue {
                key,
                value: got.value,
                version: Version(got.version),
            })),
            Err(Error::ValueUnreadable { message, .. }) => {
                Err(Error::ValueUnreadable { key, message })
            }
            Err(error) => Err(error),
        }
    }

    /// Asks until a node answers or the deadline passes. `message` creates the message of each
    /// attempt.
    pub(crate) async fn read<M, T, F>(
        &self,
        target: Target,
        message: impl Fn() -> M,
        call: impl Fn(Stub, M, Duration) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let attempts = Attempts::new(target, self.deadline).without_effect();
        self.ask(attempts, message, call).await
    }

    pub(crate) async fn ask<M, T, F>(
        &self,
        mut attempts: Attempts,
        message: impl Fn() -> M,
        call: impl Fn(Stub, M, Duration) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let pool = &self.pool;
        loop {
            let (node, connection) = attempts.connection(pool).await?;
            let failure = match attempts.call(pool, &node, &connection, message(), &call).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            if let Some(error) = attempts.ended_by(pool, &node, &failure) {
                return Err(error);
            }
            attempts.failed(pool, &node, failure).await?;
        }
    }
}
