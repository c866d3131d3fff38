//! The generated peer protocol, and the bound of its messages.
#![allow(
    missing_docs,
    clippy::all,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing
)]

include!("../../generated/cairn.raft.v1.rs");

/// The largest message of the peer protocol: an append message's byte budget, plus one entry that
/// alone exceeds it. Both sides must set it.
pub(crate) const MAX_MESSAGE_BYTES: usize = 68 << 20;
