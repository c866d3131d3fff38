//! From the two checkpoints and the journal to the state: which checkpoint, how far the journal leads,
//! and whether what is missing is explained by a crash.

use super::progress::OpenProgress;
use super::replay::{Replay, damaged_block};
use super::salvage::Salvage;
use super::scan::{End, Scan, ShutdownEvidence};
use super::shared_extent::shared_extent;
use crate::checkpoint::{self, Header};
use crate::error::{Corruption, Error, Result};
use crate::group::Group;
use crate::io::OpenFile;
use crate::journal::Ring;
use crate::state::Files;
use crate::superblock::Superblock;
use crate::types::{GroupId, LogId, ValueRef};
use bytes::Bytes;
use std::collections::BTreeMap;

/// The state that a directory holds.
#[derive(Default)]
pub(crate) struct Recovered {
    pub groups: BTreeMap<GroupId, Group>,
    /// The last block of the journal, and its checksum.
    pub end: u64,
    pub chain: u128,
    /// Slots behind the end to clear, as sequences.
    pub leftovers: Vec<u64>,
    pub area: usize,
    pub checkpoint: Header,
    /// What the other area's checkpoint covers, if it is there and the journal still reaches back
    /// to it.
    pub previous: u64,
    /// There is no such other checkpoint: one bad block of this one would cost everything.
    pub alone: bool,
    /// What each group had applied in the checkpoint.
    pub checkpoint_applied: BTreeMap<GroupId, LogId>,
    /// The journal is known to be synced up to here. `unsynced_values` are the values named behind
    /// it.
    pub synced: u64,
    pub unsynced_values: Vec<ValueRef>,
    /// Values that journal blocks carry and that may not be at their places yet.
    pub carried: Vec<(ValueRef, Bytes)>,
    /// The other area's checkpoint does not lead to this state. It must be made void before
    /// anything new is written.
    pub other_is_void: bool,
    /// The damage that was accepted: the state is a verified prefix, and may lack acknowledged
    /// writes.
    pub damage: Option<Corruption>,
}

/// Reads everything and writes nothing. With `salvage`, damage is not an error: the longest
/// verified prefix is returned, with what ended it.
///
/// # Errors
/// `Corrupt` if something that was completed is missing or damaged and no older state replaces it.
pub(crate) async fn recover(
    files: &Files,
    superblock: &Superblock,
    ring: Ring,
    evidence: ShutdownEvidence,
    salvage: bool,
) -> Result<Recovered> {
    let mut salvage = Salvage::new(salvage);
    let incarnation = superblock.identity.incarnation;
    let journal = &files.journal;
    let mut progress = OpenProgress::new(&journal.location);
    let mut scan = Scan::read(journal, ring, incarnation, &mut progress).await;
    let headers = checkpoint_headers(files, incarnation).await;
    let newest = newest_checkpoint(files, &headers, &mut progress).await;
    let (area, header, groups, other) = match newest {
        Ok(newest) => newest,
        Err(error) => {
            salvage.accept(error)?;
            return Ok(empty_state(&scan, &headers, salvage));
        }
    };
    let (end, _) = chain_end(&mut scan, journal, ring, incarnation, &header).await;
    salvage.check(is_torn_tail(&scan, ring, end, evidence))?;
    let checkpoint_applied = groups.iter().filter_map(|(id, g)| Some((*id, g.applied?))).collect();
    // Values behind what is known to be written may be missing without damage. Values up to what is
    // known to be synced are not even read.
    let known_written = scan.highest_done(evidence).map_or(0, |(done, _)| done);
    let known_synced = scan.highest_synced(end).max(header.sequence).max(evidence.synced);
    let mut replay = Replay::new(
        files,
        ring,
        groups,
        (known_written, known_synced),
        (header.sequence, header.chain),
    );
    salvage.check(replay.run(end, &mut progress).await)?;
    let Replay { mut groups, unreadable, unsynced_values, carried, reached: (end, chain), .. } =
        replay;
    if let Some(error) = missing_purged_entries(&groups, files.area(1 - area)) {
        salvage.accept(error)?;
        return Ok(empty_state(&scan, &headers, salvage));
    }
    // The log of a group ends before its first entry whose body cannot be read.
    for ((id, index), error) in unreadable {
        salvage.accept(error)?;
        if let Some(group) = groups.get_mut(&id) {
            group.cut_before(index);
        }
    }
    // Two values in one place: one of them is not what its key says, and nothing tells which.
    if let Some(error) = shared_extent(&groups) {
        salvage.accept(error)?;
        return Ok(empty_state(&scan, &headers, salvage));
    }
    // Wherever the replay ended, what else the directory recorded must not reach further: the
    // superblock, the checkpoint, and a sync that failed.
    salvage.check(reaches_clean_end(superblock, ring, &scan, header.sequence, end))?;
    salvage.check(reaches_checkpoint(superblock, &header, ring, &scan, end))?;
    salvage.check(reaches_failed_sync(ring, evidence, end))?;
    let carried = carried.iter().flat_map(|carried| carried.due(&groups)).collect();
    // Whether the older checkpoint, should the newer one break, leads to the same state.
    let oldest_kept = end.saturating_sub(ring.blocks());
    let leads_here =
        other.filter(|s| *s >= oldest_kept && *s <= header.sequence && !header.replaces);
    Ok(Recovered {
        groups,
        end,
        chain,
        leftovers: scan.leftovers(end),
        area,
        checkpoint: header,
        previous: leads_here.unwrap_or(header.sequence),
        alone: leads_here.is_none(),
        checkpoint_applied,
        synced: known_synced,
        unsynced_values,
        carried,
        other_is_void: header.replaces && other.is_some(),
        damage: salvage.damage,
    })
}

/// The last block of the chain behind the checkpoint, and its checksum. The block that ends the chain
/// is read once more before that is believed.
async fn chain_end(
    scan: &mut Scan,
    journal: &OpenFile,
    ring: Ring,
    incarnation: u64,
    header: &Header,
) -> (u64, u128) {
    let (mut end, mut chain) = scan.follow(header.sequence, header.chain);
    while end - header.sequence < ring.blocks()
        && scan.read_again(journal, end + 1, incarnation).await
    {
        let before = end;
        (end, chain) = scan.follow(end, chain);
        if end == before {
            break;
        }
    }
    (end, chain)
}

/// Whether a crash explains what follows the chain.
fn is_torn_tail(scan: &Scan, ring: Ring, end: u64, evidence: ShutdownEvidence) -> Result<()> {
    match scan.judge(end, evidence) {
        End::Tail => Ok(()),
        End::Missing { evidence_block } => {
            let expected = format!("block {evidence_block} says that it was completed");
            Err(damaged_block(ring, end + 1, expected))
        }
        End::Damaged => {
            let expected = "bytes that are no block, without a power cut";
            Err(damaged_block(ring, end + 1, expected))
        }
    }
}

/// The state without any checkpoint: the empty one, even if the journal reaches back to the first
/// block. A peer's snapshot may have replaced the state since, and only a checkpoint would show
/// that.
fn empty_state(scan: &Scan, headers: &[(usize, Header)], salvage: Salvage) -> Recovered {
    let number = headers.iter().map(|(_, header)| header.number).max().unwrap_or(0);
    Recovered {
        leftovers: scan.leftovers(0),
        area: 1,
        checkpoint: Header { number, ..Header::default() },
        damage: salvage.damage,
        ..Recovered::default()
    }
}

/// The newest checkpoint is damaged, and the log was purged beyond what the older one has applied:
/// the entries between are missing and cannot be re-applied.
fn missing_purged_entries(groups: &BTreeMap<GroupId, Group>, newest: &OpenFile) -> Option<Error> {
    let lost = |group: &&Group| {
        let purged = group.log.bounds().purged.map(|id| id.index);
        purged > group.applied.map(|id| id.index)
            && group.applied_before.map(|id| id.index) >= purged
    };
    let group = groups.values().find(lost)?;
    let purged = group.log.bounds().purged.unwrap_or_default();
    let expected =
        format!("an intact checkpoint that covers entry {purged}, through which the log is purged");
    let applied = group.applied.map_or_else(|| "nothing".to_string(), |id| id.to_string());
    let found = format!("damage; the older checkpoint has applied {applied}");
    Some(Corruption::new(newest.kind, 0, newest.size(), expected, found).into())
}

/// What was acknowledged when a sync failed must still be there where the evidence says so: without
/// peers, or after a power cut of a device that keeps completed writes.
fn reaches_failed_sync(ring: Ring, evidence: ShutdownEvidence, end: u64) -> Result<()> {
    match evidence.reaches.filter(|acknowledged| *acknowledged > end) {
        None => Ok(()),
        Some(acknowledged) => {
            let expected = format!(
                "written when a sync failed, as all through block {acknowledged}, which may have been acknowledged"
            );
            Err(damaged_block(ring, end + 1, expected))
        }
    }
}

/// A clean end of the journal was recorded: that very block must still be there.
fn reaches_clean_end(
    superblock: &Superblock,
    ring: Ring,
    scan: &Scan,
    covered: u64,
    end: u64,
) -> Result<()> {
    let clean = superblock.clean;
    let gone = clean.sequence > end
        || (clean.sequence > covered && scan.checksum(clean.sequence) != Some(clean.checksum));
    if gone {
        let expected = format!(
            "block {}, the journal's end when the unsynced-ack flag was last cleared",
            clean.sequence
        );
        return Err(damaged_block(ring, end.min(clean.sequence) + 1, expected));
    }
    Ok(())
}

/// A checkpoint is written only after the last block that it covers is synced, and that block is
/// overwritten only when others are behind it. So a journal that ends there without this block is
/// not the journal of this checkpoint.
///
/// Exception: after a failed sync, open may have read that block from a cache only. The two
/// checkpoints that it writes make the block unnecessary, and the failure stays recorded until
/// the next block is synced. A power cut in between loses the block, but nothing acknowledged if the checkpoint reaches
/// as far.
fn reaches_checkpoint(
    superblock: &Superblock,
    header: &Header,
    ring: Ring,
    scan: &Scan,
    end: u64,
) -> Result<()> {
    let covered = header.sequence;
    if covered == 0
        || end > covered
        || scan.checksum(covered) == Some(header.chain)
        || scan.single_block_damaged(covered)
        || superblock.failed_sync.is_some_and(|acknowledged| acknowledged <= covered)
    {
        return Ok(());
    }
    let expected = format!("the last one that checkpoint {} covers", header.number);
    Err(damaged_block(ring, covered, expected))
}

type Newest = (usize, Header, BTreeMap<GroupId, Group>, Option<u64>);

/// The intact headers, the highest number first.
async fn checkpoint_headers(files: &Files, incarnation: u64) -> Vec<(usize, Header)> {
    let mut found = Vec::new();
    for (area, file) in files.checkpoints.iter().enumerate() {
        if let Some(header) = checkpoint::read_headers(file, incarnation).await {
            found.push((area, header));
        }
    }
    found.sort_by_key(|(_, header)| std::cmp::Reverse(header.number));
    found
}

/// The intact checkpoint with the highest number; the other area's sequence, if its header is
/// intact.
async fn newest_checkpoint(
    files: &Files,
    found: &[(usize, Header)],
    progress: &mut OpenProgress,
) -> Result<Newest> {
    let mut reasons = Vec::new();
    for (area, header) in found {
        let file = files.area(*area);
        let mut read = |read, all| progress.at("bytes of the checkpoint read", read, all);
        let loaded = match checkpoint::load(file, header, &mut read).await {
            // Load it once more before believing the damage.
            Err(_) => checkpoint::load(file, header, &mut read).await,
            loaded => loaded,
        };
        match loaded {
            Ok(groups) => {
                let other = found.iter().find(|(a, h)| a != area && h.number < header.number);
                return Ok((*area, *header, groups, other.map(|(_, h)| h.sequence)));
            }
            Err(reason) => {
                let file = file.kind.name();
                tracing::warn!(
                    file,
                    number = header.number,
                    reason,
                    "a checkpoint is damaged; trying the other one"
                );
                reasons.push(format!("{file}: {reason}"));
                if header.replaces {
                    reasons.push("it replaced the state that older ones hold".to_owned());
                    break;
                }
            }
        }
    }
    if reasons.is_empty() {
        reasons.push("no intact header".to_owned());
    }
    let first = files.area(0);
    let expected = "an intact checkpoint in one of the two areas";
    Err(Corruption::new(first.kind, 0, first.size(), expected, reasons.join("; ")).into())
}
