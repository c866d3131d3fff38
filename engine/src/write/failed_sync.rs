//! Recording a failed write or sync for the next open.
//!
//! The kernel reports a failed sync once. Afterwards reads may return the pages that it dropped as
//! if nothing had happened, or return data that is only in the cache, and a later sync may skip it.
//! A failed write may be the only sign that the drive alone lost its power, and with it its cache.
//! So:
//! - The engine writes nothing more except, if it can, a record of the failure in the superblock,
//!   with the journal end that may have been acknowledged.
//! - An open that finds this record assumes that only synced data is there. With peers the node
//!   recovers. Alone it compares the journal with what was acknowledged.
//! - That open puts what it keeps on the medium: it rewrites values and writes two new checkpoints,
//!   which make the journal unnecessary. It does not rewrite the journal itself: a power cut during
//!   that could tear blocks that were safe.
//!
//! Not covered: a device fails, does not store the record either, and has dropped the newest blocks
//! of the journal without a trace, or drops them at the next power cut.

use crate::state::{FailureRecord, Shared};

impl Shared {
    /// Records a failed write or sync in the superblock, if there was one and it is not recorded
    /// yet. Waits for a record in progress.
    pub(crate) async fn record_failed_io(&self) {
        if self.state.lock().failed_sync.is_none() {
            return;
        }
        let mut superblock = self.superblock.lock().await;
        if self.state.lock().failed_sync != Some(FailureRecord::NotYet) {
            return;
        }
        let acknowledged = {
            let progress = self.progress.lock();
            // By the superblock: the next open uses the same.
            if superblock.current().acks_are_synced() { progress.synced } else { progress.written }
        };
        let result = superblock.record_failed_sync(acknowledged).await;
        if let Err(error) = &result {
            tracing::warn!(
                %error,
                "the failed write or sync could not be recorded: replace the disk or restart the machine \
                 before this node starts again"
            );
        }
        let remembered = if result.is_ok() { FailureRecord::Yes } else { FailureRecord::No };
        self.state.lock().failed_sync = Some(remembered);
    }
}
