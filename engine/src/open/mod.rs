//! Opening a directory: check whose it is, recover its state, and make that state safe before it is
//! used.

mod begin;
mod evidence;
mod files;
mod finish_recovery;
mod format;
mod grow;
mod inspect;
mod lost_identity;
mod place_carried;
mod recovery;
mod rewrite;

pub use grow::Growth;
pub use inspect::{CheckpointArea, Contents, GroupContents, Inspection, Known, Values, inspect};

use crate::checkpoint::Capture;
use crate::error::{Corruption, Error, Result};
use crate::group::{Group, LogEntry};
use crate::io::{BoundedDirectory, Directory, IoDeadlines};
use crate::journal::Ring;
use crate::space::{References, SpaceMap};
use crate::state::{
    Checkpoints, Counters, Deferred, Engine, Facts, Files, Queue, Scarcity, Shared, Signals, State,
    UnsyncedAckFlag, ValueCache, WriteProgress,
};
use crate::superblock::{Superblock, SuperblockStore};
use crate::types::{Geometry, GroupId, MemberState, Options, ValueRef};
use begin::{Unbegun, watch};
use bytes::Bytes;
use evidence::{classify, lost_power, shutdown_evidence};
use files::open_files;
use format::check_expected;
pub(crate) use format::check_identity;
use lost_identity::{open_error, open_superblock};
use parking_lot::Mutex;
use recovery::{Recovered, recover};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

impl Engine {
    /// Opens and recovers. `expected` (cluster, slot) is compared before anything is written. A
    /// directory that is refused is left as it was. One that is damaged, of a node with peers, is
    /// left as it was apart from the superblock until [`Engine::begin`]; [`Engine::damage`] says so.
    ///
    /// # Errors
    /// `NotFormatted`, `OtherFormat`, `Foreign`, `InUse`, `TooShort`, `Corrupt`, `Io`, `Failed`.
    pub async fn open(
        directory: Arc<dyn Directory>,
        expected: Option<(String, u16)>,
        options: Options,
    ) -> Result<Engine> {
        let (shared, mut unbegun) = Opening::read(directory, expected, options).await?;
        if shared.damage.lock().is_none() {
            unbegun.begin(&shared).await?;
            return Ok(Engine::new(shared));
        }
        unbegun.announce(&shared).await?;
        watch(&shared);
        unbegun.watched = true;
        unbegun.wait(&shared).await;
        Ok(Engine::new(shared))
    }

    /// Reads and recovers like [`Engine::open`], and writes nothing at all, damaged or not, until
    /// [`Engine::begin`]: for a look at the directory of a stopped node.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub async fn survey(
        directory: Arc<dyn Directory>,
        expected: Option<(String, u16)>,
        options: Options,
    ) -> Result<Engine> {
        let (shared, unbegun) = Opening::read(directory, expected, options).await?;
        unbegun.wait(&shared).await;
        Ok(Engine::new(shared))
    }
}

/// A directory that is being opened: what is known before recovery.
struct Opening {
    facts: Facts,
    files: Files,
    deadlines: Arc<IoDeadlines>,
    superblock: SuperblockStore,
    /// The superblock as read, before this open changes it.
    known: Superblock,
    power_cut: bool,
}

impl Opening {
    /// Reads everything and writes nothing.
    async fn read(
        directory: Arc<dyn Directory>,
        expected: Option<(String, u16)>,
        options: Options,
    ) -> Result<(Arc<Shared>, Unbegun)> {
        let deadlines = IoDeadlines::start(options.io_timeout);
        let directory = BoundedDirectory { directory, deadlines };
        let opening = Opening::identify(&directory, expected.as_ref(), options).await?;
        let (mut recovered, member_state, space) = opening.recover().await?;
        let acknowledged = opening.acknowledged(&recovered);
        let capture = Capture::whole(&recovered.groups);
        let last_entries = last_entries(&recovered);
        let known = opening.known.clone();
        let damage = recovered.damage.clone();
        let options = &opening.facts.options;
        let progress = WriteProgress {
            synced: recovered.synced.min(recovered.end),
            ..WriteProgress::new(recovered.end, recovered.chain, options)
        };
        let state = state(&mut recovered, space, opening.facts.ring);
        let directory = directory.directory;
        let shared = opening.into_shared(directory, damage, member_state, state, progress);
        let shared = Arc::new(shared);
        let unbegun = Unbegun {
            recovered,
            capture,
            last_entries,
            known,
            member_state,
            acknowledged,
            watched: false,
        };
        Ok((shared, unbegun))
    }

    /// Checks whose directory it is, and that all its files are there.
    async fn identify(
        directory: &BoundedDirectory,
        expected: Option<&(String, u16)>,
        options: Options,
    ) -> Result<Opening> {
        let location = directory.location();
        let file = open_superblock(directory).await?;
        let read = SuperblockStore::read(file.clone()).await;
        directory.deadlines.check(&location)?;
        let superblock = match read {
            Ok(superblock) => superblock,
            Err(error) => return Err(open_error(directory, &file, expected, error).await),
        };
        let known = superblock.current().clone();
        check_expected(&location, &known.identity, expected)?;
        let files = open_files(directory, &known.geometry)?;
        let power_cut = lost_power(&known, options.boot);
        let mut fencing_history = known.fencing_history;
        fencing_history.rotate_right(1);
        if let Some(latest) = fencing_history.first_mut() {
            *latest = known.boot_nonce;
        }
        let facts = Facts {
            location,
            backend: directory.backend(),
            options,
            identity: known.identity.clone(),
            ring: Ring::new(known.geometry.journal_blocks()),
            epoch: known.epoch + 1,
            fencing_history,
            checkpoint_capacity: known.geometry.checkpoint_bytes,
        };
        let deadlines = Arc::clone(&directory.deadlines);
        Ok(Opening { facts, files, deadlines, superblock, known, power_cut })
    }

    /// Recovers the state from the files, and decides whether the member is active or recovering.
    /// Writes nothing.
    async fn recover(&self) -> Result<(Recovered, MemberState, SpaceMap)> {
        let Opening { facts, files, known, power_cut, .. } = self;
        let salvage = facts.options.salvage;
        let evidence = shutdown_evidence(known, *power_cut, salvage);
        let recovered = recover(files, known, facts.ring, evidence, salvage).await;
        self.deadlines.check(&facts.location)?;
        let mut recovered = recovered?;
        let member_state = match &recovered.damage {
            Some(_) => MemberState::Recovering,
            None => classify(known, *power_cut, salvage),
        };
        let space = count_references(&known.geometry, &mut recovered.groups)?;
        Ok((recovered, member_state, space))
    }

    /// The last sequence that may hold anything acknowledged.
    fn acknowledged(&self, recovered: &Recovered) -> u64 {
        let reached = match self.known.acks_are_synced() {
            true => recovered.synced,
            false => recovered.end,
        };
        self.known.failed_sync.unwrap_or(reached)
    }

    fn into_shared(
        self,
        directory: Arc<dyn Directory>,
        damage: Option<Corruption>,
        member_state: MemberState,
        state: State,
        progress: WriteProgress,
    ) -> Shared {
        let votes = &self.superblock.current().votes;
        let votes = votes.iter().map(|(g, v)| (*g, Bytes::copy_from_slice(v))).collect();
        Shared {
            directory,
            begin: tokio::sync::Mutex::default(),
            damage: Mutex::new(damage),
            values: ValueCache::new(self.facts.options.value_cache_bytes),
            facts: self.facts,
            files: self.files,
            deadlines: self.deadlines,
            superblock: tokio::sync::Mutex::new(self.superblock),
            votes: Mutex::new(votes),
            member_state: Mutex::new(member_state),
            generation: AtomicU32::new(self.known.generation),
            state: Mutex::new(state),
            progress: Mutex::new(progress),
            unsynced_acks: UnsyncedAckFlag::default(),
            syncs_required: AtomicBool::new(false),
            counters: Counters::default(),
            signals: Signals::default(),
            repairing: tokio::sync::Mutex::new(()),
            syncing: tokio::sync::Mutex::new(()),
        }
    }
}

/// The recovered state, of which nothing is written yet.
fn state(recovered: &mut Recovered, space: SpaceMap, ring: Ring) -> State {
    // Until they are at their places, reads find them in memory.
    let carried = recovered.carried.iter().map(|(at, bytes)| (at.offset(), bytes.clone()));
    State {
        begun: false,
        groups: std::mem::take(&mut recovered.groups),
        space,
        installing_bytes: 0,
        queue: Queue::new(ring.blocks()),
        unwritten: carried.collect(),
        deferred: Deferred::default(),
        scarcity: Scarcity::default(),
        closing: false,
        failed: None,
        failed_sync: None,
        checkpoints: Checkpoints::default(),
        ended: Vec::new(),
        unlinking: 0,
    }
}

/// Counts every reference of keys and log to values, and of keys to entries of the log.
fn count_references(
    geometry: &Geometry,
    groups: &mut BTreeMap<GroupId, Group>,
) -> Result<SpaceMap> {
    let mut references = References::new(geometry.data_blocks());
    for group in groups.values_mut() {
        for value in group.log.entries().flat_map(|entry: &Arc<LogEntry>| entry.extents()) {
            references.count(value).map_err(nowhere)?;
        }
        for (_, entry) in group.keys.iter() {
            references.count(&entry.value).map_err(nowhere)?;
            group.log.count_link(entry.version, entry.value.len, true);
        }
    }
    Ok(references.into_map())
}

fn nowhere(value: ValueRef) -> Error {
    Error::Invalid(format!(
        "a value at {} of {} bytes lies outside the data area, or belongs to too many entries",
        value.offset(),
        value.len
    ))
}

/// The last entry of each group's log, for the log.
fn last_entries(recovered: &Recovered) -> String {
    let last = recovered.groups.values().map(|group| group.log.bounds().last);
    let shown = last.map(|last| last.map_or_else(|| "none".to_string(), |id| id.to_string()));
    shown.collect::<Vec<_>>().join(" ")
}
