//! How far writes and syncs have come, and which acknowledgements wait for them.

use super::Done;
use crate::types::Mode;
use std::collections::VecDeque;
use tokio::time::Instant;

/// The acknowledgement of an operation whose write is in flight, in journal order.
pub(crate) struct PendingAck {
    pub sequence: u64,
    /// An append: others rely on it once it is acknowledged.
    pub append: bool,
    pub synced: bool,
    pub done: Done,
}

/// How far writes and syncs have come.
pub(crate) struct WriteProgress {
    pub written: u64,
    pub synced: u64,
    pub waiting: VecDeque<PendingAck>,
    /// For each written group commit that no sync covers yet: its last block, and what its blocks
    /// say was synced.
    pub synced_stamps: VecDeque<(u64, u64)>,
    pub unsynced_bytes: u64,
    pub oldest_unsynced: Option<Instant>,
    /// The writer has ended.
    pub writer_ended: bool,
    /// The checksum of block `written`.
    pub written_checksum: u128,
    /// When an append was last acknowledged ahead of its sync, or when that was last allowed.
    pub last_unsynced_ack: Instant,
    /// Acknowledgements may run ahead of the sync that covers them. In mode `replicated` only while
    /// the unsynced-ack flag is set on the device.
    pub acks_before_sync: bool,
}

impl WriteProgress {
    /// Everything through block `written` is synced.
    pub(crate) fn new(written: u64, written_checksum: u128, mode: Mode) -> WriteProgress {
        WriteProgress {
            written,
            synced: written,
            waiting: VecDeque::new(),
            synced_stamps: VecDeque::new(),
            unsynced_bytes: 0,
            oldest_unsynced: None,
            writer_ended: false,
            written_checksum,
            last_unsynced_ack: Instant::now(),
            acks_before_sync: mode == Mode::Device,
        }
    }

    /// Returns what the synced blocks say was synced. Freed blocks whose record lies at or below
    /// that may be used again.
    ///
    /// That the record is synced is not enough: recovery must also be able to see that it was.
    /// Recovery checks the values named behind the last sync that it knows of, and takes a mismatch
    /// for a write that never arrived. Suppose an extent were reused before a synced block says
    /// that the freeing record is synced. A crash could then leave the new value in place, no block
    /// that names it, and an acknowledged entry whose value does not match: recovery would cut the
    /// journal there.
    pub(crate) fn take_synced_stamp(&mut self, synced: u64) -> Option<u64> {
        let mut synced_stamp = None;
        while let Some((_, newest)) =
            self.synced_stamps.pop_front_if(|(sequence, _)| *sequence <= synced)
        {
            synced_stamp = Some(newest);
        }
        synced_stamp
    }

    /// Whether an acknowledgement waits for a sync of what is written.
    pub(crate) fn wants_sync(&self) -> bool {
        self.waiting
            .front()
            .is_some_and(|w| (w.synced || !self.acks_before_sync) && w.sequence <= self.written)
    }

    /// Whether an acknowledgement waits for a sync that it would not need with the unsynced-ack
    /// flag set.
    pub(crate) fn wants_unsynced_acks(&self) -> bool {
        !self.acks_before_sync
            && self.waiting.front().is_some_and(|w| !w.synced && w.sequence <= self.written)
    }

    /// Acknowledges every operation whose promise holds, strictly in order.
    pub(crate) fn complete_ready(&mut self) {
        let (written, synced, acks_before_sync) =
            (self.written, self.synced, self.acks_before_sync);
        let holds = |w: &mut PendingAck| {
            w.sequence <= if w.synced || !acks_before_sync { synced } else { written }
        };
        let mut acked_unsynced = false;
        while let Some(waiting) = self.waiting.pop_front_if(holds) {
            acked_unsynced |= waiting.append && waiting.sequence > synced;
            (waiting.done)(Ok(()));
        }
        if acked_unsynced {
            self.last_unsynced_ack = Instant::now();
        }
    }
}
