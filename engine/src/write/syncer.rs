//! The background sync: by time, by bytes, and at once if an acknowledgement waits for it. The task
//! also updates the unsynced-ack flag. Its last act after a failed write or sync is to record the
//! failure.

use crate::io::Hung;
use crate::state::Shared;
use std::sync::Arc;

/// Runs until the engine is closed or fails.
pub(crate) async fn run(shared: Arc<Shared>) {
    run_until_end(&shared).await;
    shared.record_failed_io().await;
}

async fn run_until_end(shared: &Shared) {
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
            shared.state.lock().release_space(0);
        }
        if tick {
            // Record what was applied or freed while nothing was appended, so that the space is
            // freed.
            let mut state = shared.state.lock();
            if state.queue.is_empty() && state.unrecorded() {
                state.queue.flush = true;
                drop(state);
                shared.signals.writer.notify_one();
            }
        }
    }
}
