//! Which terms a member accepts.
//!
//! A term only rises, and a member that sees a higher one adopts it. One message with a term near
//! the greatest possible, forged or sent by a faulty member, would leave no next term for an
//! election. So a member accepts a term only within [`MAX_TERM_JUMP`] of its own: at one election a
//! millisecond that is 49 days of elections that it missed.
//!
//! What holds here: every vote from the network is checked, in requests and in answers. A member
//! that never voted and holds no entry has no term to compare with, and takes its first one from
//! the leader that sends to it. A forged leader may mislead such a member; the others then refuse
//! its messages, and it holds nothing that would be missed.
//!
//! The story: three votes, each within the jump of the last, put the members' terms so far apart that
//! each refused the others for ever. So a member without a leader *approaches* a term that it
//! refuses: it takes the highest term that it accepts, as a vote for nobody. Members that need one
//! another meet after as many steps as there were jumps. One far term ends nothing nevertheless:
//! nobody approaches it under a leader, nor a leader that a quorum answers, and a step takes two
//! election timeouts.

use crate::core::convert::BOUND;
use crate::core::error::Malformed;
use crate::core::ids::{GROUP, NodeId};
use crate::core::types::Vote;
use crate::storage::log_store::stored_vote;
use cairn_engine::Engine;
use openraft::vote::RaftLeaderId;
use parking_lot::Mutex;
use std::sync::Arc;

/// How far a term may be above a member's own.
const MAX_TERM_JUMP: u64 = 1 << 32;

/// Whether a member whose own term is `own` accepts the term; `None`: it never voted and holds no
/// entry. `leads`: the sender claims to lead in that term.
fn is_accepted(term: u64, own: Option<u64>, leads: bool) -> bool {
    term < BOUND
        && (own.is_none() && leads || term.saturating_sub(own.unwrap_or(0)) <= MAX_TERM_JUMP)
}

/// The terms of this member.
#[derive(Clone, Default)]
pub(crate) struct Terms {
    /// `None` for a node without a data directory.
    engine: Option<Engine>,
    /// The sender and term that were refused last, so that each is logged once.
    refused: Arc<Mutex<Option<(NodeId, u64)>>>,
    /// The term that was refused last, until it is approached.
    approached: Arc<Mutex<Option<u64>>>,
}

/// The sender of a vote, as this member checks it.
#[derive(Clone, Copy)]
pub(crate) struct Sender<'a> {
    terms: &'a Terms,
    sender: NodeId,
    leads: bool,
}

impl Terms {
    pub(crate) fn of(engine: &Engine) -> Terms {
        Terms { engine: Some(engine.clone()), ..Terms::default() }
    }

    /// For checking the votes that `sender` sends.
    pub(crate) fn votes_from(&self, sender: NodeId) -> Sender<'_> {
        Sender { terms: self, sender, leads: false }
    }

    /// If a message was refused since the last call: the vote with which this member comes nearer to
    /// the message's term.
    pub(crate) fn approach(&self) -> Option<Vote> {
        let refused = self.approached.lock().take()?;
        let own = self.own()?;
        let far = refused < BOUND && !is_accepted(refused, Some(own), false);
        far.then(|| Vote::new(own + MAX_TERM_JUMP, NodeId::from_u64(0)))
    }

    fn own(&self) -> Option<u64> {
        let Some(engine) = &self.engine else { return Some(0) };
        let bounds = engine.log_bounds(GROUP);
        // A stored vote that cannot be read has already failed the start.
        let voted = stored_vote(engine).ok().flatten().map(|vote| vote.leader_id().term());
        voted.max(bounds.last.or(engine.applied(GROUP)).map(|last| last.term))
    }
}

impl Sender<'_> {
    /// The same, for a message from a leader to its follower.
    pub(crate) fn leading(self) -> Self {
        Sender { leads: true, ..self }
    }

    /// Refuses a term that elections cannot have reached.
    pub(crate) fn check(self, term: u64) -> Result<(), Malformed> {
        // Fast path: a small term is accepted whatever the own one is.
        if term <= MAX_TERM_JUMP {
            return Ok(());
        }
        let own = self.terms.own();
        if is_accepted(term, own, self.leads) {
            return Ok(());
        }
        *self.terms.approached.lock() = Some(term);
        let refused = Some((self.sender, term));
        if std::mem::replace(&mut *self.terms.refused.lock(), refused) != refused {
            tracing::warn!(
                sender = %self.sender, term, own,
                "refused a message: its term is further above this member's own than elections can have led. If the others \
                 have a leader, replace the sender; if they have none, wait: members approach one another's terms"
            );
        }
        Err(Malformed("a term further above this member's own than elections can have led"))
    }
}

/// Logs an error if this member voted in a term that elections cannot have reached from its log:
/// the others then refuse its messages.
pub(crate) fn warn_if_misled(engine: &Engine, node: NodeId) {
    let Some(voted) = Terms::of(engine).own() else { return };
    let logged = engine.log_bounds(GROUP).last.map_or(0, |last| last.term);
    if !is_accepted(voted, Some(logged), false) {
        tracing::error!(
            %node, voted, logged,
            "this member has voted in a term that no election can have led to: it took a forged or a faulty message. While the \
             others have a leader they refuse its messages, and it counts as down. Then replace it: stop it, give it an empty \
             data directory (`cairn format`) and start it; it rejoins without an operator. While nobody leads, leave it as it \
             is: the others approach its term"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_accepted_within_the_jump_above_the_own_one_or_from_a_leader_if_there_is_none() {
        let (own, most) = (1000, BOUND - 1);
        // (the term, the member's own, from a leader, accepted)
        let table = [
            (0, None, false, true),
            (MAX_TERM_JUMP, None, false, true),
            (MAX_TERM_JUMP + 1, None, false, false),
            (MAX_TERM_JUMP + 1, None, true, true),
            (most, None, true, true),
            (BOUND, None, true, false),
            (u64::MAX, None, true, false),
            (0, Some(own), false, true),
            (own + MAX_TERM_JUMP, Some(own), false, true),
            (own + MAX_TERM_JUMP + 1, Some(own), false, false),
            (own + MAX_TERM_JUMP + 1, Some(own), true, false),
            (MAX_TERM_JUMP + 1, Some(0), true, false),
            (most, Some(most), false, true),
            (BOUND, Some(most), false, false),
            (u64::MAX, Some(u64::MAX), true, false),
        ];
        for (term, own, leads, accepted) in table {
            assert_eq!(
                is_accepted(term, own, leads),
                accepted,
                "{term}, own {own:?}, leads: {leads}"
            );
        }
    }
}
