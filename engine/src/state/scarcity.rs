//! When free space is scarce: then what died is recorded and synced at once, not after the sync
//! interval.

use super::State;
use std::time::Duration;
use tokio::time::Instant;

/// Below this part of the area, free space is scarce whatever is written.
const SCARCE_PART: u64 = 16;
/// A sync is worth its cost once it brings back this part of what is free, and this part of the
/// reserve: until then, clients' writes use the reserve (see [`SpaceMap::writable_bytes`]). So a
/// full area does not sync for each block that dies.
///
/// [`SpaceMap::writable_bytes`]: crate::space::SpaceMap::writable_bytes
const WORTH_PART: u64 = 2;
const WORTH_RESERVE_PART: u64 = 2;
/// Free space is scarce where it would last no longer than this.
const SCARCE_TIME: Duration = Duration::from_secs(1);

/// What is known about the need for space.
#[derive(Default)]
pub(crate) struct Scarcity {
    /// A write was refused since space was last freed.
    pub refused: bool,
    /// Bytes allocated in [`SCARCE_TIME`], by the last measurement.
    allocated: u64,
}

impl State {
    /// Whether too little is free beside the reserve.
    pub(crate) fn is_scarce(&self) -> bool {
        let least = (self.space.capacity_bytes() / SCARCE_PART).max(self.scarcity.allocated);
        self.scarcity.refused || self.space.unreserved_bytes() < least
    }

    /// Whether dead blocks are wanted that only need to be recorded and synced.
    pub(crate) fn space_wants_sync(&self) -> bool {
        let reclaimable = self.space.reclaimable_bytes();
        let worth = reclaimable >= self.space.unreserved_bytes() / WORTH_PART
            && reclaimable >= self.space.reserve_bytes() / WORTH_RESERVE_PART;
        reclaimable > 0 && self.is_scarce() && (worth || self.scarcity.refused)
    }

    /// Measures the rate of allocation since `counted`: a moment, and what was allocated until
    /// then. Returns both for the next call.
    pub(crate) fn count_allocations(&mut self, counted: (Instant, u64)) -> (Instant, u64) {
        let (since, before) = counted;
        let (now, allocated) = (Instant::now(), self.space.allocated_bytes());
        let elapsed = (now - since).as_millis().max(1);
        let bytes = u128::from(allocated.saturating_sub(before));
        let bytes = bytes.saturating_mul(SCARCE_TIME.as_millis()) / elapsed;
        self.scarcity.allocated = u64::try_from(bytes).unwrap_or(u64::MAX);
        (now, allocated)
    }
}
