//! The gate between a member and its votes.
//!
//! A member that may have forgotten what it acknowledged must not vote, must not tell others that it would, and must
//! not campaign, until the log has shown it everything that it can have promised. Every vote passes through the gate;
//! today each member that starts at all starts with the gate open, since a member whose machine lost power with
//! unsynced acknowledgements does not start.

use std::sync::atomic::{AtomicU8, Ordering};

/// What a member may do with its votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Everything.
    Active,
    /// It takes entries and snapshots and acknowledges them, nothing else.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "entered once recovery in place exists; its effects are tested")
    )]
    Recovering,
}

const ACTIVE: u8 = 0;
const RECOVERING: u8 = 1;

/// The gate.
#[derive(Debug)]
pub(crate) struct Gate(AtomicU8);

impl Gate {
    pub(crate) fn new(state: State) -> Gate {
        let gate = Gate(AtomicU8::new(RECOVERING));
        gate.set(state);
        gate
    }

    /// Changes the state. The caller has synced the change before.
    pub(crate) fn set(&self, state: State) {
        let number = match state {
            State::Active => ACTIVE,
            State::Recovering => RECOVERING,
        };
        self.0.store(number, Ordering::SeqCst);
    }

    /// Whether votes and pre-votes may be answered, elections be entered, leadership be taken over.
    pub(crate) fn is_open(&self) -> bool {
        self.0.load(Ordering::SeqCst) == ACTIVE
    }
}
