//! What is measured: small files, raw writes, the shipped engine.

mod blocks;
mod clients;
mod engine_log;
mod files;
mod raw;

pub(crate) use blocks::{BlockWrites, Durable, FileState, Settled, zero_file};
pub use blocks::{raw_writes, sync_filesystem};
pub use clients::{Getter, Putter, ValueBytes};
pub use engine_log::EngineLog;
pub use files::{FileStore, FileSync};
pub use raw::{FileReader, RawReader, RawWriter, make_engine, make_raw_device, open_engine};
pub(crate) use raw::{make_engine_with, open_engine_with};

use crate::measure::{Limit, Payloads, Samples, Stop, drive_until};
use anyhow::Result;
use futures::future::BoxFuture;

/// The load of one round.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// Requests under way.
    pub depth: usize,
    /// When the round ends.
    pub limit: Limit,
    /// Of the random numbers.
    pub seed: u64,
    /// Ends it early.
    pub stop: Stop,
}

/// What a row measures.
pub(crate) trait Subject: Send {
    /// One round of load.
    fn round<'a>(&'a mut self, load: &'a Load) -> BoxFuture<'a, Result<Samples>>;

    /// Ends what runs in the background.
    fn close(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

/// Puts of random values under random keys into the shipped engine.
pub(crate) struct EnginePuts {
    pub log: EngineLog,
    pub payloads: Payloads,
    pub value_bytes: usize,
}

impl Subject for EnginePuts {
    fn round<'a>(&'a mut self, load: &'a Load) -> BoxFuture<'a, Result<Samples>> {
        let (log, payloads) = (&self.log, &self.payloads);
        let putters = Putter::many(log, payloads, self.value_bytes, load.depth, load.seed);
        Box::pin(drive_until(putters, load.limit, &load.stop))
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move { Ok(self.log.engine().close().await?) })
    }
}
