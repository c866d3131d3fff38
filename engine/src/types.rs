//! The types that the engine and its callers share.

use crate::codec::hash;
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use crate::value_ref::{Run, ValueRef};

/// A replicated log and its key space. One journal can carry many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u32);

/// The position of an entry in a replicated log: the leader's term, then the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogId {
    /// The term of the leader that proposed the entry.
    pub term: u64,
    /// The position in the log; openraft's first entry has index 0.
    pub index: u64,
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.term, self.index)
    }
}

/// Whose data directory it is: written by `format`, synced before first use, and never changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster's name, 1 to 64 bytes of UTF-8.
    pub cluster: String,
    /// The number of the member's slot in the cluster, from 1.
    pub slot: u16,
    /// 48 random bits: a member whose directory was wiped and formatted again is a different one.
    pub incarnation: u64,
}

impl Identity {
    /// An incarnation has 48 bits that are not all 0.
    pub const MAX_INCARNATION: u64 = (1 << 48) - 1;
}

/// Identifies the running kernel and the devices under it, to tell a restart of the process from a
/// loss of power.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelBootId(pub u128);

impl KernelBootId {
    /// The id of this kernel combined with what its devices report of their own history. If that
    /// report changes, the result counts as another boot.
    #[must_use]
    pub fn with_devices(self, histories: &[String]) -> KernelBootId {
        let mut bytes = self.0.to_le_bytes().to_vec();
        for history in histories {
            bytes.extend_from_slice(history.as_bytes());
            bytes.push(b'\n');
        }
        KernelBootId(hash(&bytes))
    }

    /// A number that is equal on all nodes of one running kernel, and does not reveal the id. Never
    /// 0.
    pub fn fingerprint(self) -> u64 {
        let bytes = [b"fingerprint".as_slice(), &self.0.to_le_bytes()].concat();
        u64::try_from(hash(&bytes) & u128::from(u64::MAX)).unwrap_or(u64::MAX).max(1)
    }
}

/// The files of a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileKind {
    /// Identity, state and votes: four copies, always synced.
    Superblock,
    /// The ring of 4 KiB commit blocks.
    Journal,
    /// The first checkpoint area.
    Checkpoint0,
    /// The second checkpoint area.
    Checkpoint1,
    /// The extents.
    Data,
}

impl FileKind {
    /// Every file, in the order in which `format` creates them. The superblock is last because it
    /// makes the directory valid.
    pub const ALL: [FileKind; 5] = [
        FileKind::Data,
        FileKind::Journal,
        FileKind::Checkpoint0,
        FileKind::Checkpoint1,
        FileKind::Superblock,
    ];

    /// The file's name inside the data directory.
    pub const fn name(self) -> &'static str {
        match self {
            FileKind::Superblock => "superblock",
            FileKind::Journal => "journal",
            FileKind::Checkpoint0 => "checkpoint.0",
            FileKind::Checkpoint1 => "checkpoint.1",
            FileKind::Data => "data",
        }
    }
}

/// What an acknowledgement promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Written to a device that keeps completed writes through a power cut.
    Device,
    /// Written to the device and synced in the background; a quorum of peers covers the time
    /// between.
    Replicated,
    /// Synced before it is acknowledged.
    Sync,
}

impl Mode {
    /// The name used in configuration and status.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Device => "device",
            Mode::Replicated => "replicated",
            Mode::Sync => "sync",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(s: &str) -> Result<Mode, String> {
        [Mode::Device, Mode::Replicated, Mode::Sync]
            .into_iter()
            .find(|mode| mode.name() == s)
            .ok_or_else(|| format!("unknown mode `{s}`: one of device, replicated, sync"))
    }
}

/// What a node may do under its identity, decided at open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It has everything that it acknowledged.
    Active,
    /// It may have lost acknowledged writes: the machine lost power while some were not yet synced,
    /// a sync failed, or part of the journal or the checkpoints was damaged. The state survives
    /// restarts and ends with [`Engine::set_active`](crate::Engine::set_active).
    Recovering,
}

impl MemberState {
    /// The name used in status and logs.
    pub const fn name(self) -> &'static str {
        match self {
            MemberState::Active => "active",
            MemberState::Recovering => "recovering",
        }
    }
}

impl fmt::Display for MemberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One open of a data directory. No two opens of one identity have the same value, also not after a
/// crash or on a copy of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootEpoch {
    /// Counts opens.
    pub number: u64,
    /// [`Options::boot_nonce`] of this open.
    pub nonce: u64,
}

/// The boot nonces of the earlier opens, the latest first; 0 where there was none. A node that
/// knows an earlier boot of a member checks with them whether a later boot continues from it, or
/// from a copy of the disk that was made before it.
pub type FencingHistory = [u64; 16];

/// The sizes of a data directory's files in bytes, each a multiple of 4 KiB, fixed by `format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The journal.
    pub journal_bytes: u64,
    /// Each of the two checkpoint areas.
    pub checkpoint_bytes: u64,
    /// The data area.
    pub data_bytes: u64,
}

/// While so many times [`Options::sync_bytes`] are written and not synced, mode `replicated` acknowledges
/// nothing ahead of a sync: so much can be lost when the power goes, however long a sync takes.
pub const UNSYNCED_PER_SYNC: u64 = 16;

/// How an engine runs; not part of the format.
#[derive(Clone, Debug)]
pub struct Options {
    /// What an acknowledgement promises.
    pub mode: Mode,
    /// The longest time between a completed write and the background sync that covers it.
    pub sync_interval: Duration,
    /// The most written bytes before a background sync begins. Mode `replicated` acknowledges nothing
    /// ahead of a sync while [`UNSYNCED_PER_SYNC`] times as many are not synced.
    pub sync_bytes: u64,
    /// A device operation that takes longer than this counts as failed.
    pub io_timeout: Duration,
    /// The longest time that the checkpoint at the end may take; zero for none. Without it the next
    /// open replays the journal.
    pub last_checkpoint: Duration,
    /// Entries' values kept in memory for replication and apply, in bytes.
    pub log_cache_bytes: u64,
    /// Values of keys that were read lately, in bytes of memory; 0: none stays.
    pub value_cache_bytes: u64,
    /// The running kernel.
    pub boot: KernelBootId,
    /// A random number, fresh for each open.
    pub boot_nonce: u64,
    /// The node has peers. If data is damaged, or a sync failed, open keeps what it can verify and
    /// returns as [`MemberState::Recovering`]. Without it, open refuses damaged data and, after a
    /// failed sync, continues only if the journal reaches everything acknowledged.
    pub salvage: bool,
}

impl Options {
    /// The defaults of the design: sync every second or 4 MiB, 30 s for a device operation, 20 s
    /// for the checkpoint at the end (service managers wait for 30 s to 90 s), 64 MiB of cached
    /// entries, and no values of keys.
    pub fn new(mode: Mode, boot: KernelBootId, boot_nonce: u64) -> Options {
        Options {
            mode,
            sync_interval: Duration::from_secs(1),
            sync_bytes: 4 << 20,
            io_timeout: Duration::from_secs(30),
            last_checkpoint: Duration::from_secs(20),
            log_cache_bytes: 64 << 20,
            value_cache_bytes: 0,
            boot,
            boot_nonce,
            salvage: false,
        }
    }
}

/// When an append counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// When it is written, or synced where the mode says so.
    Mode,
    /// When it is synced, in every mode: votes, membership, a leader's first append.
    Synced,
}

/// A value and its hash, which is taken once: when the value arrives at its first member. Whoever
/// receives the two, or reads them from a disk, hashes the bytes again and compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    bytes: Bytes,
    hash: u128,
}

impl<T: Into<Bytes>> From<T> for Value {
    /// Takes the hash of these bytes.
    fn from(bytes: T) -> Value {
        let bytes = bytes.into();
        Value { hash: hash(&bytes), bytes }
    }
}

impl Value {
    /// The value that had this hash where it came from; `None` if it is damaged since.
    pub fn received(bytes: Bytes, hash: u128) -> Option<Value> {
        Some(Value::from(bytes)).filter(|value| value.hash == hash)
    }

    /// A value of the engine's own, which was compared when it was read, or never left memory.
    pub(crate) fn kept(bytes: Bytes, hash: u128) -> Value {
        Value { bytes, hash }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// XXH3-128 of the bytes.
    pub fn hash(&self) -> u128 {
        self.hash
    }

    /// Its bytes and their hash.
    pub fn into_parts(self) -> (Bytes, u128) {
        (self.bytes, self.hash)
    }
}

/// An entry to append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEntry {
    /// Its position.
    pub id: LogId,
    /// Bytes the engine keeps but does not read; at most 1 MiB.
    pub meta: Bytes,
    /// Values that [`Change::Put`] can link to keys.
    pub values: Vec<Value>,
}

impl NewEntry {
    /// An entry of these values, which it hashes.
    pub fn new(
        id: LogId,
        meta: impl Into<Bytes>,
        values: impl IntoIterator<Item = Bytes>,
    ) -> NewEntry {
        NewEntry { id, meta: meta.into(), values: values.into_iter().map(Value::from).collect() }
    }
}

/// An entry read back, with each value checked against its hash.
pub type Entry = NewEntry;

/// A key's current state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEntry {
    /// The entry that wrote it; its index is the key's version.
    pub version: LogId,
    /// The value.
    pub value: ValueRef,
}

/// A key of a snapshot that is being installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotKey {
    pub(crate) key: Bytes,
    pub(crate) version: LogId,
    pub(crate) length: u32,
    pub(crate) hash: u128,
    /// `None`: the engine may hold the value already.
    pub(crate) value: Option<Bytes>,
}

impl SnapshotKey {
    /// A key with its value; entry `version` wrote it.
    pub fn with_value(key: Bytes, version: LogId, value: Bytes) -> SnapshotKey {
        let (length, hash) = (u32::try_from(value.len()).unwrap_or(u32::MAX), hash(&value));
        SnapshotKey { key, version, length, hash, value: Some(value) }
    }

    /// A key whose value has this length and hash. `value` is `None` if the engine may hold the
    /// value already. Returns `None` if the value does not match.
    pub fn checked(
        key: Bytes,
        version: LogId,
        length: u32,
        hash: u128,
        value: Option<Bytes>,
    ) -> Option<SnapshotKey> {
        match value.or_else(|| (length == 0).then(Bytes::new)) {
            None => Some(SnapshotKey { key, version, length, hash, value: None }),
            Some(value) => {
                let checked = SnapshotKey::with_value(key, version, value);
                (checked.hash == hash && checked.length == length).then_some(checked)
            }
        }
    }

    /// Its key.
    pub fn key(&self) -> &Bytes {
        &self.key
    }

    /// Whether `entry` has the same value, written by the same log entry.
    pub(crate) fn is(&self, entry: &KeyEntry) -> bool {
        (entry.version, entry.value.len, entry.value.hash) == (self.version, self.length, self.hash)
    }
}

/// The first and last position of a group's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogBounds {
    /// The last purged entry.
    pub purged: Option<LogId>,
    /// The last entry, or the last purged one where the log is empty.
    pub last: Option<LogId>,
}

/// A change to the key space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Link value number `value` of the applied entry under `key`.
    Put {
        /// The key.
        key: Bytes,
        /// Which of the entry's values.
        value: usize,
    },
    /// Remove `key`, if present.
    Delete {
        /// The key.
        key: Bytes,
    },
}

/// What applying one entry does.
#[derive(Clone, Debug)]
pub struct Transition {
    /// The entry.
    pub applied: LogId,
    /// Its effects, in order.
    pub changes: Vec<Change>,
}

/// The part of the state machine that is not keys (membership, sessions), immutable once handed
/// over; written into checkpoints.
pub trait MachineImage: Send + Sync + 'static {
    /// Its bytes, as [`View::machine`](crate::View::machine) returns them after a restart.
    fn encode(&self) -> Vec<u8>;

    /// Length of the encoding in bytes, or slightly more. Called often.
    fn encoded_bytes(&self) -> u64;
}

impl MachineImage for Vec<u8> {
    fn encode(&self) -> Vec<u8> {
        self.clone()
    }

    fn encoded_bytes(&self) -> u64 {
        self.len() as u64
    }
}

/// A shared machine image.
pub type SharedImage = Arc<dyn MachineImage>;

/// Which keys to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Only keys that begin with this.
    pub prefix: Bytes,
    /// Only keys strictly after this one (before it, in reverse).
    pub start_after: Option<Bytes>,
    /// At most this many.
    pub limit: usize,
    /// Stop before the keys and values exceed this many bytes; at least one item is returned.
    pub max_bytes: u64,
    /// From the last key to the first.
    pub reverse: bool,
    /// Leave values out, and out of the byte count.
    pub keys_only: bool,
}

/// One listed key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListItem {
    /// The key.
    pub key: Bytes,
    /// Its state.
    pub entry: KeyEntry,
}

/// A page of listed keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// The items, in order.
    pub items: Vec<ListItem>,
    /// Whether keys remain after the last item.
    pub more: bool,
}

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
