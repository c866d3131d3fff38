//! Identity, state and votes: the small record that is always synced.
//!
//! Four copies, each in a block of its own. An update writes two copies and syncs, then the other two and syncs, so at
//! every moment two copies are untouched by any write under way: a torn update cannot take the identity away. The
//! truth is the newest content held by at least two copies.

mod layout;
mod store;

pub(crate) use layout::{Clean, MAX_VOTE_BYTES, MAX_VOTES, Superblock};
pub(crate) use store::{SuperblockStore, copies, readable_copies, void_copies};
