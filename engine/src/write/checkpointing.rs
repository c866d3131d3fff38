//! Taking a checkpoint beside foreground work, and reclaiming the journal that it covers.

use crate::checkpoint::{Capture, Header, void, write};
use crate::error::Result;
use crate::state::Shared;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Writes a captured state to the device, then reclaims the journal.
pub(super) async fn run(shared: Arc<Shared>, capture: Capture, sequence: u64, chain: u128) {
    if let Err(error) = save(&shared, &capture, sequence, chain).await {
        shared.fail(&error);
    }
    shared.signals.changed.notify_waiters();
    shared.signals.writer.notify_one();
    // Most of the nodes may belong to the capture alone by now.
    for group in capture.groups {
        group.keys.drop_in_pieces().await;
    }
}

async fn save(shared: &Arc<Shared>, capture: &Capture, sequence: u64, chain: u128) -> Result<()> {
    let ended = |s: &Shared| match s.failed() {
        Some(error) => Some(Err(error)),
        None => (s.progress.lock().written >= sequence).then_some(Ok(())),
    };
    shared.wait_until(ended).await?;
    let (area, number) = {
        let state = shared.state.lock();
        (1 - state.checkpoints.area, state.checkpoints.number + 1)
    };
    let incarnation = shared.facts.identity.incarnation;
    let header = Header { incarnation, number, sequence, chain, ..Header::default() };
    let sync_all = async { shared.sync_now().await.map(drop) };
    let bytes = write(shared.files.area(area), capture, header, sync_all).await?;
    shared.counters.device_bytes.fetch_add(bytes, Ordering::Relaxed);
    if capture.replaces {
        // A snapshot replaced the state: the older checkpoint and the journal no longer lead to it.
        void(shared.files.area(1 - area)).await?;
    }
    let mut state = shared.state.lock();
    let checkpoints = &mut state.checkpoints;
    assert!(sequence >= checkpoints.sequence, "checkpoints are written in order");
    checkpoints.previous = if capture.replaces { sequence } else { checkpoints.sequence };
    checkpoints.sequence = sequence;
    checkpoints.number = number;
    checkpoints.area = area;
    checkpoints.applied = capture.groups.iter().filter_map(|g| Some((g.id, g.applied?))).collect();
    checkpoints.completed = checkpoints.begun;
    checkpoints.running = false;
    checkpoints.hold &= !capture.replaces;
    // There is no older one now. A second one follows at once: a bad block in the only one would cost
    // everything.
    checkpoints.requested |= capture.replaces;
    Ok(())
}
