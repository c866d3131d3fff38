//! Reads of several keys at one log index.

use std::pin::pin;

use bytes::Bytes;
use tokio::time::Instant;

use crate::limits::check_keys;
use crate::node::Stub;
use crate::spans;
use crate::types::{KeyValue, Position, Version};
use crate::{Client, Error, proto};

/// Several keys at one log index.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Many {
    /// One for each key, in the order asked; `None` if the key does not exist.
    pub items: Vec<Option<KeyValue>>,
    /// The last entry of the log whose changes they show.
    pub position: Position,
}

impl Client {
    /// Values and versions of several keys at one log index, in the order asked. At most
    /// [`Limits::max_batch_operations`](crate::Limits::max_batch_operations) keys, and together no more than
    /// a page of a list has by the server's configuration. Linearizable, or as old as
    /// [`Client::with_max_staleness`] allows.
    ///
    /// ```no_run
    /// # async fn example(client: cairn_client::Client) -> Result<(), cairn_client::Error> {
    /// let both = client.get_many(["accounts/eve", "accounts/bob"]).await?;
    /// for account in both.items.iter().flatten() {
    ///     println!("{:?} at index {}", account.value, both.position.index);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Client::get`]; [`Error::RequestTooLarge`] with too many keys, or if their values are too much
    /// for one answer; [`Error::InvalidRequest`] without a key; [`Error::Unsupported`] if every member runs
    /// an earlier release.
    pub async fn get_many(
        &self,
        keys: impl IntoIterator<Item = impl Into<Bytes>>,
    ) -> Result<Many, Error> {
        self.many(keys.into_iter().map(Into::into).collect(), false).await
    }

    /// The same without the values, which are not read: they are empty in the answer.
    ///
    /// # Errors
    /// As [`Client::get_many`].
    pub async fn versions(
        &self,
        keys: impl IntoIterator<Item = impl Into<Bytes>>,
    ) -> Result<Many, Error> {
        self.many(keys.into_iter().map(Into::into).collect(), true).await
    }

    async fn many(&self, keys: Vec<Bytes>, version_only: bool) -> Result<Many, Error> {
        let work = pin!(self.found_many(keys, version_only));
        spans::within(spans::get_many(), work, |many| Some(many.position.index)).await
    }

    async fn found_many(&self, keys: Vec<Bytes>, version_only: bool) -> Result<Many, Error> {
        let began = Instant::now();
        // Too many keys would end the stream that other requests share.
        check_keys(self.limits().await?, &keys)?;
        let client = self.with_deadline(self.deadline.saturating_sub(began.elapsed()));
        let (target, max_stale_ms) = client.freshness(false);
        let message = || proto::GetManyRequest { keys: keys.clone(), max_stale_ms, version_only };
        let call =
            |stub: Stub, request, timeout| async move { stub.get_many(request, timeout).await };
        let answer = client.read(target, message, call).await;
        let answer = answer.map_err(|error| error.of_counted("keys", keys.len()))?;
        let Some(at) = answer.at.filter(|_| answer.items.len() == keys.len()) else {
            let (asked, told) = (keys.len(), answer.items.len());
            return Err(Error::InvalidRequest(format!(
                "the server was asked for {asked} keys, and answered {told} without saying at which entry, or not all"
            )));
        };
        let item = |(key, got): (Bytes, proto::GetResponse)| {
            let version = Version(got.version);
            got.found.then_some(KeyValue { key, value: got.value, version })
        };
        Ok(Many {
            items: keys.into_iter().zip(answer.items).map(item).collect(),
            position: Position { term: at.term, index: at.index },
        })
    }
}
