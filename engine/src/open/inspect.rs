//! A look at a directory that nobody has open: what can be read there, what verifies, and what an opening would make of it.
//! Nothing is written.

use super::classify::{classify, how_it_was_left};
use super::files::{open_devices, open_file, open_superblock};
use super::recovery::{is_written, recover};
use crate::checkpoint::{file_of, verify};
use crate::error::{Corruption, Error, Result};
use crate::group::Group;
use crate::io::{Directory, FileKind};
use crate::journal::Ring;
use crate::state::Devices;
use crate::superblock::{Superblock, SuperblockStore, copies};
use crate::types::{BootId, Geometry, GroupId, Identity, LogBounds, LogId, Mode, Run, Standing, ValueRef};
use crate::values::read_value;
use bytes::Bytes;
use std::collections::BTreeMap;

/// Damaged values that are named; all are counted.
const NAMED: usize = 100;

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The superblock's copies: the revision of each, or why it cannot be used.
    pub copies: Vec<std::result::Result<u64, String>>,
    /// What two of them agree on; else why the directory has no identity.
    pub known: std::result::Result<Known, String>,
    /// What the rest holds; nothing where there is no identity, by which it is told from what others wrote.
    pub contents: Option<Contents>,
}

/// What the superblock says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Who the directory is.
    pub identity: Identity,
    /// The sizes of its files.
    pub geometry: Geometry,
    /// Its last opening.
    pub run: Run,
    /// The mode of that opening.
    pub mode: Option<Mode>,
    /// What is recorded of what it remembers. See [`Contents::standing`].
    pub standing: Standing,
    /// Whether what was acknowledged may not have been synced.
    pub lazy: bool,
    /// Whether it was last opened under the running kernel, on devices with the same history.
    pub same_boot: bool,
    /// A write or sync failed: the journal's end by then.
    pub failed_sync: Option<u64>,
    /// Each group's vote, as the caller stored it.
    pub votes: BTreeMap<GroupId, Bytes>,
}

/// What the files beside the superblock hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Both checkpoint areas.
    pub checkpoints: Vec<CheckpointArea>,
    /// The last block of the journal that can be reached from the newest checkpoint.
    pub journal_end: u64,
    /// The journal is known to have been synced through this block.
    pub synced: u64,
    /// What ended the verified prefix before its time. A member with peers keeps that prefix and recovers.
    pub damage: Option<Corruption>,
    /// What an opening with peers would take the member for.
    pub standing: Standing,
    /// Each group.
    pub groups: Vec<GroupContents>,
}

/// A checkpoint area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointArea {
    /// The file.
    pub file: FileKind,
    /// Its checkpoint's number, and the journal block up to which it reaches, if it holds an intact one.
    pub holds: Option<(u64, u64)>,
    /// What is wrong: byte offset, length, and the finding.
    pub damage: Option<(u64, u64, String)>,
}

/// One group's log and keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupContents {
    /// The group.
    pub group: GroupId,
    /// The log's first and last position.
    pub log: LogBounds,
    /// What the newest checkpoint has applied: the log behind it is applied by an opening.
    pub applied: Option<LogId>,
    /// What was applied before, as far as the log reaches.
    pub applied_before: Option<LogId>,
    /// Keys of that checkpoint.
    pub keys: u64,
    /// The values, where they were asked for.
    pub values: Option<Values>,
}

/// What became of values that keys and log entries refer to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values {
    /// Values read and compared with their hash.
    pub checked: u64,
    /// Those that did not match, or could not be read.
    pub damaged: u64,
    /// The first of these.
    pub named: Vec<String>,
}

/// Looks at a directory; `boot` is the running kernel's. With `values` every value is read, which takes as long as reading what is
/// stored.
///
/// # Errors
/// `NotFormatted`, `NewerFormat`, `WrongSize`, `InUse`, `Io`, where there is nothing to look at. Damage is no error.
pub async fn inspect(directory: &dyn Directory, boot: BootId, values: bool) -> Result<Inspection> {
    let device = open_superblock(directory)?;
    let copies = copies(device.as_ref()).await;
    let known = match SuperblockStore::read(device, directory.location()).await {
        Ok(store) => store.current().clone(),
        Err(error @ Error::Corrupt(_)) => {
            return Ok(Inspection { copies, known: Err(error.to_string()), contents: None });
        }
        Err(error @ Error::NotFormatted { .. }) => {
            let journal = open_file(directory, FileKind::Journal)?;
            return match is_written(journal.as_ref()).await {
                true => Ok(Inspection { copies, known: Err(error.to_string()), contents: None }),
                false => Err(error),
            };
        }
        Err(error) => return Err(error),
    };
    let contents = contents(directory, &known, boot, values).await?;
    let Superblock { identity, geometry, epoch, run, mode, standing, lazy, failed_sync, votes, .. } = known;
    let known = Known {
        identity,
        geometry,
        run: Run { start: epoch, nonce: run },
        mode,
        standing,
        lazy,
        same_boot: known.boot == boot,
        failed_sync,
        votes: votes.into_iter().map(|(group, vote)| (group, vote.into())).collect(),
    };
    Ok(Inspection { copies, known: Ok(known), contents: Some(contents) })
}

async fn contents(
    directory: &dyn Directory,
    known: &Superblock,
    boot: BootId,
    values: bool,
) -> Result<Contents> {
    let devices = open_devices(directory, &known.geometry)?;
    let mut checkpoints = Vec::new();
    for (area, device) in devices.checkpoints.iter().enumerate() {
        let found = verify(device.as_ref(), known.identity.incarnation, &|_| Box::pin(async {})).await;
        let (holds, damage) = match found {
            Ok(header) => (header.map(|header| (header.number, header.sequence)), None),
            Err(damage) => (None, Some(damage)),
        };
        checkpoints.push(CheckpointArea { file: file_of(area), holds, damage });
    }
    let power_cut = known.boot != boot;
    let left = how_it_was_left(known, power_cut, true);
    let recovered = recover(&devices, known, Ring::new(known.geometry.journal_blocks()), left, true).await?;
    let standing = match &recovered.damage {
        Some(_) => Standing::Recovering,
        None => classify(known, power_cut, true),
    };
    let mut groups = Vec::new();
    for (id, group) in &recovered.groups {
        groups.push(GroupContents {
            group: *id,
            log: group.log.bounds(),
            applied: group.applied,
            applied_before: group.applied_before,
            keys: group.keys.len() as u64,
            values: if values { Some(check_values(&devices, group).await) } else { None },
        });
    }
    Ok(Contents {
        checkpoints,
        journal_end: recovered.end,
        synced: recovered.synced,
        damage: recovered.damage,
        standing,
        groups,
    })
}

/// Reads each value once, whoever refers to it. Of entries whose purge is due the values may be others' by now.
async fn check_values(devices: &Devices, group: &Group) -> Values {
    let keys =
        group.keys.iter().filter(|_| group.is_reapplied()).map(|(_, entry)| (entry.value, entry.version));
    let entries = group.log.entries().filter(|entry| group.keeps_extents_of(entry.id.index));
    let entries = entries.flat_map(|entry| entry.extents().map(|value| (*value, entry.id)));
    let all: BTreeMap<u64, (ValueRef, LogId)> = keys
        .chain(entries)
        .filter(|(value, _)| value.len > 0)
        .map(|(value, log_id)| (value.offset, (value, log_id)))
        .collect();
    let mut found = Values::default();
    for (value, log_id) in all.into_values() {
        found.checked += 1;
        if let Err(error) = read_value(devices.data.as_ref(), &value, log_id).await {
            found.damaged += 1;
            if found.named.len() < NAMED {
                found.named.push(error.to_string());
            }
        }
    }
    found
}
