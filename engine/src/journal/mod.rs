//! The journal: a ring of 4 KiB commit blocks, each written once a lap.
//!
//! A block holds whole records, its sequence number, the checksum of the block before it (the
//! chain), and how far the writer knew everything before it to be written and synced. After a crash
//! those two numbers distinguish a torn tail from corruption.

mod block;
mod record;
mod ring;

pub(crate) use block::{Block, Header, Packer, encode_into};
pub(crate) use record::{
    Body, MAX_INLINE_BODY, Record, VALUE_REF_BYTES, decode_body, encode_body, log_id,
    put_value_ref, value_ref,
};
pub(crate) use ring::Ring;
