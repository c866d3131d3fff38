//! The status of an engine.

use super::capacity::state_limit;
use super::{Engine, FailureRecord, State};
use crate::latency::{Latencies, Latency};
use crate::types::{EngineStatus, SpaceUse};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Engine {
    /// The engine's status.
    pub fn status(&self) -> EngineStatus {
        let shared = &self.shared;
        let (written, synced, unsynced_bytes, unsynced_ms) = {
            let progress = shared.progress.lock();
            let oldest = progress.oldest_syncing.or(progress.oldest_unsynced);
            let ms = oldest.map_or(0, |since| since.elapsed().as_millis() as u64);
            (progress.written, progress.synced, progress.all_unsynced(), ms)
        };
        let member_state = *shared.member_state.lock();
        let state = shared.state.lock();
        let user_bytes = shared.counters.user_bytes.load(Ordering::Relaxed);
        EngineStatus {
            backend: shared.facts.backend,
            mode: shared.mode(),
            member_state,
            unsynced_acks: shared.unsynced_acks.is_set(),
            written_sequence: written,
            synced_sequence: synced,
            unsynced_bytes,
            unsynced_ms,
            data_bytes: state.space.capacity_bytes(),
            free_bytes: state.space.free_bytes(),
            space: state.space_use(),
            keys: state.groups.values().map(|g| g.keys.len() as u64).sum(),
            live_bytes: state.groups.values().map(|g| g.keys.live_bytes()).sum(),
            index_bytes: state.index_bytes(),
            index_log_bytes: state.checkpoint_log_bytes(),
            index_limit_bytes: state_limit(shared.facts.checkpoint_capacity),
            index_capacity_bytes: shared.facts.checkpoint_capacity,
            index_refusals: shared.counters.index_refusals.load(Ordering::Relaxed),
            journal_used_blocks: written.saturating_sub(state.checkpoints.previous),
            journal_blocks: shared.facts.ring.blocks(),
            checkpoint_sequence: state.checkpoints.sequence,
            checkpoints: state.checkpoints.completed,
            checkpoint_parts: state.checkpoints.parts(),
            checkpoint_running: state.checkpoints.requested || state.checkpoints.running,
            bytes_since_checkpoint: user_bytes - state.checkpoints.user_bytes,
            device_bytes_written: shared.counters.device_bytes.load(Ordering::Relaxed),
            user_bytes_written: user_bytes,
            moved_bytes: shared.counters.moved_bytes.load(Ordering::Relaxed),
            syncs: shared.counters.syncs.load(Ordering::Relaxed),
            value_cache: shared.values.status(),
            log_cache_bytes: state.groups.values().map(|g| g.log.cache_bytes()).sum(),
            corrupt_values: shared.counters.corrupt_values.load(Ordering::Relaxed),
            repaired_values: shared.counters.repaired_values.load(Ordering::Relaxed),
            failed: state.failed.as_ref().map(ToString::to_string),
            stalled: shared.deadlines.stalled(),
            failed_sync_recorded: state.failed_sync == Some(FailureRecord::Yes),
        }
    }
}

impl Engine {
    /// How long operations took since the engine was opened.
    pub fn latencies(&self) -> Latencies {
        let device = &self.shared.deadlines.latency;
        Latencies {
            reads: device.reads.counts(),
            writes: device.writes.counts(),
            syncs: device.syncs.counts(),
            appends: self.shared.counters.appends.counts(),
        }
    }

    /// Where whoever appends counts how long that took, until `done` was called.
    pub fn append_latency(&self) -> Arc<Latency> {
        Arc::clone(&self.shared.counters.appends)
    }
}

impl State {
    /// What each byte of the data area is.
    fn space_use(&self) -> SpaceUse {
        let dead = self.space.dead_bytes();
        let free = self.space.free_bytes();
        let reserve = self.space.reserve_bytes().min(free);
        let live = self.groups.values().map(|group| group.keys.value_bytes()).sum();
        let log = self.groups.values().map(|group| group.log.unlinked_bytes()).sum();
        let used = self.space.capacity_bytes() - free - dead.record - dead.sync - dead.view;
        SpaceUse {
            live,
            log,
            installing: self.installing_bytes,
            padding: used.saturating_sub(live + log + self.installing_bytes),
            dead_unrecorded: dead.record,
            dead_unsynced: dead.sync,
            dead_viewed: dead.view,
            reserve,
            free: free - reserve,
        }
    }
}
