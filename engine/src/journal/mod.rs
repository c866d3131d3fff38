//! The journal: a ring of 4 KiB commit blocks, each written once a lap.
//!
//! A block holds records, its sequence number, the checksum of the block before it (the chain), and
//! how far the writer knew everything before it to be written and synced. After a crash those two
//! numbers distinguish a torn tail from corruption.

mod block;
mod record;
mod ring;
mod stream;

pub(crate) use block::{Block, Header, Payload, encode_into};
pub(crate) use record::{
    Body, MAX_INLINE_BODY, Moved, Record, body_bytes, decode_body, encode_body, log_id, put_log_id,
};
pub(crate) use ring::Ring;
pub(crate) use stream::{Packer, RecordStream};
