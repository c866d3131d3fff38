//! The engine's handle. TEMPORARY bodies: signatures are the contract.

use crate::error::Result;
use crate::io::Directory;
use crate::types::*;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// An open data directory. Clones share it.
#[derive(Clone)]
pub struct Engine {}

impl Engine {
    /// Writes the superblock and an empty checkpoint into a directory whose files exist, zeroed, with this geometry.
    /// Ends synced.
    pub async fn format(directory: &dyn Directory, geometry: Geometry, identity: &Identity) -> Result<()> {
        let _ = (directory, geometry, identity);
        unimplemented!()
    }

    /// Opens and recovers. `expected` (cluster, slot) is compared before anything is written.
    pub async fn open(
        directory: Arc<dyn Directory>,
        expected: Option<(String, u16)>,
        options: Options,
    ) -> Result<Engine> {
        let _ = (directory, expected, options);
        unimplemented!()
    }

    /// Who this is.
    pub fn identity(&self) -> &Identity {
        unimplemented!()
    }

    /// Appends entries that follow the log's last one without a hole. When this returns they can be read; `done` is
    /// called once, in append order across all appends, when the promise holds or the engine failed.
    ///
    /// # Errors
    /// `Full`, `Invalid` (a hole), `Failed`; then nothing was appended and `done` is dropped uncalled.
    pub fn append(
        &self,
        group: GroupId,
        entries: Vec<NewEntry>,
        promise: Promise,
        done: Box<dyn FnOnce(Result<()>) + Send>,
    ) -> Result<()> {
        let _ = (group, entries, promise, done);
        unimplemented!()
    }

    /// First and last position.
    pub fn log_bounds(&self, group: GroupId) -> LogBounds {
        let _ = group;
        unimplemented!()
    }

    /// The id of the entry at `index`, without reading it.
    pub fn log_id_at(&self, group: GroupId, index: u64) -> Option<LogId> {
        let _ = (group, index);
        unimplemented!()
    }

    /// Bytes of values and meta that the log holds between purged and last.
    pub fn log_bytes(&self, group: GroupId) -> u64 {
        let _ = group;
        unimplemented!()
    }

    /// Entries from `range.start` on, without a hole, ending at `range.end` (exclusive), at the log's end, or before
    /// `max_bytes` would be exceeded (never before the first). Cached ones cost no read.
    pub async fn read_log(&self, group: GroupId, range: Range<u64>, max_bytes: u64) -> Result<Vec<Entry>> {
        let _ = (group, range, max_bytes);
        unimplemented!()
    }

    /// Removes every entry above `last` (all, for `None`). Resolves when written.
    pub async fn truncate_after(&self, group: GroupId, last: Option<u64>) -> Result<()> {
        let _ = (group, last);
        unimplemented!()
    }

    /// Removes every entry up to `through`. Takes a checkpoint first where recovery would still need them.
    pub async fn purge(&self, group: GroupId, through: LogId) -> Result<()> {
        let _ = (group, through);
        unimplemented!()
    }

    /// Stores up to 256 bytes for the group, synced before this returns.
    pub async fn save_vote(&self, group: GroupId, vote: &[u8]) -> Result<()> {
        let _ = (group, vote);
        unimplemented!()
    }

    /// What [`Engine::save_vote`] last stored.
    pub fn vote(&self, group: GroupId) -> Option<Bytes> {
        let _ = group;
        unimplemented!()
    }

    /// The highest position that this node is known to have applied before it was restarted. Until the log has been
    /// re-applied to here the key space is older than what was served before.
    pub fn applied_before_restart(&self, group: GroupId) -> Option<LogId> {
        let _ = group;
        unimplemented!()
    }

    /// Applies entries in order; `image` is the rest of the state machine after the last of them. All or nothing is
    /// visible to views. Values are linked, not copied.
    pub fn apply(
        &self,
        group: GroupId,
        transitions: Vec<Transition>,
        image: Arc<dyn MachineImage>,
    ) -> Result<()> {
        let _ = (group, transitions, image);
        unimplemented!()
    }

    /// The last applied position.
    pub fn applied(&self, group: GroupId) -> Option<LogId> {
        let _ = group;
        unimplemented!()
    }

    /// A key's state, without its value.
    pub fn lookup(&self, group: GroupId, key: &[u8]) -> Option<KeyEntry> {
        let _ = (group, key);
        unimplemented!()
    }

    /// A key's state and value, checked.
    pub async fn get(&self, group: GroupId, key: &[u8]) -> Result<Option<(KeyEntry, Bytes)>> {
        let _ = (group, key);
        unimplemented!()
    }

    /// A consistent picture of a group in O(1). While it lives, none of its extents is reused.
    pub fn view(&self, group: GroupId) -> View {
        let _ = group;
        unimplemented!()
    }

    /// Writes a checkpoint now. Resolves when it is synced and the journal before it reclaimed.
    pub async fn checkpoint(&self) -> Result<()> {
        unimplemented!()
    }

    /// Begins to replace a group's whole state by a snapshot from a peer.
    pub async fn begin_install(&self, group: GroupId) -> Result<Installer> {
        let _ = group;
        unimplemented!()
    }

    /// Syncs everything written so far.
    pub async fn sync(&self) -> Result<()> {
        unimplemented!()
    }

    /// What it can say of itself.
    pub fn status(&self) -> EngineStatus {
        unimplemented!()
    }

    /// Whether a client's write of `bytes` should be taken, keeping a reserve for the log itself.
    pub fn admit(&self, bytes: u64) -> Result<()> {
        let _ = bytes;
        unimplemented!()
    }

    /// Waits for writes under way, syncs, marks a clean shutdown. Later calls return `Closed`.
    pub async fn close(&self) -> Result<()> {
        unimplemented!()
    }
}

/// A consistent picture of one group's keys.
#[derive(Clone)]
pub struct View {}

impl View {
    /// The position up to which it is applied.
    pub fn applied(&self) -> Option<LogId> {
        unimplemented!()
    }
    /// The machine image at that position; empty if there never was one.
    pub fn machine(&self) -> Vec<u8> {
        unimplemented!()
    }
    /// Number of keys.
    pub fn len(&self) -> usize {
        unimplemented!()
    }
    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        unimplemented!()
    }
    /// A key's state.
    pub fn get(&self, key: &[u8]) -> Option<KeyEntry> {
        let _ = key;
        unimplemented!()
    }
    /// A page of keys; no I/O.
    pub fn list(&self, query: &ListQuery) -> ListPage {
        let _ = query;
        unimplemented!()
    }
    /// Reads a value of this view and checks it against its hash.
    pub async fn read(&self, entry: &KeyEntry) -> Result<Bytes> {
        let _ = entry;
        unimplemented!()
    }
}

/// A snapshot being installed. Nothing is visible, and a crash leaves the old state, until [`Installer::finish`].
pub struct Installer {}

impl Installer {
    /// Adds a key with its value.
    pub async fn put(&mut self, key: Bytes, version: LogId, value: Bytes) -> Result<()> {
        let _ = (key, version, value);
        unimplemented!()
    }
    /// Replaces the group's keys by what was put, its log by nothing (purged through `applied`), and its machine image.
    /// Ends synced: a checkpoint was written.
    pub async fn finish(self, applied: LogId, image: Arc<dyn MachineImage>) -> Result<()> {
        let _ = (applied, image);
        unimplemented!()
    }
}
