//! Reading values from the data area, each checked against the hash in the record that names it.
//!
//! A read that does not match, or fails, is done once more before anybody believes in damage: what went wrong on the way from
//! the medium is then right, and costs nothing.

use crate::codec::hash;
use crate::error::{Corruption, CorruptionKind, Error, Result};
use crate::io::{AlignedBuf, BLOCK, Device, FileKind};
use crate::types::{LogId, ValueRef};
use bytes::Bytes;
use std::ops::Range;

const BLOCK_BYTES: u64 = BLOCK as u64;
/// A value up to this length is copied out of the blocks that it was read with, so that whoever keeps it does not keep them.
const COPIED_BYTES: usize = 8 * BLOCK;

/// Reads and checks a value.
///
/// # Errors
/// `Corrupt` with the place and the entry; also where the device cannot read it.
pub(crate) async fn read_value(device: &dyn Device, at: &ValueRef, log_id: LogId) -> Result<Bytes> {
    if at.len == 0 {
        return Ok(Bytes::new());
    }
    let corrupt = |found: String| {
        Error::Corrupt(Corruption {
            file: FileKind::Data,
            offset: at.offset,
            length: u64::from(at.len),
            kind: CorruptionKind::Value,
            expected: format!("{:032x}", at.hash),
            found,
            log_ids: vec![log_id],
        })
    };
    let end = at.offset.checked_add(u64::from(at.len)).filter(|end| *end <= device.size());
    let end = end.ok_or_else(|| corrupt("an extent outside the data area".to_owned()))?;
    let blocks = at.offset / BLOCK_BYTES * BLOCK_BYTES..end;
    match read_matching(device, blocks.clone(), at).await {
        Ok(value) => Ok(value),
        Err(_) => read_matching(device, blocks, at).await.map_err(corrupt),
    }
}

/// The value's bytes from the blocks that begin with the range; `Err` says what is there instead.
async fn read_matching(
    device: &dyn Device,
    range: Range<u64>,
    at: &ValueRef,
) -> std::result::Result<Bytes, String> {
    let len = (range.end - range.start) as usize;
    let (result, buf) = device.read(range.start, AlignedBuf::zeroed(len)).await;
    result.map_err(|error| format!("it cannot be read: {error}"))?;
    let (from, to) = ((at.offset - range.start) as usize, len);
    let value = buf.get(from..to).unwrap_or_default();
    match hash(value) {
        found if found == at.hash && value.len() <= COPIED_BYTES => Ok(Bytes::copy_from_slice(value)),
        found if found == at.hash => Ok(Bytes::from_owner(buf).slice(from..to)),
        found => Err(format!("{found:032x}")),
    }
}
