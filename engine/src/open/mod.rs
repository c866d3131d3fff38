//! Opening a directory: check whose it is, recover its state, and make that state safe before it is
//! used.

mod classify;
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

use crate::error::{Error, Result};
use crate::group::{Group, LogEntry};
use crate::io::{AlignedBuf, BLOCK, BoundedDirectory, Directory, IoDeadlines};
use crate::journal::{self, Payload, Ring};
use crate::space::{References, SpaceMap};
use crate::state::{
    Checkpoints, Counters, Deferred, Engine, Facts, Files, Queue, Scarcity, Shared, Signals, State,
    UnsyncedAckFlag, WriteProgress, free_ended_views,
};
use crate::superblock::{Clean, Superblock, SuperblockStore};
use crate::types::{Geometry, GroupId, MemberState, Options, ValueRef};
use crate::write::{Compactor, Writer, syncer};
use bytes::Bytes;
use classify::{classify, shutdown_evidence};
use files::{open_files, open_superblock};
use finish_recovery::finish_recovery;
use format::check_expected;
use lost_identity::open_error;
use parking_lot::Mutex;
use recovery::{Recovered, recover};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

impl Engine {
    /// Opens and recovers. `expected` (cluster, slot) is compared before anything is written. A
    /// directory that is refused is left as it was.
    ///
    /// # Errors
    /// `NotFormatted`, `OtherFormat`, `Foreign`, `InUse`, `TooShort`, `Corrupt`, `Io`, `Failed`.
    pub async fn open(
        directory: Arc<dyn Directory>,
        expected: Option<(String, u16)>,
        options: Options,
    ) -> Result<Engine> {
        let deadlines = IoDeadlines::start(options.io_timeout);
        let directory = BoundedDirectory { directory, deadlines };
        let mut opening = Opening::identify(&directory, expected.as_ref(), options).await?;
        let (mut recovered, member_state, space) = opening.recover().await?;
        let acknowledged = opening.acknowledged(&recovered);
        let begun = opening.begin(&mut recovered, member_state).await;
        if let Err(error) = &begun {
            opening.record_failed_sync(error, acknowledged).await;
        }
        let (written, chain) = begun?;
        let progress = WriteProgress::new(written, chain, opening.facts.options.mode);
        let state = state(recovered, space, opening.facts.ring);
        let shared = Arc::new(opening.into_shared(member_state, state, progress));
        shared.spawn(Writer::new(shared.clone()).run());
        shared.spawn(syncer::run(shared.clone()));
        shared.spawn(Compactor::new(shared.clone()).run());
        shared.spawn(free_ended_views(shared.clone()));
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
    /// Checks whose directory it is, and that all its files are there.
    async fn identify(
        directory: &BoundedDirectory,
        expected: Option<&(String, u16)>,
        options: Options,
    ) -> Result<Opening> {
        let location = directory.location();
        let file = open_superblock(directory)?;
        let read = SuperblockStore::read(file.clone()).await;
        directory.deadlines.check(&location)?;
        let superblock = match read {
            Ok(superblock) => superblock,
            Err(error) => return Err(open_error(directory, &file, expected, error).await),
        };
        let known = superblock.current().clone();
        check_expected(&location, &known.identity, expected)?;
        let files = open_files(directory, &known.geometry)?;
        let power_cut = known.boot != options.boot;
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

    /// Begins a boot epoch behind what was recovered. Returns the sequence and the checksum of its
    /// first block.
    async fn begin(
        &mut self,
        recovered: &mut Recovered,
        member_state: MemberState,
    ) -> Result<(u64, u128)> {
        self.make_safe(recovered, member_state).await?;
        self.record_boot(recovered, member_state).await?;
        self.log_findings(recovered, member_state);
        self.begin_epoch(recovered).await
    }

    /// Records that a write or sync of this open failed, if the next open takes what it reads for
    /// what is on the medium: it does under the kernel that the superblock names.
    async fn record_failed_sync(&mut self, error: &Error, acknowledged: u64) {
        let same_kernel = self.superblock.current().boot == self.facts.options.boot;
        if error.is_failed_io() && same_kernel {
            let _ = self.superblock.record_failed_sync(acknowledged).await;
        }
    }

    /// When this returns, the recovered state is on the medium, and nothing behind its end can be
    /// mistaken for a part of it.
    async fn make_safe(
        &mut self,
        recovered: &mut Recovered,
        member_state: MemberState,
    ) -> Result<()> {
        let Opening { facts: Facts { location, ring, .. }, files, superblock, known, .. } = self;
        let after_failed_sync = known.failed_sync.is_some();
        let damaged_copies = superblock.rewrite_copies().await?;
        if damaged_copies > 0 {
            tracing::warn!(
                location,
                copies = damaged_copies,
                "damaged copies of the superblock were rewritten"
            );
        }
        if recovered.damage.is_some()
            || (after_failed_sync && member_state == MemberState::Recovering)
        {
            // Before a byte of the damage is overwritten: the remainder could later look complete.
            superblock.update(|s| s.member_state = MemberState::Recovering).await?;
        }
        finish_recovery(files, *ring, known, recovered).await
    }

    /// Records this open in the superblock. From here on the directory belongs to it.
    async fn record_boot(
        &mut self,
        recovered: &Recovered,
        member_state: MemberState,
    ) -> Result<()> {
        let Facts { options, epoch, fencing_history, .. } = &self.facts;
        // Everything recovered is synced by now, so the flag is clear until the first
        // acknowledgement that is not.
        let clean = Clean { sequence: recovered.end, checksum: recovered.chain };
        self.superblock
            .update(|s| {
                s.epoch = *epoch;
                s.boot = options.boot;
                s.unsynced_acks = false;
                s.clean = clean;
                s.mode = Some(options.mode);
                s.member_state = member_state;
                s.boot_nonce = options.boot_nonce;
                s.fencing_history = *fencing_history;
                s.failed_sync = None;
            })
            .await
    }

    /// Logs what an operator should know about the state in which the directory was found.
    fn log_findings(&self, recovered: &Recovered, member_state: MemberState) {
        let Opening { facts: Facts { location, epoch, .. }, known, .. } = self;
        if let Some(damage) = &recovered.damage {
            tracing::warn!(
                location,
                %damage,
                boot_epoch = epoch,
                journal_end = recovered.end,
                last_entries = last_entries(recovered),
                "the data directory is damaged: the node keeps what it could verify and drops what lies behind \
                 the damage. It recovers the rest from its peers before it votes or serves"
            );
        } else if let Some(acknowledged) = known.failed_sync {
            tracing::warn!(
                location,
                acknowledged,
                boot_epoch = epoch,
                journal_end = recovered.end,
                %member_state,
                "a write or sync of this disk failed before: replace the disk. Data that no sync covered was rewritten and synced. With \
                 peers the node recovers before it votes or serves. Alone it continues, because everything acknowledged is there"
            );
        } else if member_state == MemberState::Recovering
            && known.member_state == MemberState::Active
        {
            tracing::warn!(
                location,
                boot_epoch = epoch,
                journal_end = recovered.end,
                "this machine, or its disk alone, lost power while acknowledged writes were not yet synced. The newest of \
                 them may be lost; the node recovers before it votes or serves"
            );
        }
    }

    /// Writes and syncs an empty block of the new boot epoch behind the recovered end. Blocks that
    /// an earlier process left further on then no longer continue the chain. Returns its sequence
    /// and checksum.
    async fn begin_epoch(&mut self, recovered: &Recovered) -> Result<(u64, u128)> {
        let facts = &self.facts;
        let written = recovered.end + 1;
        let header = journal::Header {
            incarnation: facts.identity.incarnation,
            epoch: facts.epoch,
            sequence: written,
            previous: recovered.chain,
            written: recovered.end,
            synced: recovered.end,
            placed: recovered.end,
        };
        let mut block = AlignedBuf::zeroed(BLOCK);
        let chain = journal::encode_into(&mut block, &header, &Payload::default());
        self.files.journal.write(facts.ring.offset(written), block).await?;
        self.files.journal.sync().await?;
        if recovered.end == 0 {
            // No checkpoint covers any of the journal: without this record an erased journal would
            // pass for this one.
            let clean = Clean { sequence: written, checksum: chain };
            self.superblock.update(|s| s.clean = clean).await?;
        }
        Ok((written, chain))
    }

    fn into_shared(
        self,
        member_state: MemberState,
        state: State,
        progress: WriteProgress,
    ) -> Shared {
        let votes = &self.superblock.current().votes;
        let votes = votes.iter().map(|(g, v)| (*g, Bytes::copy_from_slice(v))).collect();
        Shared {
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

fn state(recovered: Recovered, space: SpaceMap, ring: Ring) -> State {
    // The first block of this boot epoch is empty.
    let replayed = recovered.end > recovered.checkpoint.sequence;
    let checkpoints = Checkpoints {
        recordless: if replayed { 0 } else { recovered.end + 1 },
        number: recovered.checkpoint.number,
        area: recovered.area,
        sequence: recovered.checkpoint.sequence,
        previous: recovered.previous,
        applied: recovered.checkpoint_applied,
        ..Checkpoints::default()
    };
    State {
        groups: recovered.groups,
        space,
        installing_bytes: 0,
        queue: Queue::new(ring.blocks()),
        unwritten: BTreeMap::new(),
        deferred: Deferred::default(),
        scarcity: Scarcity::default(),
        closing: false,
        failed: None,
        failed_sync: None,
        checkpoints,
        ended_views: Vec::new(),
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
