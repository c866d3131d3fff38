//! Makes the recovered state safe before anything is built on it: clears what a crash left behind
//! its end, syncs it, and rewrites it if it may not be on the medium or is only a part of what was
//! there.

use super::recovery::Recovered;
use super::rewrite::rewrite_unsynced;
use crate::checkpoint::{self, Capture, CapturedGroup, CheckpointPosition, file_of};
use crate::error::{Error, Result};
use crate::io::{AlignedBuf, BLOCK, Device, FileKind};
use crate::journal::{self, Ring};
use crate::state::Devices;
use std::io;

/// Journal blocks cleared in one write.
const CLEAR_BLOCKS: u64 = 256;

/// Clears what a cut tail left behind and syncs what was recovered, so that it can be relied on.
/// Frees ring space if the crash came when the ring was nearly full.
pub(super) async fn finish_recovery(
    devices: &Devices,
    ring: Ring,
    location: &str,
    recovered: &mut Recovered,
    after_failed_sync: bool,
    incarnation: u64,
) -> Result<()> {
    let failed = |file, operation| move |e: io::Error| Error::failed(location, file, operation, e);
    if after_failed_sync {
        rewrite_unsynced(devices, location, recovered).await?;
    }
    let mut leftovers = recovered.leftovers.as_slice();
    while let Some(first) = leftovers.first() {
        // Adjacent blocks in one write: after damage this may be the whole ring.
        let most = ring.contiguous(*first, (leftovers.len() as u64).min(CLEAR_BLOCKS));
        let run =
            leftovers.iter().zip(*first..*first + most).take_while(|(a, b)| **a == *b).count();
        let (result, _) =
            devices.journal.write(ring.offset(*first), AlignedBuf::zeroed(run * BLOCK)).await;
        result.map_err(failed(FileKind::Journal, "write"))?;
        leftovers = leftovers.get(run..).unwrap_or_default();
    }
    devices.data.sync().await.map_err(failed(FileKind::Data, "sync"))?;
    devices.journal.sync().await.map_err(failed(FileKind::Journal, "sync"))?;
    if recovered.other_is_void {
        let other = 1 - recovered.area;
        let device = devices.checkpoints.get(other).ok_or(Error::Closed)?;
        checkpoint::void(device.as_ref(), file_of(other), location).await?;
    }
    if recovered.damage.is_some() || after_failed_sync {
        // Write both checkpoints, the damaged or older area first. Afterwards nothing refers to
        // data beyond the damage, whose space is used again, or to journal blocks that may be in a
        // cache only.
        for _ in 0..2 {
            write_checkpoint(devices, location, recovered, incarnation).await?;
        }
        return Ok(());
    }
    if ring.free(recovered.end + 1, recovered.previous) >= ring.blocks() / 3 {
        return Ok(());
    }
    recovered.previous = recovered.checkpoint.sequence;
    if ring.free(recovered.end + 1, recovered.previous) >= ring.blocks() / 3 {
        return Ok(());
    }
    write_checkpoint(devices, location, recovered, incarnation).await
}

/// Writes what was recovered into the area that it did not come from. Everything that it refers to
/// is synced.
async fn write_checkpoint(
    devices: &Devices,
    location: &str,
    recovered: &mut Recovered,
    incarnation: u64,
) -> Result<()> {
    let area = 1 - recovered.area;
    let device = devices.checkpoints.get(area).ok_or(Error::Closed)?;
    let number = recovered.checkpoint.number + 1;
    let place =
        CheckpointPosition { incarnation, number, sequence: recovered.end, chain: recovered.chain };
    let capture = Capture {
        replaces: false,
        groups: recovered.groups.iter().map(CapturedGroup::of).collect(),
    };
    checkpoint::write(device.as_ref(), file_of(area), location, &capture, place, async { Ok(()) })
        .await?;
    recovered.area = area;
    recovered.checkpoint.number = number;
    recovered.checkpoint.sequence = recovered.end;
    recovered.previous = recovered.end;
    Ok(())
}

/// Writes and syncs an empty block of the new boot epoch behind the recovered end. Blocks that an
/// earlier process left further on then no longer continue the chain. Returns its checksum.
pub(super) async fn begin_epoch(
    journal: &dyn Device,
    ring: Ring,
    location: &str,
    header: &journal::Header,
) -> Result<u128> {
    let mut buf = AlignedBuf::zeroed(BLOCK);
    let checksum = journal::encode_into(&mut buf, header, &[]);
    let failed =
        |operation| move |e: io::Error| Error::failed(location, FileKind::Journal, operation, e);
    let (result, _) = journal.write(ring.offset(header.sequence), buf).await;
    result.map_err(failed("write"))?;
    journal.sync().await.map_err(failed("sync"))?;
    Ok(checksum)
}
