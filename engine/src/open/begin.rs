//! The end of an open: from here on the directory is written.
//!
//! What holds here: an open reads first, and decides by what it read alone. Where nothing is damaged
//! it begins at once. A damaged directory of a node with peers is opened as it is: reads and votes
//! work, and journal, checkpoints and data stay untouched until [`Engine::begin`]. Its caller knows
//! by then who has what is missing here: a leader, or nobody for whom an operator would wait. Until
//! then the superblock names this boot epoch, since the other members hear of it, and nothing else
//! changes by which the next open judges. So a directory that can be read again later has lost
//! nothing, and comes back as if nothing had been.

use super::evidence::{lost_power, shutdown_evidence};
use super::finish_recovery::finish_recovery;
use super::recovery::{Recovered, recover};
use crate::checkpoint::Capture;
use crate::error::{Corruption, Error, Result};
use crate::io::{AlignedBuf, BLOCK};
use crate::journal::{self, Packer, Record};
use crate::state::{Checkpoints, Engine, Shared, free_what_ended};
use crate::superblock::{Clean, NEWEST_FORMAT, Superblock};
use crate::types::{GroupId, LogId, MemberState};
use crate::write::{Compactor, Writer, syncer};
use std::sync::Arc;

/// What was recovered, and what else its begin needs beside the engine.
pub(super) struct Unbegun {
    /// Without its groups, which the engine has.
    pub recovered: Recovered,
    /// The groups as they were recovered.
    pub capture: Capture,
    /// The last entry of each group's log, in words.
    pub last_entries: String,
    /// The superblock as read, before this open changes it.
    pub known: Superblock,
    pub member_state: MemberState,
    /// The last sequence that may hold anything acknowledged.
    pub acknowledged: u64,
    /// The tasks that write no file but the superblock run already.
    pub watched: bool,
}

/// Starts the tasks that write no file but the superblock.
pub(super) fn watch(shared: &Arc<Shared>) {
    shared.spawn(syncer::run(shared.clone()));
    shared.spawn(free_what_ended(shared.clone()));
}

impl Engine {
    /// The damage because of which nothing was written yet. `None` once the directory is written.
    pub fn damage(&self) -> Option<Corruption> {
        self.shared.damage.lock().clone()
    }

    /// Whether a damaged directory, which is not written yet, can be read without damage by now: then
    /// another open finds everything. Reads journal and checkpoints, and writes nothing.
    pub async fn reads_whole(&self) -> bool {
        if self.damage().is_none() {
            return false;
        }
        let Shared { facts, files, .. } = &*self.shared;
        let known = self.shared.superblock.lock().await.current().clone();
        let evidence = shutdown_evidence(&known, lost_power(&known, facts.options.boot), true);
        let read = recover(files, &known, facts.ring, evidence, false).await;
        read.is_ok() && self.damage().is_some()
    }

    /// Begins to write the directory, if that did not happen yet. What is damaged in it, and what
    /// lies behind the damage, is overwritten from here on: call this when nobody needs it. If
    /// anything is damaged, a copy of superblock, journal and checkpoints is set aside first; with
    /// `copied`, nothing is written without one. Returns where the copy is.
    ///
    /// # After a crash
    /// During this call: the directory as it was, or recovering with what was recovered.
    ///
    /// # Errors
    /// `Io` if there is no copy, and nothing was changed; `Failed`, `Closed`.
    pub async fn begin(&self, copied: bool) -> Result<Option<String>> {
        let shared = self.shared.clone();
        // In a task of its own: the caller may be cancelled, and the kernel reports a failed sync
        // only once.
        let begun = tokio::spawn(async move {
            let mut waiting = shared.begin.lock().await;
            let mut copy = None;
            if waiting.is_some() {
                // Copying may take long, and a stop does not wait for it.
                copy = tokio::select! {
                    biased;
                    ended = shared.wait_until(|shared| shared.state.lock().check_open().err()) => {
                        return Err(ended);
                    }
                    copy = set_aside(&shared, copied) => copy?,
                };
            }
            match waiting.take() {
                Some(begin) => {
                    begin(shared.clone()).await.inspect_err(|error| shared.fail(error))?
                }
                None => shared.state.lock().check_begun()?,
            }
            Ok(copy)
        });
        begun.await.unwrap_or(Err(Error::Closed))
    }
}

/// Sets a copy of a damaged directory aside, as far as it can be read. Returns where it is.
async fn set_aside(shared: &Shared, required: bool) -> Result<Option<String>> {
    if shared.damage.lock().is_none() {
        return Ok(None);
    }
    let location = &shared.facts.location;
    match shared.directory.set_aside(shared.facts.epoch).await {
        Ok(copy) => {
            tracing::warn!(
                location,
                copy,
                "superblock, journal and checkpoints of the damaged directory were copied: remove the copy when nobody \
                 needs what was damaged"
            );
            Ok(Some(copy))
        }
        Err(error) if required => {
            let (location, reason) = (location.clone(), error.to_string());
            Err(Error::Io { location, operation: "setting a copy aside", reason })
        }
        Err(error) => {
            tracing::warn!(location, %error, "no copy of the damaged journal and checkpoints was set aside");
            Ok(None)
        }
    }
}

/// Through where each group's log is purged.
fn purged(shared: &Shared) -> Vec<(GroupId, LogId)> {
    let state = shared.state.lock();
    state.groups.iter().filter_map(|(id, group)| Some((*id, group.purged()?))).collect()
}

impl Unbegun {
    /// Leaves the rest of the open to [`Engine::begin`].
    pub(super) async fn wait(self, shared: &Arc<Shared>) {
        let begin = async move |shared: Arc<Shared>| self.begin(&shared).await;
        *shared.begin.lock().await = Some(Box::new(move |shared| Box::pin(begin(shared))));
    }

    /// The directory is damaged, and its member speaks to others before anything is overwritten:
    /// records its boot epoch, by which they know it. Everything else by which an open judges the
    /// directory stays, since nothing is acknowledged meanwhile.
    pub(super) async fn announce(&self, shared: &Shared) -> Result<()> {
        let facts = &shared.facts;
        let mut superblock = shared.superblock.lock().await;
        superblock.rewrite_copies().await?;
        superblock
            .update(|s| {
                s.epoch = facts.epoch;
                s.boot_nonce = facts.options.boot_nonce;
                s.fencing_history = facts.fencing_history;
            })
            .await?;
        let damage = self.recovered.damage.as_ref().map(ToString::to_string).unwrap_or_default();
        tracing::warn!(
            location = facts.location,
            damage,
            boot_epoch = facts.epoch,
            journal_end = self.recovered.end,
            last_entries = self.last_entries,
            "the data directory is damaged: the node shows what it could verify, and overwrites nothing before a leader \
             has what is missing. If the device can be read again before that, everything is there"
        );
        Ok(())
    }

    /// Begins a boot epoch behind what was recovered, and starts the tasks that write. A failed write
    /// or sync is recorded, if the next open takes what it reads for what is on the medium: it does
    /// under the kernel that the superblock names.
    pub(super) async fn begin(mut self, shared: &Arc<Shared>) -> Result<()> {
        if let Err(error) = self.write(shared).await {
            let mut superblock = shared.superblock.lock().await;
            let same_kernel = superblock.current().boot == shared.facts.options.boot;
            if error.is_failed_io() && same_kernel {
                let _ = superblock.record_failed_sync(self.acknowledged).await;
            }
            return Err(error);
        }
        shared.spawn(Writer::new(shared.clone()).run());
        if !self.watched {
            watch(shared);
        }
        shared.spawn(Compactor::new(shared.clone()).run());
        Ok(())
    }

    async fn write(&mut self, shared: &Shared) -> Result<()> {
        self.make_safe(shared).await?;
        self.record_boot(shared).await?;
        self.log_findings(shared);
        let (written, chain) = self.begin_epoch(shared).await?;
        {
            let mut progress = shared.progress.lock();
            (progress.written, progress.synced) = (written, written);
            progress.written_checksum = chain;
        }
        let mut state = shared.state.lock();
        for (at, _) in &self.recovered.carried {
            state.unwritten.remove(&at.offset());
        }
        self.set_checkpoints(&mut state.checkpoints);
        state.begun = true;
        *shared.damage.lock() = None;
        Ok(())
    }

    fn set_checkpoints(&mut self, checkpoints: &mut Checkpoints) {
        let recovered = &mut self.recovered;
        // The first block of this boot epoch says nothing that the checkpoint does not.
        let replayed = recovered.end > recovered.checkpoint.sequence;
        checkpoints.recordless = if replayed { 0 } else { recovered.end + 1 };
        checkpoints.number = recovered.checkpoint.number;
        checkpoints.area = recovered.area;
        checkpoints.sequence = recovered.checkpoint.sequence;
        checkpoints.previous = recovered.previous;
        checkpoints.applied = std::mem::take(&mut recovered.checkpoint_applied);
        checkpoints.requested |= recovered.alone;
        checkpoints.newest_format |= self.known.format == NEWEST_FORMAT;
    }

    /// When this returns, the recovered state is on the medium, and nothing behind its end can be
    /// mistaken for a part of it.
    async fn make_safe(&mut self, shared: &Shared) -> Result<()> {
        let Unbegun { recovered, capture, known, member_state, .. } = self;
        let after_failed_sync = known.failed_sync.is_some();
        {
            let mut superblock = shared.superblock.lock().await;
            let damaged_copies = superblock.rewrite_copies().await?;
            if damaged_copies > 0 {
                tracing::warn!(
                    location = shared.facts.location,
                    copies = damaged_copies,
                    "damaged copies of the superblock were rewritten"
                );
            }
            if recovered.damage.is_some()
                || (after_failed_sync && *member_state == MemberState::Recovering)
            {
                // Before a byte of the damage is overwritten: the remainder could later look
                // complete.
                superblock.update(|s| s.member_state = MemberState::Recovering).await?;
            }
        }
        finish_recovery(&shared.files, shared.facts.ring, known, recovered, capture).await
    }

    /// Records this open in the superblock. From here on the directory belongs to it.
    async fn record_boot(&self, shared: &Shared) -> Result<()> {
        let (facts, mode) = (&shared.facts, shared.mode());
        let Unbegun { recovered, member_state, .. } = self;
        // Everything recovered is synced by now, so the flag is clear until the first
        // acknowledgement that is not.
        let clean = Clean { sequence: recovered.end, checksum: recovered.chain };
        let mut superblock = shared.superblock.lock().await;
        superblock
            .update(|s| {
                s.epoch = facts.epoch;
                s.boot = facts.options.boot;
                s.unsynced_acks = false;
                s.clean = clean;
                s.mode = Some(mode);
                s.member_state = *member_state;
                s.boot_nonce = facts.options.boot_nonce;
                s.fencing_history = facts.fencing_history;
            })
            .await
    }

    /// Logs what an operator should know about the state in which the directory was found.
    fn log_findings(&self, shared: &Shared) {
        let Unbegun { recovered, last_entries, known, member_state, .. } = self;
        let (location, epoch) = (&shared.facts.location, shared.facts.epoch);
        if let Some(damage) = &recovered.damage {
            tracing::warn!(
                location,
                %damage,
                boot_epoch = epoch,
                journal_end = recovered.end,
                last_entries,
                "the node keeps what it could verify of the damaged data directory and drops what lies behind \
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
        } else if *member_state == MemberState::Recovering
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

    /// Writes and syncs a block of the new boot epoch behind the recovered end. Blocks that an earlier
    /// process left further on then no longer continue the chain. Returns its sequence and checksum.
    ///
    /// It says through where each log is purged. The checkpoint may be the only one to say so: it left
    /// entries out, and the process ended before it purged them. Their space is used again from here on,
    /// and an open from the older checkpoint must know that.
    async fn begin_epoch(&self, shared: &Shared) -> Result<(u64, u128)> {
        let (facts, recovered) = (&shared.facts, &self.recovered);
        let written = recovered.end + 1;
        let mut packer = Packer::default();
        for (group, through) in purged(shared) {
            packer.push(&Record::Purge { group, through });
        }
        packer.at_least_one();
        assert!(packer.payloads.len() == 1, "the purges of all groups fit into a block");
        let payload = packer.payloads.pop().unwrap_or_default();
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
        let chain = journal::encode_into(&mut block, &header, &payload);
        shared.files.journal.write(facts.ring.offset(written), block).await?;
        shared.files.journal.sync().await?;
        if recovered.end == 0 || self.known.failed_sync.is_some() {
            // No checkpoint covers any of the journal: without this record an erased journal would
            // pass for this one. After a failed sync the block before this one may have been in a cache
            // only, and a power cut takes it: until this one is there, the failure excuses that.
            let clean = Clean { sequence: written, checksum: chain };
            let mut superblock = shared.superblock.lock().await;
            superblock
                .update(|s| {
                    s.clean = clean;
                    s.failed_sync = None;
                })
                .await?;
        }
        Ok((written, chain))
    }
}
