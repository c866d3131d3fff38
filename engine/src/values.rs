//! Reading values from the data area, each checked against the hash in the record that names it.
//!
//! If a value does not match, or a read fails, the read is repeated once before it counts as
//! damage. That corrects errors on the way from the medium, and costs nothing otherwise.
//!
//! Many values are read in runs: a request to the device costs more than the bytes of a few blocks,
//! and values that were appended together are stored together.

use crate::codec::hash;
use crate::error::{Corruption, Error, Result};
use crate::io::{BLOCK, FileKind, OpenFile};
use crate::types::{LogId, ValueRef};
use bytes::Bytes;
use futures::StreamExt;
use std::ops::Range;

const BLOCK_BYTES: u64 = BLOCK as u64;
/// A value up to this length is copied out of the blocks that it was read with, so that keeping the
/// value does not keep the blocks in memory.
const COPIED_BYTES: usize = 8 * BLOCK;
/// Values that lie no further apart than this are read in one run.
const GAP_BYTES: u64 = 4 * BLOCK_BYTES;
/// The longest run, unless one value alone is longer.
const RUN_BYTES: u64 = 512 << 10;
/// Runs of one call that are read at the same time. All other reads and writes share the device's
/// queue.
const RUNS_AT_ONCE: usize = 32;

/// Reads and checks a value.
///
/// # Errors
/// `Corrupt` with the location and the entry; also if the device cannot read it.
pub(crate) async fn read_value(data: &OpenFile, at: &ValueRef, log_id: LogId) -> Result<Bytes> {
    if at.len == 0 {
        return Ok(Bytes::new());
    }
    let corrupt = |found: String| {
        Error::Corrupt(Corruption {
            file: FileKind::Data,
            offset: at.offset,
            length: u64::from(at.len),
            expected: format!("{:032x}", at.hash),
            found,
            log_ids: vec![log_id],
        })
    };
    let end = at.offset.checked_add(u64::from(at.len)).filter(|end| *end <= data.size());
    let end = end.ok_or_else(|| corrupt("an extent outside the data area".to_owned()))?;
    let blocks = at.offset / BLOCK_BYTES * BLOCK_BYTES..end;
    match read_matching(data, blocks.clone(), at).await {
        Ok(value) => Ok(value),
        Err(_) => read_matching(data, blocks, at).await.map_err(corrupt),
    }
}

/// Reads `range`, whose end is the value's end, and returns the value. `Err` says what was found
/// instead.
async fn read_matching(
    data: &OpenFile,
    range: Range<u64>,
    at: &ValueRef,
) -> std::result::Result<Bytes, String> {
    let buf = data.read(range.start, (range.end - range.start) as usize).await;
    let buf = buf.map_err(|error| format!("it cannot be read: {error}"))?;
    part(&Bytes::from_owner(buf), range.start, at)
}

/// A value to read, with its index in the request.
type Wanted = (usize, ValueRef, LogId);

/// Blocks that one request reads, and the values in them.
struct ReadRun {
    range: Range<u64>,
    values: Vec<Wanted>,
}

/// Reads and checks many values. Returns what `take` makes of each, in the order of the request.
/// Beside that, at most [`RUNS_AT_ONCE`] runs are in memory: 16 MiB, or more where values are
/// longer than a run.
///
/// # Errors
/// As [`read_value`], for each.
pub(crate) async fn read_values<T: Send>(
    data: &OpenFile,
    values: &[(ValueRef, LogId)],
    take: impl Fn(Result<Bytes>) -> T + Copy + Send,
) -> Vec<T> {
    let runs = runs(values, data.size());
    let read = futures::stream::iter(runs.into_iter().map(|run| read_run(data, run, take)));
    let mut found: Vec<_> = read.buffer_unordered(RUNS_AT_ONCE).concat().await;
    found.sort_unstable_by_key(|(number, _)| *number);
    found.into_iter().map(|(_, value)| value).collect()
}

/// Divides the values into runs. A value outside the data area, or an empty one, becomes a run with
/// an empty range.
fn runs(values: &[(ValueRef, LogId)], size: u64) -> Vec<ReadRun> {
    let mut wanted: Vec<Wanted> =
        values.iter().enumerate().map(|(number, (at, log_id))| (number, *at, *log_id)).collect();
    wanted.sort_by_key(|(_, at, _)| at.offset);
    let mut runs: Vec<ReadRun> = Vec::new();
    for value in wanted {
        let (_, at, _) = value;
        let start = at.offset / BLOCK_BYTES * BLOCK_BYTES;
        let end = at.offset.checked_add(u64::from(at.len)).filter(|end| at.len > 0 && *end <= size);
        let Some(end) = end.map(|end| end.next_multiple_of(BLOCK_BYTES)) else {
            runs.push(ReadRun { range: 0..0, values: vec![value] });
            continue;
        };
        match runs.last_mut() {
            Some(run)
                if !run.range.is_empty()
                    && start <= run.range.end.saturating_add(GAP_BYTES)
                    && end.max(run.range.end) - run.range.start <= RUN_BYTES =>
            {
                run.range.end = run.range.end.max(end);
                run.values.push(value);
            }
            _ => runs.push(ReadRun { range: start..end, values: vec![value] }),
        }
    }
    runs
}

async fn read_run<T>(
    data: &OpenFile,
    run: ReadRun,
    take: impl Fn(Result<Bytes>) -> T,
) -> Vec<(usize, T)> {
    let ReadRun { range, values } = run;
    let mut found = Vec::with_capacity(values.len());
    let blocks = match range.is_empty() {
        true => Bytes::new(),
        false => {
            let buf = data.read(range.start, (range.end - range.start) as usize).await;
            buf.map(Bytes::from_owner).unwrap_or_default()
        }
    };
    for (number, at, log_id) in values {
        let value = match part(&blocks, range.start, &at) {
            Ok(value) => Ok(value),
            // Damaged, or misread: read it once more alone.
            Err(_) => read_value(data, &at, log_id).await,
        };
        found.push((number, take(value)));
    }
    found
}

/// The value in blocks that begin at `start`. `Err` says what is there instead.
fn part(blocks: &Bytes, start: u64, at: &ValueRef) -> std::result::Result<Bytes, String> {
    let from = at.offset.checked_sub(start).and_then(|from| usize::try_from(from).ok());
    let bytes = from.and_then(|from| blocks.get(from..)?.get(..at.len as usize));
    let bytes = bytes.ok_or("too few bytes")?;
    match hash(bytes) {
        found if found != at.hash => Err(format!("{found:032x}")),
        // A slice keeps all the blocks in memory while it is used.
        _ if bytes.len() > COPIED_BYTES && bytes.len() > blocks.len() / 2 => {
            Ok(blocks.slice_ref(bytes))
        }
        _ => Ok(Bytes::copy_from_slice(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(offset: u64, len: u32) -> (ValueRef, LogId) {
        (ValueRef { offset, len, hash: 0 }, LogId { term: 1, index: 1 })
    }

    #[test]
    fn values_near_one_another_are_one_run_and_others_are_not() {
        let values = [
            at(100_000, 10),
            at(0, 300),
            at(300, 5000),
            at(12_000, 10),
            at(40_000, 0),
            at(1 << 40, 9),
        ];
        let ranges: Vec<_> = runs(&values, 1 << 20).into_iter().map(|run| run.range).collect();
        assert_eq!(ranges, [0..12_288, 0..0, 98_304..102_400, 0..0]);
    }

    proptest! {
        #[test]
        fn each_value_is_in_one_run_that_covers_it(
            places in prop::collection::vec((0u64..3 << 20, 0u32..700_000), 0..60),
        ) {
            let values: Vec<_> = places.iter().map(|(offset, len)| at(*offset, *len)).collect();
            let runs = runs(&values, 2 << 20);
            let mut numbers = Vec::new();
            for run in &runs {
                for (number, at, _) in &run.values {
                    numbers.push(*number);
                    let end = at.offset + u64::from(at.len);
                    let outside = at.len == 0 || end > 2 << 20;
                    prop_assert_eq!(run.range.is_empty(), outside);
                    prop_assert!(outside || (run.range.start <= at.offset && end <= run.range.end));
                }
                let longest = run.values.iter().map(|(_, at, _)| u64::from(at.len)).max().unwrap_or(0);
                prop_assert!(run.range.end - run.range.start <= RUN_BYTES.max(longest + 2 * BLOCK_BYTES));
            }
            numbers.sort_unstable();
            prop_assert_eq!(numbers, (0..values.len()).collect::<Vec<_>>());
        }
    }
}
