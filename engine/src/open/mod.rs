//! Opening a directory.

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
use crate::io::{Directory, Watched};
use crate::journal::{self, Ring};
use crate::space::SpaceMap;
use crate::state::{Checkpoints, Counters, LazyMark, Progress, Shared, State};
use crate::superblock::{Clean, SuperblockStore};
use crate::types::{Geometry, GroupId, Mode, Options, Standing};
use bytes::Bytes;
use classify::{classify, how_it_was_left};
use files::{open_devices, open_superblock};
use format::check_expected;
use parking_lot::Mutex;
use recovery::{Recovered, recover};
use settle::{begin_epoch, settle};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::Notify;
use tokio::time::Instant;

/// What an opened directory needs to go on: the shared state, and where the writer continues.
pub(crate) struct Opened {
    pub shared: Arc<Shared>,
    pub next: u64,
    pub chain: u128,
}

/// Reads the directory, decides whether it may be used, recovers it, and only then writes.
pub(crate) async fn open(
    directory: &Watched,
    expected: Option<(String, u16)>,
    options: Options,
) -> Result<Opened> {
    let location = directory.location();
    let device = open_superblock(directory)?;
    let read = SuperblockStore::read(device.clone(), location.clone()).await;
    directory.watch.check(&location)?;
    let mut superblock = match read {
        Ok(superblock) => superblock,
        Err(error) => {
            return Err(lost_identity::judge(directory, device.as_ref(), expected.as_ref(), error).await);
        }
    };
    let known = superblock.current().clone();
    check_expected(&location, &known.identity, expected.as_ref())?;
    let devices = open_devices(directory, &known.geometry)?;
    let power_cut = known.boot != options.boot;
    let ring = Ring::new(known.geometry.journal_blocks());
    let left = how_it_was_left(&known, power_cut, options.salvage);
    let recovered = recover(&devices, &known, ring, left, options.salvage).await;
    directory.watch.check(&location)?;
    let mut recovered = recovered?;
    let standing = match &recovered.damage {
        Some(_) => Standing::Recovering,
        None => classify(&known, power_cut, options.salvage),
    };
    let space = rebuild_space(&known.geometry, &recovered.groups)?;
    let doubtful = known.failed_sync.is_some();
    let healed = match power_cut && !doubtful {
        true => superblock.heal().await?,
        false => superblock.reaffirm().await?,
    };
    if healed.damaged > 0 {
        tracing::warn!(location, copies = healed.damaged, "damaged copies of the superblock were rewritten");
    }
    if recovered.damage.is_some() || (doubtful && standing == Standing::Recovering) {
        // Before a byte of the damage is overwritten: what is left then could pass for whole.
        superblock.update(|s| s.standing = Standing::Recovering).await?;
    }
    let reached = if known.mode == Some(Mode::Sync) { recovered.synced } else { recovered.end };
    let settled =
        settle(&devices, ring, &location, &mut recovered, doubtful, known.identity.incarnation).await;
    if let Err(error) = settled {
        if error.is_failed_io() && !power_cut {
            // What this opening has read may be gone at the next one.
            let _ = superblock.record_failed_sync(known.failed_sync.unwrap_or(reached)).await;
        }
        return Err(error);
    }
    let epoch = known.epoch + 1;
    let (boot, mode, run) = (options.boot, options.mode, options.run);
    let mut lineage = known.lineage;
    lineage.rotate_right(1);
    if let Some(latest) = lineage.first_mut() {
        *latest = known.run;
    }
    // All that was recovered is synced by now, so the mark is clear until the first acknowledgement that is not.
    let clean = Clean { sequence: recovered.end, checksum: recovered.chain };
    superblock
        .update(|s| {
            s.epoch = epoch;
            s.boot = boot;
            s.lazy = false;
            s.clean = clean;
            s.mode = Some(mode);
            s.standing = standing;
            s.run = run;
            s.lineage = lineage;
            s.failed_sync = None;
        })
        .await?;
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
    let written = recovered.end + 1;
    let header = journal::Header {
        incarnation: known.identity.incarnation,
        epoch,
        sequence: written,
        previous: recovered.chain,
        written: recovered.end,
        synced: recovered.end,
    };
    let chain = begin_epoch(devices.journal.as_ref(), ring, &location, &header).await?;
    if recovered.end == 0 {
        // No checkpoint covers any of the journal: without this an empty one would pass for it.
        superblock.update(|s| s.clean = Clean { sequence: written, checksum: chain }).await?;
    }
    let counters = Counters::default();
    let votes = superblock.current().votes.iter().map(|(g, v)| (*g, Bytes::copy_from_slice(v))).collect();
    let shared = Shared {
        location,
        backend: directory.backend(),
        identity: known.identity,
        ring,
        epoch,
        lineage,
        checkpoint_capacity: known.geometry.checkpoint_bytes,
        devices,
        watch: Arc::clone(&directory.watch),
        superblock: tokio::sync::Mutex::new(superblock),
        votes: Mutex::new(votes),
        state: Mutex::new(state(recovered, space)),
        progress: Mutex::new(Progress {
            written,
            synced: written,
            waiting: VecDeque::new(),
            claims: VecDeque::new(),
            unsynced_bytes: 0,
            oldest_unsynced: None,
            writer_ended: false,
            written_checksum: chain,
            last_ahead: Instant::now(),
            ahead: options.mode == Mode::Device,
        }),
        standing: Mutex::new(standing),
        lazy: LazyMark::default(),
        counters,
        work: Notify::new(),
        sync_work: Notify::new(),
        distrusted: AtomicBool::new(false),
        changed: Notify::new(),
        mending: tokio::sync::Mutex::new(()),
        syncing: tokio::sync::Mutex::new(()),
        options,
    };
    Ok(Opened { shared: Arc::new(shared), next: written + 1, chain })
}

fn state(recovered: Recovered, space: SpaceMap) -> State {
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
        queue: Vec::new(),
        queued_record_bytes: 0,
        queued_value_bytes: 0,
        unwritten: BTreeMap::new(),
        flush: false,
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
