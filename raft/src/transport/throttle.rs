//! How often a line is logged that others can cause.

use crate::core::runtime::{self, Instant};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// The time between two log lines about messages that are refused for one cause.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// When lines of one cause were last logged.
#[derive(Clone, Default)]
pub(crate) struct Throttle(Arc<Mutex<Option<Instant>>>);

impl Throttle {
    /// Whether a line may be logged now. If so, it counts as logged.
    pub(crate) fn is_due(&self) -> bool {
        let (now, mut last) = (runtime::now(), self.0.lock());
        let due = last.is_none_or(|last| now - last >= LOG_INTERVAL);
        if due {
            *last = Some(now);
        }
        due
    }
}
