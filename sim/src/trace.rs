//! The trace of a run: events with their virtual times, and a hash over all of them.
//!
//! Two runs of one seed have the same trace, line by line. What is too long to print (each disk
//! operation, each scheduling step) is in the trace as a digest.

use cairn_clients::Timeline;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A run's trace. Clones share it.
#[derive(Clone)]
pub struct Trace {
    inner: Arc<Mutex<Inner>>,
    clock: fn() -> Duration,
}

struct Inner {
    hash: u64,
    lines: Vec<String>,
    print: bool,
}

impl Trace {
    /// An empty trace on this clock; `print` shows each line at once on standard output.
    pub fn new(clock: fn() -> Duration, print: bool) -> Trace {
        let inner = Inner { hash: 0, lines: Vec::new(), print };
        Trace { inner: Arc::new(Mutex::new(inner)), clock }
    }

    /// Virtual time since the run began, in nanoseconds.
    pub fn now(&self) -> u64 {
        u64::try_from((self.clock)().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Adds an event.
    pub fn event(&self, text: impl AsRef<str>) {
        let line = format!("{:>14.9} {}", (self.clock)().as_secs_f64(), text.as_ref());
        let mut inner = self.inner.lock();
        inner.hash = xxh3_64_with_seed(line.as_bytes(), inner.hash);
        if inner.print {
            println!("{line}");
        }
        inner.lines.push(line);
    }

    /// The hash over all events so far.
    pub fn hash(&self) -> u64 {
        self.inner.lock().hash
    }

    /// All events so far.
    pub fn lines(&self) -> Vec<String> {
        self.inner.lock().lines.clone()
    }
}

impl Timeline for Trace {
    fn now(&self) -> u64 {
        Trace::now(self)
    }

    fn event(&self, text: fmt::Arguments<'_>) {
        Trace::event(self, text.to_string());
    }
}
