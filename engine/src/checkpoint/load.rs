//! Reading a checkpoint: every chunk is compared with the table before any byte of it is used. The
//! data area is not read: extents that the checkpoint refers to may have been reused since, which
//! only the journal shows.

use super::header::{BODY_AT, CHUNK_BYTES, HASH_BYTES, Header};
use crate::codec::{Reader, hash};
use crate::group::{Group, Keys, LogEntry};
use crate::io::{BLOCK, OpenFile};
use crate::journal::{log_id, value_ref};
use crate::types::{GroupId, KeyEntry, LogId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Reads the checkpoint that `header` describes; `Err` says what does not match.
pub(crate) async fn load(
    file: &OpenFile,
    header: &Header,
) -> std::result::Result<BTreeMap<GroupId, Group>, String> {
    let table_bytes = header.chunks() * HASH_BYTES;
    let table = read(file, header.table_at(), table_bytes).await?;
    if hash(&table) != header.table_hash {
        return Err("the chunk table does not match its hash in the header".to_owned());
    }
    let hashes: Vec<u128> = {
        let mut r = Reader::new(&table);
        std::iter::from_fn(|| r.u128()).collect()
    };
    let mut body = BodyReader { file, header: *header, hashes, next: 0, buffer: Vec::new(), at: 0 };
    let mut groups = BTreeMap::new();
    let count = body.field(4, |r| r.u32()).await?;
    for _ in 0..count {
        let (id, group) = read_group(&mut body).await?;
        groups.insert(id, group);
    }
    Ok(groups)
}

async fn read(file: &OpenFile, offset: u64, len: u64) -> std::result::Result<Vec<u8>, String> {
    if len == 0 {
        return Ok(Vec::new());
    }
    let buf = file.read(offset, len as usize).await;
    let buf = buf.map_err(|e| format!("reading {len} bytes at {offset}: {e}"))?;
    buf.get(..len as usize).map(<[u8]>::to_vec).ok_or_else(|| "short read".to_owned())
}

async fn read_group(body: &mut BodyReader<'_>) -> std::result::Result<(GroupId, Group), String> {
    let id = GroupId(body.field(4, |r| r.u32()).await?);
    let purged = body.field(17, option).await?;
    let applied = body.field(17, option).await?;
    let applied_before = body.field(17, option).await?;
    let mut group =
        Group { applied, applied_recorded: applied, applied_before, ..Group::default() };
    let image_len = body.field(4, |r| r.u32()).await? as usize;
    let image = body.field(image_len, |r| r.bytes(image_len).map(<[u8]>::to_vec)).await?;
    if !image.is_empty() {
        group.image = Some(Arc::new(image));
    }
    let entries = body.field(8, |r| r.u64()).await?;
    if let Some(purged) = purged.filter(|_| entries == 0) {
        group.log.purge(purged);
    }
    for number in 0..entries {
        let entry = read_entry(body).await?;
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
    let keys = body.field(8, |r| r.u64()).await?;
    let mut builder = Keys::builder();
    for number in 0..keys {
        let len = usize::from(body.field(2, |r| r.u16()).await?);
        let pushed = body.field(len + 16 + 28, |r| {
            let (key, entry) = key_entry(r, len)?;
            Some(builder.push(key, &entry))
        });
        pushed.await?.map_err(|_| format!("key {number} is not above the one before it"))?;
    }
    group.keys = builder.finish();
    Ok((id, group))
}

async fn read_entry(body: &mut BodyReader<'_>) -> std::result::Result<LogEntry, String> {
    let len = body.field(4, |r| r.u32()).await? as usize;
    let id = body.field(16, log_id).await?;
    let spilled = body.field(1 + 28, |r| Some((r.u8()? == 1).then_some(value_ref(r)?))).await?;
    let entry = body.field(len, |r| LogEntry::from_body(id, r.bytes(len)?, spilled)).await;
    entry.map_err(|e| format!("the body of entry {id}: {e}"))
}

fn option(r: &mut Reader<'_>) -> Option<Option<LogId>> {
    let some = r.u8()?;
    let id = log_id(r)?;
    Some((some == 1).then_some(id))
}

fn key_entry<'a>(r: &mut Reader<'a>, len: usize) -> Option<(&'a [u8], KeyEntry)> {
    let key = r.bytes(len)?;
    let version = LogId { term: r.u64()?, index: r.u64()? };
    Some((key, KeyEntry { version, value: value_ref(r)? }))
}

/// The body as a stream of checked bytes.
struct BodyReader<'a> {
    file: &'a OpenFile,
    header: Header,
    hashes: Vec<u128>,
    /// The next chunk to read.
    next: u64,
    buffer: Vec<u8>,
    at: usize,
}

impl BodyReader<'_> {
    async fn fill(&mut self, len: usize) -> std::result::Result<(), String> {
        while self.buffer.len() - self.at < len {
            self.buffer.drain(..self.at);
            self.at = 0;
            let start = self.next * CHUNK_BYTES as u64;
            let bytes = self.header.body_bytes.saturating_sub(start).min(CHUNK_BYTES as u64);
            if bytes == 0 {
                return Err("the body ends early".to_owned());
            }
            let padded = bytes.next_multiple_of(BLOCK as u64);
            let chunk = read(self.file, BODY_AT + start, padded).await?;
            let chunk = chunk.get(..bytes as usize).unwrap_or_default();
            if self.hashes.get(self.next as usize) != Some(&hash(chunk)) {
                return Err(format!("chunk {} does not match its hash", self.next));
            }
            self.buffer.extend_from_slice(chunk);
            self.next += 1;
        }
        Ok(())
    }

    async fn field<T>(
        &mut self,
        len: usize,
        decode: impl FnOnce(&mut Reader<'_>) -> Option<T>,
    ) -> std::result::Result<T, String> {
        self.fill(len).await?;
        let bytes = self.buffer.get(self.at..self.at + len).unwrap_or_default();
        self.at += len;
        decode(&mut Reader::new(bytes)).ok_or_else(|| "a field cannot be read".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::capture::{Capture, CapturedGroup};
    use crate::checkpoint::save::write;
    use crate::io::{AlignedBuf, Device, FileKind, IoFuture};
    use crate::types::ValueRef;
    use bytes::BufMut;
    use futures::executor::block_on;
    use futures::future::ready;
    use parking_lot::Mutex;
    use std::io;

    /// A device in memory. Its operations are done when they begin.
    struct Memory(Mutex<Vec<u8>>);

    fn file(device: &Arc<Memory>) -> OpenFile {
        let (kind, location) = (FileKind::Checkpoint0, "here".into());
        OpenFile { kind, location, device: device.clone() }
    }

    impl Device for Memory {
        fn size(&self) -> u64 {
            self.0.lock().len() as u64
        }

        fn read(&self, offset: u64, mut buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)> {
            let (from, len) = (offset as usize, buf.len());
            buf.copy_from_slice(&self.0.lock()[from..from + len]);
            Box::pin(ready((Ok(()), buf)))
        }

        fn write(&self, offset: u64, buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)> {
            let (from, len) = (offset as usize, buf.len());
            self.0.lock()[from..from + len].copy_from_slice(&buf);
            Box::pin(ready((Ok(()), buf)))
        }

        fn sync(&self) -> IoFuture<io::Result<()>> {
            Box::pin(ready(Ok(())))
        }
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
        (file(&Arc::new(Memory(Mutex::new(area)))), header)
    }

    type Groups = BTreeMap<GroupId, Group>;

    fn load_body(body: &[u8]) -> std::result::Result<Groups, String> {
        let (area, header) = area_of(body);
        // Each list of a group is at least a few kilobytes long in memory.
        let most = 128 * body.len() + (64 << 10);
        cairn_fuzz::within(most, || block_on(load(&area, &header)))
    }

    /// The checkpoint of this state, as it is written.
    fn area_with(groups: &Groups) -> (Arc<Memory>, Header) {
        let area = Arc::new(Memory(Mutex::new(vec![0; 1 << 20])));
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

    /// A group with entries, keys and an image; the purge of an entry that is not applied is due.
    fn example() -> Groups {
        let at = ValueRef { offset: 8192, len: 5, hash: 9 };
        let mut group = Group { applied: Some(id(4)), ..Group::default() };
        group.image = Some(Arc::new(b"image".to_vec()));
        for (index, spilled) in [(4, None), (5, Some(at)), (6, None)] {
            let entry =
                LogEntry { id: id(index), meta: "meta".into(), values: [at].into(), spilled };
            group.log.push(Arc::new(entry), None, 0);
        }
        group.purge_applied(id(5));
        for key in [&b"a"[..], b"b"] {
            group.keys.insert(key, KeyEntry { version: id(3), value: at });
        }
        Groups::from([(GroupId(0), group)])
    }

    /// The story: the sessions of many clients make an image longer than a chunk, and the group has
    /// neither entries nor keys, as after an install into an empty cluster. All of it became one
    /// chunk with one hash, and the checkpoint was unreadable.
    #[test]
    fn a_state_of_nothing_but_a_long_image_is_read_back() {
        let fixed = save(&Groups::from([(GroupId(0), Group::default())])).len();
        for body in [CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES + 100] {
            let image = vec![7; body - fixed];
            let group = Group { image: Some(Arc::new(image.clone())), ..Group::default() };
            let (area, header) = area_with(&Groups::from([(GroupId(0), group)]));
            assert_eq!(header.body_bytes, body as u64);
            let groups = block_on(load(&file(&area), &header)).unwrap();
            assert_eq!(groups[&GroupId(0)].image.as_ref().unwrap().encode(), image);
        }
    }

    #[test]
    fn keys_that_do_not_ascend_are_not_loaded() {
        let mut body = save(&example());
        let (at, record) = (body.len() - 2 * 47, body.split_off(body.len() - 47));
        body.splice(at..at, record);
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
        let at = 4 + 4 + 3 * 17 + 4 + b"image".len() + 8 + 4 + 8;
        unfollowed[at..at + 8].fill(0xff);
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
