//! The gate between a member and its votes.
//!
//! What holds here: while it is closed nothing that promises leaves the member, and appends pass only from the
//! leadership that admitted it.

use crate::ids::NodeId;
use crate::types::Vote;
use cairn_engine::Standing;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The gate.
#[derive(Debug)]
pub(crate) struct Gate {
    open: AtomicBool,
    closed: Mutex<Closed>,
}

/// What matters while it is closed.
#[derive(Debug, Default)]
struct Closed {
    /// The leadership that has agreed to bring this member up to date.
    admitted: Option<Vote>,
    /// The last leader whose appends were turned away.
    knocked: Option<(NodeId, Vote)>,
}

impl Gate {
    pub(crate) fn new(standing: Standing) -> Gate {
        Gate { open: AtomicBool::new(standing == Standing::Active), closed: Mutex::default() }
    }

    /// Opens it. The caller has synced before that the member is active.
    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }

    /// Whether votes and pre-votes may be answered, elections be entered, leadership be taken over.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst)
    }

    /// Whether appends and snapshots of this leadership may be taken; takes note of one that may not.
    pub(crate) fn admits(&self, leader: NodeId, vote: &Vote) -> bool {
        if self.is_open() {
            return true;
        }
        let mut closed = self.closed.lock();
        let admitted = closed.admitted.as_ref() == Some(vote);
        if !admitted {
            closed.knocked = Some((leader, *vote));
        }
        admitted
    }

    /// The last leader that was turned away and not yet asked.
    pub(crate) fn knocked(&self) -> Option<(NodeId, Vote)> {
        self.closed.lock().knocked.take()
    }

    /// This leadership lets the member's log fall back, and has proposed its mark.
    pub(crate) fn admit(&self, vote: Vote) {
        self.closed.lock().admitted = Some(vote);
    }

    /// The leadership that has admitted this member.
    pub(crate) fn admitted(&self) -> Option<Vote> {
        self.closed.lock().admitted
    }

    #[cfg(test)]
    pub(crate) fn close(&self) {
        self.open.store(false, Ordering::SeqCst);
    }
}
