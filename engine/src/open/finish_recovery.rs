//! Makes the recovered state safe before anything is built on it: clears what a crash left behind
//! its end, syncs it, and rewrites it if it may not be on the medium or is only a part of what was
//! there.

use super::place_carried::place_carried;
use super::recovery::Recovered;
use super::rewrite::{rewrite_header, write_values};
use crate::checkpoint::{self, Capture, Header};
use crate::error::Result;
use crate::io::{AlignedBuf, BLOCK};
use crate::journal::Ring;
use crate::state::Files;
use crate::superblock::Superblock;

/// Journal blocks cleared in one write.
const CLEAR_BLOCKS: u64 = 256;

/// Clears what a cut tail left behind and syncs what was recovered, so that it can be relied on.
/// Frees ring space if the crash came when the ring was nearly full. `capture` is the recovered state.
pub(super) async fn finish_recovery(
    files: &Files,
    ring: Ring,
    known: &Superblock,
    recovered: &mut Recovered,
    capture: &Capture,
) -> Result<()> {
    let after_failed_sync = known.failed_sync.is_some();
    rewrite_header(files, recovered).await?;
    if after_failed_sync {
        write_values(&files.data, &recovered.unsynced_values).await?;
    }
    place_carried(&files.data, &recovered.carried, after_failed_sync).await?;
    let mut leftovers = recovered.leftovers.as_slice();
    while let Some(first) = leftovers.first() {
        // Adjacent blocks in one write: after damage this may be the whole ring.
        let most = ring.contiguous(*first, (leftovers.len() as u64).min(CLEAR_BLOCKS));
        let run =
            leftovers.iter().zip(*first..*first + most).take_while(|(a, b)| **a == *b).count();
        files.journal.write(ring.offset(*first), AlignedBuf::zeroed(run * BLOCK)).await?;
        leftovers = leftovers.get(run..).unwrap_or_default();
    }
    files.data.sync().await?;
    files.journal.sync().await?;
    if recovered.other_is_void {
        checkpoint::void(files.area(1 - recovered.area)).await?;
    }
    let incarnation = known.identity.incarnation;
    if recovered.damage.is_some() || after_failed_sync {
        // Write both checkpoints, the damaged or older area first. Afterwards nothing refers to
        // data beyond the damage, whose space is used again, or to journal blocks that may be in a
        // cache only.
        for _ in 0..2 {
            write_checkpoint(files, recovered, capture, incarnation).await?;
        }
        return Ok(());
    }
    // The journal before the newest checkpoint is given up if that frees enough.
    for previous in [recovered.previous, recovered.checkpoint.sequence] {
        recovered.previous = previous;
        if ring.free(recovered.end + 1, previous) >= ring.blocks() / 3 {
            return Ok(());
        }
    }
    write_checkpoint(files, recovered, capture, incarnation).await
}

/// Writes what was recovered into the area that it did not come from. Everything that it refers to
/// is synced.
async fn write_checkpoint(
    files: &Files,
    recovered: &mut Recovered,
    capture: &Capture,
    incarnation: u64,
) -> Result<()> {
    let area = 1 - recovered.area;
    let (number, sequence) = (recovered.checkpoint.number + 1, recovered.end);
    let header =
        Header { incarnation, number, sequence, chain: recovered.chain, ..Header::default() };
    checkpoint::write(files.area(area), capture, header, async { Ok(()) }).await?;
    recovered.area = area;
    recovered.checkpoint.number = number;
    recovered.checkpoint.sequence = sequence;
    recovered.previous = sequence;
    Ok(())
}
