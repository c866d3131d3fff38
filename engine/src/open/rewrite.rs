//! After a failed write or sync: rewrites the data that no sync is known to cover, before anything
//! is built on it.

use super::recovery::Recovered;
use crate::checkpoint::{self, file_of};
use crate::codec::hash;
use crate::error::{Error, Result};
use crate::io::{AlignedBuf, BLOCK, Device, FileKind};
use crate::state::Devices;
use crate::types::ValueRef;
use std::ops::Range;

const BLOCK_BYTES: u64 = BLOCK as u64;
/// Blocks of values rewritten by one request.
const BATCH_BLOCKS: u64 = 256;

/// Rewrites what was recovered and no sync is known to have covered. That is the newest
/// checkpoint's header, which is synced when this returns, because the other checkpoint is
/// overwritten next; and values, which are not synced here.
pub(super) async fn rewrite_unsynced(
    devices: &Devices,
    location: &str,
    recovered: &Recovered,
) -> Result<()> {
    if let Some(device) =
        devices.checkpoints.get(recovered.area).filter(|_| recovered.checkpoint.incarnation != 0)
    {
        let file = file_of(recovered.area);
        for copy in 0..checkpoint::COPIES {
            checkpoint::write_header(device.as_ref(), file, location, &recovered.checkpoint, copy)
                .await?;
            device.sync().await.map_err(|e| Error::failed(location, file, "sync", e))?;
        }
    }
    write_values(devices.data.as_ref(), location, &recovered.unsynced_values).await
}

/// Values share blocks with others: this reads whole blocks, checks the values in them, and writes
/// all of it back.
async fn write_values(data: &dyn Device, location: &str, values: &[ValueRef]) -> Result<()> {
    let mut values: Vec<&ValueRef> = values.iter().filter(|value| value.len > 0).collect();
    values.sort_unstable_by_key(|value| value.offset);
    let mut rest = values.as_slice();
    while let Some(first) = rest.first() {
        let start = first.offset / BLOCK_BYTES * BLOCK_BYTES;
        let mut end = end_of(first);
        let mut count = 1;
        for value in rest.iter().skip(1) {
            if value.offset > end || end_of(value).max(end) - start > BATCH_BLOCKS * BLOCK_BYTES {
                break;
            }
            end = end.max(end_of(value));
            count += 1;
        }
        let (now, later) = rest.split_at(count);
        rest = later;
        if !write_run(data, location, now, start..end).await? {
            // Retry one value at a time. The damaged ones are left for the reads to report.
            for value in now {
                let blocks = value.offset / BLOCK_BYTES * BLOCK_BYTES..end_of(value);
                write_run(data, location, std::slice::from_ref(value), blocks).await?;
            }
        }
    }
    Ok(())
}

/// Reads these blocks and writes them back if the values in them match. Returns whether they did.
async fn write_run(
    data: &dyn Device,
    location: &str,
    values: &[&ValueRef],
    blocks: Range<u64>,
) -> Result<bool> {
    let start = blocks.start;
    let (result, buf) = data.read(start, AlignedBuf::zeroed((blocks.end - start) as usize)).await;
    let matches = |value: &&ValueRef| {
        let at = (value.offset - start) as usize;
        buf.get(at..at + value.len as usize).is_some_and(|bytes| hash(bytes) == value.hash)
    };
    if result.is_err() || !values.iter().all(matches) {
        return Ok(false);
    }
    let (result, _) = data.write(start, buf).await;
    result.map_err(|e| Error::failed(location, FileKind::Data, "write", e))?;
    Ok(true)
}

/// Where the last block of a value ends.
fn end_of(value: &ValueRef) -> u64 {
    (value.offset + u64::from(value.len)).next_multiple_of(BLOCK_BYTES)
}
