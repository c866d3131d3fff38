//! Several operations applied together or not at all.

use bytes::Bytes;

use crate::types::{BatchInfo, Condition, Version};
use crate::{Client, Error, convert, limits, proto};

/// An atomic batch: add operations, then commit.
///
/// All conditions are checked against the state before the batch. If all hold, the changes are
/// applied in order under one version; of several changes to one key the last one counts. If one
/// does not hold, nothing changes.
///
/// **A batch has bounds**: 128 operations, checks among them, and as many bytes of keys and values as the servers take in one
/// request; an operator may have set others ([`Client::limits`]). [`Batch::is_full`] says when it has that many operations. One
/// that has more is refused with both numbers before anything is sent ([`Error::RequestTooLarge`]).
///
/// ```no_run
/// # async fn example(client: cairn_client::Client) -> Result<(), cairn_client::Error> {
/// let moved = client
///     .batch()
///     .check_absent("accounts/eve/frozen")
///     .put("accounts/eve", "70")
///     .put("accounts/bob", "130")
///     .delete("transfers/17")
///     .commit()
///     .await?;
/// println!("moved at {}", moved.version);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a batch does nothing until it is committed"]
pub struct Batch {
    client: Client,
    operations: Vec<proto::Operation>,
}

impl Client {
    /// An empty batch.
    pub fn batch(&self) -> Batch {
        Batch { client: self.clone(), operations: Vec::new() }
    }
}

impl Batch {
    /// Puts a value.
    pub fn put(self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.put_if(key, value, Condition::None)
    }

    /// Puts a value; the batch is applied only if the condition holds.
    pub fn put_if(
        self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        condition: Condition,
    ) -> Self {
        self.with(convert::put(key.into(), value.into(), condition))
    }

    /// Deletes a key if it exists.
    pub fn delete(self, key: impl Into<Bytes>) -> Self {
        self.delete_if(key, Condition::None)
    }

    /// Deletes a key; the batch is applied only if the condition holds.
    pub fn delete_if(self, key: impl Into<Bytes>, condition: Condition) -> Self {
        self.with(convert::delete(key.into(), condition))
    }

    /// The batch is applied only if the condition on the key holds.
    pub fn check(self, key: impl Into<Bytes>, condition: Condition) -> Self {
        self.with(convert::check(key.into(), condition))
    }

    /// The batch is applied only if the key does not exist.
    pub fn check_absent(self, key: impl Into<Bytes>) -> Self {
        self.check(key, Condition::Absent)
    }

    /// The batch is applied only if the key exists.
    pub fn check_exists(self, key: impl Into<Bytes>) -> Self {
        self.check(key, Condition::Exists)
    }

    /// The batch is applied only if the key exists with exactly this version.
    pub fn check_version(self, key: impl Into<Bytes>, version: Version) -> Self {
        self.check(key, Condition::Version(version))
    }

    /// How many operations the batch has.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether the batch has no operation; such a batch cannot be committed.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Whether the batch has as many operations as the servers take. A client that no server has told its limits yet
    /// takes them for the usual ones.
    pub fn is_full(&self) -> bool {
        limits::is_full(self.client.pool.view.limits(), self.operations.len())
    }

    /// Applies the whole batch or nothing, and at most once.
    ///
    /// # Errors
    /// [`Error::ConditionFailed`] with all conditions that did not hold;
    /// [`Error::RequestTooLarge`] with the bound, if it has more operations or bytes than the servers take;
    /// [`Error::InvalidRequest`] if the batch is empty; else as [`Client::put`].
    pub async fn commit(self) -> Result<BatchInfo, Error> {
        let response = self.client.write(self.operations).await?;
        Ok(BatchInfo {
            version: Version(response.index),
            term: response.term,
            previous: response.results.iter().map(convert::previous).collect(),
        })
    }

    fn with(mut self, operation: proto::Operation) -> Self {
        self.operations.push(operation);
        self
    }
}
