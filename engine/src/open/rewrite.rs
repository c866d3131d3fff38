//! After a failed write or sync: rewrites the data that no sync is known to cover, before anything
//! is built on it.

use super::recovery::Recovered;
use crate::checkpoint;
use crate::error::Result;
use crate::io::{BLOCK, OpenFile};
use crate::state::Files;
use crate::types::ValueRef;
use std::ops::Range;

const BLOCK_BYTES: u64 = BLOCK as u64;
/// Blocks of values rewritten by one request.
const BATCH_BLOCKS: u64 = 256;

/// Rewrites what was recovered and no sync is known to have covered. That is the newest
/// checkpoint's header, which is synced when this returns, because the other checkpoint is
/// overwritten next; and values, which are not synced here.
pub(super) async fn rewrite_unsynced(files: &Files, recovered: &Recovered) -> Result<()> {
    if recovered.checkpoint.incarnation != 0 {
        let file = files.area(recovered.area);
        for copy in 0..checkpoint::COPIES {
            checkpoint::write_header(file, &recovered.checkpoint, copy).await?;
            file.sync().await?;
        }
    }
    write_values(&files.data, &recovered.unsynced_values).await
}

/// Values share blocks with others: this reads whole blocks, checks the values in them, and writes
/// all of it back.
async fn write_values(data: &OpenFile, values: &[ValueRef]) -> Result<()> {
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
        if !write_run(data, now, start..end).await? {
            // Retry one value at a time. The damaged ones are left for the reads to report.
            for value in now {
                let blocks = value.offset / BLOCK_BYTES * BLOCK_BYTES..end_of(value);
                write_run(data, std::slice::from_ref(value), blocks).await?;
            }
        }
    }
    Ok(())
}

/// Reads these blocks and writes them back if the values in them match. Returns whether they did.
async fn write_run(data: &OpenFile, values: &[&ValueRef], blocks: Range<u64>) -> Result<bool> {
    let start = blocks.start;
    let Ok(buf) = data.read(start, (blocks.end - start) as usize).await else { return Ok(false) };
    let matches = |value: &&ValueRef| {
        let at = (value.offset - start) as usize;
        buf.get(at..at + value.len as usize).is_some_and(|bytes| value.matches(bytes))
    };
    let intact = values.iter().all(matches);
    if intact {
        data.write(start, buf).await?;
    }
    Ok(intact)
}

/// Where the last block of a value ends.
fn end_of(value: &ValueRef) -> u64 {
    (value.offset + u64::from(value.len)).next_multiple_of(BLOCK_BYTES)
}
