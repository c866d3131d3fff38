//! Reading a checkpoint: every chunk is compared with the table before any byte of it is used. The
//! data area is not read: extents that the checkpoint refers to may have been reused since, which
//! only the journal shows.

use super::header::{BODY_AT, CHUNK_BYTES, HASH_BYTES, Header};
use crate::codec::{Reader, hash};
use crate::group::{Group, Keys, LogEntry};
use crate::io::{BLOCK, OpenFile, Piece, ReadAhead, pieces, yield_once};
use crate::journal::log_id;
use crate::types::{GroupId, LogId, ValueRef};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes read by one request: whole chunks.
const PIECE_BYTES: u64 = 4 * CHUNK_BYTES as u64;

type Result<T> = std::result::Result<T, String>;

/// Told the bytes of the body that are read so far, and all its bytes.
pub(crate) type Progress<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

/// Reads the checkpoint that `header` describes; `Err` says what does not match.
pub(crate) async fn load(
    file: &OpenFile,
    header: &Header,
    progress: Progress<'_>,
) -> Result<BTreeMap<GroupId, Group>> {
    let table_bytes = header.chunks() * HASH_BYTES;
    let table = read(file, header.table_at(), table_bytes).await?;
    if hash(&table) != header.table_hash {
        return Err("the chunk table does not match its hash in the header".to_owned());
    }
    let mut body = BodyReader::new(file, *header, &table, progress);
    let mut groups = BTreeMap::new();
    let count = body.next(|r| r.varint()).await?;
    for _ in 0..count {
        let (id, group) = read_group(&mut body).await?;
        if groups.insert(id, group).is_some() {
            return Err(format!("group {} twice", id.0));
        }
    }
    match body.is_at_end() {
        true => Ok(groups),
        false => Err("bytes behind the last group".to_owned()),
    }
}

async fn read(file: &OpenFile, offset: u64, len: u64) -> Result<Vec<u8>> {
    if len == 0 {
        return Ok(Vec::new());
    }
    let buf = file.read(offset, len as usize).await;
    let buf = buf.map_err(|e| format!("reading {len} bytes at {offset}: {e}"))?;
    buf.get(..len as usize).map(<[u8]>::to_vec).ok_or_else(|| "short read".to_owned())
}

async fn read_group(body: &mut BodyReader<'_>) -> Result<(GroupId, Group)> {
    let id = GroupId(body.next(|r| r.varint32()).await?);
    let purged = body.next(option).await?;
    let applied = body.next(option).await?;
    let applied_before = body.next(option).await?;
    let mut group =
        Group { applied, applied_recorded: applied, applied_before, ..Group::default() };
    let image = body.next(|r| sized(r).map(<[u8]>::to_vec)).await?;
    if !image.is_empty() {
        group.image = Some(Arc::new(image));
    }
    let entries = body.next(|r| r.varint()).await?;
    if let Some(purged) = purged.filter(|_| entries == 0) {
        group.log.purge(purged);
    }
    for number in 0..entries {
        let entry = body.next(entry).await?;
        // Entries below the purge position are present if they were not applied yet: then the purge
        // is due.
        if let Some(purged) = purged.filter(|purged| number == 0 && purged.index < entry.id.index) {
            group.log.purge(purged);
        }
        if group.log.next_index().is_some_and(|next| next != entry.id.index) {
            return Err(format!("log entry {} does not follow the one before it", entry.id));
        }
        group.log.push(Arc::new(entry), None, 0);
    }
    if let Some(purged) = purged {
        group.purge_applied(purged);
    }
    let keys = body.next(|r| r.varint()).await?;
    let mut builder = Keys::builder();
    let mut number = 0;
    while number < keys {
        let pushed = body.next(|r| {
            let mut pushed = 0;
            // As many as the buffer holds.
            let mut next = *r;
            while number + pushed < keys
                && let Some(result) = builder.push_read(&mut next)
            {
                if result.is_err() {
                    return Some(Err(number + pushed));
                }
                *r = next;
                pushed += 1;
            }
            (pushed > 0).then_some(Ok(pushed))
        });
        let pushed = pushed.await?;
        number += pushed.map_err(|key| format!("key {key} is not above the one before it"))?;
    }
    group.keys = builder.finish();
    Ok((id, group))
}

/// Bytes behind their length.
fn sized<'a>(r: &mut Reader<'a>) -> Option<&'a [u8]> {
    let len = usize::try_from(r.varint()?).ok()?;
    r.bytes(len)
}

fn flag(r: &mut Reader<'_>) -> Option<bool> {
    match r.u8()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn option(r: &mut Reader<'_>) -> Option<Option<LogId>> {
    Some(if flag(r)? { Some(log_id(r)?) } else { None })
}

fn entry(r: &mut Reader<'_>) -> Option<LogEntry> {
    let id = log_id(r)?;
    let spilled = if flag(r)? { Some(ValueRef::decode(r)?) } else { None };
    LogEntry::from_body(id, sized(r)?, spilled)
}

/// The body as a stream of checked bytes.
struct BodyReader<'a> {
    hashes: Reader<'a>,
    /// Chunks that matched.
    checked: u64,
    pieces: ReadAhead<'a>,
    /// Bytes of the body that are not in `buffer` yet.
    left: u64,
    buffer: Vec<u8>,
    at: usize,
    bytes: u64,
    progress: Progress<'a>,
}

impl<'a> BodyReader<'a> {
    fn new(
        file: &'a OpenFile,
        header: Header,
        table: &'a [u8],
        progress: Progress<'a>,
    ) -> BodyReader<'a> {
        let end = BODY_AT + header.body_bytes.next_multiple_of(BLOCK as u64);
        BodyReader {
            hashes: Reader::new(table),
            checked: 0,
            pieces: ReadAhead::new(file, pieces(BODY_AT..end, PIECE_BYTES)),
            left: header.body_bytes,
            buffer: Vec::new(),
            at: 0,
            bytes: header.body_bytes,
            progress,
        }
    }

    /// Reads the next piece and compares each chunk with its hash.
    async fn fill(&mut self) -> Result<()> {
        let Piece { at, bytes } = self.pieces.next().await.ok_or("the body ends early")?;
        let bytes = bytes.map_err(|error| format!("reading the bytes {at:?}: {error}"))?;
        let piece = bytes.get(..bytes.len().min(self.left as usize)).unwrap_or_default();
        for chunk in piece.chunks(CHUNK_BYTES) {
            if self.hashes.u128() != Some(hash(chunk)) {
                return Err(format!("chunk {} does not match its hash", self.checked));
            }
            self.checked += 1;
        }
        self.buffer.drain(..self.at);
        self.at = 0;
        self.left -= piece.len() as u64;
        (self.progress)(self.bytes - self.left, self.bytes);
        self.buffer.extend_from_slice(piece);
        yield_once().await;
        Ok(())
    }

    /// What `decode` reads next. It is called again with more bytes if it wants more than are there.
    async fn next<T>(&mut self, mut decode: impl FnMut(&mut Reader<'_>) -> Option<T>) -> Result<T> {
        loop {
            let rest = self.buffer.get(self.at..).unwrap_or_default();
            let mut r = Reader::new(rest);
            if let Some(found) = decode(&mut r) {
                self.at += rest.len() - r.remaining();
                return Ok(found);
            }
            if self.left == 0 {
                return Err("a field cannot be read".to_owned());
            }
            self.fill().await?;
        }
    }

    fn is_at_end(&self) -> bool {
        self.left == 0 && self.at == self.buffer.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::capture::{Capture, CapturedGroup};
    use crate::checkpoint::save::write;
    use crate::codec::put_varint;
    use crate::io::FileKind;
    use crate::io::memory::Memory;
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
        let header = Header { body_bytes, table_hash: hash(&table), ..Header::default() };
        let mut area = vec![0; header.area_bytes() as usize];
        area[BODY_AT as usize..][..body.len()].copy_from_slice(body);
        area[header.table_at() as usize..][..table.len()].copy_from_slice(&table);
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
        let groups = groups.iter().map(CapturedGroup::of).collect();
        let capture = Capture { replaces: false, groups };
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
        bytes[BODY_AT as usize..][..header.body_bytes as usize].to_vec()
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
            let entry = LogEntry {
                id: id(index),
                meta: "meta".into(),
                values: [at.clone()].into(),
                spilled,
            };
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
            assert_eq!(header.body_bytes, body as u64);
            let mut seen = Vec::new();
            let area = file(&area);
            let groups = block_on(load(&area, &header, &mut |read, all| seen.push((read, all))));
            let groups = groups.unwrap();
            assert!(seen.is_sorted() && seen.iter().all(|(_, all)| *all == header.body_bytes));
            assert_eq!(seen.last(), Some(&(header.body_bytes, header.body_bytes)));
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
}
