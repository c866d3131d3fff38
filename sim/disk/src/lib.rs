//! A disk in memory that loses, tears and damages what a disk may. It knows no time: the simulation
//! and the engine's own tests decide when an operation ends, and ask this crate what it does.
//!
//! ```text
//!   sim: SimDisk        latencies and completions under madsim
//!   engine/tests: Disk  the power goes at a chosen operation
//!            │ epoch-stamped handles
//!   Core                files, locks, fenced handles, digest              (core.rs)
//!            │          arranged errors and damage                     (harm.rs)
//!            │
//!   FileImage           synced image │ completed, not synced │ in flight  (image.rs)
//!                       what kills and power cuts leave                (cut.rs)
//!                       damage at rest                                  (decay.rs)
//!                       operations that do not do what was asked        (wrong.rs)
//! ```
//!
//! There are two kinds of disk. One *honours the contract* of the `device` mode: a completed write
//! survives a power cut, and a write in flight is old or new per 4 KiB block. The other has a
//! volatile cache: only a sync makes writes safe, unsynced writes survive in any order, and a write
//! in flight tears at sectors.
//!
//! Whoever uses the disk arranges errors and damage; the disk applies them.
#![forbid(unsafe_code)]

mod core;
mod cut;
mod decay;
mod harm;
mod image;
mod wrong;

pub use crate::core::{ARRANGED, Core, DiskStats, Failing, Files};
pub use crate::cut::{Damage, FailedSyncs, SECTOR};
pub use crate::decay::Decay;
pub use crate::image::FileImage;
pub use crate::wrong::Wrongs;
