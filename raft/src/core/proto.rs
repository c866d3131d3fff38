//! The generated peer protocol, and the bound of its messages.
#![allow(
    missing_docs,
    clippy::all,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing
)]

tonic::include_proto!("cairn.raft.v1");

/// The largest message of the peer protocol: an append message's byte budget, plus one entry that
/// alone exceeds it. Both sides must set it.
pub(crate) const MAX_MESSAGE_BYTES: usize = 68 << 20;

#[cfg(test)]
mod tests {
    const DESCRIPTOR: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/raft_descriptor.bin"));

    /// The story: a descriptor that is registered under a short file name collides with another of
    /// that name in the same program.
    #[test]
    fn the_protocol_is_registered_under_a_unique_name() {
        for name in ["cairn/raft/v1/raft.proto", "cairn/raft/v1;raftv1"] {
            assert!(DESCRIPTOR.windows(name.len()).any(|bytes| bytes == name.as_bytes()), "{name}");
        }
    }
}
