//! The simulated disk: an object that outlives its node.
//!
//! ```text
//!   SimDirectory / SimDevice   the engine's seam under madsim: latencies, completions   (device.rs)
//!            │ epoch-stamped handles
//!   Core                       files, locks, fenced handles, digest                      (core.rs)
//!            │                 arranged errors and damage                             (harm.rs)
//!            │
//!   FileImage                  synced image │ completed, not synced │ in flight          (image.rs)
//!                              what kills and power cuts leave                        (ending.rs)
//!                              damage at rest                                         (decay.rs)
//!                              operations that do not do what was asked               (wrong.rs)
//! ```
//!
//! There are two kinds of disk. One *honours the contract* of the `device` mode: a completed write
//! survives a power cut, and a write in flight is old or new per 4 KiB block. The other has a
//! volatile cache: only a sync makes writes safe, unsynced writes survive in any order, and a write
//! in flight tears at sectors.
//!
//! The harness arranges errors, stalls and misread blocks; the disk applies them.

mod core;
mod decay;
#[cfg(madsim)]
mod device;
mod ending;
mod harm;
mod image;
mod wrong;

pub use self::core::{ARRANGED, Core, DiskStats, Failing, Files};
pub use self::decay::Decay;
#[cfg(madsim)]
pub use self::device::{Moment, SimDirectory, SimDisk};
pub use self::ending::{Damage, SECTOR};
pub use self::image::FileImage;
pub use self::wrong::Wrongs;
