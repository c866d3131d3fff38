//! Writing a checkpoint.

use super::capture::{Capture, CapturedGroup};
use super::header::{BODY_AT, CHUNK_BYTES, COPIES, Header};
use crate::codec::{hash, put_varint};
use crate::error::{Error, Result};
use crate::group::LogEntry;
use crate::io::{AlignedBuf, BLOCK, OpenFile, yield_once};
use crate::journal::{encode_body, put_log_id};
use crate::types::LogId;
use bytes::BufMut;

/// Writes a complete checkpoint into an area. `header` identifies it: its number, and the journal
/// block that it covers. `synced_first` runs before the header is written, which makes the
/// checkpoint count. Returns the bytes written.
pub(crate) async fn write(
    file: &OpenFile,
    capture: &Capture,
    header: Header,
    synced_first: impl Future<Output = Result<()>>,
) -> Result<u64> {
    let mut body =
        BodyWriter { file, at: BODY_AT, buffer: Vec::new(), hashes: Vec::new(), bytes: 0 };
    put_varint(&mut body.buffer, capture.groups.len() as u64);
    for group in &capture.groups {
        write_group(&mut body, group).await?;
    }
    body.drain().await?;
    if !body.buffer.is_empty() {
        body.chunk().await?;
    }
    let (body_bytes, table_hash) = (body.bytes, hash(&body.hashes));
    let header = Header { body_bytes, table_hash, replaces: capture.replaces, ..header };
    let (needed, capacity) = (header.area_bytes(), file.size());
    if needed > capacity {
        return Err(Error::Full { needed, free: 0, capacity });
    }
    write_at(file, header.table_at(), &body.hashes).await?;
    file.sync().await?;
    synced_first.await?;
    for copy in 0..COPIES {
        write_header(file, &header, copy).await?;
    }
    file.sync().await?;
    Ok(needed)
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

/// Cuts a stream of bytes into hashed chunks.
struct BodyWriter<'a> {
    file: &'a OpenFile,
    at: u64,
    buffer: Vec<u8>,
    hashes: Vec<u8>,
    bytes: u64,
}

impl BodyWriter<'_> {
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
    put_varint(&mut body.buffer, group.keys.len() as u64);
    for (key, entry) in group.keys.iter() {
        let out = &mut body.buffer;
        put_varint(out, key.len() as u64);
        out.put_slice(key);
        put_log_id(out, entry.version);
        entry.value.encode(out);
        if out.len() >= CHUNK_BYTES {
            body.drain().await?;
        }
    }
    Ok(())
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
