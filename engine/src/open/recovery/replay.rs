//! Replays the journal's records on top of a checkpoint's state.

use super::carried::Carried;
use super::progress::OpenProgress;
use crate::error::{Corruption, Error, Result};
use crate::group::{Group, LogEntry};
use crate::io::{BLOCK, FileKind, Piece, ReadAhead};
use crate::journal::{Block, Body, Moved, Record, RecordStream, Ring};
use crate::state::Files;
use crate::types::{GroupId, LogId, ValueRef};
use crate::values::{is_readable, read_value};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;

pub(super) fn damaged_block(ring: Ring, sequence: u64, expected: impl Display) -> Error {
    let expected = format!("block {sequence}: {expected}");
    let found = "an old, empty or damaged block";
    let (offset, length) = (ring.offset(sequence), BLOCK as u64);
    Corruption::new(FileKind::Journal, offset, length, expected, found).into()
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

pub(super) struct Replay<'a> {
    files: &'a Files,
    ring: Ring,
    pub(super) groups: BTreeMap<GroupId, Group>,
    /// Blocks up to `known_written` are known to be written for good, those up to `known_synced` to
    /// be synced.
    known_written: u64,
    known_synced: u64,
    /// Entries whose body cannot be read. That is an error only if nothing later removed them: the
    /// extent of a removed entry may belong to another value now.
    pub(super) unreadable: BTreeMap<(GroupId, u64), Error>,
    /// The values that blocks behind the last sync name.
    pub(super) unsynced_values: Vec<ValueRef>,
    /// Entries whose values the journal carries and that may not be at their places, the oldest
    /// first. What is known to be at its place leaves, so they are about as many as fit between two
    /// syncs.
    pub(super) carried: VecDeque<Carried>,
    /// Finds the records, also those that continue in the next block.
    stream: RecordStream,
    /// The last block replayed, and its checksum.
    pub(super) reached: (u64, u128),
}

impl<'a> Replay<'a> {
    /// Begins behind the block `reached`, whose state these groups are.
    pub(super) fn new(
        files: &'a Files,
        ring: Ring,
        groups: BTreeMap<GroupId, Group>,
        (known_written, known_synced): (u64, u64),
        reached: (u64, u128),
    ) -> Replay<'a> {
        Replay {
            files,
            ring,
            groups,
            known_written,
            known_synced,
            unreadable: BTreeMap::new(),
            unsynced_values: Vec::new(),
            carried: VecDeque::new(),
            stream: RecordStream::default(),
            reached,
        }
    }

    /// Replays the blocks behind `reached` up to `end`. Stops earlier at a block whose values were
    /// in flight and are missing.
    pub(super) async fn run(&mut self, end: u64, progress: &mut OpenProgress) -> Result<()> {
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
