//! Where a search begins: A leads term 1, and its blank entry is everywhere, committed and synced.
//!
//! Which machine leads first makes no difference, and elections from scratch are covered by those of the later terms.

use crate::actions::Model;
use crate::log::{Content, Entry, Log};
use crate::state::{IDS, Node, Past, REBORN, Role, State, TERMS, Term, Used};
use crate::steps::up;

impl Model {
    /// The first state. Without marks as a subject every member carries its mark from the start.
    pub(crate) fn start(&self) -> State {
        let log = Log::default().pushed(Entry::new(1, Content::Blank));
        let lazy = !self.bounds.marks;
        let node = |slot: u8| Node {
            id: slot,
            term: 1,
            voted: 1,
            synced_vote: (1, 1),
            role: if slot == 0 { Role::Leader } else { Role::Follower },
            log,
            past: Past::default(),
            gate: 0,
            starts: 0,
            joining: false,
            lazy,
            clearing: false,
            down: false,
            regime: [0; TERMS],
        };
        let first = Term {
            leader: 1,
            log,
            commit: 1,
            asked: [0; IDS],
            granted: [0; IDS],
            acked: std::array::from_fn(|id| u8::from(id < self.bounds.members as usize)),
            regime: if self.bounds.thin { 2 } else { 0 },
            lazy_len: 0,
            answered: 0,
            up: self.bounds.voters(),
        };
        let mut state = State {
            all: [node(0), node(1), node(2), node(3), node(4)],
            members: self.bounds.members + self.bounds.reborn.count_ones() as u8,
            terms: [first, Term::default(), Term::default()],
            committed: log,
            used: Used::default(),
            promised: false,
            broken: None,
        };
        let reborn = (0..REBORN).filter(|slot| self.bounds.reborn >> slot & 1 == 1);
        for (slot, blank) in reborn.zip(&mut state.all[REBORN as usize..]) {
            *blank = Node {
                id: slot + REBORN,
                role: Role::Follower,
                log: Log::default(),
                joining: !self.rules.joining_recovers,
                lazy: false,
                ..*blank
            };
            blank.set_vote(0, 0);
        }
        if self.bounds.half_made {
            begin_replacement(&mut state);
        }
        if self.bounds.half_made && self.bounds.thin {
            be_thin(&mut state);
        }
        if self.bounds.deposed {
            depose(&mut state);
        }
        state
    }
}

/// A and B have committed the joint configuration in which C is replaced; the new C has learned all of it, C nothing.
fn begin_replacement(state: &mut State) {
    let joint = state.committed.pushed(Entry::new(1, Content::Joint(2)));
    for at in [0, 1, 3] {
        let node = &mut state.all[at];
        node.log = joint;
        node.set_vote(1, 1);
        let id = node.id;
        state.term_mut(1).acked[id as usize] = joint.len();
    }
    let said = state.term_mut(1);
    (said.log, said.commit) = (joint, joint.len());
    state.committed = joint;
}

/// The old C's disk is lost. The others know that it is gone, have synced everything, and their marks are clear.
fn be_thin(state: &mut State) {
    for node in &mut state.all {
        (node.lazy, node.regime[0]) = (false, 1);
    }
    state.all[2].down = true;
    let up = up(state);
    let said = state.term_mut(1);
    (said.regime, said.up) = (1, up);
}

/// C, elected by D and E, leads term 2 and has written its first entry.
fn depose(state: &mut State) {
    const C: u8 = 2;
    for node in &mut state.all[C as usize..] {
        node.set_vote(2, C + 1);
    }
    let leader = &mut state.all[C as usize];
    let rank = leader.log.rank();
    leader.role = Role::Leader;
    leader.log = leader.log.pushed(Entry::new(2, Content::Blank));
    let log = leader.log;
    let said = state.term_mut(2);
    (said.leader, said.log) = (C + 1, log);
    said.asked[C as usize] = rank;
    said.granted[C as usize] = 0b11100;
    said.acked[C as usize] = log.len();
}
