//! Identity, member state and votes: the small record that is always synced.
//!
//! There are four copies, each in a block of its own. An update writes two copies and syncs, then
//! writes the other two and syncs. At every moment two copies are not being written, so a torn
//! update cannot lose the identity. The newest content that at least two copies hold counts.

mod layout;
mod store;

pub(crate) use layout::{Clean, MAX_VOTE_BYTES, MAX_VOTES, NEWEST_FORMAT, Superblock};
pub(crate) use store::{NO_SUPERBLOCK, SuperblockStore, copies, readable_copies, void_copies};
