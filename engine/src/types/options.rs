//! How an engine runs, and what its acknowledgements promise.

use super::directory::KernelBootId;
use std::fmt;
use std::time::Duration;

/// What an acknowledgement promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Written to a device that keeps completed writes through a power cut.
    Device,
    /// Written to the device and synced in the background; a quorum of peers covers the time
    /// between.
    Replicated,
    /// Synced before it is acknowledged.
    Sync,
}

impl Mode {
    /// The name used in configuration and status.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Device => "device",
            Mode::Replicated => "replicated",
            Mode::Sync => "sync",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(s: &str) -> Result<Mode, String> {
        [Mode::Device, Mode::Replicated, Mode::Sync]
            .into_iter()
            .find(|mode| mode.name() == s)
            .ok_or_else(|| format!("unknown mode `{s}`: one of device, replicated, sync"))
    }
}

/// While so many times [`Options::sync_bytes`] are written and not synced, mode `replicated` acknowledges
/// nothing ahead of a sync: so much can be lost when the power goes, however long a sync takes.
pub const UNSYNCED_PER_SYNC: u64 = 16;

/// How an engine runs; not part of the format.
#[derive(Clone, Debug)]
pub struct Options {
    /// What an acknowledgement promises.
    pub mode: Mode,
    /// The longest time between a completed write and the background sync that covers it.
    pub sync_interval: Duration,
    /// The most written bytes before a background sync begins. Mode `replicated` acknowledges nothing
    /// ahead of a sync while [`UNSYNCED_PER_SYNC`] times as many are not synced.
    pub sync_bytes: u64,
    /// A device operation that takes longer than this counts as failed.
    pub io_timeout: Duration,
    /// The longest time that the checkpoint at the end may take; zero for none. Without it the next
    /// open replays the journal.
    pub last_checkpoint: Duration,
    /// Entries' values kept in memory for replication and apply, in bytes.
    pub log_cache_bytes: u64,
    /// Values of keys that were read lately, in bytes of memory; 0: none stays.
    pub value_cache_bytes: u64,
    /// The running kernel.
    pub boot: KernelBootId,
    /// A random number, fresh for each open.
    pub boot_nonce: u64,
    /// The node has peers. If data is damaged, or a sync failed, open keeps what it can verify and
    /// returns as [`MemberState::Recovering`](crate::MemberState::Recovering). Without it, open refuses
    /// damaged data and, after a failed sync, continues only if the journal reaches everything
    /// acknowledged.
    pub salvage: bool,
}

impl Options {
    /// The defaults of the design: sync every second or 4 MiB, 30 s for a device operation, 20 s
    /// for the checkpoint at the end (service managers wait for 30 s to 90 s), 64 MiB of cached
    /// entries, and no values of keys.
    pub fn new(mode: Mode, boot: KernelBootId, boot_nonce: u64) -> Options {
        Options {
            mode,
            sync_interval: Duration::from_secs(1),
            sync_bytes: 4 << 20,
            io_timeout: Duration::from_secs(30),
            last_checkpoint: Duration::from_secs(20),
            log_cache_bytes: 64 << 20,
            value_cache_bytes: 0,
            boot,
            boot_nonce,
            salvage: false,
        }
    }
}
