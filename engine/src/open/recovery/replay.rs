//! Checkpoint, then journal, then the verdict.

use super::salvage::{Salvage, cut_before};
use super::scan::{End, Left, Scan};
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

/// The state that a directory stands for.
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
    /// What the other area's checkpoint covers, if it is there and the journal still reaches back to it.
    pub previous: u64,
    /// What each group had applied in the checkpoint.
    pub checkpoint_applied: BTreeMap<GroupId, LogId>,
    /// The journal is known to have been synced up to here, and the values named behind it, which are not.
    pub synced: u64,
    pub unsynced_values: Vec<ValueRef>,
    /// The other area's checkpoint does not lead here, and is to be made void before anything new is written.
    pub other_is_void: bool,
    /// What was accepted as damaged: the state is a verified prefix, and may lack what was acknowledged.
    pub damage: Option<Corruption>,
}

/// Reads everything; writes nothing. With `salvage`, damage is no error: the longest verified prefix is returned with
/// what ended it.
///
/// # Errors
/// `Corrupt` where something that was completed is gone or damaged and no older state replaces it.
pub(crate) async fn recover(
    devices: &Devices,
    superblock: &Superblock,
    ring: Ring,
    left: Left,
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
            return Ok(nothing(&scan, &headers, salvage));
        }
    };
    let (mut end, mut chain) = scan.follow(header.sequence, header.chain);
    // What ends the chain is read again before it is believed.
    while end - header.sequence < ring.blocks() && scan.read_again(journal, end + 1, incarnation).await {
        let before = end;
        (end, chain) = scan.follow(end, chain);
        if end == before {
            break;
        }
    }
    match scan.judge(end, left) {
        End::Tail => {}
        End::Missing { said_by } => {
            let expected = format!("block {said_by} says that it was completed");
            salvage.accept(damaged_block(ring, end + 1, expected))?;
        }
        End::Damaged => {
            let expected = "bytes that are no block, without a power cut".to_owned();
            salvage.accept(damaged_block(ring, end + 1, expected))?;
        }
    }
    let checkpoint_applied = groups.iter().filter_map(|(id, g)| Some((*id, g.applied?))).collect();
    let known_written = scan.said_done(left).map_or(0, |(done, _)| done);
    let known_synced = scan.said_synced(end).max(header.sequence).max(left.synced);
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
    if let Some(error) = beyond_reapplying(&groups, devices, area) {
        salvage.accept(error)?;
        return Ok(nothing(&scan, &headers, salvage));
    }
    cut_before(&mut groups, unreadable, &mut salvage)?;
    if let Some(error) = shared_extent(&groups) {
        salvage.accept(error)?;
        return Ok(nothing(&scan, &headers, salvage));
    }
    if let Err(error) = reaches_clean_end(superblock, ring, &scan, header.sequence, end) {
        salvage.accept(error)?;
    }
    if let Err(error) = reaches_checkpoint(superblock, &header, ring, &scan, end) {
        salvage.accept(error)?;
    }
    if let Some(acknowledged) = left.reaches.filter(|acknowledged| *acknowledged > end) {
        let expected = format!(
            "written when a sync failed, as all through block {acknowledged}, which may have been acknowledged"
        );
        salvage.accept(damaged_block(ring, end + 1, expected))?;
    }
    let oldest_kept = end.saturating_sub(ring.blocks());
    let leads_here = other.filter(|s| *s >= oldest_kept && *s <= header.sequence && !header.replaces);
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

/// The state without any checkpoint: the empty one, though the journal may reach back to the first block. A snapshot of a
/// peer may have replaced the state since, which only checkpoints tell.
fn nothing(scan: &Scan, headers: &[(usize, Header)], salvage: Salvage) -> Recovered {
    let number = headers.iter().map(|(_, header)| header.number).max().unwrap_or(0);
    Recovered {
        leftovers: scan.leftovers(0),
        area: 1,
        checkpoint: Header { number, ..Header::default() },
        damage: salvage.damage(),
        ..Recovered::default()
    }
}

/// The newest checkpoint is damaged, and the log was purged through more than the older one has applied: what lies between
/// cannot be applied again.
fn beyond_reapplying(groups: &BTreeMap<GroupId, Group>, devices: &Devices, area: usize) -> Option<Error> {
    let lost = |group: &&Group| {
        let purged = group.log.bounds().purged.map(|id| id.index);
        purged > group.applied.map(|id| id.index) && group.applied_before.map(|id| id.index) >= purged
    };
    let group = groups.values().find(lost)?;
    let purged = group.log.bounds().purged.unwrap_or_default();
    Some(Error::Corrupt(Corruption {
        file: file_of(1 - area),
        offset: 0,
        length: devices.checkpoints.get(1 - area).map_or(0, |device| device.size()),
        kind: CorruptionKind::Checkpoint,
        expected: format!("an intact checkpoint that covers entry {purged}, through which the log is purged"),
        found: format!("damage; the older checkpoint has applied {:?}", group.applied),
        log_ids: Vec::new(),
    }))
}

/// A clean shutdown recorded the journal's end: that very block must still be there.
fn reaches_clean_end(superblock: &Superblock, ring: Ring, scan: &Scan, covered: u64, end: u64) -> Result<()> {
    let clean = superblock.clean;
    let gone = clean.sequence > end
        || (clean.sequence > covered && scan.checksum(clean.sequence) != Some(clean.checksum));
    if gone {
        let expected =
            format!("the journal's end when it was last known to be whole, block {}", clean.sequence);
        return Err(damaged_block(ring, end.min(clean.sequence) + 1, expected));
    }
    Ok(())
}

/// A checkpoint is written once the last block that it covers is synced, and that block is written over only when others are
/// behind it: a journal that ends there without it is not the one that the checkpoint goes with.
///
/// After a failed sync the opening could read that block, and the medium may not have it: the two checkpoints that it writes make it needless.
/// The word of the failure stands until then. A power cut in between takes the block, and nothing that was acknowledged if the checkpoint
/// reaches as far.
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
        || scan.rots_alone(covered)
        || superblock.failed_sync.is_some_and(|acknowledged| acknowledged <= covered)
    {
        return Ok(());
    }
    Err(damaged_block(ring, covered, format!("the last one that checkpoint {} covers", header.number)))
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

/// The intact checkpoint with the highest number; the other area's sequence, if its header is intact.
async fn newest_checkpoint(devices: &Devices, found: &[(usize, Header)]) -> Result<Newest> {
    let mut reasons = Vec::new();
    for (area, header) in found {
        let Some(device) = devices.checkpoints.get(*area) else {
            continue;
        };
        let loaded = match checkpoint::load(device.as_ref(), header).await {
            // Read once more before it is believed.
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
                    reasons.push("it replaced what older ones hold".to_owned());
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
    /// Blocks up to here are known to have reached the device for good, and to have been synced.
    known_written: u64,
    known_synced: u64,
    /// Entries whose body cannot be read. That is an error only if nothing later removed them: the space of a removed
    /// entry may be another's by now.
    unreadable: BTreeMap<(GroupId, u64), Error>,
    /// What the blocks behind the last sync name.
    unsynced_values: Vec<ValueRef>,
    /// The last block replayed, and its checksum.
    reached: (u64, u128),
}

impl Replay<'_> {
    /// Replays the blocks behind `reached` up to `end`. It stops earlier where a value that was still in flight is missing.
    async fn run(&mut self, end: u64) -> Result<()> {
        while self.reached.0 < end {
            let (last, _) = self.reached;
            let count = self.ring.contiguous(last + 1, (end - last).min(256));
            let offset = self.ring.offset(last + 1);
            let (result, buf) =
                self.devices.journal.read(offset, AlignedBuf::zeroed(count as usize * BLOCK)).await;
            for bytes in buf.chunks(BLOCK) {
                let sequence = self.reached.0 + 1;
                let block = Block::decode(bytes).filter(|b| result.is_ok() && b.header.sequence == sequence);
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

    /// One block by itself, once more.
    async fn read_block(&self, sequence: u64) -> Result<Block> {
        let offset = self.ring.offset(sequence);
        let (result, buf) = self.devices.journal.read(offset, AlignedBuf::zeroed(BLOCK)).await;
        let block = Block::decode(&buf).filter(|b| result.is_ok() && b.header.sequence == sequence);
        block.ok_or_else(|| self.damaged(sequence, "it was intact a moment ago"))
    }

    fn damaged(&self, sequence: u64, expected: &str) -> Error {
        damaged_block(self.ring, sequence, expected.to_owned())
    }

    /// Replays one block. `false`: a value that it names never arrived, so the journal ends before it.
    async fn block(&mut self, sequence: u64, payload: &[u8]) -> Result<bool> {
        let mut reader = crate::codec::Reader::new(payload);
        let mut steps = Vec::new();
        while reader.remaining() > 0 {
            let record = Record::decode(&mut reader);
            let record = record.ok_or_else(|| self.damaged(sequence, "records that can be read"))?;
            let entry = match &record {
                Record::Entry { group, id, body } => match self.entry(sequence, *group, *id, body).await? {
                    Some(entry) => Some(entry),
                    None => return Ok(false),
                },
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

    /// The entry of a record; `None` if its bytes were still in flight. Values beyond the last sync are read and
    /// checked, since the record may have arrived without them.
    async fn entry(
        &mut self,
        sequence: u64,
        group: GroupId,
        id: LogId,
        body: &Body,
    ) -> Result<Option<LogEntry>> {
        let in_flight = sequence > self.known_written;
        let unreadable = || damaged_block(self.ring, sequence, "an entry whose body can be read".to_owned());
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
                    // The entry was completed: its record is right, its value is damaged, and reads will say so.
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
                // The newest checkpoint covered what was purged. If this is the older one, the entries that it has not applied
                // are needed once more.
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
