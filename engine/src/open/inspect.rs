//! Inspects a directory that no process has open: what can be read, what verifies, and what an open
//! would make of it. Writes nothing.

use super::evidence::{classify, lost_power, shutdown_evidence};
use super::files::{open_file, open_files};
use super::lost_identity::open_superblock;
use super::recovery::{is_written, recover};
use crate::checkpoint::verify;
use crate::error::{Corruption, Error, Result};
use crate::group::Group;
use crate::io::{Directory, FileKind, OpenFile};
use crate::journal::Ring;
use crate::superblock::{Superblock, SuperblockStore, copies};
use crate::types::{
    BootEpoch, Geometry, GroupId, Identity, KernelBootId, LogBounds, LogId, MemberState, Mode,
    ValueRef,
};
use crate::values::read_value;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// The most damaged values to name; all are counted.
const MAX_NAMED: usize = 100;

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The superblock's copies: the revision of each, or why it cannot be used.
    pub copies: Vec<std::result::Result<u64, String>>,
    /// What two of the copies agree on; else why the directory has no identity.
    pub known: std::result::Result<Known, String>,
    /// What the other files hold; `None` without an identity, since only the identity tells their
    /// content from another directory's.
    pub contents: Option<Contents>,
}

/// What the superblock says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Who the directory is.
    pub identity: Identity,
    /// The sizes of its files.
    pub geometry: Geometry,
    /// Its last open.
    pub boot_epoch: BootEpoch,
    /// The mode of that open.
    pub mode: Option<Mode>,
    /// The recorded member state. See [`Contents::member_state`].
    pub member_state: MemberState,
    /// The unsynced-ack flag: acknowledged writes may not be synced.
    pub unsynced_acks: bool,
    /// Whether the last open was under the running kernel, on devices with the same history.
    pub same_boot: bool,
    /// A write or sync failed: the journal's end at that time.
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
    /// What ended the verified prefix early. A member with peers keeps that prefix and recovers.
    pub damage: Option<Corruption>,
    /// The member state that an open with peers would give it.
    pub member_state: MemberState,
    /// Each group.
    pub groups: Vec<GroupContents>,
}

/// A checkpoint area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointArea {
    /// The file.
    pub file: FileKind,
    /// Its checkpoint's number and the journal block that it reaches, if it holds an intact one.
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
    /// The position that the newest checkpoint has applied. An open applies the log behind it.
    pub applied: Option<LogId>,
    /// The position applied before, as far as the log reaches.
    pub applied_before: Option<LogId>,
    /// Keys of that checkpoint.
    pub keys: u64,
    /// The values, if they were asked for.
    pub values: Option<Values>,
}

/// The check of the values that keys and log entries refer to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values {
    /// Values read and compared with their hash.
    pub checked: u64,
    /// Those that did not match, or could not be read.
    pub damaged: u64,
    /// The first of these.
    pub named: Vec<String>,
}

/// Inspects a directory. `boot` is the running kernel's id. With `values` every value is read,
/// which takes as long as reading all stored data.
///
/// # Errors
/// `NotFormatted`, `OtherFormat`, `TooShort`, `InUse`, `Io`, if there is nothing to inspect.
/// Damage is not an error.
pub async fn inspect(
    directory: &dyn Directory,
    boot: KernelBootId,
    values: bool,
) -> Result<Inspection> {
    let superblock = open_superblock(directory).await?;
    let copies = copies(&superblock).await;
    let known = match SuperblockStore::read(superblock).await {
        Ok(store) => store.current().clone(),
        Err(error) => {
            let lost = match &error {
                Error::Corrupt(_) => true,
                Error::NotFormatted { .. } => {
                    is_written(&open_file(directory, FileKind::Journal)?).await
                }
                _ => false,
            };
            return match lost {
                true => Ok(Inspection { copies, known: Err(error.to_string()), contents: None }),
                false => Err(error),
            };
        }
    };
    let contents = contents(directory, &known, boot, values).await?;
    let known = Known {
        identity: known.identity,
        geometry: known.geometry,
        boot_epoch: BootEpoch { number: known.epoch, nonce: known.boot_nonce },
        mode: known.mode,
        member_state: known.member_state,
        unsynced_acks: known.unsynced_acks,
        same_boot: known.boot == boot,
        failed_sync: known.failed_sync,
        votes: known.votes.into_iter().map(|(group, vote)| (group, vote.into())).collect(),
    };
    Ok(Inspection { copies, known: Ok(known), contents: Some(contents) })
}

async fn contents(
    directory: &dyn Directory,
    known: &Superblock,
    boot: KernelBootId,
    values: bool,
) -> Result<Contents> {
    let files = open_files(directory, &known.geometry)?;
    let mut checkpoints = Vec::new();
    for file in &files.checkpoints {
        let found = verify(file, known.identity.incarnation, &|_| Box::pin(async {})).await;
        let (holds, damage) = match found {
            Ok(header) => (header.map(|header| (header.number, header.sequence)), None),
            Err(damage) => (None, Some(damage)),
        };
        checkpoints.push(CheckpointArea { file: file.kind, holds, damage });
    }
    let power_cut = lost_power(known, boot);
    let evidence = shutdown_evidence(known, power_cut, true);
    let ring = Ring::new(known.geometry.journal_blocks());
    let recovered = recover(&files, known, ring, evidence, true).await?;
    let member_state = match &recovered.damage {
        Some(_) => MemberState::Recovering,
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
            values: match values {
                true => Some(check_values(&files.data, group, &recovered.carried).await),
                false => None,
            },
        });
    }
    Ok(Contents {
        checkpoints,
        journal_end: recovered.end,
        synced: recovered.synced,
        damage: recovered.damage,
        member_state,
        groups,
    })
}

/// Reads each value once, however many refer to it. Skips values of entries whose purge is due, and
/// of keys that are not re-applied: their extents may belong to other values now.
async fn check_values(data: &OpenFile, group: &Group, carried: &[(ValueRef, Bytes)]) -> Values {
    let carried: BTreeSet<u64> = carried.iter().map(|(at, _)| at.offset()).collect();
    let keys = group
        .keys
        .iter()
        .filter(|_| group.is_reapplied())
        .map(|(_, entry)| (entry.value.clone(), entry.version));
    let entries = group.log.entries().filter(|entry| group.keeps_extents_of(entry.id.index));
    let entries = entries.flat_map(|entry| entry.extents().map(|value| (value.clone(), entry.id)));
    let all: BTreeMap<u64, (ValueRef, LogId)> = keys
        .chain(entries)
        .filter(|(value, _)| value.len > 0)
        .map(|(value, log_id)| (value.offset(), (value, log_id)))
        .collect();
    let mut found = Values::default();
    for (value, log_id) in all.into_values() {
        found.checked += 1;
        // The next open puts it there from the journal, where it is intact.
        if carried.contains(&value.offset()) {
            continue;
        }
        if let Err(error) = read_value(data, &value, log_id).await {
            found.damaged += 1;
            if found.named.len() < MAX_NAMED {
                found.named.push(error.to_string());
            }
        }
    }
    found
}
