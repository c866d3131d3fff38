//! The write path: from an entry to a synced block of the journal, and to a checkpoint that covers
//! it.

mod append;
mod checkpointing;
mod coalesce;
mod compact;
mod failed_sync;
mod group_commit;
mod spare;
mod sync;
pub(crate) mod syncer;
mod unsynced_acks;
mod writer;

pub(crate) use append::PreparedAppend;
pub(crate) use coalesce::{coalesce, plan_writes};
pub(crate) use compact::Compactor;
pub(crate) use writer::Writer;
