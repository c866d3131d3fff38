//! Writing a checkpoint.

use super::capture::{Capture, CapturedGroup, Changes};
use super::header::{BODY_AT, CHUNK_BYTES, COPIES, GONE_KEY, Header, KEY, NO_KEY, Part};
use crate::codec::{hash, put_varint};
use crate::error::{Error, Result};
use crate::group::{Keys, LogEntry};
use crate::io::{AlignedBuf, BLOCK, OpenFile, yield_once};
use crate::journal::{encode_body, put_log_id};
use crate::types::{KeyEntry, LogId};
use bytes::BufMut;

/// Writes a checkpoint of all of the state into an area. `header` identifies it: its number, and the
/// journal block that it covers. `synced_first` runs before the header is written, which makes the
/// checkpoint count. Returns the header as it was written.
pub(crate) async fn write(
    file: &OpenFile,
    capture: &Capture,
    header: Header,
    synced_first: impl Future<Output = Result<()>>,
) -> Result<Header> {
    let mut body = BodyWriter::new(file, BODY_AT);
    put_varint(&mut body.buffer, capture.groups.len() as u64);
    for group in &capture.groups {
        write_group(&mut body, group).await?;
        write_keys(&mut body, &group.keys).await?;
    }
    finish(body, Header { replaces: capture.replaces, ..header }, false, synced_first).await
}

/// As [`write`], over a checkpoint that the area may hold. Its header goes first: over a destroyed body
/// it would pass for a second checkpoint, without which one bad block costs everything.
pub(crate) async fn replace(
    file: &OpenFile,
    capture: &Capture,
    header: Header,
    synced_first: impl Future<Output = Result<()>>,
) -> Result<Header> {
    void(file).await?;
    write(file, capture, header, synced_first).await
}

/// Writes a checkpoint of what changed since the one that `before` describes, behind it in the same
/// area: nothing of that one is overwritten but its header. Otherwise as [`write`].
pub(crate) async fn write_changes(
    file: &OpenFile,
    capture: &Capture,
    changes: &[Changes],
    (before, header): (&Header, Header),
    synced_first: impl Future<Output = Result<()>>,
) -> Result<Header> {
    let mut body = BodyWriter::new(file, before.part.end());
    before.part.put(&mut body.buffer);
    put_varint(&mut body.buffer, capture.groups.len() as u64);
    assert_eq!(capture.groups.len(), changes.len(), "each group has its changes");
    for (group, changes) in capture.groups.iter().zip(changes) {
        write_group(&mut body, group).await?;
        write_changed_keys(&mut body, &group.keys, changes).await?;
    }
    finish(body, header, true, synced_first).await
}

/// Ends the body, and makes the checkpoint count.
async fn finish(
    mut body: BodyWriter<'_>,
    header: Header,
    changes: bool,
    synced_first: impl Future<Output = Result<()>>,
) -> Result<Header> {
    body.drain().await?;
    if !body.buffer.is_empty() {
        body.chunk().await?;
    }
    let (file, at) = (body.file, body.begin);
    let part = Part { at, body_bytes: body.bytes, table_hash: hash(&body.hashes), changes };
    let header = Header { part, ..header };
    let (needed, capacity) = (header.area_bytes(), file.size());
    if needed > capacity {
        return Err(Error::Full { needed, free: 0, capacity });
    }
    write_at(file, part.table_at(), &body.hashes).await?;
    file.sync().await?;
    synced_first.await?;
    for copy in 0..COPIES {
        write_header(file, &header, copy).await?;
    }
    file.sync().await?;
    Ok(header)
}

/// Writes one copy of a header. Not synced when this returns.
pub(crate) async fn write_header(file: &OpenFile, header: &Header, copy: u64) -> Result<()> {
    write_at(file, copy * BLOCK as u64, &header.encode()).await
}

/// Makes an area hold no checkpoint.
pub(crate) async fn void(file: &OpenFile) -> Result<()> {
    write_at(file, 0, &[0; BODY_AT as usize]).await?;
    file.sync().await
}

async fn write_at(file: &OpenFile, offset: u64, bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    file.write(offset, AlignedBuf::copied_from(bytes)).await
}

/// Keys that are looked at before the task yields.
const SCANNED_AT_ONCE: usize = 4096;
/// Keys that are looked up before it does.
const LOOKED_UP_AT_ONCE: usize = 512;

/// Cuts a stream of bytes into hashed chunks.
struct BodyWriter<'a> {
    file: &'a OpenFile,
    begin: u64,
    at: u64,
    buffer: Vec<u8>,
    hashes: Vec<u8>,
    bytes: u64,
}

impl<'a> BodyWriter<'a> {
    fn new(file: &'a OpenFile, begin: u64) -> BodyWriter<'a> {
        let (buffer, hashes) = (Vec::new(), Vec::new());
        BodyWriter { file, begin, at: begin, buffer, hashes, bytes: 0 }
    }

    /// Writes out complete chunks, or lets other tasks run, where it is time to.
    async fn now_and_then(&mut self, number: usize, at_once: usize) -> Result<()> {
        if self.buffer.len() >= CHUNK_BYTES {
            self.drain().await?;
        } else if number.is_multiple_of(at_once) {
            yield_once().await;
        }
        Ok(())
    }

    /// Writes out complete chunks. Afterwards the buffer holds less than one.
    async fn drain(&mut self) -> Result<()> {
        while self.buffer.len() >= CHUNK_BYTES {
            let rest = self.buffer.split_off(CHUNK_BYTES);
            self.chunk().await?;
            self.buffer = rest;
            yield_once().await;
        }
        Ok(())
    }

    async fn chunk(&mut self) -> Result<()> {
        assert!(self.buffer.len() <= CHUNK_BYTES, "a chunk has a hash of its own");
        let len = (self.buffer.len() as u64).next_multiple_of(BLOCK as u64);
        let capacity = self.file.size();
        if self.at + len > capacity {
            return Err(Error::Full { needed: self.at + len, free: 0, capacity });
        }
        self.hashes.put_u128_le(hash(&self.buffer));
        self.bytes += self.buffer.len() as u64;
        write_at(self.file, self.at, &self.buffer).await?;
        self.at += len;
        Ok(())
    }
}

async fn write_group(body: &mut BodyWriter<'_>, group: &CapturedGroup) -> Result<()> {
    let out = &mut body.buffer;
    put_varint(out, group.id.0.into());
    for position in [group.purged, group.applied, group.applied_before] {
        put_option(out, position);
    }
    let image = group.image.as_ref().map(|image| image.encode()).unwrap_or_default();
    put_varint(out, image.len() as u64);
    out.put_slice(&image);
    put_varint(out, group.log.len() as u64);
    for entry in group.log.iter() {
        put_entry(&mut body.buffer, entry);
        if body.buffer.len() >= CHUNK_BYTES {
            body.drain().await?;
        }
    }
    Ok(())
}

async fn write_keys(body: &mut BodyWriter<'_>, keys: &Keys) -> Result<()> {
    put_varint(&mut body.buffer, keys.len() as u64);
    for (key, entry) in keys.iter() {
        put_key(&mut body.buffer, key, &entry);
        if body.buffer.len() >= CHUNK_BYTES {
            body.drain().await?;
        }
    }
    Ok(())
}

/// The keys that changed: those with a later version, and those whose state changed without one. Each is
/// there with its state now, so their order does not matter, nor that one may be there twice.
async fn write_changed_keys(
    body: &mut BodyWriter<'_>,
    keys: &Keys,
    changes: &Changes,
) -> Result<()> {
    let is_later = |entry: &KeyEntry| Some(entry.version.index) > changes.since;
    for (number, (key, entry)) in keys.iter().enumerate() {
        if is_later(&entry) {
            body.buffer.put_u8(KEY);
            put_key(&mut body.buffer, key, &entry);
        }
        body.now_and_then(number, SCANNED_AT_ONCE).await?;
    }
    for (number, key) in changes.touched.iter().flat_map(|keys| keys.iter()).enumerate() {
        match keys.get(key) {
            None => put_gone(&mut body.buffer, key),
            Some(entry) if is_later(&entry) => {}
            Some(entry) => {
                body.buffer.put_u8(KEY);
                put_key(&mut body.buffer, key, &entry);
            }
        }
        body.now_and_then(number, LOOKED_UP_AT_ONCE).await?;
    }
    body.buffer.put_u8(NO_KEY);
    Ok(())
}

fn put_key(out: &mut Vec<u8>, key: &[u8], entry: &KeyEntry) {
    put_varint(out, key.len() as u64);
    out.put_slice(key);
    put_log_id(out, entry.version);
    entry.value.encode(out);
}

fn put_gone(out: &mut Vec<u8>, key: &[u8]) {
    out.put_u8(GONE_KEY);
    put_varint(out, key.len() as u64);
    out.put_slice(key);
}

/// An entry with its body, even if the journal keeps the body in an extent: when a recovery starts
/// from this checkpoint and replays the entry's removal, the extent may belong to another value.
fn put_entry(out: &mut Vec<u8>, entry: &LogEntry) {
    put_log_id(out, entry.id);
    out.put_u8(u8::from(entry.spilled.is_some()));
    entry.spilled.iter().for_each(|at| at.encode(out));
    let content = encode_body(&entry.values, &entry.meta);
    put_varint(out, content.len() as u64);
    out.put_slice(&content);
}

fn put_option(out: &mut Vec<u8>, position: Option<LogId>) {
    out.put_u8(u8::from(position.is_some()));
    position.iter().for_each(|id| put_log_id(out, *id));
}
