//! The types that the engine and its callers share.
//!
//! ```text
//! directory   whose a data directory is, its files, what became of it
//! options     how an engine runs, and what it promises
//! log         groups, positions, entries and their values
//! keys        what applying an entry does to keys, and how they are listed
//! status      what an engine tells of itself
//! ```

mod directory;
mod keys;
mod log;
mod options;
mod status;

pub use crate::value_ref::{Run, ValueRef};
pub use directory::{
    BootEpoch, FencingHistory, FileKind, Geometry, Identity, KernelBootId, MemberState,
};
pub use keys::{
    Change, KeyEntry, ListItem, ListPage, ListQuery, MachineImage, SharedImage, SnapshotKey,
    Transition, prefix_end,
};
pub use log::{Entry, GroupId, LogBounds, LogId, NewEntry, Promise, Value};
pub use options::{Mode, Options, UNSYNCED_PER_SYNC};
pub use status::{CacheStatus, EngineStatus, ScrubProgress, SpaceUse};
