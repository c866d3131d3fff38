//! How long changes are kept for those who follow them.

use super::{ConfigError, Layers, forms, parse_size};
use std::time::Duration;

/// How much of the history of changes is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchConfig {
    /// Changes to keep, in bytes of the log and of the keys of deleted ranges.
    pub retain_bytes: u64,
    /// For how long they are kept.
    pub retain_time: Duration,
}

impl WatchConfig {
    pub(super) fn read(layers: &Layers) -> Result<WatchConfig, ConfigError> {
        // Its key says how long it is at least.
        let period = |text: &str| forms::parse_period(text, 0);
        Ok(WatchConfig {
            retain_bytes: layers.read("watch.retain_bytes", parse_size)?,
            retain_time: layers.read("watch.retain_time", period)?,
        })
    }
}
