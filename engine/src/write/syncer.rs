//! The background sync: by time, by bytes, and at once where somebody waits for it. It tends the `lazy` mark as well, and
//! its last act after a failed write or sync is to leave word of it.

use crate::io::Hung;
use crate::state::Shared;
use std::sync::Arc;

/// Runs until the engine is closed or fails.
pub(crate) async fn run(shared: Arc<Shared>) {
    tend(&shared).await;
    shared.remember_failed_sync().await;
}

async fn tend(shared: &Shared) {
    loop {
        let interval = tokio::time::sleep(shared.until_next_look());
        let tick = tokio::select! {
            biased;
            Hung { file, operation } = shared.watch.hung() => {
                // Also a read, which nobody else takes for the end.
                return drop(shared.fail_device(file, operation, shared.watch.late()));
            }
            () = shared.signals.syncer.notified() => false,
            () = interval => true,
        };
        if shared.progress.lock().writer_ended || shared.failed().is_some() {
            return;
        }
        if shared.tend_mark().await.is_err() {
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
            // Views may have ended since the last sync.
            shared.state.lock().space.release(0);
        }
        if tick {
            // What was applied or freed while nothing was appended is recorded now, so that space comes back.
            let mut state = shared.state.lock();
            if state.queue.is_empty() && state.unrecorded() {
                state.queue.flush = true;
                drop(state);
                shared.signals.writer.notify_one();
            }
        }
    }
}
