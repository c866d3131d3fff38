//! The state that decides when the unsynced-ack flag is set and cleared.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// The flag is set when this many acknowledgements waited for a sync within [`MIN_WAITERS_WINDOW`].
/// Below that, a sync now and then costs less than setting and clearing the flag.
const MIN_WAITERS: u32 = 4;
const MIN_WAITERS_WINDOW: Duration = Duration::from_secs(1);

/// The state that decides about the flag.
#[derive(Default)]
pub(crate) struct UnsyncedAckFlag {
    /// The caller wants safe acknowledgements, and so the flag clear.
    pub(crate) safe: AtomicBool,
    /// The flag is set on the device, or may be.
    pub(crate) on_device: AtomicBool,
    /// One change of the flag at a time.
    pub(crate) changing: tokio::sync::Mutex<()>,
    /// The start of the current window, and how many acknowledgements waited for a sync in it
    /// because the flag was clear.
    waiters: Mutex<Option<(Instant, u32)>>,
}

impl UnsyncedAckFlag {
    /// Whether the flag is set on the device, or may be.
    pub(crate) fn is_set(&self) -> bool {
        self.on_device.load(Ordering::SeqCst)
    }

    /// Counts an acknowledgement that waits. Returns whether there were enough by now.
    pub(crate) fn enough_waiters(&self) -> bool {
        let now = Instant::now();
        let mut waiters = self.waiters.lock();
        let (since, count) =
            waiters.filter(|(since, _)| now - *since < MIN_WAITERS_WINDOW).unwrap_or((now, 0));
        *waiters = Some((since, count + 1));
        count + 1 >= MIN_WAITERS
    }
}
