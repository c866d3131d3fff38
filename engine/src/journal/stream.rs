//! Records over the payloads of blocks: packing them, and finding them again.
//!
//! The payloads of a group commit are one stream of records, so a record may continue in the next
//! blocks. A group commit begins with a new block. A block says how many of its bytes continue a
//! record of the blocks before it; so a record can be found without the block that it began in, and
//! one whose continuation never arrived is noticed.

use super::block::{Block, PAYLOAD_BYTES, Payload};
use super::record::{Next, Record};

/// Packs the records of a group commit into the payloads of consecutive blocks.
#[derive(Default)]
pub(crate) struct Packer {
    pub payloads: Vec<Payload>,
    /// The record being added.
    record: Vec<u8>,
}

impl Packer {
    /// Adds a record. It ends in the last payload.
    pub(crate) fn push(&mut self, record: &Record) {
        self.record.clear();
        record.encode(&mut self.record);
        let mut rest = self.record.as_slice();
        while !rest.is_empty() {
            let begun = rest.len() < self.record.len();
            let payload = match self.payloads.last_mut() {
                Some(last) if last.bytes.len() < PAYLOAD_BYTES => last,
                _ => self.payloads.push_mut(Payload::default()),
            };
            let (now, later) = rest.split_at(rest.len().min(PAYLOAD_BYTES - payload.bytes.len()));
            payload.bytes.extend_from_slice(now);
            payload.continued += if begun { now.len() } else { 0 };
            rest = later;
        }
    }

    /// Ensures at least one block.
    pub(crate) fn at_least_one(&mut self) {
        if self.payloads.is_empty() {
            self.payloads.push(Payload::default());
        }
    }
}

/// Finds the records in blocks that follow one another.
#[derive(Default)]
pub(crate) struct RecordStream {
    /// The beginning of a record that continues in the next block.
    pending: Vec<u8>,
    /// The boot epoch that wrote it.
    epoch: u64,
}

impl RecordStream {
    /// The records that end in this block, which follows the one before. `Err` says what is wrong
    /// with it. An open continues no record of an earlier one: that record was cut by a crash.
    pub(crate) fn records(&mut self, block: &Block) -> Result<Vec<Record>, &'static str> {
        let Payload { bytes, continued } = &block.payload;
        let same_epoch = self.epoch == block.header.epoch;
        let (rest_of_pending, mut rest) =
            bytes.split_at_checked(*continued).ok_or("fewer bytes than continue a record")?;
        let mut records = Vec::new();
        match (self.pending.is_empty(), rest_of_pending.is_empty()) {
            (true, true) => {}
            (false, true) if !same_epoch => self.pending.clear(),
            (false, true) => return Err("the rest of the record before it"),
            (true, false) => return Err("no rest of a record, since none was begun"),
            (false, false) if !same_epoch => return Err("no rest of an earlier open's record"),
            (false, false) => {
                self.pending.extend_from_slice(rest_of_pending);
                match Record::next(&self.pending) {
                    Next::Record(record, len) if len == self.pending.len() => {
                        records.push(record);
                        self.pending.clear();
                    }
                    Next::Part if *continued == PAYLOAD_BYTES => return Ok(records),
                    _ => return Err("the rest of the record before it"),
                }
            }
        }
        self.epoch = block.header.epoch;
        while !rest.is_empty() {
            match Record::next(rest) {
                Next::Record(record, len) => {
                    records.push(record);
                    rest = rest.get(len..).unwrap_or_default();
                }
                Next::Part if bytes.len() == PAYLOAD_BYTES => {
                    self.pending.extend_from_slice(rest);
                    break;
                }
                _ => return Err("records that can be read"),
            }
        }
        Ok(records)
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::Header;
    use super::super::record::Body;
    use super::*;
    use crate::types::{GroupId, LogId};
    use proptest::prelude::*;

    fn entry(index: u64, len: usize) -> Record {
        let body = Body::Inline(vec![index as u8; len].into());
        Record::Entry { group: GroupId(0), id: LogId { term: 1, index }, body }
    }

    /// The blocks of a group commit, and the number of blocks when each record was added.
    fn blocks(records: &[Record], epoch: u64) -> (Vec<Block>, Vec<usize>) {
        let mut packer = Packer::default();
        let mut ends = Vec::new();
        for record in records {
            packer.push(record);
            ends.push(packer.payloads.len());
        }
        let header = Header { epoch, ..Header::default() };
        let block = |payload| Block { header, checksum: 0, payload };
        (packer.payloads.into_iter().map(block).collect(), ends)
    }

    #[test]
    fn records_fill_the_blocks_and_each_block_says_what_continues() {
        let records: Vec<Record> = (0..5).map(|index| entry(index, 1994)).collect();
        let (blocks, ends) = blocks(&records, 1);
        let shape: Vec<_> =
            blocks.iter().map(|b| (b.payload.bytes.len(), b.payload.continued)).collect();
        // Each record takes 2,000 bytes: none continues.
        assert_eq!(shape, [(4000, 0), (4000, 0), (2000, 0)]);
        assert_eq!(ends, [1, 1, 2, 2, 3]);
        let (blocks, ends) = self::blocks(&[entry(0, 2994), entry(1, 9000), entry(2, 100)], 1);
        let shape: Vec<_> =
            blocks.iter().map(|b| (b.payload.bytes.len(), b.payload.continued)).collect();
        assert_eq!(shape, [(4000, 0), (4000, 4000), (4000, 4000), (111, 6)]);
        assert_eq!(ends, [1, 4, 4]);
    }

    #[test]
    fn a_record_whose_rest_never_came_is_dropped_when_another_open_continues() {
        let (mut blocks, _) = blocks(&[entry(0, 100), entry(1, 5000)], 1);
        let mut stream = RecordStream::default();
        assert_eq!(stream.records(&blocks[0]), Ok(vec![entry(0, 100)]));
        // The open's block without records, then blocks of that open.
        let next = self::blocks(&[entry(1, 10)], 2).0;
        blocks[1].header.epoch = 2;
        let empty = Block { payload: Payload::default(), ..blocks[1].clone() };
        assert_eq!(stream.records(&empty), Ok(vec![]));
        assert_eq!(stream.records(&next[0]), Ok(vec![entry(1, 10)]));
    }

    #[test]
    fn a_rest_without_a_beginning_and_a_beginning_without_its_rest_are_damage() {
        let (first, _) = blocks(&[entry(0, 100), entry(1, 5000)], 1);
        let (other, _) = blocks(&[entry(2, 10)], 1);
        let after = |before: &[&Block], last: &Block| {
            let mut stream = RecordStream::default();
            before.iter().for_each(|block| drop(stream.records(block).unwrap()));
            stream.records(last)
        };
        assert!(after(&[], &first[1]).is_err(), "no beginning");
        assert!(after(&[&first[0]], &other[0]).is_err(), "no rest");
        let mut later = first[1].clone();
        later.header.epoch = 2;
        assert!(after(&[&first[0]], &later).is_err(), "the rest by another open");
        let mut less = first[1].clone();
        less.payload.continued -= 1;
        assert!(after(&[&first[0]], &less).is_err(), "a byte too few");
        let mut cut = first[0].clone();
        cut.payload.bytes.pop();
        assert!(after(&[], &cut).is_err(), "a record that ends before its block is full");
    }

    proptest! {
        #[test]
        fn what_is_packed_is_found_in_the_block_where_it_ends(
            commits in prop::collection::vec(prop::collection::vec(0usize..12_000, 1..9), 1..4),
        ) {
            let (mut stream, mut index) = (RecordStream::default(), 0);
            for lengths in commits {
                let records: Vec<Record> = lengths
                    .into_iter()
                    .map(|len| { index += 1; entry(index, len) })
                    .collect();
                let (blocks, ends) = blocks(&records, 7);
                let mut found = Vec::new();
                for (number, block) in blocks.iter().enumerate() {
                    let records = stream.records(block).unwrap();
                    found.extend(records.into_iter().map(|record| (record, number + 1)));
                }
                prop_assert_eq!(found, records.into_iter().zip(ends).collect::<Vec<_>>());
            }
        }
    }
}
