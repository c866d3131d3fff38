//! The time of a run.

use std::time::Duration;

/// Virtual time since the run began.
pub(super) fn virtual_time() -> Duration {
    madsim::time::TimeHandle::try_current().map_or(Duration::ZERO, |time| time.elapsed())
}
