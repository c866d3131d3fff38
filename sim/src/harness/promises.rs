//! When an acknowledged write is synced on a majority: by what an operator asked of the cluster, and
//! when it was answered. The members are not asked.
//!
//! What holds here: a time in which every acknowledged write is synced begins when the cluster has
//! answered that it is so from now on, and ends when somebody first asks for less. While a request
//! for less may still run on some machine, no such time begins.

use super::clock::virtual_time;
use cairn_clients::history::Record;
use cairn_engine::Mode;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A time in which every acknowledged write is synced on a majority.
#[derive(Clone, Copy, Debug)]
pub(super) struct Period {
    pub(super) from: Duration,
    until: Option<Duration>,
    /// Every entry behind this index is synced before it is acknowledged.
    pub(super) after: u64,
}

/// These times.
pub(super) struct Promises {
    periods: Mutex<Vec<Period>>,
    /// The mode that was answered last, or that the cluster formed in, unless another one was asked
    /// for since.
    last: Mutex<Option<Mode>>,
    /// Requests for less that may still run.
    lax_requests: Arc<AtomicU32>,
}

/// Held by a request for another mode as long as it may run.
pub(super) struct Request {
    lax_requests: Option<Arc<AtomicU32>>,
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(requests) = &self.lax_requests {
            requests.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Promises {
    /// A cluster that forms in this mode.
    pub(super) fn new(mode: Mode) -> Promises {
        let all = Period { from: Duration::ZERO, until: None, after: 0 };
        Promises {
            periods: Mutex::new(if is_safe(mode) { vec![all] } else { Vec::new() }),
            last: Mutex::new(Some(mode)),
            lax_requests: Arc::default(),
        }
    }

    /// An operator asks for a mode.
    pub(super) fn asked(&self, mode: Mode) -> Request {
        *self.last.lock() = None;
        if is_safe(mode) {
            return Request { lax_requests: None };
        }
        for period in self.periods.lock().iter_mut() {
            period.until.get_or_insert_with(virtual_time);
        }
        self.lax_requests.fetch_add(1, Ordering::Relaxed);
        Request { lax_requests: Some(self.lax_requests.clone()) }
    }

    /// A leader that has applied this index answers that a mode is in force.
    pub(super) fn answered(&self, mode: Mode, applied: u64) {
        if self.lax_requests.load(Ordering::Relaxed) > 0 {
            return;
        }
        *self.last.lock() = Some(mode);
        if is_safe(mode) && self.present().is_none() {
            let period = Period { from: virtual_time(), until: None, after: applied };
            self.periods.lock().push(period);
        }
    }

    /// The mode in force, if it is known.
    pub(super) fn mode(&self) -> Option<Mode> {
        *self.last.lock()
    }

    /// Such a time, if it is one now.
    pub(super) fn present(&self) -> Option<Period> {
        self.periods.lock().last().copied().filter(|period| period.until.is_none())
    }

    /// Whether a write was sent and acknowledged within such a time.
    pub(super) fn covers(&self, record: &Record) -> bool {
        let (sent, returned) = (u128::from(record.invoked), u128::from(record.returned));
        let periods = self.periods.lock();
        let mut all = periods.iter();
        all.any(|period| {
            sent >= period.from.as_nanos()
                && period.until.is_none_or(|until| returned <= until.as_nanos())
        })
    }
}

/// Whether a power cut of all machines takes nothing acknowledged in this mode. In mode `device`
/// the disks keep completed writes.
fn is_safe(mode: Mode) -> bool {
    mode != Mode::Replicated
}
