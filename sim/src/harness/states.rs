//! The states that members sent, and what judges them at the end of a run: the history of the clients, and
//! the logs of the members.

use crate::check::logs::Logs;
use cairn_clients::Violation;
use cairn_clients::check::state::{self, SentState};
use cairn_clients::history::History;
use cairn_engine::LogId;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// What members sent in this run.
#[derive(Default)]
pub(super) struct States {
    parts: AtomicU64,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    complete: Vec<SentState>,
    /// Each value that a state had: the entry that put it, and its hash.
    values: BTreeSet<(LogId, u128)>,
}

impl States {
    /// How many parts of states have arrived.
    pub(super) fn parts(&self) -> u64 {
        self.parts.load(Ordering::Relaxed)
    }

    /// Another one has arrived.
    pub(super) fn part_arrived(&self) {
        self.parts.fetch_add(1, Ordering::Relaxed);
    }

    /// How many states have arrived to their end.
    pub(super) fn complete(&self) -> usize {
        self.kept.lock().complete.len()
    }

    /// Those that have.
    pub(super) fn all(&self) -> Vec<SentState> {
        self.kept.lock().complete.clone()
    }

    /// One more has arrived to its end, with these values.
    pub(super) fn keep(&self, sent: SentState, values: impl Iterator<Item = (LogId, u128)>) {
        let mut kept = self.kept.lock();
        kept.complete.push(sent);
        kept.values.extend(values);
    }

    /// Checks them against what clients were told, and what the logs hold.
    pub(super) fn check(&self, history: &History, logs: &Logs) -> Vec<Violation> {
        let kept = self.kept.lock();
        let mut found = state::check(history, &kept.complete);
        let wrong = |(id, hash): &(LogId, u128)| logs.sent("a state", *id, Some(*hash));
        found.extend(kept.values.iter().filter_map(wrong));
        found
    }
}
