//! Loads the checkpoint, replays the journal, and judges what is missing.

use super::salvage::{Salvage, cut_before};
use super::scan::{End, Scan, ShutdownEvidence};
use super::shared_extent::shared_extent;
use crate::checkpoint::{self, Header, file_of};
use crate::error::{Corruption, CorruptionKind, Error, Result};
use crate::group::{Group, LogEntry};
use crate::io::{AlignedBuf, BLOCK, FileKind};
use crate::journal::{Block, Body, Record, Ring};
use crate::state::Devices;
use crate::superblock::Superblock;
use crate::types::{GroupId, LogId, ValueRef};
use crate::values::read_value;
use bytes::Bytes;
use std::collections::BTreeMap;
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
    /// What each group had applied in the checkpoint.
    pub checkpoint_applied: BTreeMap<GroupId, LogId>,
    /// The journal is known to be synced up to here. `unsynced_values` are the values named behind
    /// it.
    pub synced: u64,
    pub unsynced_values: Vec<ValueRef>,
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
    devices: &Devices,
    superblock: &Superblock,
    ring: Ring,
    evidence: ShutdownEvidence,
    salvage: bool,
) -> Result<Recovered> {
    let mut salvage = Salvage::new(salvage);
    let incarnation = superblock.identity.incarnation;
    let journal = devices.journal.as_ref();
    let mut scan = Scan::read(journal, ring, incarnation).await;
    let headers = checkpoint_headers(devices, incarnation).await;
    let (area, header, groups, other) = match newest_checkpoint(devices, &headers).await {
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
            let expected = "bytes that are no block, without a power cut".to_owned();
            salvage.accept(damaged_block(ring, end + 1, expected))?;
        }
    }
    let checkpoint_applied = groups.iter().filter_map(|(id, g)| Some((*id, g.applied?))).collect();
    let known_written = scan.highest_done(evidence).map_or(0, |(done, _)| done);
    let known_synced = scan.highest_synced(end).max(header.sequence).max(evidence.synced);
    let reached = (header.sequence, header.chain);
    let unreadable = BTreeMap::new();
    let mut replay = Replay {
        devices,
        ring,
        groups,
        known_written,
        known_synced,
        unreadable,
        unsynced_values: Vec::new(),
        reached,
    };
    if let Err(error) = replay.run(end).await {
        salvage.accept(error)?;
    }
    let Replay { mut groups, unreadable, unsynced_values, reached: (end, chain), .. } = replay;
    if let Some(error) = missing_purged_entries(&groups, devices, area) {
        salvage.accept(error)?;
        return Ok(empty_state(&scan, &headers, salvage));
    }
    cut_before(&mut groups, unreadable, &mut salvage)?;
    if let Some(error) = shared_extent(&groups) {
        salvage.accept(error)?;
        return Ok(empty_state(&scan, &headers, salvage));
    }
    if let Err(error) = reaches_clean_end(superblock, ring, &scan, header.sequence, end) {
        salvage.accept(error)?;
    }
    if let Err(error) = reaches_checkpoint(superblock, &header, ring, &scan, end) {
        salvage.accept(error)?;
    }
    if let Some(acknowledged) = evidence.reaches.filter(|acknowledged| *acknowledged > end) {
        let expected = format!(
            "written when a sync failed, as all through block {acknowledged}, which may have been acknowledged"
        );
        salvage.accept(damaged_block(ring, end + 1, expected))?;
    }
    let oldest_kept = end.saturating_sub(ring.blocks());
    let leads_here =
        other.filter(|s| *s >= oldest_kept && *s <= header.sequence && !header.replaces);
    let previous = leads_here.unwrap_or(header.sequence);
    let leftovers = scan.leftovers(end);
    let damage = salvage.damage();
    Ok(Recovered {
        groups,
        end,
        chain,
        leftovers,
        area,
        checkpoint: header,
        previous,
        checkpoint_applied,
        synced: known_synced,
        unsynced_values,
        other_is_void: header.replaces && other.is_some(),
        damage,
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
        damage: salvage.damage(),
        ..Recovered::default()
    }
}

/// The newest checkpoint is damaged, and the log was purged beyond what the older one has applied:
/// the entries between are missing and cannot be re-applied.
fn missing_purged_entries(
    groups: &BTreeMap<GroupId, Group>,
    devices: &Devices,
    area: usize,
) -> Option<Error> {
    let lost = |group: &&Group| {
        let purged = group.log.bounds().purged.map(|id| id.index);
        purged > group.applied.map(|id| id.index)
            && group.applied_before.map(|id| id.index) >= purged
    };
    let group = groups.values().find(lost)?;
    let purged = group.log.bounds().purged.unwrap_or_default();
    Some(Error::Corrupt(Corruption {
        file: file_of(1 - area),
        offset: 0,
        length: devices.checkpoints.get(1 - area).map_or(0, |device| device.size()),
        kind: CorruptionKind::Checkpoint,
        expected: format!(
            "an intact checkpoint that covers entry {purged}, through which the log is purged"
        ),
        found: format!("damage; the older checkpoint has applied {:?}", group.applied),
        log_ids: Vec::new(),
    }))
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
    Err(damaged_block(
        ring,
        covered,
        format!("the last one that checkpoint {} covers", header.number),
    ))
}

fn damaged_block(ring: Ring, sequence: u64, expected: String) -> Error {
    Error::Corrupt(Corruption {
        file: FileKind::Journal,
        offset: ring.offset(sequence),
        length: BLOCK as u64,
        kind: CorruptionKind::JournalBlock,
        expected: format!("block {sequence}: {expected}"),
        found: "an old, empty or damaged block".to_owned(),
        log_ids: Vec::new(),
    })
}

type Newest = (usize, Header, BTreeMap<GroupId, Group>, Option<u64>);

/// The intact headers, the highest number first.
async fn checkpoint_headers(devices: &Devices, incarnation: u64) -> Vec<(usize, Header)> {
    let mut found = Vec::new();
    for (area, device) in devices.checkpoints.iter().enumerate() {
        if let Some(header) = checkpoint::read_headers(device.as_ref(), incarnation).await {
            found.push((area, header));
        }
    }
    found.sort_by_key(|(_, header)| std::cmp::Reverse(header.number));
    found
}

/// The intact checkpoint with the highest number; the other area's sequence, if its header is
/// intact.
async fn newest_checkpoint(devices: &Devices, found: &[(usize, Header)]) -> Result<Newest> {
    let mut reasons = Vec::new();
    for (area, header) in found {
        let Some(device) = devices.checkpoints.get(*area) else {
            continue;
        };
        let loaded = match checkpoint::load(device.as_ref(), header).await {
            // Load it once more before believing the damage.
            Err(_) => checkpoint::load(device.as_ref(), header).await,
            loaded => loaded,
        };
        match loaded {
            Ok(groups) => {
                let other = found.iter().find(|(a, h)| a != area && h.number < header.number);
                return Ok((*area, *header, groups, other.map(|(_, h)| h.sequence)));
            }
            Err(reason) => {
                let file = file_of(*area).name();
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
    Err(Error::Corrupt(Corruption {
        file: FileKind::Checkpoint0,
        offset: 0,
        length: devices.checkpoints.first().map_or(0, |d| d.size()),
        kind: CorruptionKind::Checkpoint,
        expected: "an intact checkpoint in one of the two areas".to_owned(),
        found: reasons.join("; "),
        log_ids: Vec::new(),
    }))
}

struct Replay<'a> {
    devices: &'a Devices,
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
    /// The last block replayed, and its checksum.
    reached: (u64, u128),
}

impl Replay<'_> {
    /// Replays the blocks behind `reached` up to `end`. Stops earlier at a block whose values were
    /// in flight and are missing.
    async fn run(&mut self, end: u64) -> Result<()> {
        while self.reached.0 < end {
            let (last, _) = self.reached;
            let count = self.ring.contiguous(last + 1, (end - last).min(256));
            let offset = self.ring.offset(last + 1);
            let (result, buf) =
                self.devices.journal.read(offset, AlignedBuf::zeroed(count as usize * BLOCK)).await;
            for bytes in buf.chunks(BLOCK) {
                let sequence = self.reached.0 + 1;
                let block = Block::decode(bytes)
                    .filter(|b| result.is_ok() && b.header.sequence == sequence);
                let block = match block {
                    Some(block) => block,
                    None => self.read_block(sequence).await?,
                };
                if !self.block(sequence, &block.payload).await? {
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
        let (result, buf) = self.devices.journal.read(offset, AlignedBuf::zeroed(BLOCK)).await;
        let block = Block::decode(&buf).filter(|b| result.is_ok() && b.header.sequence == sequence);
        block.ok_or_else(|| self.damaged(sequence, "it was intact a moment ago"))
    }

    fn damaged(&self, sequence: u64, expected: &str) -> Error {
        damaged_block(self.ring, sequence, expected.to_owned())
    }

    /// Replays one block. Returns `false` if a value that it names never arrived: the journal ends
    /// before it.
    async fn block(&mut self, sequence: u64, payload: &[u8]) -> Result<bool> {
        let mut reader = crate::codec::Reader::new(payload);
        let mut steps = Vec::new();
        while reader.remaining() > 0 {
            let record = Record::decode(&mut reader);
            let record =
                record.ok_or_else(|| self.damaged(sequence, "records that can be read"))?;
            let entry = match &record {
                Record::Entry { group, id, body } => {
                    match self.entry(sequence, *group, *id, body).await? {
                        Some(entry) => Some(entry),
                        None => return Ok(false),
                    }
                }
                _ => None,
            };
            steps.push((record, entry));
        }
        for (record, entry) in steps {
            if let Some(entry) = entry.as_ref().filter(|_| sequence > self.known_synced) {
                self.unsynced_values.extend(entry.extents());
            }
            self.step(sequence, record, entry)?;
        }
        Ok(true)
    }

    /// The entry of a record; `None` if its bytes were still in flight. Values beyond the last sync
    /// are read and checked, since the record may have arrived without them.
    async fn entry(
        &mut self,
        sequence: u64,
        group: GroupId,
        id: LogId,
        body: &Body,
    ) -> Result<Option<LogEntry>> {
        let in_flight = sequence > self.known_written;
        let unreadable =
            || damaged_block(self.ring, sequence, "an entry whose body can be read".to_owned());
        let entry = match body {
            Body::Inline(bytes) => LogEntry::from_body(id, bytes, None).ok_or_else(unreadable)?,
            Body::Spilled(at) => match read_value(self.devices.data.as_ref(), at, id).await {
                Ok(bytes) => LogEntry::from_body(id, &bytes, Some(*at)).ok_or_else(unreadable)?,
                Err(_) if in_flight => return Ok(None),
                Err(error) => {
                    self.unreadable.insert((group, id.index), error);
                    let (meta, values) = (Bytes::new(), Box::default());
                    LogEntry { id, meta, values, spilled: Some(*at) }
                }
            },
        };
        if sequence > self.known_synced {
            for at in &entry.values {
                match read_value(self.devices.data.as_ref(), at, id).await {
                    Ok(_) => {}
                    Err(Error::Corrupt(_)) if in_flight => return Ok(None),
                    // The entry was completed. Its record is right, its value is damaged, and reads
                    // will report that.
                    Err(error) => tracing::warn!(%error, "a completed value is damaged"),
                }
            }
        }
        Ok(Some(entry))
    }

    fn step(&mut self, sequence: u64, record: Record, entry: Option<LogEntry>) -> Result<()> {
        let broken = |this: &Self, what: String| Err(this.damaged(sequence, &what));
        match record {
            Record::Entry { group, id, .. } => {
                let log = &mut self.groups.entry(group).or_default().log;
                if let Some(next) = log.next_index().filter(|next| *next != id.index) {
                    return broken(self, format!("entry {id} where index {next} is due"));
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
                    return broken(self, format!("entry {through} applied before it was appended"));
                }
                group.applied_before = group.applied_before.max(Some(through));
            }
        }
        Ok(())
    }
}
