//! Rewrites what was recovered and no sync is known to cover, before anything is built on it.

use super::recovery::Recovered;
use crate::checkpoint;
use crate::error::Result;
use crate::io::{AlignedBuf, OpenFile};
use crate::state::Files;
use crate::types::ValueRef;
use std::ops::Range;

/// Bytes of values rewritten at once, unless one value alone is longer.
const BATCH_BYTES: u64 = 1 << 20;

/// Rewrites the header of the checkpoint that was loaded; synced when this returns, because the
/// other checkpoint is given up next. The process may have been killed between the write of the
/// header and its sync.
pub(super) async fn rewrite_header(files: &Files, recovered: &Recovered) -> Result<()> {
    if recovered.checkpoint.incarnation != 0 {
        let file = files.area(recovered.area);
        for copy in 0..checkpoint::COPIES {
            checkpoint::write_header(file, &recovered.checkpoint, copy).await?;
            file.sync().await?;
        }
    }
    Ok(())
}

/// After a failed write or sync: rewrites these values. They are not synced here.
///
/// Values share blocks with others: this reads whole blocks, checks the values in them, and writes
/// the very bytes back that it checked. The values come in the order in which they were appended,
/// so those that share a block follow one another.
pub(super) async fn write_values(data: &OpenFile, values: &[ValueRef]) -> Result<()> {
    let mut rest = values;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |value: &&ValueRef| {
            bytes += u64::from(value.len);
            bytes <= BATCH_BYTES
        };
        let count = rest.iter().take_while(fits).count().max(1);
        let (now, later) = rest.split_at(count);
        rest = later;
        if !write_checked(data, now).await? {
            // Retry one value at a time. The damaged ones are left for the reads to report.
            for value in now {
                write_checked(data, std::slice::from_ref(value)).await?;
            }
        }
    }
    Ok(())
}

/// Reads the blocks of these values and writes them back if all the values match. Returns whether
/// they did.
async fn write_checked(data: &OpenFile, values: &[ValueRef]) -> Result<bool> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut blocks: Vec<Range<u64>> = values.iter().flat_map(ValueRef::blocks).collect();
    blocks.sort_unstable_by_key(|blocks| blocks.start);
    for blocks in blocks {
        match ranges.last_mut() {
            Some(last) if blocks.start <= last.end => last.end = last.end.max(blocks.end),
            _ => ranges.push(blocks),
        }
    }
    let mut read = Vec::with_capacity(ranges.len());
    for range in ranges {
        let Ok(buf) = data.read(range.start, (range.end - range.start) as usize).await else {
            return Ok(false);
        };
        read.push((range.start, buf));
    }
    let intact = values.iter().all(|value| {
        let bytes = value.segments().map(|segment| bytes_of(&read, &segment));
        bytes.collect::<Option<Vec<_>>>().is_some_and(|pieces| value.matches(&pieces.concat()))
    });
    if intact {
        for (start, buf) in read {
            data.write(start, buf).await?;
        }
    }
    Ok(intact)
}

/// The bytes of a segment in what was read, which is sorted.
fn bytes_of<'a>(read: &'a [(u64, AlignedBuf)], segment: &Range<u64>) -> Option<&'a [u8]> {
    let number = read.partition_point(|(start, _)| *start <= segment.start).checked_sub(1)?;
    let (start, buf) = read.get(number)?;
    buf.get((segment.start - start) as usize..(segment.end - start) as usize)
}
