//! Checkpoints: the state at one journal sequence, so that the journal before it can be reclaimed and a restart is
//! short.
//!
//! Two areas take turns. A checkpoint is written beside foreground work from an O(1) picture of the state: body,
//! chunk table, sync; then everything that it refers to is synced; then the header (twice), sync. Only then is the
//! journal reclaimed, and only up to the *previous* checkpoint: should the newest one be damaged, the older one and
//! the longer journal give the same state.
//!
//! The first checkpoint of a peer's snapshot says in its header that it replaces: no older one leads to it, whether it is
//! still there or not. Whoever finds both ends what was begun and makes the older one void.

mod capture;
mod header;
mod load;
mod save;
mod verify;

pub(crate) use capture::{Capture, CapturedGroup};
pub(crate) use header::{COPIES, Header, read_headers};
pub(crate) use load::load;
pub(crate) use save::{Place, file_of, void, write, write_header};
pub(crate) use verify::verify;
