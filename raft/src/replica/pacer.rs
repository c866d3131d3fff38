//! Limits the scrubber's rate.

use crate::core::runtime;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The shortest wait that is worth a timer.
const MIN_WAIT: Duration = Duration::from_millis(10);
/// The longest single wait, so that a stop is noticed soon.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// Spreads reads over time.
pub(super) struct Pacer {
    bytes_per_s: AtomicU64,
    debt: Mutex<Duration>,
}

impl Pacer {
    pub(super) fn new(bytes_per_s: u64) -> Pacer {
        Pacer { bytes_per_s: AtomicU64::new(bytes_per_s.max(1)), debt: Mutex::default() }
    }

    /// Changes the rate of reads from now on.
    pub(super) fn set_rate(&self, bytes_per_s: u64) {
        self.bytes_per_s.store(bytes_per_s.max(1), Ordering::Relaxed);
    }

    /// Waits as long as this many bytes take at the rate. Collects small waits into one.
    pub(super) async fn spend(&self, bytes: u64, stopped: impl Fn() -> bool + Send) {
        let nanos = u128::from(bytes) * 1_000_000_000
            / u128::from(self.bytes_per_s.load(Ordering::Relaxed));
        let mut due = {
            let mut debt = self.debt.lock();
            *debt =
                debt.saturating_add(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)));
            if *debt < MIN_WAIT {
                return;
            }
            std::mem::take(&mut *debt)
        };
        while due > Duration::ZERO && !stopped() {
            let now = due.min(MAX_WAIT);
            runtime::sleep(now).await;
            due -= now;
        }
    }
}
