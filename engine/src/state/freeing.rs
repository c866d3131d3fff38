//! What is freed in pieces, since all tasks share a thread: the keys that ended views alone held, and
//! the references of a state that a snapshot replaced, or of a snapshot that is not installed.

use super::Shared;
use crate::group::{Entries, Keys, drop_in_pieces};
use crate::index::Remains;
use crate::io::yield_once;
use std::sync::Arc;

/// References that are given back before the task yields.
const UNLINKED_AT_ONCE: usize = 1024;

/// Something to free.
pub(crate) enum Ended {
    /// Keys that a view alone held.
    View(Remains),
    /// Keys and entries of the log, each of which has a reference to its values.
    References { keys: Keys, entries: Entries },
}

impl Shared {
    /// Leaves something to [`free_what_ended`].
    pub(crate) fn free(&self, ended: Ended) {
        let mut state = self.state.lock();
        // That task ends with the engine.
        if state.check_open().is_ok() {
            state.unlinking += usize::from(matches!(ended, Ended::References { .. }));
            state.ended.push(ended);
            drop(state);
            self.signals.freeing.notify_one();
        }
    }
}

/// Frees what ended, in pieces, until the engine is closed or fails.
pub(crate) async fn free_what_ended(shared: Arc<Shared>) {
    loop {
        let next = {
            let mut state = shared.state.lock();
            if state.check_open().is_err() {
                return;
            }
            state.ended.pop()
        };
        match next {
            Some(Ended::View(remains)) => drop_in_pieces(remains).await,
            Some(Ended::References { keys, entries }) => {
                unlink(&shared, &keys, entries).await;
                shared.state.lock().unlinking -= 1;
                shared.signals.changed.notify_waiters();
                keys.drop_in_pieces().await;
            }
            None => shared.signals.freeing.notified().await,
        }
    }
}

async fn unlink(shared: &Shared, keys: &Keys, mut entries: Entries) {
    let mut keys = keys.iter().peekable();
    while keys.peek().is_some() {
        {
            let mut state = shared.state.lock();
            if state.check_open().is_err() {
                return;
            }
            for (_, entry) in keys.by_ref().take(UNLINKED_AT_ONCE) {
                state.space.unlink(&entry.value);
            }
        }
        yield_once().await;
    }
    while !entries.is_empty() {
        {
            let mut state = shared.state.lock();
            if state.check_open().is_err() {
                return;
            }
            let popped = std::iter::from_fn(|| entries.pop_front()).take(UNLINKED_AT_ONCE);
            popped.for_each(|entry| entry.extents().for_each(|at| state.space.unlink(at)));
        }
        yield_once().await;
    }
}
