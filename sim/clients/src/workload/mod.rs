//! What clients do: requests over few keys, so that they conflict.
//!
//! `plan` chooses requests, from a seed and the client's last answers. `encoding` turns keys and
//! values into bytes and back. `driver` sends requests with the real client library and records
//! them with their answers. `churn` keeps overwriting, so that space is reused. `bulk` owns many
//! keys, and checks its own reads. `ranges` notes who is refused the deletion of a range.

mod bulk;
mod churn;
mod driver;
mod encoding;
mod plan;
mod ranges;
mod rotation;

pub use bulk::Bulk;
pub use churn::churn;
pub use driver::{End, Recorder, SCAN_LIMIT, Worker, read_everything};
pub(crate) use encoding::GROUPS_PREFIX;
pub use encoding::{decode_key, decode_value, encode_key, encode_value, key_bytes, value_bytes};
pub use plan::{Generator, Profile};
