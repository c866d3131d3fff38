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
    let known = (known_written, known_synced);
    Replay::new(files, Ring::new(64), BTreeMap::new(), known, (0, 0))
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

fn carried(index: u64, places: &[ValueRef], bytes: &[u8]) -> Record {
    let body = Bytes::from(encode_body(places, b"meta"));
    let body = Body::Carried { body, values: Bytes::copy_from_slice(bytes) };
    Record::Entry { group: GROUP, id: id(index), body }
}

/// Where the values lie that the journal carries and the next open puts there.
fn due(replay: Replay<'_>) -> Vec<u64> {
    let Replay { carried, groups, .. } = replay;
    carried.iter().flat_map(|carried| carried.due(&groups)).map(|(at, _)| at.offset()).collect()
}

#[test]
fn values_that_the_journal_carries_need_not_be_at_their_places() {
    let files = files(&[]);
    let mut replay = replay(&files, 0, 0);
    let records =
        [carried(0, &[at(100)], VALUE), carried(1, &[at(4096), at(350)], &VALUE.repeat(2))];
    assert!(block_on(replay.block(&blocks(1, &records)[0])).unwrap());
    assert_eq!(log_values(&replay, 1), [at(4096), at(350)]);
    assert!(replay.unsynced_values.is_empty(), "they are written from the journal");
    assert_eq!(due(replay), [100, 4096, 350]);
}

#[test]
fn values_are_put_at_their_places_only_where_the_log_still_refers_to_them() {
    let files = files(&[]);
    let mut replay = replay(&files, 0, 0);
    let records = [
        carried(0, &[at(100)], VALUE),
        carried(1, &[at(4096)], VALUE),
        carried(2, &[at(8192)], VALUE),
        Record::Truncate { group: GROUP, last: Some(1) },
        carried(2, &[at(12_288)], VALUE),
    ];
    assert!(block_on(replay.block(&blocks(1, &records)[0])).unwrap());
    // The purge of entry 0 is due: its place may belong to another value.
    let group = replay.groups.get_mut(&GROUP).unwrap();
    group.purge_applied(id(0));
    assert_eq!(due(replay), [4096, 12_288]);
}

/// The story: a moved value made its whole entry count as placed, although no sync covered the
/// places of the entry's other values.
#[test]
fn a_moved_value_is_not_put_back_but_at_its_new_place_and_the_others_of_its_entry_at_theirs() {
    let files = files(&[8192]);
    let mut replay = replay(&files, 0, 0);
    let both = carried(0, &[at(100), at(4096)], &VALUE.repeat(2));
    assert!(block_on(replay.block(&blocks(1, &[both])[0])).unwrap());
    assert!(block_on(replay.block(&blocks(2, &[moved(0, at(100), at(8192))])[0])).unwrap());
    assert_eq!(log_values(&replay, 0), [at(8192), at(4096)]);
    assert_eq!(due(replay), [8192, 4096]);
}

#[test]
fn what_a_synced_block_says_to_be_placed_is_not_written_again() {
    let files = files(&[]);
    let block = |sequence: u64, placed, index: u64| {
        let record = carried(index, &[at(4096 * index)], VALUE);
        let mut block = blocks(sequence, &[record]).remove(0);
        block.header.placed = placed;
        block
    };
    let all = [block(1, 0, 1), block(2, 0, 2), block(3, 1, 3), block(4, 2, 4)];
    for (known_synced, expected) in [
        (2, vec![4096, 8192, 12_288, 16_384]),
        (3, vec![8192, 12_288, 16_384]),
        (4, vec![12_288, 16_384]),
    ] {
        let mut replay = replay(&files, 4, known_synced);
        all.iter().for_each(|block| assert!(block_on(replay.block(block)).unwrap()));
        assert_eq!(due(replay), expected, "{known_synced} is synced");
    }
}

#[test]
fn carried_bytes_that_are_not_those_of_the_values_are_damage() {
    let files = files(&[]);
    for bytes in [&VALUE[1..], &[8; 250], &VALUE.repeat(2)] {
        let mut replay = replay(&files, 0, 0);
        let block = blocks(1, &[carried(0, &[at(100)], bytes)]).remove(0);
        assert!(matches!(block_on(replay.block(&block)), Err(Error::Corrupt(_))));
    }
}

/// The story: a value of a whole block and a tail was carried and put at its place. Compaction moved
/// the tail. A power cut took the whole block, which was not synced. The record of the move ended
/// the journal, or left a value without its whole block.
#[test]
fn a_carried_value_that_was_moved_is_put_at_its_new_place() {
    let files = files(&[]);
    let long = vec![7; BLOCK + 250];
    let place = |tail| {
        let run = crate::types::Run { first: 1, blocks: 1 };
        ValueRef::new(long.len() as u32, hash(&long), &[run], Some(tail)).unwrap()
    };
    let mut replay = replay(&files, 0, 0);
    let records = [carried(0, &[place(8292)], &long), moved(0, place(8292), place(12_388))];
    for block in blocks(1, &records) {
        assert!(block_on(replay.block(&block)).unwrap());
    }
    let carried = replay.carried.pop_front().unwrap();
    assert_eq!(carried.due(&replay.groups), [(place(12_388), Bytes::from(long))]);
}
