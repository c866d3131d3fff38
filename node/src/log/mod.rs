//! The server's log between the code that logs and standard error.
//!
//! ```text
//! event ──► level filter ──► CallSiteLimit ──► formatter ──► LogQueue ──► its thread ──► standard error
//!                               └──► suppressed                └──► dropped      └──► dropped
//! ```
//!
//! What holds here: a log line is never worth the node. No thread of the node waits for standard error,
//! whatever is below it: a full filesystem, a pipe whose reader ended, one that nobody reads. And nobody
//! fills the log from outside: each call site is limited, so a line that is new in the code is limited
//! without anybody thinking of it. What is left out is counted, and said as soon as a line gets through.
//!
//! The story: the log was written by the thread that had something to say. A full filesystem below it
//! ended the process at the next line, a pipe that was not read stopped the node, and one connection
//! made a library write 52 MB of WARN lines in 0.8 s.

mod limit;
mod queue;

pub use limit::{CallSiteLimit, UNLIMITED};
pub use queue::{LineForm, LogQueue};

use std::sync::atomic::{AtomicU64, Ordering};

/// Lines of this process that did not reach standard error. A process has one log, so it has one of
/// these.
static DROPPED: AtomicU64 = AtomicU64::new(0);
static SUPPRESSED: AtomicU64 = AtomicU64::new(0);

/// Lines that standard error did not take: its queue was full, or a write failed.
pub(crate) fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Lines that were left out because their call site had logged too many.
pub(crate) fn suppressed() -> u64 {
    SUPPRESSED.load(Ordering::Relaxed)
}
