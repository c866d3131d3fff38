//! A failed write or sync, and what the next opening must know of it.
//!
//! The kernel reports a failed sync once and may then show what it has dropped as if nothing had happened, or show what is
//! only in a cache and let a later sync pass over it. A failed write may be all that is seen of a drive that lost its power
//! alone, and its cache with it. So:
//! - the engine writes nothing more but, if it can, word of the failure into the superblock, with how far acknowledgements
//!   may have reached;
//! - an opening that finds that word takes nothing for granted that was not synced: with peers it recovers, alone it holds
//!   the journal against what was acknowledged;
//! - what it goes on with is on the medium: values are written again, and two new checkpoints make the journal needless.
//!   The journal itself is not written again: a power cut amid that could tear what was safe.
//!
//! Left open: a device that fails, does not keep even the word of it, and has dropped, or drops at the next power cut,
//! the newest blocks of the journal without a trace.

use crate::checkpoint::{self, file_of};
use crate::codec::hash;
use crate::error::{Error, Result};
use crate::io::{AlignedBuf, BLOCK, Device, FileKind};
use crate::recovery::Recovered;
use crate::shared::{Devices, Remembered, Shared};
use crate::types::{Mode, ValueRef};
use std::io;
use std::ops::Range;

const BLOCK_BYTES: u64 = BLOCK as u64;
/// Blocks of values written again at once.
const BATCH_BLOCKS: u64 = 256;

impl Shared {
    /// Leaves word of a failed write or sync, if there was one and nobody did so before. Waits for one who is about it.
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
            // By what the directory says: so the next opening takes it.
            if superblock.current().mode == Some(Mode::Sync) { progress.synced } else { progress.written }
        };
        let result = superblock.record_failed_sync(acknowledged).await;
        if let Err(error) = &result {
            tracing::warn!(
                %error,
                "that a write or sync failed could not be recorded: do not start this node again before its disk is replaced or its \
                 machine restarted"
            );
        }
        let remembered = if result.is_ok() { Remembered::Yes } else { Remembered::No };
        self.state.lock().failed_sync = Some(remembered);
    }
}

/// Writes again what was recovered and no sync is known to have covered: the newest checkpoint's header, which is synced
/// when this returns, since the other checkpoint is overwritten next; and values, which are not.
pub(crate) async fn write_again(devices: &Devices, location: &str, recovered: &Recovered) -> Result<()> {
    if let Some(device) =
        devices.checkpoints.get(recovered.area).filter(|_| recovered.checkpoint.incarnation != 0)
    {
        let file = file_of(recovered.area);
        for copy in 0..checkpoint::COPIES {
            checkpoint::write_header(device.as_ref(), file, location, &recovered.checkpoint, copy).await?;
            device.sync().await.map_err(|e| failed(location, file, "sync", &e))?;
        }
    }
    write_values(devices.data.as_ref(), location, &recovered.unsynced_values).await
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
    result.map_err(|e| failed(location, FileKind::Data, "write", &e))?;
    Ok(true)
}

/// Where the last block of a value ends.
fn end_of(value: &ValueRef) -> u64 {
    (value.offset + u64::from(value.len)).next_multiple_of(BLOCK_BYTES)
}

fn failed(location: &str, file: FileKind, operation: &'static str, error: &io::Error) -> Error {
    Error::Failed { location: location.to_owned(), file, operation, reason: error.to_string() }
}
