//! From an entry to a synced block of the journal, and on to a checkpoint that covers it.

mod append;
mod checkpointing;
mod failed_sync;
mod lazy;
mod sync;
pub(crate) mod syncer;
mod writer;

pub(crate) use append::Batches;
pub(crate) use writer::Writer;
