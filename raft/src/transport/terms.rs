//! Which terms a member believes.
//!
//! A term only rises, and whoever hears of a higher one takes it. One message with a term near the greatest there is, forged or
//! by a faulty member, would leave no next term to elect anybody in. So a term is taken only within [`LEAP`] of one's own: at
//! one election a millisecond that is 49 days of elections that this member missed.
//!
//! What holds here: every vote that comes from the network is looked at, in requests and in answers. A member that never
//! voted and holds no entry has no term to go by, and takes its first one from whoever leads. A forged leader may mislead such
//! a member; the others then refuse what it says, and it holds nothing that would be missed.

use crate::core::convert::BOUND;
use crate::core::error::Malformed;
use crate::core::ids::{GROUP, NodeId};
use crate::storage::log_store::stored_vote;
use cairn_engine::Engine;
use openraft::vote::RaftLeaderId;
use parking_lot::Mutex;
use std::sync::Arc;

/// How far a term may be above one's own.
const LEAP: u64 = 1 << 32;

/// Whether a term is believed by a member whose own is `own`; `None`: it never voted and holds no entry. `leads`: the sender
/// leads in that term, as it says.
fn is_believed(term: u64, own: Option<u64>, leads: bool) -> bool {
    term < BOUND && (own.is_none() && leads || term.saturating_sub(own.unwrap_or(0)) <= LEAP)
}

/// The terms of this member.
#[derive(Clone, Default)]
pub(crate) struct Terms {
    /// Of whoever has no data directory yet there is none.
    engine: Option<Engine>,
    /// Whose term was refused last, for the log, which says so once.
    refused: Arc<Mutex<Option<(NodeId, u64)>>>,
}

/// A member that sent a vote, seen from this one.
#[derive(Clone, Copy)]
pub(crate) struct Sender<'a> {
    terms: &'a Terms,
    sender: NodeId,
    leads: bool,
}

impl Terms {
    pub(crate) fn of(engine: &Engine) -> Terms {
        Terms { engine: Some(engine.clone()), refused: Arc::default() }
    }

    /// To look at what `sender` says.
    pub(crate) fn said_by(&self, sender: NodeId) -> Sender<'_> {
        Sender { terms: self, sender, leads: false }
    }

    fn own(&self) -> Option<u64> {
        let Some(engine) = &self.engine else { return Some(0) };
        let bounds = engine.log_bounds(GROUP);
        // One that cannot be read ended the start.
        let voted = stored_vote(engine).ok().flatten().map(|vote| vote.leader_id().term());
        voted.max(bounds.last.or(engine.applied(GROUP)).map(|last| last.term))
    }
}

impl Sender<'_> {
    /// The same, in a message of a leader to its follower.
    pub(crate) fn leading(self) -> Self {
        Sender { leads: true, ..self }
    }

    /// Refuses a term that no election can have led to.
    pub(crate) fn check(self, term: u64) -> Result<(), Malformed> {
        // Mostly true without a look.
        if term <= LEAP {
            return Ok(());
        }
        let own = self.terms.own();
        if is_believed(term, own, self.leads) {
            return Ok(());
        }
        let refused = Some((self.sender, term));
        if std::mem::replace(&mut *self.terms.refused.lock(), refused) != refused {
            tracing::warn!(
                sender = %self.sender, term, own,
                "a message is refused: its term is further above this member's own than elections can have led; if it was not \
                 forged, replace its sender"
            );
        }
        Err(Malformed("a term further above this member's own than elections can have led"))
    }
}

/// Says so if this member has voted in a term that its log cannot have led to: the others will not hear it any more.
pub(crate) fn warn_if_misled(engine: &Engine, node: NodeId) {
    let Some(voted) = Terms::of(engine).own() else { return };
    let logged = engine.log_bounds(GROUP).last.map_or(0, |last| last.term);
    if !is_believed(voted, Some(logged), false) {
        tracing::error!(
            %node, voted, logged,
            "this member has voted in a term that no election can have led to: it took a forged or a faulty message. Replace it: \
             stop it, give it an empty data directory (`cairn format`) and start it; it takes its place again by itself. Until \
             then the others refuse what it says, and it counts as down"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_believed_within_a_leap_of_ones_own_and_from_a_leader_by_who_has_none() {
        let (own, most) = (1000, BOUND - 1);
        // (the term, the member's own, from a leader, believed)
        let table = [
            (0, None, false, true),
            (LEAP, None, false, true),
            (LEAP + 1, None, false, false),
            (LEAP + 1, None, true, true),
            (most, None, true, true),
            (BOUND, None, true, false),
            (u64::MAX, None, true, false),
            (0, Some(own), false, true),
            (own + LEAP, Some(own), false, true),
            (own + LEAP + 1, Some(own), false, false),
            (own + LEAP + 1, Some(own), true, false),
            (LEAP + 1, Some(0), true, false),
            (most, Some(most), false, true),
            (BOUND, Some(most), false, false),
            (u64::MAX, Some(u64::MAX), true, false),
        ];
        for (term, own, leads, believed) in table {
            assert_eq!(is_believed(term, own, leads), believed, "{term}, own {own:?}, leads: {leads}");
        }
    }
}
