//! What must always hold. The first step that breaks one of these ends the search.

use crate::actions::Model;
use crate::log::Log;
use crate::state::{Node, Role, State, TERMS};
use std::fmt;

/// A broken property.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Violation {
    /// Two members lead one term.
    TwoLeaders,
    /// One log id stands for two contents.
    IdReused,
    /// A leader was elected without an entry that was committed before.
    LeaderLacksCommitted,
    /// An entry was committed that contradicts a committed one, or that an elected leader lacks.
    CommittedReplaced,
    /// One machine is gone, and the two others cannot commit without it.
    SurvivorsBlocked,
    /// An operator who asked some members could give a mandate, and the others go on without it.
    MandateSplits,
    /// A disk is lost, then another machine loses power, and nobody can be elected.
    SecondLossStops,
    /// The thin regime was established with one machine down, and another became forgetful.
    ThinPromiseBroken,
    /// A directory without an identity was overwritten, then a machine lost power, and a committed entry is on no disk any more.
    CommittedNowhere,
    /// Not of the protocol: a bound of the model's own representation was reached.
    ModelTooSmall,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Violation::TwoLeaders => "two leaders in one term",
            Violation::IdReused => "one log id, two contents",
            Violation::LeaderLacksCommitted => "committed entry lost (a leader lacks it)",
            Violation::CommittedReplaced => "committed entry replaced",
            Violation::SurvivorsBlocked => "two healthy machines cannot commit",
            Violation::MandateSplits => "a mandate would lead beside a majority that goes on",
            Violation::SecondLossStops => "one power cut during a replacement stops the cluster",
            Violation::ThinPromiseBroken => {
                "a second cut, after the first was survived, would stop the cluster"
            }
            Violation::CommittedNowhere => "a committed entry is on no disk any more",
            Violation::ModelTooSmall => "the model's own representation is too small for these bounds",
        })
    }
}

impl State {
    /// A member became leader of its term.
    pub(crate) fn check_elected(&mut self, id: u8, term: u8, log: Log) {
        if !matches!(self.term(term).leader, 0) && self.term(term).leader != id + 1 {
            self.break_with(Violation::TwoLeaders);
        }
        let lacking = (1..term).map(|t| self.term(t)).any(|t| !log.starts_with(t.log.prefix(t.commit)));
        if lacking {
            self.break_with(Violation::LeaderLacksCommitted);
        }
    }

    /// A leader tells a client that its log up to here is committed.
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
    /// What can be seen in the state itself.
    pub(crate) fn check_state(&self, state: &mut State) {
        if self.survivors_blocked(state) {
            state.break_with(Violation::SurvivorsBlocked);
        }
        if self.bounds.thin && self.bounds.reborn != 0 && state.used.cuts <= 1 && !self.electable(state) {
            state.break_with(Violation::SecondLossStops);
        }
        let on_a_disk = |node: &Node| node.log.starts_with(state.committed);
        if self.bounds.overwrites && !state.nodes().iter().any(on_a_disk) {
            state.break_with(Violation::CommittedNowhere);
        }
        if self.mandate_splits(state) {
            state.break_with(Violation::MandateSplits);
        }
        let forgetful = |node: &Node| !node.down && (node.lazy || node.gate != 0);
        if state.promised && state.nodes().iter().any(forgetful) {
            state.break_with(Violation::ThinPromiseBroken);
        }
    }

    /// Whether the one of some members whose log reaches furthest, and knows of no older configuration than the others, has
    /// their majority in its own, if those that recover may vote for it, while the other members are active and a majority in what was committed.
    fn mandate_splits(&self, state: &State) -> bool {
        let nodes = state.nodes();
        if !self.bounds.mandates || nodes.iter().all(|node| node.gate == 0) {
            return false;
        }
        let set = |of: &dyn Fn(&Node) -> bool| {
            nodes.iter().filter(|node| of(node)).fold(0u8, |set, node| set | 1 << node.id)
        };
        let active = set(&|node| node.is_active());
        let current = self.membership(state.committed);
        let outdated = nodes.iter().filter(|node| self.membership(node.log) != current);
        outdated.into_iter().any(|chosen| {
            let newest = self.rules.mandate_newest;
            let asked = set(&|node| {
                let older = node.log.last_membership() <= chosen.log.last_membership();
                node.log.rank() <= chosen.log.rank() && (older || !newest)
            });
            let subsets = (0..=asked).filter(|some| some & !asked == 0 && some >> chosen.id & 1 == 1);
            subsets
                .into_iter()
                .any(|some| self.is_quorum(chosen.log, some) && current.is_quorum(active & !some))
        })
    }

    /// Whether the active members can elect one of them.
    fn electable(&self, state: &State) -> bool {
        let active = || state.nodes().iter().filter(|node| node.is_active() && !node.down);
        active().any(|candidate| {
            let granting = active().filter(|node| node.log.rank() <= candidate.log.rank());
            self.is_quorum(candidate.log, granting.fold(0, |set, node| set | 1 << node.id))
        })
    }

    /// Whether, with exactly one machine lost, a leader's configuration needs more than the two others.
    fn survivors_blocked(&self, state: &State) -> bool {
        let survivors = self.bounds.voters() & !self.bounds.reborn;
        self.bounds.reborn.count_ones() == 1
            && state
                .nodes()
                .iter()
                .filter(|node| node.role == Role::Leader && survivors >> node.id & 1 == 1)
                .any(|leader| !self.membership(leader.log).is_quorum(survivors))
    }
}
