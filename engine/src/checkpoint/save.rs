//! Writing a checkpoint.

use super::capture::{Capture, CapturedGroup};
use super::header::{BODY_AT, CHUNK_BYTES, COPIES, Header};
use crate::codec::{Writer, hash};
use crate::error::{Error, Result};
use crate::group::LogEntry;
use crate::io::{AlignedBuf, BLOCK, Device, FileKind, yield_once};
use crate::journal::{encode_body, put_value_ref};
use crate::types::{LogId, ValueRef};
use std::io;

/// Identifies a checkpoint: its number, and the journal block that it covers.
#[derive(Clone, Copy)]
pub(crate) struct CheckpointPosition {
    pub incarnation: u64,
    pub number: u64,
    pub sequence: u64,
    pub chain: u128,
}

/// The file of an area.
pub(crate) fn file_of(area: usize) -> FileKind {
    if area == 0 { FileKind::Checkpoint0 } else { FileKind::Checkpoint1 }
}

/// Writes a complete checkpoint into an area. `synced_first` runs before the header is written,
/// which makes the checkpoint count. Returns the bytes written.
pub(crate) async fn write(
    device: &dyn Device,
    file: FileKind,
    location: &str,
    capture: &Capture,
    place: CheckpointPosition,
    synced_first: impl Future<Output = Result<()>>,
) -> Result<u64> {
    let failed = |operation| move |e: io::Error| Error::failed(location, file, operation, e);
    let mut body =
        BodyWriter { device, at: BODY_AT, buffer: Vec::new(), hashes: Vec::new(), bytes: 0 };
    write_body(&mut body, capture).await.map_err(failed("write"))?;
    let (body_bytes, table) = body.finish().await.map_err(failed("write"))?;
    let CheckpointPosition { incarnation, number, sequence, chain } = place;
    let header = Header {
        incarnation,
        number,
        sequence,
        chain,
        body_bytes,
        table_hash: hash(&table),
        replaces: capture.replaces,
    };
    if header.area_bytes() > device.size() {
        return Err(full(header.area_bytes(), device.size()));
    }
    write_at(device, header.table_at(), &table).await.map_err(failed("write"))?;
    device.sync().await.map_err(failed("sync"))?;
    synced_first.await?;
    for copy in 0..COPIES {
        write_header(device, file, location, &header, copy).await?;
    }
    device.sync().await.map_err(failed("sync"))?;
    Ok(header.area_bytes())
}

/// Writes one copy of a header. Not synced when this returns.
pub(crate) async fn write_header(
    device: &dyn Device,
    file: FileKind,
    location: &str,
    header: &Header,
    copy: u64,
) -> Result<()> {
    let written = write_at(device, copy * BLOCK as u64, &header.encode()).await;
    written.map_err(|e| Error::failed(location, file, "write", e))
}

/// Makes an area hold no checkpoint.
pub(crate) async fn void(device: &dyn Device, file: FileKind, location: &str) -> Result<()> {
    let failed = |operation| move |e: io::Error| Error::failed(location, file, operation, e);
    write_at(device, 0, &[0; BODY_AT as usize]).await.map_err(failed("write"))?;
    device.sync().await.map_err(failed("sync"))
}

fn full(needed: u64, capacity: u64) -> Error {
    Error::Full { needed, free: 0, capacity }
}

async fn write_at(device: &dyn Device, offset: u64, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    device.write(offset, AlignedBuf::copied_from(bytes)).await.0
}

/// Cuts a stream of bytes into hashed chunks.
struct BodyWriter<'a> {
    device: &'a dyn Device,
    at: u64,
    buffer: Vec<u8>,
    hashes: Vec<u8>,
    bytes: u64,
}

impl BodyWriter<'_> {
    /// Writes out complete chunks. Afterwards the buffer holds less than one.
    async fn drain(&mut self) -> io::Result<()> {
        while self.buffer.len() >= CHUNK_BYTES {
            let rest = self.buffer.split_off(CHUNK_BYTES);
            self.chunk().await?;
            self.buffer = rest;
            yield_once().await;
        }
        Ok(())
    }

    async fn chunk(&mut self) -> io::Result<()> {
        let len = (self.buffer.len() as u64).next_multiple_of(BLOCK as u64);
        if self.at + len > self.device.size() {
            let message = format!(
                "the index does not fit into a checkpoint area of {} bytes",
                self.device.size()
            );
            return Err(io::Error::new(io::ErrorKind::StorageFull, message));
        }
        self.hashes.put_u128(hash(&self.buffer));
        self.bytes += self.buffer.len() as u64;
        write_at(self.device, self.at, &self.buffer).await?;
        self.at += len;
        Ok(())
    }

    async fn finish(mut self) -> io::Result<(u64, Vec<u8>)> {
        if !self.buffer.is_empty() {
            self.chunk().await?;
        }
        Ok((self.bytes, self.hashes))
    }
}

async fn write_body(body: &mut BodyWriter<'_>, capture: &Capture) -> io::Result<()> {
    body.buffer.put_u32(capture.groups.len() as u32);
    for group in &capture.groups {
        write_group(body, group).await?;
    }
    Ok(())
}

async fn write_group(body: &mut BodyWriter<'_>, group: &CapturedGroup) -> io::Result<()> {
    let out = &mut body.buffer;
    out.put_u32(group.id.0);
    for position in [group.purged, group.applied, group.applied_before] {
        put_option(out, position);
    }
    let image = group.image.as_ref().map(|image| image.encode()).unwrap_or_default();
    out.put_u32(image.len() as u32);
    out.put_bytes(&image);
    out.put_u64(group.log.len() as u64);
    for entry in &group.log {
        put_entry(&mut body.buffer, entry);
        if body.buffer.len() >= CHUNK_BYTES {
            body.drain().await?;
        }
    }
    body.buffer.put_u64(group.keys.len() as u64);
    for (key, entry) in group.keys.iter() {
        let out = &mut body.buffer;
        out.put_u16(key.len() as u16);
        out.put_bytes(key);
        out.put_u64(entry.version.term);
        out.put_u64(entry.version.index);
        put_value_ref(out, &entry.value);
        if out.len() >= CHUNK_BYTES {
            body.drain().await?;
        }
    }
    Ok(())
}

/// An entry with its body, even if the journal keeps the body in an extent: when a recovery starts
/// from this checkpoint and replays the entry's removal, the extent may belong to another value.
fn put_entry(out: &mut Vec<u8>, entry: &LogEntry) {
    let content = encode_body(&entry.values, &entry.meta);
    out.put_u32(content.len() as u32);
    out.put_u64(entry.id.term);
    out.put_u64(entry.id.index);
    out.put_u8(u8::from(entry.spilled.is_some()));
    let none = ValueRef { offset: 0, len: 0, hash: 0 };
    put_value_ref(out, entry.spilled.as_ref().unwrap_or(&none));
    out.put_bytes(&content);
}

fn put_option(out: &mut Vec<u8>, position: Option<LogId>) {
    out.put_u8(u8::from(position.is_some()));
    let id = position.unwrap_or_default();
    out.put_u64(id.term);
    out.put_u64(id.index);
}
