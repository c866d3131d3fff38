//! A run's clock and trace: virtual time and the trace in the simulation, else the real clock.

use std::fmt;

/// A run's clock and trace.
pub trait Timeline: Send + Sync {
    /// Nanoseconds since the run began.
    fn now(&self) -> u64;

    /// Adds an event to the trace.
    fn event(&self, text: fmt::Arguments<'_>);
}
