//! A disk that keeps its promises about synced writes and no others.
//!
//! ```text
//!   cairn ─► kernel ─► filesystem (FUSE) ─► store ─► overlay   writes since the last sync, in memory
//!                                             └────► files      the synced image, real files
//! ```
//!
//! Data are lossy, metadata are not: names and sizes are final at once. The product changes neither after `format`.

mod filesystem;
mod mount;
mod overlay;
mod store;

pub use mount::{LossyMount, isolate, missing};
pub use overlay::{BLOCK, CutStyle, Damage, SECTOR};
pub use store::{Behaviour, Disk, Flip, Stats};
