//! The properties that must always hold. The first step that breaks one ends the search.

use crate::actions::Model;
use crate::log::Log;
use crate::state::{Node, Role, State, TERMS};
use crate::violation::Violation;

impl State {
    /// Checks a member that becomes leader of its term.
    pub(crate) fn check_elected(&mut self, id: u8, term: u8, log: Log) {
        if !matches!(self.term(term).leader, 0) && self.term(term).leader != id + 1 {
            self.break_with(Violation::TwoLeaders);
        }
        let lacking =
            (1..term).map(|t| self.term(t)).any(|t| !log.starts_with(t.log.prefix(t.commit)));
        if lacking {
            self.break_with(Violation::LeaderLacksCommitted);
        }
    }

    /// Checks a log that a leader reports to a client as committed.
    pub(crate) fn check_committed(&mut self, term: u8, log: Log) {
        let lacking = (term + 1..=TERMS as u8).any(|later| {
            self.term(later).leader != 0 && !self.term(later).elected_with(later).starts_with(log)
        });
        if lacking {
            self.break_with(Violation::LeaderLacksCommitted);
        }
        if log.starts_with(self.committed) {
            self.committed = log;
        } else if !self.committed.starts_with(log) {
            self.break_with(Violation::CommittedReplaced);
        }
    }

    pub(crate) fn break_with(&mut self, violation: Violation) {
        self.broken.get_or_insert(violation);
    }
}

impl Model {
    /// Checks the properties that the state itself shows.
    pub(crate) fn check_state(&self, state: &mut State) {
        if self.survivors_blocked(state) {
            state.break_with(Violation::SurvivorsBlocked);
        }
        if self.bounds.degraded
            && self.bounds.replacement != 0
            && state.used.cuts <= 1
            && !self.electable(state)
        {
            state.break_with(Violation::SecondLossStops);
        }
        let on_a_disk = |node: &Node| node.log.starts_with(state.committed);
        if self.bounds.overwrites && !state.nodes().iter().any(on_a_disk) {
            state.break_with(Violation::CommittedNowhere);
        }
        if self.unsafe_recovery_splits(state) {
            state.break_with(Violation::UnsafeRecoverySplits);
        }
        let few = |node: &Node| {
            let now = self.membership(node.log);
            node.gate != 0 && now.is_few() && now.stays(node.id)
        };
        if self.bounds.shrinks && state.nodes().iter().any(few) {
            state.break_with(Violation::FewCannotTell);
        }
        let breaks_promise = |node: &Node| !node.down && (node.unsynced_acks || node.gate != 0);
        if state.promised && state.nodes().iter().any(breaks_promise) {
            state.break_with(Violation::DegradedPromiseBroken);
        }
    }

    /// Whether an unsafe recovery could make a second cluster: a member with an outdated
    /// configuration is elected, and the others continue. The candidate has the most up-to-date log
    /// of the members that the operator asked, and (by the rule) none of them has a newer
    /// configuration. They are a quorum of the candidate's configuration, since recovering members
    /// may vote for it too. The other active members are a quorum of the committed configuration.
    fn unsafe_recovery_splits(&self, state: &State) -> bool {
        let nodes = state.nodes();
        if !self.bounds.unsafe_recovery_grants || nodes.iter().all(|node| node.gate == 0) {
            return false;
        }
        let set = |of: &dyn Fn(&Node) -> bool| {
            nodes.iter().filter(|node| of(node)).fold(0u8, |set, node| set | 1 << node.id)
        };
        let active = set(&|node| node.is_active());
        let current = self.membership(state.committed);
        let outdated = nodes.iter().filter(|node| self.membership(node.log) != current);
        outdated.into_iter().any(|chosen| {
            let newest = self.rules.unsafe_recovery_newest;
            let asked = set(&|node| {
                let not_newer = node.log.last_membership() <= chosen.log.last_membership();
                node.log.rank() <= chosen.log.rank() && (not_newer || !newest)
            });
            let subsets =
                (0..=asked).filter(|some| some & !asked == 0 && some >> chosen.id & 1 == 1);
            subsets
                .into_iter()
                .any(|some| self.is_quorum(chosen.log, some) && current.is_quorum(active & !some))
        })
    }

    /// Whether the active members can elect one of themselves.
    fn electable(&self, state: &State) -> bool {
        let active = || state.nodes().iter().filter(|node| node.is_active() && !node.down);
        active().any(|candidate| {
            let granting = active().filter(|node| node.log.rank() <= candidate.log.rank());
            self.is_quorum(candidate.log, granting.fold(0, |set, node| set | 1 << node.id))
        })
    }

    /// Whether a leader's configuration needs more than the two other machines when exactly one is
    /// lost.
    fn survivors_blocked(&self, state: &State) -> bool {
        let survivors = self.bounds.voters() & !self.bounds.replacement;
        self.bounds.replacement.count_ones() == 1
            && state
                .nodes()
                .iter()
                .filter(|node| node.role == Role::Leader && survivors >> node.id & 1 == 1)
                .any(|leader| !self.membership(leader.log).is_quorum(survivors))
    }
}
