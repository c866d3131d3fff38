//! Reading values: from memory while their write is in flight.

use super::Shared;
use crate::error::{Error, Result};
use crate::types::{KeyEntry, LogId, ValueRef};
use crate::values::{read_value, read_values};
use bytes::Bytes;
use std::sync::atomic::Ordering;

impl Shared {
    /// Reads a value, from memory while its write is in flight. Does not count damage.
    pub(crate) async fn read_quietly(&self, at: &ValueRef, log_id: LogId) -> Result<Bytes> {
        match self.in_flight(at) {
            Some(value) => Ok(value),
            None => read_value(&self.files.data, at, log_id).await,
        }
    }

    /// A value whose write is in flight.
    fn in_flight(&self, at: &ValueRef) -> Option<Bytes> {
        let value = self.state.lock().unwritten.get(&at.offset()).cloned();
        value.filter(|value| at.matches(value))
    }

    /// The same of a key's value, which stays in memory for as long as it is read often.
    pub(crate) async fn read_of_key(&self, entry: &KeyEntry) -> Result<Bytes> {
        if let Some(value) = self.values.get(&entry.value, entry.version) {
            return Ok(value);
        }
        // It is part of a message, all of which would stay in memory with it.
        if let Some(value) = self.in_flight(&entry.value) {
            return Ok(value);
        }
        let value = read_value(&self.files.data, &entry.value, entry.version).await?;
        self.values.keep(&entry.value, entry.version, &value);
        Ok(value)
    }

    /// The same, counting damage.
    pub(crate) async fn read(&self, at: &ValueRef, log_id: LogId) -> Result<Bytes> {
        self.read_quietly(at, log_id).await.map_err(|error| self.counted(error))
    }

    /// Reads many values, with adjacent ones in one read. Returns what `take` makes of each. Does
    /// not count damage.
    pub(crate) async fn read_all_quietly<T: Send>(
        &self,
        values: &[(ValueRef, LogId)],
        take: impl Fn(Result<Bytes>) -> T + Copy + Send,
    ) -> Vec<T> {
        let unwritten: Vec<Option<Bytes>> = {
            let state = self.state.lock();
            values.iter().map(|(at, _)| state.unwritten.get(&at.offset()).cloned()).collect()
        };
        let in_memory = unwritten.into_iter().zip(values);
        // The caller looked up the extents earlier; they may belong to other values now.
        let in_memory = in_memory.map(|(bytes, (at, _))| bytes.filter(|bytes| at.matches(bytes)));
        let in_memory: Vec<Option<Bytes>> = in_memory.collect();
        let on_device = in_memory.iter().zip(values).filter(|(bytes, _)| bytes.is_none());
        let on_device: Vec<(ValueRef, LogId)> = on_device.map(|(_, value)| value.clone()).collect();
        let mut read = read_values(&self.files.data, &on_device, take).await.into_iter();
        let found = in_memory.into_iter().map(|bytes| match bytes {
            Some(bytes) => take(Ok(bytes)),
            None => read.next().unwrap_or_else(|| take(Err(Error::Closed))),
        });
        found.collect()
    }

    /// Reads many values, each with its own result. Counts damage.
    pub(crate) async fn read_all(&self, values: &[(ValueRef, LogId)]) -> Vec<Result<Bytes>> {
        self.read_all_quietly(values, |read| read.map_err(|error| self.counted(error))).await
    }

    pub(crate) fn counted(&self, error: Error) -> Error {
        if matches!(error, Error::Corrupt(_)) {
            self.counters.corrupt_values.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%error, "a value does not match its hash");
        }
        error
    }
}
