//! A disk that keeps its promise about synced writes and nothing more.
//!
//! ```text
//!   cairn ─► kernel ─► filesystem (FUSE) ─► store ─► file ─► overlay   writes since the last sync, in memory
//!                                                      └────► files   the synced image, real files
//! ```
//!
//! Data are lossy, metadata are not: changes of names and sizes are durable at once. The product
//! changes neither after `format`.

mod file;
mod filesystem;
mod mount;
mod overlay;
mod store;

pub use mount::{LossyMount, isolate, missing};
pub use overlay::{BLOCK, CutStyle, Damage, SECTOR};
pub use store::{Behaviour, Disk, Flip, Stats};
