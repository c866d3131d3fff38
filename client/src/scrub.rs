//! Scrubbing: each node reads all that it holds, at a bounded rate, and mends what is damaged from the others.

use std::time::Duration;

use crate::node::Stub;
use crate::{Client, Error, convert, proto};

/// What a node's scrubber is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScrubAction {
    /// Nothing: only say where it is.
    Show,
    /// Begin a scrub of everything now, even where it was paused.
    Start,
    /// Stop where it is until it is resumed or started. Kept over restarts.
    Pause,
    /// Go on.
    Resume,
}

/// What a node's scrubber says of itself. Counters count since the node was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScrubStatus {
    /// It reads at the moment; else it waits for its next cycle, or is paused.
    pub running: bool,
    /// An operator has paused it.
    pub paused: bool,
    /// How far it has come in the data area, in bytes.
    pub position: u64,
    /// The size of the data area, in bytes.
    pub data_bytes: u64,
    /// Running time since the present cycle began.
    pub elapsed: Duration,
    /// Cycles completed.
    pub cycles: u64,
    /// Blocks of 4 KiB read.
    pub blocks_checked: u64,
    /// Values compared with their hash.
    pub values_checked: u64,
    /// Values, journal blocks, checkpoints and superblock copies that it found damaged.
    pub damaged: u64,
    /// Of all damage met, by it or by reads: what was put right.
    pub mended: u64,
    /// Of all damage met, by it or by reads: what could not be put right at the time.
    pub unmendable: u64,
}

impl Client {
    /// Tells the node at `endpoint` (`host:port`) what its scrubber is to do, and returns where it is then. It is asked once
    /// and needs no leader.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it does not answer, [`Error::InvalidOptions`] if `endpoint` is no address.
    pub async fn scrub(&self, endpoint: &str, action: ScrubAction) -> Result<ScrubStatus, Error> {
        let call = |mut stub: Stub, timeout| async move { stub.scrub(action_number(action), timeout).await };
        let answer = self.ask_one(endpoint, call).await?;
        let answer = answer.map_err(|status| Error::unavailable(endpoint, convert::describe(&status)))?;
        Ok(answer.scrub.map(scrub_status).unwrap_or_default())
    }
}

fn action_number(action: ScrubAction) -> i32 {
    use proto::scrub_request::Action;
    match action {
        ScrubAction::Show => Action::Show,
        ScrubAction::Start => Action::Start,
        ScrubAction::Pause => Action::Pause,
        ScrubAction::Resume => Action::Resume,
    }
    .into()
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
        mended: scrub.mended,
        unmendable: scrub.unmendable,
    }
}
