//! The generated code of `proto/cairn/kv/v1/kv.proto`: messages, client and server stubs;
//! and how a status carries its [`ErrorDetail`].
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

use prost::Message as _;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

#[cfg(not(madsim))]
include!("../generated/cairn.kv.v1.rs");
#[cfg(madsim)]
include!("../generated/sim/cairn.kv.v1.rs");

/// The encoded `FileDescriptorSet` of the protocol, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("../generated/cairn.kv.v1.bin");

/// The trailing metadata key under which an error status carries an encoded [`ErrorDetail`].
pub const ERROR_DETAIL_KEY: &str = "cairn-error-bin";

/// The metadata key under which a request names the generation of the cluster that its client means.
pub const GENERATION_KEY: &str = "cairn-generation";

/// The most calls of one multiplexed stream that are carried out at a time. A client sends no more of them.
pub const CALLS_OF_A_STREAM: usize = 1024;

/// A generation as requests and people write it.
pub fn generation_text(generation: u32) -> String {
    format!("{generation:08x}")
}

impl ErrorDetail {
    /// The detail that a status carries, if it does.
    pub fn of(status: &Status) -> Option<ErrorDetail> {
        let encoded = status.metadata().get_bin(ERROR_DETAIL_KEY)?.to_bytes().ok()?;
        ErrorDetail::decode(encoded).ok()
    }

    /// Whether a node gave this answer, and not the way to it.
    pub(crate) fn is_from_node<T>(answer: &Result<T, Status>) -> bool {
        answer.as_ref().map_or_else(|status| ErrorDetail::of(status).is_some(), |_| true)
    }

    /// A status that carries this detail.
    pub fn into_status(self, code: Code, message: impl Into<String>) -> Status {
        let mut metadata = MetadataMap::new();
        metadata.insert_bin(ERROR_DETAIL_KEY, MetadataValue::from_bytes(&self.encode_to_vec()));
        Status::with_details_and_metadata(code, message, bytes::Bytes::new(), metadata)
    }
}
