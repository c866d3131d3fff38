//! The gate: decides what a member may do in its state.
//!
//! What holds here: while the gate is closed the member sends nothing that counts as a promise (no
//! vote, no pre-vote), and it takes appends only from the leadership that agreed to help it
//! recover. There is one exception, and only for a while: an unsafe-recovery grant. It names one
//! boot epoch of one member; that member may campaign, and the others may vote for it alone.
//!
//! The story behind the time limit: no leader could be elected under a grant, the operator turned
//! to something else, and a missing member came back that held what the others had lost. A grant
//! without an end would still have elected a leader without that member.

use crate::core::ids::NodeId;
use crate::core::runtime;
use crate::core::types::Vote;
use cairn_engine::{BootEpoch, MemberState};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The gate of one member.
#[derive(Debug)]
pub(crate) struct Gate {
    open: AtomicBool,
    /// When a leader last sent a message.
    last_contact: Mutex<Option<runtime::Instant>>,
    closed: Mutex<Closed>,
}

/// State that is used while the gate is closed.
#[derive(Debug, Default)]
struct Closed {
    /// The leadership that agreed to help this member recover.
    recovery_leader: Option<Vote>,
    /// The last leader whose appends were refused, if it is later than `recovery_leader`.
    pending_leader: Option<(NodeId, Vote)>,
    /// The unsafe-recovery grant, and when it was given.
    unsafe_recovery: Option<(UnsafeRecovery, runtime::Instant)>,
}

/// An unsafe-recovery grant: the operator's choice of a leader after a majority may have lost
/// acknowledged entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsafeRecovery {
    /// The only member that may campaign, and that recovering members may vote for.
    pub candidate: NodeId,
    /// Its boot epoch when the operator chose it. In a later one it may have lost more.
    pub epoch: BootEpoch,
}

impl UnsafeRecovery {
    /// How long recovering members may vote by it. A leader that was elected by then stays leader.
    pub const LIFETIME: Duration = Duration::from_secs(60);
}

impl Gate {
    pub(crate) fn new(member_state: MemberState) -> Gate {
        Gate {
            open: AtomicBool::new(member_state == MemberState::Active),
            last_contact: Mutex::default(),
            closed: Mutex::default(),
        }
    }

    /// Opens the gate. The caller must have synced the state `active` before.
    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }

    /// Closes the gate; returns whether it was open. No leader has agreed yet to help with the
    /// recovery that begins now.
    pub(crate) fn close(&self) -> bool {
        let mut closed = self.closed.lock();
        let was_open = self.open.swap(false, Ordering::SeqCst);
        if was_open {
            *closed = Closed::default();
        }
        was_open
    }

    /// Whether this member may answer votes and pre-votes, campaign, and take over leadership.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst)
    }

    /// Whether this member may answer this candidate's request for a vote.
    pub(crate) fn may_vote_for(&self, candidate: NodeId, epoch: BootEpoch) -> bool {
        self.is_open() || self.unsafe_recovery() == Some(UnsafeRecovery { candidate, epoch })
    }

    /// Whether this member may ask for votes.
    pub(crate) fn may_campaign(&self, member: NodeId) -> bool {
        self.is_open() || self.unsafe_recovery().is_some_and(|grant| grant.candidate == member)
    }

    pub(crate) fn unsafe_recovery(&self) -> Option<UnsafeRecovery> {
        let given = self.closed.lock().unsafe_recovery;
        given
            .filter(|(_, at)| runtime::now() - *at < UnsafeRecovery::LIFETIME)
            .map(|(grant, _)| grant)
    }

    /// Whether an unsafe-recovery grant chose this member, even if it has expired: this says how an
    /// election was won, not whether to vote.
    pub(crate) fn was_chosen(&self, member: NodeId) -> bool {
        self.closed.lock().unsafe_recovery.is_some_and(|(grant, _)| grant.candidate == member)
    }

    /// Whether a leader sent a message within this time.
    pub(crate) fn leader_contact_within(&self, time: Duration) -> bool {
        self.last_contact.lock().is_some_and(|at| runtime::now() - at < time)
    }

    pub(crate) fn set_unsafe_recovery(&self, unsafe_recovery: UnsafeRecovery) {
        self.closed.lock().unsafe_recovery = Some((unsafe_recovery, runtime::now()));
    }

    /// Lets the grant expire.
    #[cfg(test)]
    pub(crate) fn end_unsafe_recovery(&self) {
        if let Some((_, at)) = &mut self.closed.lock().unsafe_recovery {
            *at -= UnsafeRecovery::LIFETIME;
        }
    }

    /// Whether appends and snapshots of this leadership may be taken. Records a leader that is
    /// refused.
    pub(crate) fn accepts_appends_of(&self, leader: NodeId, vote: &Vote) -> bool {
        *self.last_contact.lock() = Some(runtime::now());
        if self.is_open() {
            return true;
        }
        let mut closed = self.closed.lock();
        let accepted = closed.recovery_leader.as_ref() == Some(vote);
        // Ignore late messages of an older term: asking that leader would delay recovery.
        if closed.recovery_leader.as_ref().is_none_or(|known| known < vote) {
            closed.pending_leader = Some((leader, *vote));
        }
        accepted
    }

    /// The last leader that was refused and not yet asked for help.
    pub(crate) fn pending_leader(&self) -> Option<(NodeId, Vote)> {
        self.closed.lock().pending_leader.take()
    }

    /// This leadership lets the member's log revert, and proposes its boot-epoch record.
    pub(crate) fn set_recovery_leader(&self, vote: Vote) {
        self.closed.lock().recovery_leader = Some(vote);
    }

    /// The leadership that agreed to help this member recover.
    pub(crate) fn recovery_leader(&self) -> Option<Vote> {
        self.closed.lock().recovery_leader
    }
}
