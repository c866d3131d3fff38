//! Opening a directory: whose it is, what it stands for, and what must be safe before it is used.

mod classify;
mod files;
mod format;
mod inspect;
mod lost_identity;
mod recovery;
mod rewrite;
mod settle;

pub(crate) use format::format;
pub use inspect::{CheckpointArea, Contents, GroupContents, Inspection, Known, Values, inspect};
pub(crate) use lost_identity::{format_again, is_readable};

use crate::error::{Error, Result};
use crate::group::{Group, LogEntry};
use crate::io::{Directory, Watch, Watched};
use crate::journal::{self, Ring};
use crate::space::SpaceMap;
use crate::state::{
    Checkpoints, Counters, Devices, Facts, LazyMark, Progress, Queue, Shared, Signals, State,
};
use crate::superblock::{Clean, Superblock, SuperblockStore};
use crate::types::{Geometry, GroupId, Mode, Options, Standing};
use bytes::Bytes;
use classify::{classify, how_it_was_left};
use files::{open_devices, open_superblock};
use format::check_expected;
use parking_lot::Mutex;
use recovery::{Recovered, recover};
use settle::{begin_epoch, settle};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Reads the directory, decides whether it may be used, recovers it, and only then writes.
pub(crate) async fn open(
    directory: &Watched,
    expected: Option<(String, u16)>,
    options: Options,
) -> Result<Arc<Shared>> {
    let mut opening = Opening::identify(directory, expected.as_ref(), options).await?;
    let (mut recovered, standing, space) = opening.recover().await?;
    opening.make_safe(&mut recovered, standing).await?;
    opening.begin_run(&recovered, standing).await?;
    opening.tell(&recovered, standing);
    let (written, chain) = opening.begin_epoch(&recovered).await?;
    let progress = Progress::new(written, chain, opening.facts.options.mode);
    let state = state(recovered, space, opening.facts.ring);
    Ok(Arc::new(opening.into_shared(standing, state, progress)))
}

/// A directory that is being opened: what is known of it before anything is recovered.
struct Opening {
    facts: Facts,
    devices: Devices,
    watch: Arc<Watch>,
    superblock: SuperblockStore,
    /// What the superblock says until this opening changes it.
    known: Superblock,
    power_cut: bool,
}

impl Opening {
    /// Whose the directory is, and whether all its files are there.
    async fn identify(
        directory: &Watched,
        expected: Option<&(String, u16)>,
        options: Options,
    ) -> Result<Opening> {
        let location = directory.location();
        let device = open_superblock(directory)?;
        let read = SuperblockStore::read(device.clone(), location.clone()).await;
        directory.watch.check(&location)?;
        let superblock = match read {
            Ok(superblock) => superblock,
            Err(error) => {
                return Err(lost_identity::judge(directory, device.as_ref(), expected, error).await);
            }
        };
        let known = superblock.current().clone();
        check_expected(&location, &known.identity, expected)?;
        let devices = open_devices(directory, &known.geometry)?;
        let power_cut = known.boot != options.boot;
        let mut lineage = known.lineage;
        lineage.rotate_right(1);
        if let Some(latest) = lineage.first_mut() {
            *latest = known.run;
        }
        let facts = Facts {
            location,
            backend: directory.backend(),
            options,
            identity: known.identity.clone(),
            ring: Ring::new(known.geometry.journal_blocks()),
            epoch: known.epoch + 1,
            lineage,
            checkpoint_capacity: known.geometry.checkpoint_bytes,
        };
        Ok(Opening { facts, devices, watch: Arc::clone(&directory.watch), superblock, known, power_cut })
    }

    /// What the files stand for, and whether the node still remembers what it acknowledged. Writes
    /// nothing.
    async fn recover(&self) -> Result<(Recovered, Standing, SpaceMap)> {
        let Opening { facts, devices, known, power_cut, .. } = self;
        let salvage = facts.options.salvage;
        let left = how_it_was_left(known, *power_cut, salvage);
        let recovered = recover(devices, known, facts.ring, left, salvage).await;
        self.watch.check(&facts.location)?;
        let recovered = recovered?;
        let standing = match &recovered.damage {
            Some(_) => Standing::Recovering,
            None => classify(known, *power_cut, salvage),
        };
        let space = rebuild_space(&known.geometry, &recovered.groups)?;
        Ok((recovered, standing, space))
    }

    /// What was read is on the medium when this returns, and nothing behind it could pass for more.
    async fn make_safe(&mut self, recovered: &mut Recovered, standing: Standing) -> Result<()> {
        let Opening { facts: Facts { location, ring, .. }, devices, superblock, known, power_cut, .. } = self;
        let doubtful = known.failed_sync.is_some();
        let healed = match *power_cut && !doubtful {
            true => superblock.heal().await?,
            false => superblock.reaffirm().await?,
        };
        if healed.damaged > 0 {
            tracing::warn!(
                location,
                copies = healed.damaged,
                "damaged copies of the superblock were rewritten"
            );
        }
        if recovered.damage.is_some() || (doubtful && standing == Standing::Recovering) {
            // Before a byte of the damage is overwritten: what is left then could pass for whole.
            superblock.update(|s| s.standing = Standing::Recovering).await?;
        }
        let reached = if known.mode == Some(Mode::Sync) { recovered.synced } else { recovered.end };
        let incarnation = known.identity.incarnation;
        let settled = settle(devices, *ring, location, recovered, doubtful, incarnation).await;
        if let Err(error) = &settled
            && error.is_failed_io()
            && !*power_cut
        {
            // What this opening has read may be gone at the next one.
            let _ = superblock.record_failed_sync(known.failed_sync.unwrap_or(reached)).await;
        }
        settled
    }

    /// From here on the directory is this opening's.
    async fn begin_run(&mut self, recovered: &Recovered, standing: Standing) -> Result<()> {
        let Facts { options, epoch, lineage, .. } = &self.facts;
        // All that was recovered is synced by now, so the mark is clear until the first acknowledgement that is not.
        let clean = Clean { sequence: recovered.end, checksum: recovered.chain };
        self.superblock
            .update(|s| {
                s.epoch = *epoch;
                s.boot = options.boot;
                s.lazy = false;
                s.clean = clean;
                s.mode = Some(options.mode);
                s.standing = standing;
                s.run = options.run;
                s.lineage = *lineage;
                s.failed_sync = None;
            })
            .await
    }

    /// Says what a person should know of how the directory was found.
    fn tell(&self, recovered: &Recovered, standing: Standing) {
        let Opening { facts: Facts { location, epoch, .. }, known, .. } = self;
        if let Some(damage) = &recovered.damage {
            tracing::warn!(
                location,
                %damage,
                start = epoch,
                journal_end = recovered.end,
                last_entries = ?recovered.groups.values().map(|g| g.log.bounds().last).collect::<Vec<_>>(),
                "the data directory is damaged: what could be verified is kept, what lay behind the damage is dropped, and the \
                 node recovers it from its peers before it votes or serves"
            );
        } else if let Some(acknowledged) = known.failed_sync {
            tracing::warn!(
                location,
                acknowledged,
                start = epoch,
                journal_end = recovered.end,
                %standing,
                "a write or sync of this disk failed before: replace the disk. What no sync covered was written anew and synced; with \
                 peers the node recovers before it votes or serves, alone it goes on, since all that was acknowledged is there"
            );
        } else if standing == Standing::Recovering && known.standing == Standing::Active {
            tracing::warn!(
                location,
                start = epoch,
                journal_end = recovered.end,
                "this machine, or its disk alone, lost power while acknowledged writes were not yet synced: the newest of \
                 them may be gone, and the node recovers before it votes or serves"
            );
        }
    }

    /// Writes the first block of this opening. Returns its sequence and checksum.
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
        };
        let chain = begin_epoch(self.devices.journal.as_ref(), facts.ring, &facts.location, &header).await?;
        if recovered.end == 0 {
            // No checkpoint covers any of the journal: without this an empty one would pass for it.
            self.superblock.update(|s| s.clean = Clean { sequence: written, checksum: chain }).await?;
        }
        Ok((written, chain))
    }

    fn into_shared(self, standing: Standing, state: State, progress: Progress) -> Shared {
        let votes = &self.superblock.current().votes;
        let votes = votes.iter().map(|(g, v)| (*g, Bytes::copy_from_slice(v))).collect();
        Shared {
            facts: self.facts,
            devices: self.devices,
            watch: self.watch,
            superblock: tokio::sync::Mutex::new(self.superblock),
            votes: Mutex::new(votes),
            standing: Mutex::new(standing),
            state: Mutex::new(state),
            progress: Mutex::new(progress),
            lazy: LazyMark::default(),
            distrusted: AtomicBool::new(false),
            counters: Counters::default(),
            signals: Signals::default(),
            mending: tokio::sync::Mutex::new(()),
            syncing: tokio::sync::Mutex::new(()),
        }
    }
}

fn state(recovered: Recovered, space: SpaceMap, ring: Ring) -> State {
    let checkpoints = Checkpoints {
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
        queue: Queue::new(ring.blocks()),
        unwritten: BTreeMap::new(),
        closing: false,
        failed: None,
        failed_sync: None,
        checkpoints,
    }
}

/// Counts every reference of index and log.
fn rebuild_space(geometry: &Geometry, groups: &BTreeMap<GroupId, Group>) -> Result<SpaceMap> {
    let mut space = SpaceMap::new(geometry.data_blocks());
    for group in groups.values() {
        let logged = group.log.entries().flat_map(|e: &Arc<LogEntry>| e.extents());
        for value in logged.chain(group.keys.iter().map(|(_, e)| &e.value)) {
            if !space.restore(value) {
                let message =
                    format!("a value at {} of {} bytes lies outside the data area", value.offset, value.len);
                return Err(Error::Invalid(message));
            }
        }
    }
    Ok(space)
}
