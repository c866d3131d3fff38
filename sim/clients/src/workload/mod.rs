//! What clients do: requests over few keys, so that they meet.
//!
//! `plan` decides what to ask, from a seed and what the client saw last; `encoding` turns keys and values into bytes
//! and back; `driver` asks the real client library and records question and answer; `churn` keeps space going around;
//! `bulk` owns many keys, and judges what it reads of them itself.

mod bulk;
mod churn;
mod driver;
mod encoding;
mod plan;
mod rotation;

pub use bulk::Bulk;
pub use churn::churn;
pub use driver::{End, Recorder, Worker, read_everything};
pub use encoding::{decode_key, decode_value, encode_key, encode_value, key_bytes, value_bytes};
pub use plan::{Generator, Profile};
