//! Checkpoints that are loaded as they were written, and bytes that are none.

use super::*;
use crate::checkpoint::capture::{Capture, Changes};
use crate::checkpoint::header::BODY_AT;
use crate::checkpoint::save::{write, write_changes};
use crate::codec::put_varint;
use crate::io::memory::Memory;
use crate::io::{BLOCK, FileKind};
use crate::journal::put_log_id;
use crate::types::{KeyEntry, Run};
use bytes::BufMut;
use futures::executor::block_on;
use futures::future::ready;

fn file(device: &Arc<Memory>) -> OpenFile {
    device.file(FileKind::Checkpoint0)
}

/// An area with this body, and the right hashes and header.
fn area_of(body: &[u8]) -> (OpenFile, Header) {
    let mut table = Vec::new();
    body.chunks(CHUNK_BYTES).for_each(|chunk| table.put_u128_le(hash(chunk)));
    let body_bytes = body.len() as u64;
    let part = Part { body_bytes, table_hash: hash(&table), ..Part::default() };
    let header = Header { part, ..Header::default() };
    let mut area = vec![0; header.area_bytes() as usize];
    area[BODY_AT as usize..][..body.len()].copy_from_slice(body);
    area[header.part.table_at() as usize..][..table.len()].copy_from_slice(&table);
    (file(&Memory::new(area)), header)
}

type Groups = BTreeMap<GroupId, Group>;

fn load_body(body: &[u8]) -> Result<Groups> {
    let (area, header) = area_of(body);
    // Each list of a group is at least a few kilobytes long in memory.
    let most = 128 * body.len() + (64 << 10);
    cairn_fuzz::within(most, || block_on(load(&area, &header, &mut |_, _| {})))
}

/// The checkpoint of this state, as it is written.
fn area_with(groups: &Groups) -> (Arc<Memory>, Header) {
    let area = Memory::new(vec![0; 1 << 20]);
    let capture = Capture::whole(groups);
    let header = Header { number: 1, sequence: 1, ..Header::default() };
    let synced_first = ready(Ok(()));
    let file = file(&area);
    block_on(write(&file, &capture, header, synced_first)).unwrap();
    let header = Header::decode(&area.0.lock()[..BLOCK], 1 << 20).unwrap();
    (area, header)
}

/// The body of the checkpoint of this state.
fn save(groups: &Groups) -> Vec<u8> {
    let (area, header) = area_with(groups);
    let bytes = area.0.lock();
    bytes[BODY_AT as usize..][..header.part.body_bytes as usize].to_vec()
}

fn id(index: u64) -> LogId {
    LogId { term: 2, index }
}

fn run(first: u32) -> Run {
    Run { first, blocks: 1 }
}

/// A group with entries, keys and an image; the purge of an entry that is not applied is due.
fn example() -> Groups {
    let at = ValueRef::contiguous(8192, 5, 9).unwrap();
    let body = ValueRef::new(8192, 9, &[run(20), run(7)], None).unwrap();
    let mut group = Group { applied: Some(id(4)), ..Group::default() };
    group.image = Some(Arc::new(b"image".to_vec()));
    for (index, spilled) in [(4, None), (5, Some(body)), (6, None)] {
        let entry =
            LogEntry { id: id(index), meta: "meta".into(), values: [at.clone()].into(), spilled };
        group.log.push(Arc::new(entry), None, 0);
    }
    group.purge_applied(id(5));
    for key in [&b"a"[..], b"b"] {
        group.keys.insert(key, KeyEntry { version: id(3), value: at.clone() });
    }
    Groups::from([(GroupId(0), group)])
}

/// The story: the sessions of many clients make an image longer than a chunk, and the group has
/// neither entries nor keys, as after an install into an empty cluster. All of it became one
/// chunk with one hash, and the checkpoint was unreadable.
#[test]
fn a_state_of_nothing_but_a_long_image_is_read_back() {
    let fixed = save(&Groups::from([(GroupId(0), Group::default())])).len();
    // The length of a longer image takes two more bytes.
    let fixed = fixed + 2;
    for body in [CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES + 100] {
        let image = vec![7; body - fixed];
        let group = Group { image: Some(Arc::new(image.clone())), ..Group::default() };
        let (area, header) = area_with(&Groups::from([(GroupId(0), group)]));
        assert_eq!(header.part.body_bytes, body as u64);
        let mut seen = Vec::new();
        let area = file(&area);
        let groups = block_on(load(&area, &header, &mut |read, all| seen.push((read, all))));
        let groups = groups.unwrap();
        assert!(seen.is_sorted() && seen.iter().all(|(_, all)| *all == header.part.body_bytes));
        assert_eq!(seen.last(), Some(&(header.part.body_bytes, header.part.body_bytes)));
        assert_eq!(groups[&GroupId(0)].image.as_ref().unwrap().encode(), image);
    }
}

#[test]
fn keys_that_do_not_ascend_are_not_loaded() {
    let groups = example();
    let keys = groups.values().next_back().unwrap().keys.iter();
    let mut records: Vec<Vec<u8>> = keys
        .map(|(key, entry)| {
            let mut record = Vec::new();
            put_varint(&mut record, key.len() as u64);
            record.extend_from_slice(key);
            put_log_id(&mut record, entry.version);
            entry.value.encode(&mut record);
            record
        })
        .collect();
    let mut body = save(&groups);
    assert!(records.len() > 1 && body.ends_with(&records.concat()));
    body.truncate(body.len() - records.concat().len());
    records.reverse();
    body.extend(records.concat());
    let error = load_body(&body).err();
    assert_eq!(error.as_deref(), Some("key 1 is not above the one before it"));
}

#[test]
fn any_bytes_decode_to_a_state_or_to_the_reason_why_not() {
    let empty =
        save(&Groups::from([(GroupId(0), Group::default()), (GroupId(1), Group::default())]));
    let mut purged = example();
    purged.values_mut().for_each(|group| drop(group.log.purge(id(9))));
    // The story: an entry, or a purge, with the last index of all overflowed the next index.
    let mut unfollowed = save(&example());
    let image = unfollowed.windows(5).position(|bytes| bytes == b"image").unwrap();
    // The image, the number of entries, the term, the index.
    let at = image + 5 + 1 + 1;
    let last_index = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    unfollowed.splice(at..=at, last_index);
    cairn_fuzz::target!(
        "unfollowed" => unfollowed,
        "empty" => empty,
        "purged" => save(&purged),
        "entries" => save(&example()),
    )
    .for_each(|bytes| {
        let Ok(groups) = load_body(bytes) else { return };
        let saved = save(&groups);
        assert!(saved.len() <= bytes.len());
        let again = load_body(&saved).unwrap();
        assert_eq!(groups.len(), again.len());
        for (group, again) in groups.values().zip(again.values()) {
            assert!(group.keys.iter().eq(again.keys.iter()));
            assert_eq!(group.applied, again.applied);
        }
        // No engine writes a purge that is due behind the end of the log. Such a state becomes
        // one without entries when it is saved.
        let index = |id: Option<LogId>| id.map(|id| id.index);
        let is_written = |group: &Group| {
            group.purge_due().is_none()
                || index(group.purge_due()) <= index(group.log.bounds().last)
        };
        let settled = save(&again);
        assert!(settled == saved || !groups.values().all(is_written));
        assert_eq!(save(&load_body(&settled).unwrap()), settled);
    });
}

/// An area with this state, and behind it a part of changes with this body behind what it names.
fn area_with_changes(groups: &Groups, changes: &[u8]) -> (OpenFile, Header) {
    let (area, whole) = area_with(groups);
    let mut body = Vec::new();
    whole.part.put(&mut body);
    body.extend_from_slice(changes);
    let (changes, header) = area_of(&body);
    let (at, part) = (whole.part.end(), header.part);
    let moved = Part { at, changes: true, ..part };
    let bytes = block_on(changes.read(BODY_AT, (part.end() - BODY_AT) as usize)).unwrap();
    let mut all = area.0.lock();
    all.resize(moved.end() as usize, 0);
    all[at as usize..].copy_from_slice(&bytes);
    drop(all);
    (file(&area), Header { part: moved, ..whole })
}

/// The body of a part of changes behind what it names, in which each key is there and another gone.
fn saved_changes(groups: &Groups) -> Vec<u8> {
    let (area, before) = area_with(groups);
    let mut now = example();
    now.values_mut().for_each(|group| group.touched.captured().into_iter().for_each(drop));
    now.values_mut().for_each(|group| drop(group.remove_key(b"a")));
    let capture = Capture::next(false, &mut now);
    let touched = capture.touched[&GroupId(0)][1].clone().unwrap();
    let changes = Changes { since: Some(2), touched: [Arc::default(), touched] };
    let file = file(&area);
    let headers = (&before, Header { number: 2, ..before });
    let changes = [changes];
    let written = write_changes(&file, &capture, &changes, headers, ready(Ok(())));
    let part = block_on(written).unwrap().part;
    let mut named = Vec::new();
    before.part.put(&mut named);
    let bytes = area.0.lock();
    bytes[part.at as usize..][..part.body_bytes as usize][named.len()..].to_vec()
}

/// The input is the body of a part of changes, behind the name of the part before it.
#[test]
fn any_bytes_decode_to_changes_of_a_state_or_to_the_reason_why_not() {
    cairn_fuzz::target!(
        "changes" => saved_changes(&example()),
        "nothing" => vec![0],
    )
    .for_each(|bytes| {
        let (area, header) = area_with_changes(&example(), bytes);
        let most = 128 * bytes.len() + (128 << 10);
        let load = || block_on(load(&area, &header, &mut |_, _| {}));
        let Ok(found) = cairn_fuzz::within(most, load) else { return };
        let again = load_body(&save(&found)).unwrap();
        for (group, again) in found.values().zip(again.values()) {
            assert!(group.keys.iter().eq(again.keys.iter()));
        }
    });
}

#[test]
fn the_bytes_of_changes_are_those_of_the_format_document() {
    let (_, before) = area_with(&example());
    let mut named = Vec::new();
    before.part.put(&mut named);
    assert_eq!(named[..8], 8192u64.to_le_bytes(), "where the part before begins");
    assert_eq!(named[8..16], before.part.body_bytes.to_le_bytes(), "bytes of its body");
    assert_eq!(named[16..32], before.part.table_hash.to_le_bytes(), "hash of its table");
    assert_eq!(named[32..], [0], "it has all of the state");
    let changes = saved_changes(&example());
    assert_eq!(changes[0], 1, "groups");
    let mut key = vec![1, 1, b'b'];
    put_log_id(&mut key, id(3));
    ValueRef::contiguous(8192, 5, 9).unwrap().encode(&mut key);
    assert!(changes.ends_with(&[&key[..], &[2, 1, b'a'], &[0]].concat()), "{changes:?}");
}
