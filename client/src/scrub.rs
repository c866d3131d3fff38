//! Scrubbing: each node reads everything that it holds, at a bounded rate, and repairs damage from
//! the other members.

use std::time::Duration;

use crate::proto;
use crate::proto::scrub_request::Action;

/// What a node's scrubber should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScrubAction {
    /// Nothing: only show its status.
    Show = Action::Show as isize,
    /// Start a scrub of everything now, even if it is paused.
    Start = Action::Start as isize,
    /// Stop at the current position until resumed or started. Stays paused over restarts.
    Pause = Action::Pause as isize,
    /// Continue.
    Resume = Action::Resume as isize,
}

/// The status of a node's scrubber. The counters start at zero when the node starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ScrubStatus {
    /// It is reading now. Otherwise it waits for its next cycle, or is paused.
    pub running: bool,
    /// An operator has paused it.
    pub paused: bool,
    /// Its position in the data area, in bytes.
    pub position: u64,
    /// The size of the data area, in bytes.
    pub data_bytes: u64,
    /// Running time of the present cycle.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "elapsed_s", serialize_with = "crate::json::seconds")
    )]
    pub elapsed: Duration,
    /// Cycles completed.
    pub cycles: u64,
    /// Blocks of 4 KiB read.
    pub blocks_checked: u64,
    /// Values compared with their hash.
    pub values_checked: u64,
    /// Values, journal blocks, checkpoints and superblock copies that it found damaged.
    pub damaged: u64,
    /// Damage found by the scrubber or by reads, and repaired.
    pub repaired: u64,
    /// Failed attempts to repair such damage.
    pub unrepairable: u64,
}

pub(crate) fn scrub_status(scrub: proto::Scrub) -> ScrubStatus {
    ScrubStatus {
        running: scrub.running,
        paused: scrub.paused,
        position: scrub.position,
        data_bytes: scrub.data_bytes,
        elapsed: Duration::from_secs(scrub.elapsed_s),
        cycles: scrub.cycles,
        blocks_checked: scrub.blocks_checked,
        values_checked: scrub.values_checked,
        damaged: scrub.damaged,
        repaired: scrub.repaired,
        unrepairable: scrub.unrepairable,
    }
}
