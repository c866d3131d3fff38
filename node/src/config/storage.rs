//! How the engine, the log and the scrubber run.

use super::{ConfigError, Layers, keys, parse_size};
use cairn_engine::Sizing;
use cairn_engine::io::Backend;
use std::path::PathBuf;
use std::time::Duration;

/// How the engine and the log run.
#[derive(Clone, Debug)]
pub struct StorageConfig {
    /// Size of a new data directory in bytes.
    pub size_bytes: u64,
    /// About the bytes of a value, by which a new or enlarged data directory is divided.
    pub value_bytes: Option<u64>,
    /// How real files are accessed.
    pub backend: Backend,
    /// Whether the node formats a missing or empty data directory when it starts.
    pub format_empty: bool,
    /// Whether the operator asserts that the device keeps completed writes through a power cut and
    /// writes 4 KiB atomically.
    pub assert_device_contract: bool,
    /// A file like `/proc/sys/kernel/random/boot_id`. A new content means that the machine
    /// restarted, not only the process.
    pub boot_id_file: PathBuf,
    /// Longest time between a write and the sync that covers it.
    pub sync_interval: Duration,
    /// Most written bytes before a background sync begins.
    pub sync_bytes: u64,
    /// Time after which a disk operation that has not returned counts as failed.
    pub io_timeout: Duration,
    /// Memory for log entries on their way to followers, in bytes.
    pub log_cache_bytes: u64,
    /// Memory for values that are read often, in bytes; 0: none.
    pub value_cache_bytes: u64,
    /// Applied log to keep, in bytes.
    pub log_retain_bytes: u64,
    /// Applied log to keep, in entries.
    pub log_retain_entries: u64,
}

impl StorageConfig {
    pub(super) fn read(layers: &Layers) -> Result<StorageConfig, ConfigError> {
        Ok(StorageConfig {
            size_bytes: layers.read("storage.size", parse_size)?,
            value_bytes: layers.read("storage.value_size", keys::parse_value_size)?,
            backend: match layers.text("storage.backend")?.as_str() {
                "io_uring" => Backend::IoUring,
                "threads" => Backend::Threads,
                _ => Backend::Auto,
            },
            format_empty: layers.text("storage.format_empty")? == "true",
            assert_device_contract: layers.text("storage.assert_device_contract")? == "true",
            boot_id_file: PathBuf::from(layers.text("storage.boot_id_file")?),
            sync_interval: layers.read("storage.sync_interval", keys::parse_time)?,
            sync_bytes: layers.read("storage.sync_bytes", parse_size)?,
            io_timeout: layers.read("storage.io_timeout", keys::parse_time)?,
            log_cache_bytes: layers.read("storage.log_cache_bytes", parse_size)?,
            value_cache_bytes: layers.read("storage.value_cache_bytes", parse_size)?,
            log_retain_bytes: layers.read("storage.log_retain_bytes", parse_size)?,
            log_retain_entries: layers.read("storage.log_retain_entries", parse_size)?,
        })
    }

    /// How large a new or enlarged data directory is, and for which values.
    pub fn sizing(&self) -> Sizing {
        Sizing { total_bytes: self.size_bytes, value_bytes: self.value_bytes }
    }
}

/// How the scrubber runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubConfig {
    /// Bytes read in a second, at most.
    pub rate_bytes: u64,
    /// Time from the start of one cycle to the start of the next.
    pub cycle: Duration,
}

impl ScrubConfig {
    pub(super) fn read(layers: &Layers) -> Result<ScrubConfig, ConfigError> {
        const DAY_SECONDS: u64 = 24 * 3600;
        let days = layers.read("scrub.cycle_days", parse_size)?;
        Ok(ScrubConfig {
            rate_bytes: layers.read("scrub.rate_bytes", parse_size)?,
            cycle: Duration::from_secs(days.saturating_mul(DAY_SECONDS)),
        })
    }
}
