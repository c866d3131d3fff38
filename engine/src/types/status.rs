//! What an engine tells of itself.

use super::directory::MemberState;
use super::options::Mode;

/// How far the scrubber came; kept in the superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubProgress {
    /// The offset in the data area that the present cycle has reached.
    pub position: u64,
    /// Seconds of running time since the present cycle began.
    pub elapsed_s: u64,
    /// The operator has paused it.
    pub paused: bool,
}

/// What the bytes of the data area are. The parts add up to the area. Until the log is re-applied
/// after a restart, a byte may count as `live` that something newer uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceUse {
    /// Values of keys.
    pub live: u64,
    /// Values and bodies of log entries to which no key refers: a purge frees them.
    pub log: u64,
    /// Values written for a snapshot that is being installed.
    pub installing: u64,
    /// The unused rest of blocks that hold any of the above: padding, and what died in blocks that
    /// values share. Compaction makes the latter free.
    pub padding: u64,
    /// Dead, until a journal block records it.
    pub dead_unrecorded: u64,
    /// Dead, until that block is synced and a synced block says so.
    pub dead_unsynced: u64,
    /// Dead, until the views end that may reach it.
    pub dead_viewed: u64,
    /// Free, but not for clients' writes. What compaction takes comes out of it until the blocks that
    /// it emptied are free.
    pub reserve: u64,
    /// Free.
    pub free: u64,
}

/// How much the cache of values holds, and how often it had what was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatus {
    /// Memory that the values take.
    pub bytes: u64,
    /// Values that were there.
    pub hits: u64,
    /// Values that were read from the device.
    pub misses: u64,
}

/// The state of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineStatus {
    /// `io_uring`, `threads` or `simulated`.
    pub backend: &'static str,
    /// The mode.
    pub mode: Mode,
    /// Whether the member is active or recovering.
    pub member_state: MemberState,
    /// The unsynced-ack flag: acknowledged writes may not be synced.
    pub unsynced_acks: bool,
    /// The last journal sequence number that is written, with all before it.
    pub written_sequence: u64,
    /// The last journal sequence number that is synced.
    pub synced_sequence: u64,
    /// Bytes written and not yet synced.
    pub unsynced_bytes: u64,
    /// Milliseconds since the oldest unsynced write was acknowledged.
    pub unsynced_ms: u64,
    /// Bytes of the data area.
    pub data_bytes: u64,
    /// Bytes of the data area that can be allocated now, the reserve included.
    pub free_bytes: u64,
    /// What each byte of the data area is.
    pub space: SpaceUse,
    /// Keys in all groups.
    pub keys: u64,
    /// Bytes of values and keys under live keys.
    pub live_bytes: u64,
    /// Approximate bytes that a checkpoint taken now would need.
    pub index_bytes: u64,
    /// The log's part of that.
    pub index_log_bytes: u64,
    /// Bytes of keys beyond which puts are refused: all of `index_bytes` but the log's part counts.
    pub index_limit_bytes: u64,
    /// Bytes of a checkpoint area.
    pub index_capacity_bytes: u64,
    /// How many requests were refused because no checkpoint could have held the result.
    pub index_refusals: u64,
    /// Journal blocks in use.
    pub journal_used_blocks: u64,
    /// Journal blocks in all.
    pub journal_blocks: u64,
    /// The sequence number that the newest checkpoint covers.
    pub checkpoint_sequence: u64,
    /// Checkpoints written since the engine was opened.
    pub checkpoints: u64,
    /// Parts of the newest of them: one holds all of the state, each other one what changed since.
    pub checkpoint_parts: u64,
    /// Whether another one is requested or being written.
    pub checkpoint_running: bool,
    /// Bytes of values accepted by append since the newest checkpoint began, or since the engine was
    /// opened.
    pub bytes_since_checkpoint: u64,
    /// Bytes written to the device since the engine was opened: values with padding, journal,
    /// checkpoints, superblock.
    pub device_bytes_written: u64,
    /// Bytes of values accepted by append since the engine was opened.
    pub user_bytes_written: u64,
    /// Bytes of values that compaction moved since the engine was opened; they are in
    /// `device_bytes_written` too. What it could still gain is in [`SpaceUse::padding`].
    pub moved_bytes: u64,
    /// Syncs (`fdatasync` calls) since the engine was opened.
    pub syncs: u64,
    /// Values of keys that are in memory, and how often one was.
    pub value_cache: CacheStatus,
    /// Memory of the values of the newest log entries, which followers still need.
    pub log_cache_bytes: u64,
    /// Values that did not match their hash.
    pub corrupt_values: u64,
    /// Damaged values that were repaired.
    pub repaired_values: u64,
    /// Why the engine stopped, if a write or sync failed.
    pub failed: Option<String>,
    /// A device operation has taken longer than a third of `io_timeout`.
    pub stalled: bool,
    /// A write or sync failed, and the superblock records it. With peers, the next open will not
    /// assume that the directory is complete.
    pub failed_sync_recorded: bool,
}

/// Values of so many times a checkpoint's own bytes are worth one.
const CHECKPOINT_WORTH: u64 = 16;

impl EngineStatus {
    /// Whether a checkpoint is due after so many bytes of values: `least`, or more where checkpoints
    /// are so large that they would be a good part of what is written. At most an eighth of the
    /// data area: the log cannot be purged further than a checkpoint covers.
    #[must_use]
    pub fn is_checkpoint_due(&self, least: u64) -> bool {
        // The log's records are left out: the checkpoint is what lets them go.
        let state = self.index_bytes.saturating_sub(self.index_log_bytes);
        let interval = least.max(state.saturating_mul(CHECKPOINT_WORTH)).min(self.data_bytes / 8);
        self.bytes_since_checkpoint >= interval
    }
}
