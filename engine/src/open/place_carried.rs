//! Writes the values that the journal carries to their places, unless they are known to be there.
//!
//! Values share blocks with others, so this writes whole blocks as it read them, with the values put
//! in. That is safe for the same reasons as the repair of a value (`maintain/extent.rs`): the
//! sectors of the neighbours are the same before and after, and two reads must agree on them.
//!
//! What holds here: a block that has its values is not written, unless a sync failed. One that cannot
//! be read has none, also where they are zeros. The story: an open wrote carried values over
//! themselves, though they were synced; the power failed again, and the torn write took a neighbour's
//! bytes. Later it did so where the next block lacked a value.

use crate::error::Result;
use crate::io::{AlignedBuf, BLOCK, OpenFile};
use crate::types::ValueRef;
use crate::write::plan_writes;
use bytes::Bytes;

/// Puts these values at their places. Not synced when this returns. After a failed sync, what reads
/// back right may be in a cache only.
pub(super) async fn place_carried(
    data: &OpenFile,
    values: &[(ValueRef, Bytes)],
    after_failed_sync: bool,
) -> Result<()> {
    for plan in plan_writes(values) {
        let before = data.read_stable(plan.offset, plan.bytes).await?;
        let mut after = before.bytes.to_vec();
        plan.put_into(&mut after);
        let lacks = |(number, (was, is)): (usize, (&[u8], &[u8]))| {
            after_failed_sync || was != is || before.unreadable.contains(&number)
        };
        let blocks = before.bytes.chunks(BLOCK).zip(after.chunks(BLOCK));
        let lacking: Vec<bool> = blocks.enumerate().map(lacks).collect();
        let mut rest = after.as_slice();
        let mut offset = plan.offset;
        for run in lacking.chunk_by(|one, next| one == next) {
            let (blocks, behind) = rest.split_at(run.len() * BLOCK);
            if run.contains(&true) {
                let mut buf = AlignedBuf::zeroed(blocks.len());
                buf.copy_from_slice(blocks);
                data.write(offset, buf).await?;
            }
            rest = behind;
            offset += blocks.len() as u64;
        }
    }
    Ok(())
}
