//! Tests of the replay, block by block.

use super::*;
use crate::codec::hash;
use crate::io::memory::Memory;
use crate::journal::{Packer, encode_body};
use crate::types::KeyEntry;
use futures::executor::block_on;

const GROUP: GroupId = GroupId(0);
const VALUE: &[u8] = &[7; 250];

fn id(index: u64) -> LogId {
    LogId { term: 1, index }
}

/// The value at this place.
fn at(offset: u64) -> ValueRef {
    ValueRef::contiguous(offset, VALUE.len() as u32, hash(VALUE)).unwrap()
}

fn entry(index: u64, values: &[ValueRef], meta: usize) -> Record {
    let body = Body::Inline(encode_body(values, &vec![1; meta]).into());
    Record::Entry { group: GROUP, id: id(index), body }
}

fn moved(index: u64, from: ValueRef, to: ValueRef) -> Record {
    Record::Moved(Moved { group: GROUP, id: id(index), key: Bytes::from_static(b"key"), from, to })
}

/// A data area that holds the value at these places.
fn files(places: &[u64]) -> Files {
    let mut data = vec![0; 16 * BLOCK];
    for offset in places {
        data[*offset as usize..][..VALUE.len()].copy_from_slice(VALUE);
    }
    let empty = |kind| Memory::new(Vec::new()).file(kind);
    let data = Memory::new(data).file(FileKind::Data);
    let checkpoints = [empty(FileKind::Checkpoint0), empty(FileKind::Checkpoint1)];
    Files { data, journal: empty(FileKind::Journal), checkpoints }
}

fn replay(files: &Files, known_written: u64, known_synced: u64) -> Replay<'_> {
    Replay {
        files,
        ring: Ring::new(64),
        groups: BTreeMap::new(),
        known_written,
        known_synced,
        unreadable: BTreeMap::new(),
        unsynced_values: Vec::new(),
        stream: RecordStream::default(),
        reached: (0, 0),
    }
}

/// The blocks of one group commit, from this sequence on.
fn blocks(first: u64, records: &[Record]) -> Vec<Block> {
    let mut packer = Packer::default();
    records.iter().for_each(|record| packer.push(record));
    let block = |(payload, sequence)| {
        let header = crate::journal::Header { sequence, epoch: 1, ..Default::default() };
        Block { header, checksum: 0, payload }
    };
    packer.payloads.into_iter().zip(first..).map(block).collect()
}

fn log_values(replay: &Replay<'_>, index: u64) -> Vec<ValueRef> {
    replay.groups[&GROUP].log.get(index).unwrap().values.to_vec()
}

#[test]
fn an_entry_is_replayed_in_the_block_where_its_record_ends() {
    let files = files(&[100]);
    let mut replay = replay(&files, 0, 0);
    let blocks = blocks(1, &[entry(0, &[at(100)], 10), entry(1, &[at(100)], 6000)]);
    assert_eq!(blocks.len(), 2);
    assert!(block_on(replay.block(&blocks[0])).unwrap());
    assert_eq!(replay.groups[&GROUP].log.bounds().last, Some(id(0)));
    assert!(block_on(replay.block(&blocks[1])).unwrap());
    assert_eq!(replay.groups[&GROUP].log.bounds().last, Some(id(1)));
    // The block that the record ends in decides whether it is known to be written.
    let missing = self::blocks(3, &[entry(2, &[at(0)], 6000)]);
    replay.known_written = 3;
    assert!(block_on(replay.block(&missing[0])).unwrap());
    assert!(!block_on(replay.block(&missing[1])).unwrap(), "its value never arrived");
}

#[test]
fn entry_and_key_refer_to_the_new_place_of_a_moved_value() {
    let files = files(&[100, 8192]);
    let mut replay = replay(&files, 0, 0);
    let mut group = Group::default();
    group.keys.insert(b"key", KeyEntry { version: id(1), value: at(100) });
    group.keys.insert(b"other", KeyEntry { version: id(1), value: at(100) });
    replay.groups.insert(GROUP, group);
    let two = [at(4096), at(100)];
    let records = [entry(0, &[], 0), entry(1, &two, 0), moved(1, at(100), at(8192))];
    // The other value of the entry is not on the disk, and known to be synced.
    replay.known_synced = 1;
    assert!(block_on(replay.block(&blocks(1, &records)[0])).unwrap());
    assert_eq!(log_values(&replay, 1), [at(4096), at(8192)]);
    let key = |key: &[u8]| replay.groups[&GROUP].keys.get(key).unwrap().value;
    assert_eq!((key(b"key"), key(b"other")), (at(8192), at(100)));
}

#[test]
fn a_moved_value_whose_entry_was_purged_or_whose_key_was_overwritten_moves_what_is_left() {
    let files = files(&[100, 8192]);
    let mut replay = replay(&files, 0, 0);
    let mut group = Group::default();
    group.keys.insert(b"key", KeyEntry { version: id(1), value: at(100) });
    replay.groups.insert(GROUP, group);
    assert!(block_on(replay.block(&blocks(1, &[moved(1, at(100), at(8192))])[0])).unwrap());
    assert_eq!(replay.groups[&GROUP].keys.get(b"key").unwrap().value, at(8192));
    // The key has the value of another entry now.
    let later = [entry(0, &[at(100)], 0), moved(0, at(100), at(8192))];
    assert!(block_on(replay.block(&blocks(2, &later)[0])).unwrap());
    let key = replay.groups[&GROUP].keys.get(b"key").unwrap();
    assert_eq!((key.version, log_values(&replay, 0)), (id(1), vec![at(8192)]));
}

#[test]
fn a_moved_value_that_did_not_arrive_ends_the_journal_unless_it_was_completed() {
    let files = files(&[100]);
    let block = blocks(1, &[entry(0, &[at(100)], 0), moved(0, at(100), at(8192))]).remove(0);
    let mut in_flight = replay(&files, 0, 0);
    assert!(!block_on(in_flight.block(&block)).unwrap());
    assert!(in_flight.groups.is_empty(), "nothing of the block is replayed");
    let mut completed = replay(&files, 1, 0);
    assert!(block_on(completed.block(&block)).unwrap());
    assert_eq!(log_values(&completed, 0), [at(8192)], "reads will find the damage");
    assert_eq!(completed.unsynced_values, [at(100), at(8192)]);
}
