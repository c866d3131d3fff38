//! Reading values from the data area, each checked against the hash in the record that names it.
//!
//! If a value does not match, or a read fails, the read is repeated once before it counts as
//! damage. That corrects errors on the way from the medium, and costs nothing otherwise.
//!
//! Many values are read in runs: a request to the device costs more than the bytes of a few blocks,
//! and values that were appended together are stored together. A value in several pieces is put
//! together from the runs that hold them.

use crate::codec::hash;
use crate::error::{Corruption, Error, Result};
use crate::io::{BLOCK, FileKind, OpenFile};
use crate::types::{LogId, ValueRef};
use bytes::Bytes;
use futures::StreamExt;
use std::collections::BTreeMap;
use std::ops::Range;

const BLOCK_BYTES: u64 = BLOCK as u64;
/// A value up to this length is copied out of the blocks that it was read with, so that keeping the
/// value does not keep the blocks in memory.
pub(crate) const COPIED_BYTES: usize = 8 * BLOCK;
/// Pieces that lie no further apart than this are read in one run.
const GAP_BYTES: u64 = 4 * BLOCK_BYTES;
/// The longest run, unless one piece alone is longer.
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
            offset: at.offset(),
            length: u64::from(at.len),
            expected: format!("{:032x}", at.hash),
            found,
            log_ids: vec![log_id],
        })
    };
    if !at.is_within(data.size()) {
        return Err(corrupt("an extent outside the data area".to_owned()));
    }
    match read_matching(data, at).await {
        Ok(value) => Ok(value),
        Err(_) => read_matching(data, at).await.map_err(corrupt),
    }
}

/// Whether the device can read each piece of a value, whatever it holds.
pub(crate) async fn is_readable(data: &OpenFile, at: &ValueRef) -> bool {
    for segment in at.segments() {
        let start = segment.start / BLOCK_BYTES * BLOCK_BYTES;
        if data.read(start, (segment.end - start) as usize).await.is_err() {
            return false;
        }
    }
    true
}

/// Reads the pieces of a value and returns it. `Err` says what was found instead.
async fn read_matching(data: &OpenFile, at: &ValueRef) -> std::result::Result<Bytes, String> {
    let pieces = at.segments().map(|segment| async move {
        let start = segment.start / BLOCK_BYTES * BLOCK_BYTES;
        let buf = data.read(start, (segment.end - start) as usize).await;
        let buf = buf.map_err(|error| format!("it cannot be read: {error}"))?;
        Ok(part(&Bytes::from_owner(buf), start, &segment))
    });
    let mut read = futures::stream::iter(pieces).buffered(RUNS_AT_ONCE);
    let mut value = Assembly::new(at);
    let mut place = 0;
    while let Some(piece) = read.next().await {
        let piece: std::result::Result<Option<Bytes>, String> = piece;
        let piece = piece?.ok_or("too few bytes")?;
        let len = piece.len();
        value.add(place, piece);
        place += len;
    }
    value.finish(at)
}

/// The bytes of `segment` in blocks that begin at `start`.
fn part(blocks: &Bytes, start: u64, segment: &Range<u64>) -> Option<Bytes> {
    let from = usize::try_from(segment.start.checked_sub(start)?).ok()?;
    let len = usize::try_from(segment.end - segment.start).ok()?;
    let bytes = blocks.get(from..)?.get(..len)?;
    // A slice keeps all the blocks in memory while it is used.
    Some(match bytes.len() > COPIED_BYTES && bytes.len() > blocks.len() / 2 {
        true => blocks.slice_ref(bytes),
        false => Bytes::copy_from_slice(bytes),
    })
}

/// A value of which pieces are read.
struct Assembly {
    /// The bytes of a value in several pieces, as far as they are read.
    bytes: Vec<u8>,
    /// A value in one piece.
    whole: Option<Bytes>,
    missing: usize,
}

impl Assembly {
    fn new(at: &ValueRef) -> Assembly {
        Assembly { bytes: Vec::new(), whole: None, missing: at.len as usize }
    }

    /// Adds the piece that begins at byte `place` of the value.
    fn add(&mut self, place: usize, piece: Bytes) {
        if piece.len() == self.missing && self.bytes.is_empty() {
            self.missing = 0;
            self.whole = Some(piece);
            return;
        }
        if self.bytes.is_empty() {
            self.bytes = vec![0; self.missing];
        }
        if let Some(to) = self.bytes.get_mut(place..place + piece.len()) {
            to.copy_from_slice(&piece);
            self.missing -= piece.len();
        }
    }

    /// The value, if it is complete and matches its hash.
    fn finish(self, at: &ValueRef) -> std::result::Result<Bytes, String> {
        let value = self.whole.unwrap_or_else(|| Bytes::from(self.bytes));
        match hash(&value) {
            _ if self.missing > 0 => Err("too few bytes".to_owned()),
            found if found != at.hash => Err(format!("{found:032x}")),
            _ => Ok(value),
        }
    }
}

/// A piece of a value to read.
struct Piece {
    /// The value's index in the request.
    number: usize,
    /// Where the piece begins in the value.
    place: usize,
    segment: Range<u64>,
}

/// Blocks that one request reads, and the pieces in them.
struct ReadRun {
    range: Range<u64>,
    pieces: Vec<Piece>,
}

/// Reads and checks many values. Returns what `take` makes of each, in the order of the request.
/// Beside that, these are in memory: at most [`RUNS_AT_ONCE`] runs, 16 MiB or more where pieces are
/// longer than a run, and the values of which a part is read.
///
/// # Errors
/// As [`read_value`], for each.
pub(crate) async fn read_values<T: Send>(
    data: &OpenFile,
    values: &[(ValueRef, LogId)],
    take: impl Fn(Result<Bytes>) -> T + Copy + Send,
) -> Vec<T> {
    let mut found: Vec<Option<T>> = values.iter().map(|_| None).collect();
    let refs = values.iter().map(|(at, _)| at);
    let places = &mut found;
    read_once(data, refs, move |number, value| {
        if let Some((place, value)) = places.get_mut(number).zip(value) {
            *place = Some(take(Ok(value)));
        }
    })
    .await;
    let mut all = Vec::with_capacity(values.len());
    for (found, (at, log_id)) in found.into_iter().zip(values) {
        all.push(match found {
            Some(found) => found,
            // Damaged, or misread: read it once more alone.
            None => take(read_value(data, at, *log_id).await),
        });
    }
    all
}

/// Reads each value once and passes it on with its index, in any order; `None` if it does not match
/// its hash. Returns the number of blocks read.
pub(crate) async fn read_once<'a>(
    data: &OpenFile,
    values: impl Iterator<Item = &'a ValueRef> + Clone + Send,
    mut found: impl FnMut(usize, Option<Bytes>) + Send,
) -> u64 {
    let size = data.size();
    let mut assemblies = BTreeMap::new();
    for (number, at) in values.clone().enumerate() {
        match at.len > 0 && at.is_within(size) {
            true => drop(assemblies.insert(number, (at, Assembly::new(at)))),
            false => found(number, (at.len == 0).then(Bytes::new)),
        }
    }
    let runs = runs(assemblies.iter().map(|(number, (at, _))| (*number, *at)));
    let blocks = runs.iter().map(|run| (run.range.end - run.range.start) / BLOCK_BYTES).sum();
    let read = runs.into_iter().map(|run| async move {
        let ReadRun { range, pieces } = run;
        let buf = data.read(range.start, (range.end - range.start) as usize).await;
        (range.start, pieces, buf.map(Bytes::from_owner).unwrap_or_default())
    });
    let mut read = futures::stream::iter(read).buffer_unordered(RUNS_AT_ONCE);
    while let Some((start, pieces, blocks)) = read.next().await {
        for Piece { number, place, segment } in pieces {
            let std::collections::btree_map::Entry::Occupied(mut entry) = assemblies.entry(number)
            else {
                continue;
            };
            let (at, assembly) = entry.get_mut();
            let Some(piece) = part(&blocks, start, &segment) else {
                entry.remove();
                found(number, None);
                continue;
            };
            assembly.add(place, piece);
            if assembly.missing == 0 {
                let at = *at;
                let (_, assembly) = entry.remove();
                found(number, assembly.finish(at).ok());
            }
        }
    }
    blocks
}

/// Divides the pieces of the values into runs.
fn runs<'a>(values: impl Iterator<Item = (usize, &'a ValueRef)>) -> Vec<ReadRun> {
    let mut pieces = Vec::new();
    for (number, at) in values {
        let mut place = 0;
        for segment in at.segments() {
            let len = (segment.end - segment.start) as usize;
            pieces.push(Piece { number, place, segment });
            place += len;
        }
    }
    pieces.sort_by_key(|piece| piece.segment.start);
    let mut runs: Vec<ReadRun> = Vec::new();
    for piece in pieces {
        let start = piece.segment.start / BLOCK_BYTES * BLOCK_BYTES;
        let end = piece.segment.end.next_multiple_of(BLOCK_BYTES);
        match runs.last_mut() {
            Some(run)
                if start <= run.range.end.saturating_add(GAP_BYTES)
                    && end.max(run.range.end) - run.range.start <= RUN_BYTES =>
            {
                run.range.end = run.range.end.max(end);
                run.pieces.push(piece);
            }
            _ => runs.push(ReadRun { range: start..end, pieces: vec![piece] }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Run;
    use crate::value_ref::tests::any_ref;
    use proptest::prelude::*;

    fn at(offset: u64, len: u32) -> ValueRef {
        ValueRef::contiguous(offset, len, 0).unwrap()
    }

    #[test]
    fn pieces_near_one_another_are_one_run_and_others_are_not() {
        let several = [Run { first: 3, blocks: 1 }, Run { first: 50, blocks: 1 }];
        let values = [
            at(100_000, 10),
            at(0, 300),
            at(4096, 5000),
            ValueRef::new(8192, 0, &several, None).unwrap(),
        ];
        let runs = runs(values.iter().enumerate());
        let ranges: Vec<_> = runs.iter().map(|run| run.range.clone()).collect();
        assert_eq!(ranges, [0..16_384, 98_304..102_400, 204_800..208_896]);
        let second = &runs[2].pieces[0];
        assert_eq!((second.number, second.place), (3, 4096));
    }

    #[test]
    fn pieces_in_any_order_make_the_value() {
        let bytes: Vec<u8> = (0..10_000u32).map(|n| (n % 251) as u8).collect();
        let runs = [Run { first: 3, blocks: 1 }, Run { first: 50, blocks: 1 }];
        let at = ValueRef::new(10_000, hash(&bytes), &runs, Some(5)).unwrap();
        let mut assembly = Assembly::new(&at);
        for range in [8192..10_000, 0..4096, 4096..8192] {
            assert!(assembly.missing > 0);
            assembly.add(range.start, Bytes::copy_from_slice(&bytes[range]));
        }
        assert_eq!(assembly.missing, 0);
        assert_eq!(assembly.finish(&at).unwrap(), bytes);
    }

    proptest! {
        #[test]
        fn each_piece_is_in_one_run_that_covers_it(values in prop::collection::vec(any_ref(), 0..30)) {
            let mut read = vec![0; values.len()];
            for run in &runs(values.iter().enumerate()) {
                let mut longest = 0;
                for Piece { number, segment, .. } in &run.pieces {
                    prop_assert!(run.range.start <= segment.start && segment.end <= run.range.end);
                    read[*number] += segment.end - segment.start;
                    longest = longest.max(segment.end - segment.start);
                }
                prop_assert!(run.range.end - run.range.start <= RUN_BYTES.max(longest + 2 * BLOCK_BYTES));
            }
            prop_assert_eq!(read, values.iter().map(|at| u64::from(at.len)).collect::<Vec<_>>());
        }
    }
}
