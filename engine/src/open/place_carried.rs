//! Writes the values that the journal carries to their places, unless they are known to be there.
//!
//! Values share blocks with others, so this writes whole blocks as it read them, with the values put
//! in. That is safe for the same reasons as the repair of a value (`maintain/extent.rs`): the
//! sectors of the neighbours are the same before and after, and two reads must agree on them.
//!
//! What holds here: blocks that have their values are not written, unless a sync failed. The story:
//! an open wrote carried values over themselves, though they were synced; the power failed again, and
//! the torn write took a neighbour's bytes.

use crate::error::Result;
use crate::io::OpenFile;
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
        let mut buf = data.read_stable(plan.offset, plan.bytes).await?;
        let before = buf.to_vec();
        plan.put_into(&mut buf);
        if after_failed_sync || before != *buf {
            data.write(plan.offset, buf).await?;
        }
    }
    Ok(())
}
