//! The generated code of `proto/cairn/kv/v1/kv.proto`: messages, client and server stubs.
//!
//! Only for Cairn's own server. It is not part of this crate's public interface and may change in
//! any release.
#![allow(
    missing_docs,
    clippy::all,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

tonic::include_proto!("cairn.kv.v1");

/// The encoded `FileDescriptorSet` of the protocol, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kv.bin"));

/// The trailing metadata key under which an error status carries an encoded [`ErrorDetail`].
pub const ERROR_DETAIL_KEY: &str = "cairn-error-bin";
