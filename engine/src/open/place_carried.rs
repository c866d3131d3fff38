//! Writes the values that the journal carries to their places, unless they are known to be there.
//!
//! Values share blocks with others, so this writes whole blocks as it read them, with the values put
//! in. That is safe for the same reasons as the repair of a value (`maintain/extent.rs`): the
//! sectors of the neighbours are the same before and after, and two reads must agree on them.

use crate::error::Result;
use crate::io::OpenFile;
use crate::types::ValueRef;
use crate::write::plan_writes;
use bytes::Bytes;

/// Puts these values at their places. Not synced when this returns.
pub(super) async fn place_carried(data: &OpenFile, values: &[(ValueRef, Bytes)]) -> Result<()> {
    for plan in plan_writes(values) {
        let mut buf = data.read_stable(plan.offset, plan.bytes).await?;
        plan.put_into(&mut buf);
        // Also where it reads back right: after a failed sync that may be in a cache only.
        data.write(plan.offset, buf).await?;
    }
    Ok(())
}
