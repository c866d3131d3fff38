//! What can no longer matter is forgotten after each step, so that states that differ in nothing else are one.

use crate::actions::Model;
use crate::state::{Past, Role, State, TERMS};

impl Model {
    /// Votes of campaigns that are over, and, once no power cut can come any more, what one would have taken.
    pub(crate) fn forget(&self, state: &mut State) {
        for term in 1..=TERMS as u8 {
            let campaigns = |role: Role| {
                let nodes = state.nodes().iter().filter(move |n| n.role == role && n.term == term);
                nodes.fold(0, |set, node| set | 1 << node.id)
            };
            let (candidates, leaders): (u8, u8) = (campaigns(Role::Candidate), campaigns(Role::Leader));
            let over = self.no_more_cuts(state) && leaders == 0;
            let said = state.term_mut(term);
            for id in (0..said.asked.len()).filter(|id| candidates >> id & 1 == 0) {
                (said.asked[id], said.granted[id]) = (0, 0);
            }
            if over {
                said.acked = Default::default();
            }
        }
        if self.no_more_cuts(state) {
            for node in &mut state.all {
                (node.past, node.lazy, node.clearing) = (Past::default(), false, false);
                node.synced_vote = (node.term, node.voted);
            }
        }
    }

    /// The thin regime's promise looks at marks and at what is synced, also after the last cut.
    fn no_more_cuts(&self, state: &State) -> bool {
        !self.bounds.thin && state.used.cuts == self.bounds.cuts
    }
}
