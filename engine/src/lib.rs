//! Cairn's local engine: one preallocated data directory that is both a replicated log and an ordered key space.
//!
//! ```text
//!            append / truncate / purge            apply                 get / list
//!                     │                             │                       │
//!            ┌────────▼─────────┐  links extents ┌──▼───────────┐           │
//!            │  log namespace   ├───────────────►│ key namespace│◄──────────┘
//!            └────────┬─────────┘   (no copy)    └──┬───────────┘
//!              writer │ gathers requests            │ point-in-time view, O(1)
//!        ┌────────────┼───────────┐          ┌──────▼──────┐
//!        ▼            ▼           ▼          ▼             ▼
//!      data        journal    superblock   checkpoint.0  checkpoint.1
//! ```
//!
//! A value is written once: appending an entry puts its values into extents of the data area and one small record into
//! a journal block; applying the entry points the key at the same extent. Nothing on that path needs filesystem
//! metadata, so a completed write is on the device.
//!
//! Words: **written** = the direct write completed; **synced** = covered by a later completed `fdatasync`.
//!
//! What holds here:
//! - an entry is reported written only after every earlier journal block and value completed;
//! - an extent is reused only after the journal block that freed it is synced and no view can reach it;
//! - a journal block is reclaimed only after a synced checkpoint covers it;
//! - the superblock and checkpoint headers are synced before they count;
//! - a failed write or sync latches the engine as failed; it is never retried as if it had worked;
//! - every value is checked against the hash in the record that names it, on every read.
//!
//! The engine knows nothing of Raft, gRPC or the other crates: a log entry is an id, opaque bytes and values.
//!
//! # Floors
//!
//! A module knows those below it, and others on its own floor, without a circle. The handle lies in
//! `state`; each floor above adds what it can be asked.
//!
//! ```text
//! engine        what callers may ask of the log, the keys and the engine
//! maintain      scrub, repair of extents, install of a snapshot
//! open          format, recovery, what a failed sync or a lost identity comes to, inspection
//! write         append, the writer, syncs, the `lazy` mark, taking a checkpoint
//! state         what all share, by what guards it; views, reads, capacity
//! checkpoint, group, journal, superblock, space, geometry, values   formats and structures
//! io            the device seam
//! types, error, codec
//! ```
#![forbid(unsafe_op_in_unsafe_fn)]

pub mod io;

mod checkpoint;
mod codec;
mod engine;
mod error;
mod geometry;
mod group;
mod journal;
mod maintain;
mod open;
mod space;
mod state;
mod superblock;
mod types;
mod values;
mod write;

pub use error::{Corruption, CorruptionKind, Error, Result};
pub use io::Pace;
pub use maintain::{Checked, Extent, Installer, Owner};
pub use open::{CheckpointArea, Contents, GroupContents, Inspection, Known, Values, inspect};
pub use state::{Engine, Need, View};
pub use types::{
    BootId, Change, EngineStatus, Entry, Geometry, GroupId, Identity, KeyEntry, Lineage, ListItem, ListPage,
    ListQuery, LogBounds, LogId, MachineImage, Mode, NewEntry, Options, Promise, Run, ScrubMark, SharedImage,
    SnapshotKey, Standing, Transition, ValueRef,
};
