//! A failed sync, and what the next opening under the same kernel must know of it.
//!
//! The kernel reports such a failure once and may then show what it has dropped as if nothing had happened, or show what is
//! only in a cache and let a later sync pass over it. After a power cut both are gone and the rules for power cuts hold. Until
//! then:
//! - the engine writes nothing more but, if it can, word of the failure into the superblock, with how far acknowledgements
//!   may have reached;
//! - an opening that finds that word takes nothing for granted that was not synced: with peers it recovers, alone it holds
//!   the journal against what was acknowledged;
//! - every opening, whether there is word or not, writes again what no sync is known to have covered, and syncs that: what
//!   it then counts on is on the medium, and what it could not read again it does not count on.
//!
//! Left open: a device that fails a sync, does not keep even the word of it, and has dropped the newest blocks of the journal
//! without a trace.

use crate::checkpoint::{self, file_of};
use crate::codec::hash;
use crate::error::{Error, Result};
use crate::io::{AlignedBuf, BLOCK, Device, FileKind};
use crate::journal::{Block, Ring};
use crate::recovery::Recovered;
use crate::shared::{Devices, Remembered, Shared};
use crate::types::{Mode, ValueRef};
use std::io;
use std::ops::Range;

const BLOCK_BYTES: u64 = BLOCK as u64;
/// Journal blocks, and blocks of values, written again at once.
const BATCH_BLOCKS: u64 = 256;

impl Shared {
    /// Leaves word of a failed sync, if there was one and nobody did so before. Waits for one who is about it.
    pub(crate) async fn remember_failed_sync(&self) {
        if self.state.lock().failed_sync.is_none() {
            return;
        }
        let mut superblock = self.superblock.lock().await;
        if self.state.lock().failed_sync != Some(Remembered::NotYet) {
            return;
        }
        let acknowledged = {
            let progress = self.progress.lock();
            if self.options.mode == Mode::Sync { progress.synced } else { progress.written }
        };
        let result = superblock.record_failed_sync(acknowledged).await;
        if let Err(error) = &result {
            tracing::warn!(
                %error,
                "that a sync failed could not be recorded: do not start this node again before its disk is replaced or its \
                 machine restarted"
            );
        }
        let remembered = if result.is_ok() { Remembered::Yes } else { Remembered::No };
        self.state.lock().failed_sync = Some(remembered);
    }
}

/// Writes again, with the bytes that they have, what was recovered and no sync is known to have covered. Not synced when
/// this returns.
pub(crate) async fn write_again(
    devices: &Devices,
    ring: Ring,
    location: &str,
    recovered: &Recovered,
) -> Result<()> {
    write_values(devices.data.as_ref(), location, &recovered.unsynced_values).await?;
    let from = recovered.synced + 1;
    write_blocks(devices.journal.as_ref(), ring, location, from, recovered.end).await?;
    if let Some(device) =
        devices.checkpoints.get(recovered.area).filter(|_| recovered.checkpoint.incarnation != 0)
    {
        checkpoint::write_headers(device.as_ref(), file_of(recovered.area), location, &recovered.checkpoint)
            .await?;
    }
    Ok(())
}

/// A block that is not what it was a moment ago is left as it is.
async fn write_blocks(journal: &dyn Device, ring: Ring, location: &str, from: u64, end: u64) -> Result<()> {
    let mut next = from;
    while next <= end {
        let count = ring.contiguous(next, (end - next + 1).min(BATCH_BLOCKS));
        let buf = AlignedBuf::zeroed(count as usize * BLOCK);
        let (result, buf) = journal.read(ring.offset(next), buf).await;
        result.map_err(|e| unreadable(location, FileKind::Journal, &e))?;
        let right = |(sequence, bytes): (u64, &[u8])| {
            Block::decode(bytes).is_some_and(|block| block.header.sequence == sequence)
        };
        if (next..).zip(buf.chunks(BLOCK)).all(right) {
            let (result, _) = journal.write(ring.offset(next), buf).await;
            result.map_err(|e| failed_write(location, FileKind::Journal, &e))?;
        }
        next += count;
    }
    Ok(())
}

/// Values lie in blocks with others: whole blocks are read, the values in them are checked, and all is written back.
async fn write_values(data: &dyn Device, location: &str, values: &[ValueRef]) -> Result<()> {
    let mut values: Vec<&ValueRef> = values.iter().filter(|value| value.len > 0).collect();
    values.sort_unstable_by_key(|value| value.offset);
    let mut rest = values.as_slice();
    while let Some(first) = rest.first() {
        let start = first.offset / BLOCK_BYTES * BLOCK_BYTES;
        let mut end = end_of(first);
        let mut count = 1;
        for value in rest.iter().skip(1) {
            if value.offset > end || end_of(value).max(end) - start > BATCH_BLOCKS * BLOCK_BYTES {
                break;
            }
            end = end.max(end_of(value));
            count += 1;
        }
        let (now, later) = rest.split_at(count);
        rest = later;
        if !write_run(data, location, now, start..end).await? {
            // What is damaged among them is left to whoever reads it.
            for value in now {
                let blocks = value.offset / BLOCK_BYTES * BLOCK_BYTES..end_of(value);
                write_run(data, location, std::slice::from_ref(value), blocks).await?;
            }
        }
    }
    Ok(())
}

/// Reads these blocks and writes them back, if the values in them are right.
async fn write_run(
    data: &dyn Device,
    location: &str,
    values: &[&ValueRef],
    blocks: Range<u64>,
) -> Result<bool> {
    let start = blocks.start;
    let (result, buf) = data.read(start, AlignedBuf::zeroed((blocks.end - start) as usize)).await;
    let right = |value: &&ValueRef| {
        let at = (value.offset - start) as usize;
        buf.get(at..at + value.len as usize).is_some_and(|bytes| hash(bytes) == value.hash)
    };
    if result.is_err() || !values.iter().all(right) {
        return Ok(false);
    }
    let (result, _) = data.write(start, buf).await;
    result.map_err(|e| failed_write(location, FileKind::Data, &e))?;
    Ok(true)
}

/// Where the last block of a value ends.
fn end_of(value: &ValueRef) -> u64 {
    (value.offset + u64::from(value.len)).next_multiple_of(BLOCK_BYTES)
}

fn failed_write(location: &str, file: FileKind, error: &io::Error) -> Error {
    Error::Failed { location: location.to_owned(), file, operation: "write", reason: error.to_string() }
}

fn unreadable(location: &str, file: FileKind, error: &io::Error) -> Error {
    let location = format!("{location}: file `{}`", file.name());
    Error::Io { location, operation: "read", reason: error.to_string() }
}
