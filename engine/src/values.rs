//! Reading values from the data area, each checked against the hash in the record that names it.

use crate::codec::hash;
use crate::error::{Corruption, CorruptionKind, Error, Result};
use crate::io::{AlignedBuf, BLOCK, Device, FileKind};
use crate::types::{LogId, ValueRef};
use bytes::Bytes;

const BLOCK_BYTES: u64 = BLOCK as u64;

/// Reads and checks a value.
///
/// # Errors
/// `Corrupt` with the place and the entry, or `Io`.
pub(crate) async fn read_value(
    device: &dyn Device,
    location: &str,
    at: &ValueRef,
    log_id: LogId,
) -> Result<Bytes> {
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
    let start = at.offset / BLOCK_BYTES * BLOCK_BYTES;
    let (result, buf) = device.read(start, AlignedBuf::zeroed((end - start) as usize)).await;
    result.map_err(|e| Error::Io {
        location: location.to_owned(),
        operation: "read",
        reason: e.to_string(),
    })?;
    let (from, to) = ((at.offset - start) as usize, (end - start) as usize);
    let found = hash(buf.get(from..to).unwrap_or_default());
    if found != at.hash {
        return Err(corrupt(format!("{found:032x}")));
    }
    Ok(Bytes::from_owner(buf).slice(from..to))
}
