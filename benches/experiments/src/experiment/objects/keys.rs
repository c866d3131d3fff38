//! Objects of 4 KiB under keys of an engine.

use crate::measure::{Payloads, Stop};
use crate::subject::{EngineLog, lay_out};
use anyhow::Result;
use bytes::Bytes;
use cairn_engine::io::BLOCK;
use rand::rngs::StdRng;
use std::time::Duration;

/// What all clients of an engine share.
#[derive(Clone)]
pub(super) struct Keys {
    pub log: EngineLog,
    payloads: Payloads,
}

impl Keys {
    pub(super) fn new(log: EngineLog, payloads: &Payloads) -> Keys {
        Keys { log, payloads: payloads.clone() }
    }

    /// Puts an object.
    pub(super) async fn put(&self, object: u64, rng: &mut StdRng) -> Result<()> {
        self.log.put(key(object), self.payloads.value(rng, BLOCK)).await
    }

    /// Deletes an object.
    pub(super) async fn delete(&self, object: u64) -> Result<()> {
        self.log.delete(key(object)).await
    }

    /// Puts so many objects, in order, until the time is over. Returns how many it put.
    ///
    /// # Errors
    /// The engine's; `Stopped`.
    pub(super) async fn lay_out(&self, objects: u64, time: Duration, stop: &Stop) -> Result<u64> {
        lay_out(&self.log, &self.payloads, key, objects, time, stop).await
    }
}

/// A key of 16 bytes.
fn key(object: u64) -> Bytes {
    Bytes::from(format!("{object:016x}"))
}
