//! Compaction: moves the tails of values out of sparse blocks, so that whole blocks come back.
//!
//! Tails of values share blocks, and a block is free only when its last tail dies. Where values die
//! one by one, blocks stay in use for a few live bytes. This task empties the sparsest ones: it
//! reads their values, checks them, and puts their tails together elsewhere. The journal records
//! each move in the group commit that writes the tail (see `state/moves.rs`).
//!
//! What holds here:
//! - A value that does not match its hash does not move: its block stays as it is for repair.
//! - Syncs drive it, and no clock: what it frees is free after syncs, and what may be moved until
//!   the next one is bounded.
//! - Foreground work goes first: a round is small, and waits until the queue is.

mod choose;
mod policy;
mod round;

use crate::state::Shared;
use choose::{SparseBlock, choose};
use policy::Room;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// After a search that led to nothing, the next one waits for so many syncs, unless much more could
/// be gained by then.
const WAIT_SYNCS: u32 = 32;
/// A search led to nothing if fewer than this part of the blocks that it found were emptied.
const FRUITFUL_PART: usize = 8;

/// The task.
pub(crate) struct Compactor {
    shared: Arc<Shared>,
    /// Blocks to empty, the sparsest first.
    plan: VecDeque<SparseBlock>,
    /// Bytes that may be moved until the next sync.
    allowed: u64,
    /// What the counter of written bytes was at the last sync.
    written: u64,
    /// The last search led to nothing: syncs until the next, and what seemed possible.
    fruitless: Option<(u32, u64)>,
    /// How many blocks the last search found, and how many of them were emptied.
    outcome: (usize, usize),
}

impl Compactor {
    pub(crate) fn new(shared: Arc<Shared>) -> Compactor {
        let plan = VecDeque::new();
        Compactor { shared, plan, allowed: 0, written: 0, fruitless: None, outcome: (0, 0) }
    }

    /// Runs until the engine is closed or fails.
    pub(crate) async fn run(mut self) {
        loop {
            self.shared.signals.compactor.notified().await;
            if self.shared.state.lock().check_open().is_err() {
                return;
            }
            let written = self.shared.counters.device_bytes.load(Ordering::Relaxed);
            let since = written.saturating_sub(std::mem::replace(&mut self.written, written));
            self.allowed = self.room().allow(self.allowed, since);
            if let Some((syncs, _)) = &mut self.fruitless {
                *syncs = syncs.saturating_sub(1);
            }
            while self.allowed > 0 && self.is_due() {
                if self.plan.is_empty() {
                    self.search().await;
                }
                if self.plan.is_empty() || round::wait_for_quiet(&self.shared).await.is_err() {
                    break;
                }
                self.round().await;
            }
        }
    }

    fn room(&self) -> Room {
        let space = &self.shared.state.lock().space;
        Room { free: space.writable_bytes(), area: space.capacity_bytes() }
    }

    /// Whether there is enough to gain, and blocks for it.
    fn is_due(&mut self) -> bool {
        let room = self.room();
        let space = &self.shared.state.lock().space;
        let gain = space.sparse_bytes(room.limit());
        if space.lendable() <= space.lendable_at_most() / 4 || !room.is_worth(gain) {
            return false;
        }
        let waits = |(syncs, before): (u32, u64)| syncs > 0 && gain < before + before / 4;
        if self.fruitless.is_some_and(waits) {
            return false;
        }
        self.fruitless = None;
        true
    }

    async fn search(&mut self) {
        let limit = self.room().limit();
        let gain = self.shared.state.lock().space.sparse_bytes(limit);
        let (planned, emptied) = std::mem::take(&mut self.outcome);
        if planned <= emptied.saturating_mul(FRUITFUL_PART) {
            self.plan = choose(&self.shared, limit).await;
            self.outcome = (self.plan.len(), 0);
        }
        if self.plan.is_empty() {
            self.fruitless = Some((WAIT_SYNCS, gain));
        }
    }
}
