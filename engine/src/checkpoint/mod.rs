//! Checkpoints: the state at one journal sequence. They let the journal before it be reclaimed, and
//! keep a restart short.
//!
//! Two areas are used alternately. A checkpoint is written beside foreground work from a capture of
//! the state, taken in O(1): the header of the one that it overwrites is made void, so that nothing
//! passes for a checkpoint whose body is gone; body, chunk table, sync; then everything that it refers to is synced;
//! then the header (twice), sync. Only then is the journal reclaimed, and only up to the *previous*
//! checkpoint: if the newest one is damaged, the older one and the longer journal give the same
//! state.
//!
//! The first checkpoint of a peer's snapshot says in its header that it replaces the state: no
//! older checkpoint leads to it, even if one is still there. An open that finds both voids the
//! older one, as the interrupted checkpoint would have done.

mod capture;
mod header;
mod load;
mod save;
#[cfg(test)]
mod tests;
mod verify;

pub(crate) use capture::{Capture, CapturedGroup, Changes};
pub(crate) use header::{COPIES, Header, read_headers};
pub(crate) use load::{PARTS, load};
pub(crate) use save::{replace, void, write, write_changes, write_header};
pub(crate) use verify::verify;
