//! Drops what can no longer matter after each step, so that states that differ in nothing else
//! count once.

use crate::actions::Model;
use crate::state::{Past, Role, State, TERMS};

impl Model {
    /// Drops votes of campaigns that are over. Once no power cut can come any more, drops
    /// acknowledgements to former leaders and what a power cut would have taken.
    pub(crate) fn forget(&self, state: &mut State) {
        for term in 1..=TERMS as u8 {
            let campaigns = |role: Role| {
                let nodes = state.nodes().iter().filter(move |n| n.role == role && n.term == term);
                nodes.fold(0, |set, node| set | 1 << node.id)
            };
            let (candidates, leaders): (u8, u8) =
                (campaigns(Role::Candidate), campaigns(Role::Leader));
            let over = self.no_more_cuts(state) && leaders == 0;
            let sent = state.term_mut(term);
            for id in (0..sent.asked.len()).filter(|id| candidates >> id & 1 == 0) {
                (sent.asked[id], sent.granted[id]) = (0, 0);
            }
            if over {
                sent.acked = Default::default();
            }
        }
        if self.no_more_cuts(state) {
            for node in &mut state.all {
                (node.past, node.unsynced_acks, node.clearing) = (Past::default(), false, false);
                node.synced_vote = (node.term, node.voted);
            }
        }
    }

    /// Never with `degraded`: that promise depends on flags and on what is synced, after the last
    /// cut too.
    fn no_more_cuts(&self, state: &State) -> bool {
        !self.bounds.degraded && state.used.cuts == self.bounds.cuts
    }
}
