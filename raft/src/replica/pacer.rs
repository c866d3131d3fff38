//! Keeping to a rate.

use crate::core::runtime;
use parking_lot::Mutex;
use std::time::Duration;

/// The shortest wait that is worth a timer.
const LEAST: Duration = Duration::from_millis(10);
/// The longest wait at once, so that a stop is noticed.
const MOST: Duration = Duration::from_millis(500);

/// Spreads bytes over time.
pub(super) struct Pacer {
    bytes_per_s: u64,
    debt: Mutex<Duration>,
}

impl Pacer {
    pub(super) fn new(bytes_per_s: u64) -> Pacer {
        Pacer { bytes_per_s: bytes_per_s.max(1), debt: Mutex::default() }
    }

    /// Waits as long as so many bytes take; several small waits in one.
    pub(super) async fn spend(&self, bytes: u64, stopped: impl Fn() -> bool + Send) {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s);
        let mut due = {
            let mut debt = self.debt.lock();
            *debt = debt.saturating_add(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)));
            if *debt < LEAST {
                return;
            }
            std::mem::take(&mut *debt)
        };
        while due > Duration::ZERO && !stopped() {
            let now = due.min(MOST);
            runtime::sleep(now).await;
            due -= now;
        }
    }
}
