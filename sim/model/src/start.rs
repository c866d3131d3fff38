//! Where a search begins: A leads term 1, and its blank entry is everywhere, committed and synced.
//!
//! Which machine leads first makes no difference, and elections from scratch are covered by those of the later terms.

use crate::actions::Model;
use crate::log::{Content, Entry, Log};
use crate::state::{IDS, Node, Past, Role, SLOTS, State, TERMS, Term, Used};

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
            acked: [1, 1, 1, 0, 0, 0],
            regime: if self.bounds.thin { 2 } else { 0 },
            lazy_len: 0,
            answered: 0,
            up: (1 << SLOTS) - 1,
        };
        State {
            nodes: [node(0), node(1), node(2)],
            terms: [first, Term::default(), Term::default()],
            committed: log,
            used: Used::default(),
            promised: false,
            broken: None,
        }
    }
}
