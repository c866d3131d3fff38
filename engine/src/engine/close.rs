//! The clean end: everything is synced, and the next open replays nothing.

use crate::checkpoint::{self, Capture, Header};
use crate::error::{Error, Result};
use crate::state::{Engine, Shared};
#[cfg(doc)]
use crate::types::Options;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

impl Engine {
    /// Waits for writes in flight, syncs, and records a clean shutdown. Then takes a checkpoint if
    /// the newest one does not cover the journal, so that the next open replays nothing; there is
    /// none if it does not fit or takes longer than [`Options::last_checkpoint`]. Later requests return `Closed`;
    /// reads continue.
    ///
    /// # After a crash
    /// During this call: the same state; the next open replays the journal.
    ///
    /// # Errors
    /// `Failed`: the clean shutdown is then not recorded, unless only the checkpoint failed.
    pub async fn close(&self) -> Result<()> {
        let shared = &self.shared;
        shared.state.lock().closing = true;
        shared.signals.changed.notify_waiters();
        // A begin that writes already ends first; none begins from here on.
        drop(shared.begin.lock().await.take());
        let unbegun = {
            let state = shared.state.lock();
            !state.begun && state.failed.is_none()
        };
        shared.signals.freeing.notify_one();
        if unbegun {
            // Nothing was written, and the directory stays as it is.
            shared.progress.lock().writer_ended = true;
            shared.signals.syncer.notify_one();
            shared.signals.changed.notify_waiters();
            return shared.failed().map_or(Ok(()), Err);
        }
        shared.signals.writer.notify_one();
        shared
            .wait_until(|shared| {
                let running = shared.state.lock().checkpoints.running;
                (shared.progress.lock().writer_ended && !running || shared.failed().is_some())
                    .then_some(())
            })
            .await;
        let mut result = shared.sync_now().await.map(drop);
        if result.is_ok() {
            shared.signals.syncer.notify_one();
            result = shared.clear_flag_at_end().await;
        }
        if result.is_ok() {
            result = last_checkpoint(shared).await.inspect_err(|error| shared.fail(error));
        }
        shared.record_failed_io().await;
        result
    }
}

/// Writes a checkpoint of the final state. Everything is written and synced, and the writer has
/// ended.
async fn last_checkpoint(shared: &Shared) -> Result<()> {
    let limit = shared.facts.options.last_checkpoint;
    let Some((area, header, capture)) = due(shared).filter(|_| !limit.is_zero()) else {
        return Ok(());
    };
    // From its header on the checkpoint counts, and its last sync must not be dropped: the kernel
    // reports a failure only once. Before that, this is a checkpoint that a crash cut off.
    let counts = AtomicBool::new(false);
    let before_header = async {
        counts.store(true, Ordering::Relaxed);
        Ok(())
    };
    let file = shared.files.area(area);
    let mut writing = pin!(checkpoint::replace(file, &capture, header, before_header));
    let written = tokio::select! {
        biased;
        written = &mut writing => written,
        () = tokio::time::sleep(limit) => {
            if !counts.load(Ordering::Relaxed) {
                skipped(shared, &format!("it takes longer than {} ms", limit.as_millis()));
                return Ok(());
            }
            writing.await
        }
    };
    let header = match written {
        Err(error @ Error::Full { .. }) => {
            skipped(shared, &error.to_string());
            return Ok(());
        }
        written => written?,
    };
    shared.counters.device_bytes.fetch_add(header.written_bytes(), Ordering::Relaxed);
    let mut state = shared.state.lock();
    let checkpoints = &mut state.checkpoints;
    (checkpoints.area, checkpoints.number) = (area, header.number);
    checkpoints.previous = checkpoints.sequence;
    checkpoints.sequence = header.sequence;
    checkpoints.applied = capture.groups.iter().filter_map(|g| Some((g.id, g.applied?))).collect();
    checkpoints.begun += 1;
    checkpoints.completed = checkpoints.begun;
    Ok(())
}

fn skipped(shared: &Shared, reason: &str) {
    tracing::info!(
        location = shared.facts.location,
        reason,
        "no checkpoint at the end: the next open replays the journal"
    );
}

/// What to write and where; nothing if the newest checkpoint has all of it, or if it does not fit.
fn due(shared: &Shared) -> Option<(usize, Header, Capture)> {
    let (sequence, chain) = {
        let progress = shared.progress.lock();
        (progress.written, progress.written_checksum)
    };
    let state = shared.state.lock();
    let checkpoints = &state.checkpoints;
    if sequence <= checkpoints.sequence.max(checkpoints.recordless) {
        return None;
    }
    let (needed, capacity) = (state.index_bytes(), shared.facts.checkpoint_capacity);
    if needed > capacity {
        drop(state);
        skipped(shared, &format!("it may need {needed} bytes of {capacity}"));
        return None;
    }
    let (incarnation, number) = (shared.facts.identity.incarnation, checkpoints.number + 1);
    let header = Header { incarnation, number, sequence, chain, ..Header::default() };
    // The writer does not end before a snapshot that replaced the state is in a checkpoint.
    assert!(!checkpoints.hold, "a replaced state has its own checkpoint");
    assert!(state.deferred.is_empty(), "each value that the journal carries is at its place");
    Some((1 - checkpoints.area, header, Capture::whole(&state.groups)))
}
