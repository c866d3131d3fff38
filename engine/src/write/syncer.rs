//! The background sync: by time, by bytes, and at once if an acknowledgement waits for it or space
//! is scarce. The task also updates the unsynced-ack flag. Its last act after a failed write or sync is to record the
//! failure.

use crate::io::Hung;
use crate::state::Shared;
use std::sync::Arc;
use tokio::time::Instant;

/// Runs until the engine is closed or fails.
pub(crate) async fn run(shared: Arc<Shared>) {
    run_until_end(&shared).await;
    shared.record_failed_io().await;
}

async fn run_until_end(shared: &Shared) {
    let mut counted = (Instant::now(), 0);
    loop {
        let interval = tokio::time::sleep(shared.until_next_check());
        let tick = tokio::select! {
            biased;
            Hung { file, operation } = shared.deadlines.hung() => {
                // This includes reads: elsewhere a read that does not return does not end the
                // engine.
                return shared.fail_device(file, operation, shared.deadlines.late());
            }
            () = shared.signals.syncer.notified() => false,
            () = interval => true,
        };
        if shared.progress.lock().writer_ended || shared.failed().is_some() {
            return;
        }
        if shared.update_flag().await.is_err() {
            return;
        }
        let behind = {
            let progress = shared.progress.lock();
            progress.written > progress.synced
        };
        if behind {
            if shared.sync_now().await.is_err() {
                return;
            }
        } else if tick {
            // Views may have ended since the last sync, so space may be released.
            shared.release_space(0).await;
            shared.signals.compactor.notify_one();
        }
        let mut state = shared.state.lock();
        if tick {
            counted = state.count_allocations(counted);
        }
        // Record what was applied or freed while nothing was appended, so that the space is freed;
        // at once where it is scarce. Where a sync was due for that, the next block says so.
        let flush = (tick && state.unrecorded()) || state.space_wants_sync();
        if flush && state.queue.is_empty() {
            state.queue.flush = true;
            drop(state);
            shared.signals.writer.notify_one();
        }
    }
}
