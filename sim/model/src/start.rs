//! The first state of a search: A leads term 1, and its blank entry is on every member, committed
//! and synced.
//!
//! It makes no difference which machine leads first. The elections of later terms cover an election
//! from scratch.

use crate::actions::Model;
use crate::log::{Content, Entry, Log};
use crate::state::{IDS, Node, Past, REPLACEMENT, Role, State, TERMS, Term, Used};
use crate::steps::up;

impl Model {
    /// The first state. Unless the search covers the unsynced-ack flag, it is set on every member.
    pub(crate) fn start(&self) -> State {
        let log = Log::default().pushed(Entry::new(1, Content::Blank));
        let unsynced_acks = !self.bounds.flags;
        let node = |slot: u8| Node {
            id: slot,
            term: 1,
            voted: 1,
            synced_vote: (1, 1),
            role: if slot == 0 { Role::Leader } else { Role::Follower },
            log,
            past: Past::default(),
            gate: 0,
            recoveries: 0,
            joining: false,
            unsynced_acks,
            clearing: false,
            down: false,
            ack_mode: [0; TERMS],
        };
        let first = Term {
            leader: 1,
            log,
            commit: 1,
            asked: [0; IDS],
            granted: [0; IDS],
            acked: std::array::from_fn(|id| u8::from(id < self.bounds.members as usize)),
            ack_mode: if self.bounds.degraded { 2 } else { 0 },
            fast_len: 0,
            answered: 0,
            up: self.bounds.voters(),
        };
        let mut state = State {
            all: [node(0), node(1), node(2), node(3), node(4)],
            members: self.bounds.members + self.bounds.replacement.count_ones() as u8,
            terms: [first, Term::default(), Term::default()],
            committed: log,
            used: Used::default(),
            promised: false,
            broken: None,
        };
        let replacement = (0..REPLACEMENT).filter(|slot| self.bounds.replacement >> slot & 1 == 1);
        for (slot, blank) in replacement.zip(&mut state.all[REPLACEMENT as usize..]) {
            *blank = Node {
                id: slot + REPLACEMENT,
                role: Role::Follower,
                log: Log::default(),
                joining: !self.rules.joining_recovers,
                unsynced_acks: false,
                ..*blank
            };
            blank.set_vote(0, 0);
        }
        if self.bounds.half_made {
            begin_replacement(&mut state);
        }
        if self.bounds.half_made && self.bounds.degraded {
            begin_safe_mode(&mut state);
        }
        if self.bounds.deposed {
            depose(&mut state);
        }
        state
    }
}

/// A and B have committed the joint configuration that replaces C. The new C has received it,
/// the old C has not.
fn begin_replacement(state: &mut State) {
    let joint = state.committed.pushed(Entry::new(1, Content::Joint(2)));
    for at in [0, 1, 3] {
        let node = &mut state.all[at];
        node.log = joint;
        node.set_vote(1, 1);
        let id = node.id;
        state.term_mut(1).acked[id as usize] = joint.len();
    }
    let sent = state.term_mut(1);
    (sent.log, sent.commit) = (joint, joint.len());
    state.committed = joint;
}

/// The old C's disk is lost. The others know it, have synced everything, and their flags are clear.
fn begin_safe_mode(state: &mut State) {
    for node in &mut state.all {
        (node.unsynced_acks, node.ack_mode[0]) = (false, 1);
    }
    state.all[2].down = true;
    let up = up(state);
    let sent = state.term_mut(1);
    (sent.ack_mode, sent.up) = (1, up);
}

/// D and E have elected C leader of term 2, and C has written its first entry.
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
    let sent = state.term_mut(2);
    (sent.leader, sent.log) = (C + 1, log);
    sent.asked[C as usize] = rank;
    sent.granted[C as usize] = 0b11100;
    sent.acked[C as usize] = log.len();
}
