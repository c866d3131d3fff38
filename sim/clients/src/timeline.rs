//! A run's clock, and where clients tell what they do: virtual time and the trace in the
//! simulation, else the real clock.

use std::fmt;

/// A run's clock, and what happens on it.
pub trait Timeline: Send + Sync {
    /// Nanoseconds since the run began.
    fn now(&self) -> u64;

    /// Something happened.
    fn event(&self, text: fmt::Arguments<'_>);
}
