//! The generated peer protocol.
#![allow(missing_docs, clippy::all, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

tonic::include_proto!("cairn.raft.v1");
