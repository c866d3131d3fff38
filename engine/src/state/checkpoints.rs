//! Which checkpoints exist, and which are requested.

use super::Shared;
use crate::checkpoint::Header;
use crate::error::{Error, Result};
use crate::types::{GroupId, LogId};
use std::collections::BTreeMap;
use tokio::time::Instant;

/// The state of taking checkpoints.
#[derive(Default)]
pub(crate) struct Checkpoints {
    /// A caller requested a checkpoint that begins from now on.
    pub requested: bool,
    pub running: bool,
    /// Bytes of values that were appended before the newest capture.
    pub user_bytes: u64,
    /// Captures taken, and how many of them became checkpoints.
    pub begun: u64,
    pub completed: u64,
    /// The number and area of the newest checkpoint on the device.
    pub number: u64,
    pub area: usize,
    /// The sequence that the newest checkpoint covers, and the sequence of the one before it.
    pub sequence: u64,
    pub previous: u64,
    /// Blocks up to this one hold no record that the newest checkpoint at the open lacked.
    pub recordless: u64,
    /// The position that each group had applied in the newest one.
    pub applied: BTreeMap<GroupId, LogId>,
    /// What each area holds, if this process wrote it: more may be added there.
    pub areas: [Option<Written>; 2],
    /// They may be of the newest format, which an earlier release does not read.
    pub newest_format: bool,
    /// A snapshot was swapped in: nothing more is written until a checkpoint holds it, and older
    /// ones are void.
    pub hold: bool,
}

/// A checkpoint in an area.
pub(crate) struct Written {
    pub header: Header,
    /// How many parts it has, and when the first of them was written.
    pub parts: usize,
    pub since: Instant,
    /// Bytes of the parts with what changed.
    pub changes_bytes: u64,
    /// What each group had applied.
    pub applied: BTreeMap<GroupId, LogId>,
}

impl Checkpoints {
    /// Parts of the newest one that was written since the open.
    pub(crate) fn parts(&self) -> u64 {
        let newest = self.areas.get(self.area).and_then(Option::as_ref);
        newest.map_or(0, |written| written.parts as u64)
    }
}

impl Shared {
    /// Waits until checkpoint number `target`, counted since the open, has ended.
    pub(crate) async fn wait_for_checkpoint(&self, target: u64) -> Result<()> {
        self.wait_until(|shared| {
            let state = shared.state.lock();
            if state.checkpoints.completed >= target {
                return Some(Ok(()));
            }
            if let Some(error) = state.failed.clone() {
                return Some(Err(error));
            }
            let idle = state.closing && !state.checkpoints.running;
            drop(state);
            (idle && shared.progress.lock().writer_ended).then_some(Err(Error::Closed))
        })
        .await
    }
}
