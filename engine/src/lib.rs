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
#![forbid(unsafe_op_in_unsafe_fn)]

pub mod io;

mod append;
mod checkpoint;
mod checkpointing;
mod codec;
mod engine;
mod error;
mod extent;
mod failed_sync;
mod geometry;
mod group;
mod inspect;
mod install;
mod journal;
mod lazy;
mod lost_identity;
mod mark;
mod open;
mod recovery;
mod room;
mod scrub;
mod settle;
mod shared;
mod space;
mod superblock;
mod syncer;
mod types;
mod values;
mod view;
mod writer;

pub use engine::Engine;
pub use error::{Corruption, CorruptionKind, Error, Result};
pub use extent::{Extent, Owner};
pub use inspect::{CheckpointArea, Contents, GroupContents, Inspection, Known, Values, inspect};
pub use install::Installer;
pub use io::Pace;
pub use room::Need;
pub use scrub::Checked;
pub use types::{
    BootId, Change, EngineStatus, Entry, Geometry, GroupId, Identity, KeyEntry, Lineage, ListItem, ListPage,
    ListQuery, LogBounds, LogId, MachineImage, Mode, NewEntry, Options, Promise, Run, ScrubMark, SharedImage,
    SnapshotKey, Standing, Transition, ValueRef,
};
pub use view::View;
