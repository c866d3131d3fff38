//! A failed write or sync, and what the next opening must know of it.
//!
//! The kernel reports a failed sync once and may then show what it has dropped as if nothing had happened, or show what is
//! only in a cache and let a later sync pass over it. A failed write may be all that is seen of a drive that lost its power
//! alone, and its cache with it. So:
//! - the engine writes nothing more but, if it can, word of the failure into the superblock, with how far acknowledgements
//!   may have reached;
//! - an opening that finds that word takes nothing for granted that was not synced: with peers it recovers, alone it holds
//!   the journal against what was acknowledged;
//! - what it goes on with is on the medium: values are written again, and two new checkpoints make the journal needless.
//!   The journal itself is not written again: a power cut amid that could tear what was safe.
//!
//! Left open: a device that fails, does not keep even the word of it, and has dropped, or drops at the next power cut,
//! the newest blocks of the journal without a trace.

use crate::state::{Remembered, Shared};
use crate::types::Mode;

impl Shared {
    /// Leaves word of a failed write or sync, if there was one and nobody did so before. Waits for one who is about it.
    pub(crate) async fn remember_failed_sync(&self) {
        if self.state.lock().failed_sync.is_none() {
            return;
        }
        let mut superblock = self.superblock.lock().await;
        if self.state.lock().failed_sync != Some(Remembered::NotYet) {
            return;
        }
        let acknowledged = {
            let progress = self.progress.lock();
            // By what the directory says: so the next opening takes it.
            if superblock.current().mode == Some(Mode::Sync) { progress.synced } else { progress.written }
        };
        let result = superblock.record_failed_sync(acknowledged).await;
        if let Err(error) = &result {
            tracing::warn!(
                %error,
                "that a write or sync failed could not be recorded: do not start this node again before its disk is replaced or its \
                 machine restarted"
            );
        }
        let remembered = if result.is_ok() { Remembered::Yes } else { Remembered::No };
        self.state.lock().failed_sync = Some(remembered);
    }
}
