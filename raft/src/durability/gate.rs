//! The gate between a member and its votes.
//!
//! What holds here: while it is closed nothing that promises leaves the member, and appends pass only from the
//! leadership that admitted it. One thing opens it by a crack, and for a while: an operator who has accepted what was lost
//! names the one run of the one member that may lead, and it alone may be voted for.
//!
//! The story behind the while: nobody could be elected with a mandate, the operator saw to something else, and a missing
//! member came back that held what the others had lost. A mandate that stands for ever would still elect without it.

use crate::core::ids::NodeId;
use crate::core::runtime;
use crate::core::types::Vote;
use cairn_engine::{Run, Standing};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The gate.
#[derive(Debug)]
pub(crate) struct Gate {
    open: AtomicBool,
    /// When a leader last sent something.
    heard: Mutex<Option<runtime::Instant>>,
    closed: Mutex<Closed>,
}

/// What matters while it is closed.
#[derive(Debug, Default)]
struct Closed {
    /// The leadership that has agreed to bring this member up to date.
    admitted: Option<Vote>,
    /// The last leader whose appends were turned away, of a later leadership than the one that was admitted.
    knocked: Option<(NodeId, Vote)>,
    /// The only member that may be voted for, in the run that an operator has seen; and since when.
    mandate: Option<(Mandate, runtime::Instant)>,
}

/// An operator's choice of who leads after too many forgot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mandate {
    /// Who.
    pub candidate: NodeId,
    /// Its run, so that it cannot have forgotten more since it was chosen.
    pub run: Run,
}

impl Mandate {
    /// How long it is voted by. Whoever was elected meanwhile leads on.
    pub const LIFETIME: Duration = Duration::from_secs(60);
}

impl Gate {
    pub(crate) fn new(standing: Standing) -> Gate {
        Gate {
            open: AtomicBool::new(standing == Standing::Active),
            heard: Mutex::default(),
            closed: Mutex::default(),
        }
    }

    /// Opens it. The caller has synced before that the member is active.
    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }

    /// Closes it; whether it was open. Nobody has admitted the member yet to what it has to come back from now.
    pub(crate) fn close(&self) -> bool {
        let mut closed = self.closed.lock();
        let was_open = self.open.swap(false, Ordering::SeqCst);
        if was_open {
            *closed = Closed::default();
        }
        was_open
    }

    /// Whether votes and pre-votes may be answered, elections be entered, leadership be taken over.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst)
    }

    /// Whether this candidate's request for a vote may be answered.
    pub(crate) fn may_vote_for(&self, candidate: NodeId, run: Run) -> bool {
        self.is_open() || self.mandate() == Some(Mandate { candidate, run })
    }

    /// Whether this member may ask for votes.
    pub(crate) fn may_campaign(&self, member: NodeId) -> bool {
        self.is_open() || self.mandate().is_some_and(|mandate| mandate.candidate == member)
    }

    pub(crate) fn mandate(&self) -> Option<Mandate> {
        let given = self.closed.lock().mandate;
        given.filter(|(_, at)| runtime::now() - *at < Mandate::LIFETIME).map(|(mandate, _)| mandate)
    }

    /// Whether a mandate has named this member, be it over by now: not to vote by, but to know what an election was won by.
    pub(crate) fn named(&self, member: NodeId) -> bool {
        self.closed.lock().mandate.is_some_and(|(mandate, _)| mandate.candidate == member)
    }

    /// Whether a leader has sent something within this time.
    pub(crate) fn heard_within(&self, time: Duration) -> bool {
        self.heard.lock().is_some_and(|at| runtime::now() - at < time)
    }

    pub(crate) fn give_mandate(&self, mandate: Mandate) {
        self.closed.lock().mandate = Some((mandate, runtime::now()));
    }

    /// Its time is over.
    #[cfg(test)]
    pub(crate) fn end_mandate(&self) {
        if let Some((_, at)) = &mut self.closed.lock().mandate {
            *at -= Mandate::LIFETIME;
        }
    }

    /// Whether appends and snapshots of this leadership may be taken; takes note of one that may not.
    pub(crate) fn admits(&self, leader: NodeId, vote: &Vote) -> bool {
        *self.heard.lock() = Some(runtime::now());
        if self.is_open() {
            return true;
        }
        let mut closed = self.closed.lock();
        let admitted = closed.admitted.as_ref() == Some(vote);
        // Of an earlier leadership's late messages no note is taken: it would be asked in place of the one that helps.
        if closed.admitted.as_ref().is_none_or(|known| known < vote) {
            closed.knocked = Some((leader, *vote));
        }
        admitted
    }

    /// The last leader that was turned away and not yet asked.
    pub(crate) fn knocked(&self) -> Option<(NodeId, Vote)> {
        self.closed.lock().knocked.take()
    }

    /// This leadership lets the member's log fall back, and proposes the record of its start.
    pub(crate) fn admit(&self, vote: Vote) {
        self.closed.lock().admitted = Some(vote);
    }

    /// The leadership that has admitted this member.
    pub(crate) fn admitted(&self) -> Option<Vote> {
        self.closed.lock().admitted
    }
}
