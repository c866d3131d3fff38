//! How far writes and syncs have come, and who waits for them.

use super::Done;
use crate::types::Mode;
use std::collections::VecDeque;
use tokio::time::Instant;

/// An operation whose write is under way, in journal order.
pub(crate) struct Waiting {
    pub sequence: u64,
    /// An append, on which others count once it is acknowledged.
    pub append: bool,
    pub synced: bool,
    pub done: Done,
}

/// How far writes and syncs have come.
pub(crate) struct Progress {
    pub written: u64,
    pub synced: u64,
    pub waiting: VecDeque<Waiting>,
    /// For each written gathering that no sync covers yet: its last block, and what its blocks say was synced.
    pub claims: VecDeque<(u64, u64)>,
    pub unsynced_bytes: u64,
    pub oldest_unsynced: Option<Instant>,
    /// The writer has ended.
    pub writer_ended: bool,
    /// The checksum of block `written`.
    pub written_checksum: u128,
    /// When an append was last acknowledged ahead of the sync that covers it, or appends were allowed to be.
    pub last_ahead: Instant,
    /// An acknowledgement may run ahead of the sync that covers it. In mode `replicated` only while the `lazy` mark is
    /// set on the device.
    pub ahead: bool,
}

impl Progress {
    /// All through block `written` is synced.
    pub(crate) fn new(written: u64, written_checksum: u128, mode: Mode) -> Progress {
        Progress {
            written,
            synced: written,
            waiting: VecDeque::new(),
            claims: VecDeque::new(),
            unsynced_bytes: 0,
            oldest_unsynced: None,
            writer_ended: false,
            written_checksum,
            last_ahead: Instant::now(),
            ahead: mode == Mode::Device,
        }
    }

    /// What the synced blocks say was synced. Dead blocks whose record lies at or below may be used again.
    ///
    /// That the record is synced is not enough: recovery must also be able to tell that it was. It checks the values
    /// named behind the last sync that it knows of, and takes a mismatch for a write that never arrived. Were an
    /// extent reused before a synced block says that its death is synced, then a crash could leave the new value in
    /// place, no block that tells of it, and an acknowledged entry whose value does not match: the journal would be
    /// cut there.
    pub(crate) fn claim(&mut self, synced: u64) -> Option<u64> {
        let mut claim = None;
        while let Some((_, said)) = self.claims.pop_front_if(|(sequence, _)| *sequence <= synced) {
            claim = Some(said);
        }
        claim
    }

    /// Whether somebody waits for a sync of what is written.
    pub(crate) fn wants_sync(&self) -> bool {
        self.waiting.front().is_some_and(|w| (w.synced || !self.ahead) && w.sequence <= self.written)
    }

    /// Whether somebody waits for a sync who would not with the `lazy` mark set.
    pub(crate) fn wants_mark(&self) -> bool {
        !self.ahead && self.waiting.front().is_some_and(|w| !w.synced && w.sequence <= self.written)
    }

    /// Calls everybody whose promise holds, strictly in order.
    pub(crate) fn settle(&mut self) {
        let (written, synced, ahead) = (self.written, self.synced, self.ahead);
        let holds = |w: &mut Waiting| w.sequence <= if w.synced || !ahead { synced } else { written };
        let mut ran_ahead = false;
        while let Some(waiting) = self.waiting.pop_front_if(holds) {
            ran_ahead |= waiting.append && waiting.sequence > synced;
            (waiting.done)(Ok(()));
        }
        if ran_ahead {
            self.last_ahead = Instant::now();
        }
    }
}
