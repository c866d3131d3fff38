//! Repair: damaged values are fetched from the other members and put back in place, when a read meets them or when the
//! scrubber does.
//!
//! What holds here: a value is asked for by the entry that wrote it and the hash of its bytes, so a stale or another value
//! can never take its place; whoever sends it and whoever takes it checks the bytes; a value that no member has is an
//! error, never absence.

mod mender;
mod pacer;
mod scrub;

#[cfg(test)]
pub(crate) use mender::NoPeers;
pub(crate) use mender::{Mender, PeerValues};
pub use scrub::ScrubStatus;
pub(crate) use scrub::Scrubber;
