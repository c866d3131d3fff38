//! Loads the checkpoint, replays the journal, and judges what is missing.

use super::carried::Carried;
use super::progress::OpenProgress;
use super::salvage::Salvage;
use super::scan::{End, Scan, ShutdownEvidence};
use super::shared_extent::shared_extent;
use crate::checkpoint::{self, Header};
use crate::error::{Corruption, Error, Result};
use crate::group::{Group, LogEntry};
use crate::io::{BLOCK, FileKind, OpenFile, Piece, ReadAhead};
use crate::journal::{Block, Body, Moved, Record, RecordStream, Ring};
use crate::state::Files;
use crate::superblock::Superblock;
use crate::types::{GroupId, LogId, ValueRef};
use crate::values::{is_readable, read_value};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;

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
    let (mut end, mut chain) = scan.follow(header.sequence, header.chain);
    // Read the block that ends the chain once more before believing it.
    while end - header.sequence < ring.blocks()
        && scan.read_again(journal, end + 1, incarnation).await
    {
        let before = end;
        (end, chain) = scan.follow(end, chain);
        if end == before {
            break;
        }
    }
    match scan.judge(end, evidence) {
        End::Tail => {}
        End::Missing { evidence_block } => {
            let expected = format!("block {evidence_block} says that it was completed");
            salvage.accept(damaged_block(ring, end + 1, expected))?;
        }
        End::Damaged => {
            let expected = "bytes that are no block, without a power cut";
            salvage.accept(damaged_block(ring, end + 1, expected))?;
        }
    }
    let checkpoint_applied = groups.iter().filter_map(|(id, g)| Some((*id, g.applied?))).collect();
    let known_written = scan.highest_done(evidence).map_or(0, |(done, _)| done);
    let known_synced = scan.highest_synced(end).max(header.sequence).max(evidence.synced);
    let mut replay = Replay {
        files,
        ring,
        groups,
        known_written,
        known_synced,
        unreadable: BTreeMap::new(),
        unsynced_values: Vec::new(),
        carried: VecDeque::new(),
        stream: RecordStream::default(),
        reached: (header.sequence, header.chain),
    };
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
    if let Some(error) = shared_extent(&groups) {
        salvage.accept(error)?;
        return Ok(empty_state(&scan, &headers, salvage));
    }
    salvage.check(reaches_clean_end(superblock, ring, &scan, header.sequence, end))?;
    salvage.check(reaches_checkpoint(superblock, &header, ring, &scan, end))?;
    if let Some(acknowledged) = evidence.reaches.filter(|acknowledged| *acknowledged > end) {
        let expected = format!(
            "written when a sync failed, as all through block {acknowledged}, which may have been acknowledged"
        );
        salvage.accept(damaged_block(ring, end + 1, expected))?;
    }
    let carried = carried.iter().flat_map(|carried| carried.due(&groups)).collect();
    let oldest_kept = end.saturating_sub(ring.blocks());
    let leads_here =
        other.filter(|s| *s >= oldest_kept && *s <= header.sequence && !header.replaces);
    let previous = leads_here.unwrap_or(header.sequence);
    Ok(Recovered {
        groups,
        end,
        chain,
        leftovers: scan.leftovers(end),
        area,
        checkpoint: header,
        previous,
        alone: leads_here.is_none(),
        checkpoint_applied,
        synced: known_synced,
        unsynced_values,
        carried,
        other_is_void: header.replaces && other.is_some(),
        damage: salvage.damage,
    })
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
/// then. A power cut in between loses the block, but nothing acknowledged if the checkpoint reaches
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

fn damaged_block(ring: Ring, sequence: u64, expected: impl Display) -> Error {
    let expected = format!("block {sequence}: {expected}");
    let found = "an old, empty or damaged block";
    let (offset, length) = (ring.offset(sequence), BLOCK as u64);
    Corruption::new(FileKind::Journal, offset, length, expected, found).into()
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

/// The bytes of these blocks in the journal, at most 1 MiB at a time.
fn places(ring: Ring, first: u64, last: u64) -> impl Iterator<Item = Range<u64>> + Send {
    let mut next = first;
    std::iter::from_fn(move || {
        let left = (last + 1).checked_sub(next).filter(|left| *left > 0)?;
        let count = ring.contiguous(next, left.min(256));
        let at = ring.offset(next);
        next += count;
        Some(at..at + count * BLOCK as u64)
    })
}

struct Replay<'a> {
    files: &'a Files,
    ring: Ring,
    groups: BTreeMap<GroupId, Group>,
    /// Blocks up to `known_written` are known to be written for good, those up to `known_synced` to
    /// be synced.
    known_written: u64,
    known_synced: u64,
    /// Entries whose body cannot be read. That is an error only if nothing later removed them: the
    /// extent of a removed entry may belong to another value now.
    unreadable: BTreeMap<(GroupId, u64), Error>,
    /// The values that blocks behind the last sync name.
    unsynced_values: Vec<ValueRef>,
    /// Entries whose values the journal carries and that may not be at their places, the oldest
    /// first. What is known to be at its place leaves, so they are about as many as fit between two
    /// syncs.
    carried: VecDeque<Carried>,
    /// Finds the records, also those that continue in the next block.
    stream: RecordStream,
    /// The last block replayed, and its checksum.
    reached: (u64, u128),
}

impl Replay<'_> {
    /// Replays the blocks behind `reached` up to `end`. Stops earlier at a block whose values were
    /// in flight and are missing.
    async fn run(&mut self, end: u64, progress: &mut OpenProgress) -> Result<()> {
        let (start, _) = self.reached;
        let mut ahead = ReadAhead::new(&self.files.journal, places(self.ring, start + 1, end));
        while let Some(Piece { at, bytes }) = ahead.next().await {
            let (last, _) = self.reached;
            progress.at("journal blocks replayed", last - start, end - start);
            let count = (at.end - at.start) / BLOCK as u64;
            let mut blocks = bytes.ok().unwrap_or_default().chunks(BLOCK);
            for sequence in last + 1..=last + count {
                let block = blocks.next().and_then(Block::decode);
                let block = match block.filter(|block| block.header.sequence == sequence) {
                    Some(block) => block,
                    None => self.read_block(sequence).await?,
                };
                if !self.block(&block).await? {
                    return Ok(());
                }
                self.reached = (sequence, block.checksum);
            }
        }
        Ok(())
    }

    /// Reads one block alone, once more.
    async fn read_block(&self, sequence: u64) -> Result<Block> {
        let offset = self.ring.offset(sequence);
        let block = self.files.journal.read(offset, BLOCK).await.ok();
        let block = block.and_then(|block| Block::decode(&block));
        let block = block.filter(|block| block.header.sequence == sequence);
        block.ok_or_else(|| damaged_block(self.ring, sequence, "it was intact a moment ago"))
    }

    /// Replays the records that end in a block. Returns `false` if a value that one of them names
    /// never arrived: the journal ends before the block.
    async fn block(&mut self, block: &Block) -> Result<bool> {
        let sequence = block.header.sequence;
        if sequence <= self.known_synced {
            let placed = |carried: &mut Carried| carried.sequence <= block.header.placed;
            while self.carried.pop_front_if(placed).is_some() {}
        }
        let records = self.stream.records(block);
        let records = records.map_err(|expected| damaged_block(self.ring, sequence, expected))?;
        let mut steps = Vec::with_capacity(records.len());
        for record in records {
            let mut entry = None;
            match &record {
                Record::Entry { group, id, body } => {
                    entry = self.entry(sequence, *group, *id, body).await?;
                    if entry.is_none() {
                        return Ok(false);
                    }
                }
                Record::Moved(moved) if !self.moved_arrived(sequence, moved).await? => {
                    return Ok(false);
                }
                _ => {}
            }
            steps.push((record, entry));
        }
        for (record, entry) in steps {
            let carried = matches!(&record, Record::Entry { body: Body::Carried { .. }, .. });
            if sequence > self.known_synced && !carried {
                let moved =
                    if let Record::Moved(Moved { to, .. }) = &record { Some(to) } else { None };
                let extents = entry.iter().flat_map(LogEntry::extents).chain(moved);
                self.unsynced_values.extend(extents.cloned());
            }
            self.step(sequence, record, entry)?;
        }
        Ok(true)
    }

    /// The same for a moved value. One that the journal carries need be at neither place.
    async fn moved_arrived(&self, sequence: u64, moved: &Moved) -> Result<bool> {
        let carried = self.carried.iter().any(|carried| carried.has(moved));
        Ok(carried || self.arrived(sequence, moved.id, &moved.to).await?)
    }

    /// Whether a value that block `sequence` names has arrived. Values beyond the last sync are
    /// read and checked, since the record may have arrived without them.
    async fn arrived(&self, sequence: u64, id: LogId, at: &ValueRef) -> Result<bool> {
        if sequence > self.known_synced
            && let Err(error) = read_value(&self.files.data, at, id).await
        {
            if sequence > self.known_written {
                return self.cut_in_flight(at, error).await.map(|()| false);
            }
            // It was completed. Its record is right, the value is damaged, and reads will report
            // that.
            tracing::warn!(%error, "a completed value is damaged");
        }
        Ok(true)
    }

    /// Of a value of the newest blocks that does not match: whether a write in flight was cut. Like a
    /// journal block, what cannot be read may have been the newest that was acknowledged.
    ///
    /// # Errors
    /// What was found, if it cannot be read.
    async fn cut_in_flight(&self, at: &ValueRef, found: Error) -> Result<()> {
        match is_readable(&self.files.data, at).await {
            true => Ok(()),
            false => Err(found),
        }
    }

    /// The entry of a record; `None` if its bytes were still in flight.
    async fn entry(
        &mut self,
        sequence: u64,
        group: GroupId,
        id: LogId,
        body: &Body,
    ) -> Result<Option<LogEntry>> {
        let in_flight = sequence > self.known_written;
        let unreadable = || damaged_block(self.ring, sequence, "an entry whose body can be read");
        let entry = match body {
            Body::Carried { body, values } => {
                let entry = LogEntry::from_body(id, body, None).ok_or_else(unreadable)?;
                let carried = Carried::new(sequence, group, &entry, values.clone());
                self.carried.push_back(carried.ok_or_else(unreadable)?);
                return Ok(Some(entry));
            }
            Body::Inline(bytes) => LogEntry::from_body(id, bytes, None).ok_or_else(unreadable)?,
            Body::Spilled(at) => match read_value(&self.files.data, at, id).await {
                Ok(bytes) => {
                    LogEntry::from_body(id, &bytes, Some(at.clone())).ok_or_else(unreadable)?
                }
                Err(error) if in_flight => {
                    return self.cut_in_flight(at, error).await.map(|()| None);
                }
                Err(error) => {
                    self.unreadable.insert((group, id.index), error);
                    let (meta, values) = (Bytes::new(), Box::default());
                    LogEntry { id, meta, values, spilled: Some(at.clone()) }
                }
            },
        };
        for at in &entry.values {
            if !self.arrived(sequence, id, at).await? {
                return Ok(None);
            }
        }
        Ok(Some(entry))
    }

    fn step(&mut self, sequence: u64, record: Record, entry: Option<LogEntry>) -> Result<()> {
        let ring = self.ring;
        let broken = |what: String| Err(damaged_block(ring, sequence, what));
        match record {
            Record::Entry { group, id, .. } => {
                let log = &mut self.groups.entry(group).or_default().log;
                if let Some(next) = log.next_index().filter(|next| *next != id.index) {
                    return broken(format!("entry {id} where index {next} is due"));
                }
                if let Some(entry) = entry {
                    log.push(Arc::new(entry), None, 0);
                }
            }
            Record::Truncate { group, last } => {
                for removed in self.groups.entry(group).or_default().log.truncate_after(last) {
                    self.unreadable.remove(&(group, removed.id.index));
                }
            }
            Record::Purge { group, through } => {
                // The newest checkpoint covered the purged entries. If this is the older
                // checkpoint, the entries that it has not applied are needed once more.
                for removed in self.groups.entry(group).or_default().purge_applied(through) {
                    self.unreadable.remove(&(group, removed.id.index));
                }
            }
            Record::Applied { group, through } => {
                let group = self.groups.entry(group).or_default();
                if group.log.bounds().last.is_none_or(|last| last.index < through.index) {
                    return broken(format!("entry {through} applied before it was appended"));
                }
                group.applied_before = group.applied_before.max(Some(through));
            }
            Record::Moved(moved) => {
                self.carried.iter_mut().for_each(|carried| carried.value_moved(&moved));
                self.groups.entry(moved.group).or_default().value_moved(&moved);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
