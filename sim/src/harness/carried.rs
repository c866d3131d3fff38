//! The values that only the journal on a machine's disk holds, read from the disk past the node, as
//! the format says (`docs/format.md`).
//!
//! A value that a journal block carries need not be at its place until a later block that is
//! written says that it is, or a checkpoint covers the block: an open looks at no block before its
//! checkpoint. The disk knows which blocks it damaged, and the place of a block in the ring tells
//! its sequence. So a damaged journal excuses a missing value only if a damaged block may carry it.

use super::machine::Machine;
use cairn_engine::io::{BLOCK, FileKind};
use cairn_engine::{KeyEntry, ValueRef};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Bytes of a commit block before its records.
const HEADER_BYTES: usize = 96;
/// The longest value that the journal carries, in bytes.
const CARRIED_MAX: u32 = 8 << 10;

/// What the journal carries and nothing says to be at its place.
pub(super) struct Carried {
    /// The records of these blocks, one behind another.
    records: Vec<u8>,
    /// The disk damaged one of them.
    incomplete: bool,
}

impl Carried {
    /// Reads the disk of a machine whose node has this incarnation.
    pub(super) fn read(machine: &Machine, incarnation: u64) -> Carried {
        let slots = machine.disk.size(FileKind::Journal).unwrap_or(0) / BLOCK as u64;
        let (mut blocks, mut damaged) = (Vec::new(), Vec::new());
        for slot in 0..slots {
            match read_block(machine, FileKind::Journal, slot) {
                None => damaged.push(slot),
                Some(bytes) => blocks.extend(CommitBlock::decode(&bytes, incarnation)),
            }
        }
        let covered = covered(machine, incarnation);
        not_placed(blocks, &damaged, slots, covered)
    }

    /// Whether the value of this key may be in the journal alone, or its tail: compaction moves
    /// tails, and a journal block carries a few of them as it carries small values.
    pub(super) fn may_hold(&self, machine: &Machine, entry: &KeyEntry) -> bool {
        let hash = |bytes: &[u8]| xxh3_128(bytes) == entry.value.hash;
        (self.incomplete && entry.value.len <= CARRIED_MAX)
            || self.records.windows(entry.value.len as usize).any(hash)
            || self.holds_tail(machine, &entry.value)
    }

    fn holds_tail(&self, machine: &Machine, at: &ValueRef) -> bool {
        let segments: Vec<_> = at.segments().collect();
        let Some((tail, rest)) = segments.split_last() else { return false };
        let tail_bytes = (tail.end - tail.start) as usize;
        let mut blocks = Xxh3::new();
        for part in rest {
            let bytes =
                machine.disk.bytes(FileKind::Data, part.start, (part.end - part.start) as usize);
            let Some(bytes) = bytes else { return false };
            blocks.update(&bytes);
        }
        let matches = |bytes: &[u8]| {
            let mut whole = blocks.clone();
            whole.update(bytes);
            whole.digest128() == at.hash
        };
        tail_bytes < BLOCK && !rest.is_empty() && self.records.windows(tail_bytes).any(matches)
    }
}

/// What the check needs of a commit block.
struct CommitBlock {
    epoch: u64,
    sequence: u64,
    written: u64,
    placed: u64,
    records: Vec<u8>,
}

impl CommitBlock {
    fn decode(block: &[u8], incarnation: u64) -> Option<CommitBlock> {
        let whole = block.starts_with(b"CRNJ") && is_sealed(block, 8);
        (whole && number(block, 24) == incarnation).then(|| {
            let used = block.get(6..8).and_then(|bytes| bytes.try_into().ok());
            let used = usize::from(used.map_or(0, u16::from_le_bytes));
            let records = block.get(HEADER_BYTES..HEADER_BYTES + used).unwrap_or_default();
            CommitBlock {
                epoch: number(block, 32),
                sequence: number(block, 40),
                written: number(block, 64),
                placed: number(block, 88),
                records: records.to_vec(),
            }
        })
    }
}

/// The blocks of a ring behind the last one whose values are known to be at their places.
/// `damaged` are slots of the ring.
fn not_placed(blocks: Vec<CommitBlock>, damaged: &[u64], slots: u64, covered: u64) -> Carried {
    let newest = blocks.iter().max_by_key(|block| (block.epoch, block.sequence));
    let newest = newest.map_or(0, |block| block.sequence);
    let ring: BTreeMap<u64, CommitBlock> = blocks
        .into_iter()
        .filter(|block| block.sequence <= newest)
        .map(|block| (block.sequence, block))
        .collect();
    let written = ring.values().map(|block| block.written).max().unwrap_or(0);
    let placed = ring.range(..=written).map(|(_, block)| block.placed).max().unwrap_or(0);
    let known = placed.max(covered);
    // The damaged blocks may be the newest ones, too.
    let most = newest + damaged.len() as u64;
    let sequence = |slot: &u64| most.saturating_sub((most + slots - slot) % slots);
    Carried {
        incomplete: damaged.iter().any(|slot| sequence(slot) > known),
        records: ring.range(known + 1..).flat_map(|(_, block)| block.records.clone()).collect(),
    }
}

/// The last journal block that a checkpoint covers whose header is written.
fn covered(machine: &Machine, incarnation: u64) -> u64 {
    let areas = [FileKind::Checkpoint0, FileKind::Checkpoint1];
    let headers = areas.into_iter().flat_map(|area| [(area, 0), (area, 1)]);
    let headers = headers.filter_map(|(area, copy)| read_block(machine, area, copy));
    let whole = |header: &Vec<u8>| {
        header.starts_with(b"CAIRN.CP")
            && is_sealed(header, 16)
            && number(header, 32) == incarnation
    };
    headers.filter(whole).map(|header| number(&header, 48)).max().unwrap_or(0)
}

/// A block as it was last written; `None` if the disk damaged it.
fn read_block(machine: &Machine, kind: FileKind, number: u64) -> Option<Vec<u8>> {
    let intact = !machine.disk.is_damaged(kind, number);
    intact.then(|| machine.disk.bytes(kind, number * BLOCK as u64, BLOCK))?
}

/// Whether the checksum at this offset is that of the block.
fn is_sealed(block: &[u8], checksum: usize) -> bool {
    let mut zeroed = block.to_vec();
    let Some(field) = zeroed.get_mut(checksum..checksum + 16) else { return false };
    field.fill(0);
    block.get(checksum..checksum + 16) == Some(&xxh3_128(&zeroed).to_le_bytes()[..])
}

fn number(block: &[u8], at: usize) -> u64 {
    let bytes = block.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring of eight slots. Its blocks say that 15 is placed, and the newest, which may be in
    /// flight, that 17 is.
    fn blocks() -> Vec<CommitBlock> {
        let block = |sequence: u64| CommitBlock {
            epoch: 1,
            sequence,
            written: sequence - 1,
            placed: if sequence < 20 { 15 } else { 17 },
            records: vec![sequence as u8],
        };
        (13..=20).map(block).collect()
    }

    fn without(sequence: u64) -> Vec<CommitBlock> {
        blocks().into_iter().filter(|block| block.sequence != sequence).collect()
    }

    #[test]
    fn what_is_not_placed_and_not_covered_is_in_the_journal_alone() {
        let records = |covered| not_placed(blocks(), &[], 8, covered).records;
        assert_eq!(records(0), [16, 17, 18, 19, 20], "block 20 may be in flight");
        assert_eq!(records(18), [19, 20]);
    }

    #[test]
    fn a_damaged_block_counts_only_if_it_may_carry_a_value() {
        let incomplete = |sequence: u64, covered| {
            not_placed(without(sequence), &[sequence % 8], 8, covered).incomplete
        };
        assert!(!incomplete(14, 0) && !incomplete(15, 0));
        assert!(incomplete(16, 0) && incomplete(18, 0) && incomplete(20, 0));
        assert!(!incomplete(16, 16));
    }

    #[test]
    fn what_an_earlier_boot_epoch_left_behind_the_end_does_not_count() {
        let mut blocks = blocks();
        blocks.last_mut().unwrap().epoch = 2;
        blocks[0] =
            CommitBlock { epoch: 1, sequence: 21, written: 20, placed: 20, records: vec![] };
        assert_eq!(not_placed(blocks, &[], 8, 0).records, [16, 17, 18, 19, 20]);
    }
}
