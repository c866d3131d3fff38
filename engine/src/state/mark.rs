//! What decides about the `lazy` mark.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// So many acknowledgements that waited for a sync within [`DEMAND_WINDOW`] set the mark: below that a sync now and then
/// costs less than setting and clearing the mark.
const DEMAND: u32 = 4;
const DEMAND_WINDOW: Duration = Duration::from_secs(1);

/// What decides about the mark.
#[derive(Default)]
pub(crate) struct LazyMark {
    /// The caller wants it clear.
    pub(crate) held: AtomicBool,
    /// It is set on the device, or may be.
    pub(crate) on_device: AtomicBool,
    /// One change of the mark at a time.
    pub(crate) changing: tokio::sync::Mutex<()>,
    /// Since when, and how often, somebody waited for a sync for want of the mark.
    demand: Mutex<Option<(Instant, u32)>>,
}

impl LazyMark {
    /// Whether the mark is set on the device, or may be.
    pub(crate) fn is_set(&self) -> bool {
        self.on_device.load(Ordering::SeqCst)
    }

    /// Counts one who waits. Whether there were enough by now.
    pub(crate) fn demanded(&self) -> bool {
        let now = Instant::now();
        let mut demand = self.demand.lock();
        let (since, count) = demand.filter(|(since, _)| now - *since < DEMAND_WINDOW).unwrap_or((now, 0));
        *demand = Some((since, count + 1));
        count + 1 >= DEMAND
    }
}
