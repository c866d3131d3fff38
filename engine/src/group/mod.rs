//! One replicated group in memory: its log, its keys, and how far the first was applied to the second.

mod keys;
mod log;

pub(crate) use keys::{KEY_RECORD_BYTES, Keys};
pub(crate) use log::{Log, LogEntry, checkpoint_bytes};

use crate::types::{LogId, SharedImage};

/// A group's state. Everything in it is also on the device, or in the queue to it.
#[derive(Default)]
pub(crate) struct Group {
    pub log: Log,
    pub keys: Keys,
    pub applied: Option<LogId>,
    /// What the journal says was applied.
    pub applied_recorded: Option<LogId>,
    /// The log was purged through here before the restart, but is kept for what the checkpoint has not applied.
    pub purge_due: Option<LogId>,
    /// What was applied before the restart.
    pub applied_before: Option<LogId>,
    pub image: Option<SharedImage>,
}
