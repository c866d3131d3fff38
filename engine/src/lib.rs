//! Cairn's local engine: one preallocated data directory that is both a replicated log and an
//! ordered key space.
//!
//! ```text
//!            append / truncate / purge            apply                 get / list
//!                     │                             │                       │
//!            ┌────────▼─────────┐  links extents ┌──▼───────────┐           │
//!            │  log namespace   ├───────────────►│ key namespace│◄──────────┘
//!            └────────┬─────────┘   (no copy)    └──┬───────────┘
//!              writer │ batches requests            │ point-in-time view, O(1)
//!        ┌────────────┼───────────┐          ┌──────▼──────┐
//!        ▼            ▼           ▼          ▼             ▼
//!      data        journal    superblock   checkpoint.0  checkpoint.1
//! ```
//!
//! A value is written once. Appending an entry puts its values into extents of the data area and
//! one small record into a journal block. Applying the entry points the key at the same extent.
//! Nothing on that path needs filesystem metadata, so a completed write is on the device.
//!
//! Words: **written** = the direct write completed; **synced** = covered by a later completed
//! `fdatasync`.
//!
//! What holds here:
//! - An entry is reported written only after every earlier journal block and value completed.
//! - An extent is reused only after the journal block that freed it is synced, a synced block says
//!   so, and no view can reach the extent.
//! - A journal block is reclaimed only after a synced checkpoint covers it.
//! - The superblock and checkpoint headers are synced before they count.
//! - A failed write or sync latches the engine as failed. The engine never retries it.
//! - Every read checks the value against the hash in the record that names it.
//!
//! The engine does not know Raft, gRPC or the other crates. To it a log entry is an id, opaque
//! bytes and values.
//!
//! # Floors
//!
//! A module uses modules on lower floors and on its own floor, without a cycle. The handle
//! [`Engine`] is defined in `state`; that floor and those above add its methods.
//!
//! ```text
//! engine        the methods of the handle: log, keys, state of the engine
//! maintain      scrub, repair of extents, install of a snapshot
//! open          format, recovery, open after a failed sync, a lost identity, inspection
//! write         append, the writer, syncs, the unsynced-ack flag, taking a checkpoint
//! state         shared state, by the lock that guards it; views, reads, capacity
//! checkpoint, group, journal, superblock, space, geometry, values   formats and structures
//! index         an ordered map with an O(1) copy
//! io            the device seam
//! types, error, value_ref, layout, codec
//! ```
#![forbid(unsafe_op_in_unsafe_fn)]

pub mod io;

mod checkpoint;
mod codec;
mod engine;
mod error;
mod geometry;
mod group;
#[doc(hidden)]
pub mod index;
mod journal;
mod latency;
mod layout;
mod maintain;
mod open;
mod space;
mod state;
mod superblock;
mod types;
mod value_ref;
mod values;
mod write;

pub use error::{Corruption, Error, Result};
pub use geometry::Sizing;
pub use io::Pace;
pub use latency::{Latencies, Latency, LatencyCounts};
pub use maintain::{Checked, Extent, Installer, Owner, scrub_spans, scrub_window};
pub use open::{
    CheckpointArea, Contents, GroupContents, Growth, Inspection, Known, Values, inspect,
};
pub use space::data_reserve_bytes;
pub use state::{Engine, Need, View};
pub use types::{
    BootEpoch, CacheStatus, Change, EngineStatus, Entry, FencingHistory, Geometry, GroupId,
    Identity, KernelBootId, KeyEntry, ListItem, ListPage, ListQuery, LogBounds, LogId,
    MachineImage, MemberState, Mode, NewEntry, Options, Promise, Run, ScrubProgress, SharedImage,
    SnapshotKey, SpaceUse, Transition, UNSYNCED_PER_SYNC, Value, ValueRef, prefix_end,
};
