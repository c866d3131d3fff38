//! The status of an engine.

use super::{FailureRecord, Shared};
use crate::types::EngineStatus;
use std::sync::atomic::Ordering;

impl Shared {
    pub(crate) fn status(&self) -> EngineStatus {
        let (written, synced, unsynced_bytes, unsynced_ms) = {
            let progress = self.progress.lock();
            let ms = progress.oldest_unsynced.map_or(0, |since| since.elapsed().as_millis() as u64);
            (progress.written, progress.synced, progress.unsynced_bytes, ms)
        };
        let member_state = *self.member_state.lock();
        let state = self.state.lock();
        EngineStatus {
            backend: self.facts.backend,
            mode: self.mode(),
            member_state,
            unsynced_acks: self.unsynced_acks.is_set(),
            written_sequence: written,
            synced_sequence: synced,
            unsynced_bytes,
            unsynced_ms,
            data_bytes: state.space.capacity_bytes(),
            free_bytes: state.space.free_bytes(),
            keys: state.groups.values().map(|g| g.keys.len() as u64).sum(),
            live_bytes: state.groups.values().map(|g| g.keys.live_bytes()).sum(),
            index_bytes: state.index_bytes(),
            index_log_bytes: state.checkpoint_log_bytes(),
            index_capacity_bytes: self.facts.checkpoint_capacity,
            index_refusals: self.counters.index_refusals.load(Ordering::Relaxed),
            journal_used_blocks: written.saturating_sub(state.checkpoints.previous),
            journal_blocks: self.facts.ring.blocks(),
            checkpoint_sequence: state.checkpoints.sequence,
            checkpoints: state.checkpoints.completed,
            device_bytes_written: self.counters.device_bytes.load(Ordering::Relaxed),
            user_bytes_written: self.counters.user_bytes.load(Ordering::Relaxed),
            syncs: self.counters.syncs.load(Ordering::Relaxed),
            corrupt_values: self.counters.corrupt_values.load(Ordering::Relaxed),
            repaired_values: self.counters.repaired_values.load(Ordering::Relaxed),
            failed: state.failed.as_ref().map(ToString::to_string),
            stalled: self.deadlines.stalled(),
            failed_sync_recorded: state.failed_sync == Some(FailureRecord::Yes),
        }
    }
}
