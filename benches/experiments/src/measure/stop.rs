//! The wish to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends a run early once it is set. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

/// A run that was stopped.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("stopped before the end; what it made is removed")]
pub struct Stopped;

impl Stop {
    /// Ends the run at its next step.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the run ends.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// # Errors
    /// `Stopped` once the run is to end.
    pub(crate) fn check(&self) -> Result<(), Stopped> {
        if self.is_set() { Err(Stopped) } else { Ok(()) }
    }
}
