//! What an action does to the state.

use crate::actions::{Ack, Action, Model};
use crate::log::{Content, Entry, Log};
use crate::properties::Violation;
use crate::state::{Node, Past, Role, State, TERMS};

impl Model {
    /// The state after an action that is possible in this one.
    pub(crate) fn step(&self, before: &State, action: Action) -> State {
        let mut state = *before;
        match action {
            Action::Campaign { at } => self.campaign(&mut state, at),
            Action::Grant { at, term, candidate } => self.grant(&mut state, at, term, candidate),
            Action::Elect { at } => self.elect(&mut state, at),
            Action::Propose { at, content, ack } => self.propose(&mut state, at, content, ack),
            Action::SyncOwn { at } => {
                state.all[at].sync();
                acknowledge_own(&mut state, at);
            }
            Action::Append { at, term, ack } => self.append(&mut state, at, term, ack),
            Action::Known { at, term, ack } => self.known(&mut state, at, term, ack),
            Action::Commit { at } => self.commit(&mut state, at),
            Action::Leave { at } => state.all[at].gate = 0,
            Action::Join { at } => state.all[at].joining = false,
            Action::Clear { at } => self.clear(&mut state.all[at]),
            Action::ClearBegin { at } => {
                state.all[at].sync();
                state.all[at].clearing = true;
            }
            Action::ClearEnd { at } => {
                state.all[at].clearing = false;
                state.all[at].lazy = false;
            }
            Action::PowerCut { at, log, vote_kept } => self.power_cut(&mut state, at, log, vote_kept),
            Action::CutThenKill { at, log } => {
                self.power_cut(&mut state, at, log, true);
                state.all[at].gate = before.all[at].gate;
            }
            Action::Kill { at, keep } => self.kill(&mut state, at, keep),
            Action::LoseDisk { at } => self.lose_disk(&mut state, at),
            Action::LoseIdentity { at } => state.all[at].down = true,
            Action::Overwrite { at } => {
                let node = &mut state.all[at];
                (node.log, node.past) = (Log::default(), Past::default());
            }
            Action::StartCopy { at } => {
                state.used.copies += 1;
                state.all[at] = Node { starts: state.all[at].starts, ..self.start().all[at] };
            }
            Action::GoDown { at } => state.all[at].down = true,
            Action::SwitchRegime { at } => switch_regime(&mut state, at),
            Action::Confirm { at, term } => self.confirm(&mut state, at, term),
        }
        self.check_state(&mut state);
        self.forget(&mut state);
        state
    }

    fn campaign(&self, state: &mut State, at: usize) {
        let node = &mut state.all[at];
        let (id, rank) = (node.id, node.log.rank());
        node.set_vote(node.term + 1, id + 1);
        node.role = Role::Candidate;
        let said = state.term_mut(state.all[at].term);
        said.asked[id as usize] = rank;
        said.granted[id as usize] |= 1 << id;
    }

    fn grant(&self, state: &mut State, at: usize, term: u8, candidate: u8) {
        let node = &mut state.all[at];
        if self.rules.vote_synced {
            node.set_vote(term, candidate + 1);
        } else {
            (node.term, node.voted) = (term, candidate + 1);
        }
        node.role = Role::Follower;
        let id = node.id;
        state.term_mut(term).granted[candidate as usize] |= 1 << id;
    }

    fn elect(&self, state: &mut State, at: usize) {
        let Node { id, term, log, .. } = state.all[at];
        state.check_elected(id, term, log);
        state.all[at].role = Role::Leader;
        let said = state.term_mut(term);
        said.leader = id + 1;
        said.log = log;
        if self.bounds.thin {
            said.regime = if self.rules.new_leader_thin { 1 } else { 2 };
            let up = up(state);
            state.term_mut(term).up = up;
        }
        if self.rules.first_append_synced {
            self.lead(state, at, Content::Blank, Ack::None);
            state.all[at].sync();
            acknowledge_own(state, at);
        } else {
            self.lead(state, at, Content::Blank, Ack::Lazy);
        }
    }

    fn propose(&self, state: &mut State, at: usize, content: Content, ack: Ack) {
        if let Content::Value(_) = content {
            state.used.values += 1;
        }
        self.lead(state, at, content, ack);
    }

    /// The leader writes an entry and sends it.
    fn lead(&self, state: &mut State, at: usize, content: Content, ack: Ack) {
        let node = state.all[at];
        let log = node.log.pushed(Entry::new(node.term, content));
        write(state, at, log);
        let said = state.term_mut(node.term);
        if said.log.starts_with(log) {
            // A leader that resumed its term says again what it said.
        } else if log.starts_with(said.log) {
            said.log = log;
        } else {
            state.break_with(Violation::IdReused);
        }
        if ack == Ack::Lazy {
            let acked = state.term(node.term).acked[node.id as usize];
            if self.synced_first(log, acked + 1) {
                state.all[at].sync();
            } else if self.rules.leader_marks_own_ack {
                self.mark(&mut state.all[at]);
            }
            acknowledge_own(state, at);
        }
    }

    fn append(&self, state: &mut State, at: usize, term: u8, ack: Ack) {
        self.hear(&mut state.all[at], term, ack);
        let said = state.term(term).log;
        let known = state.all[at].log.common(said);
        let acked = state.term(term).acked[state.all[at].id as usize];
        write(state, at, said.prefix(known + 1));
        let node = &mut state.all[at];
        match ack {
            Ack::None => {}
            Ack::Lazy if self.synced_first(said.prefix(known + 1), acked + 1) => node.sync(),
            Ack::Lazy => self.mark(node),
            Ack::Synced => node.sync(),
        }
        if ack != Ack::None {
            acknowledge(state, at, term, known + 1);
        }
        self.note_regime(state, at, term, ack);
    }

    fn known(&self, state: &mut State, at: usize, term: u8, ack: Ack) {
        self.hear(&mut state.all[at], term, ack);
        let said = *state.term(term);
        let node = &mut state.all[at];
        let known = node.log.common(said.log);
        if ack == Ack::Synced || self.synced_first(said.log.prefix(known), said.acked[node.id as usize] + 1) {
            node.sync();
        } else if self.rules.known_entries_wait {
            self.mark(node);
        }
        acknowledge(state, at, term, known);
        self.note_regime(state, at, term, ack);
    }

    /// Whether an acknowledgement of a log from this index on has to wait for a sync, whatever the regime.
    fn synced_first(&self, log: Log, from: u8) -> bool {
        self.rules.membership_synced && (from..=log.len()).any(|i| log.get(i).content().is_membership())
    }

    /// A member that acknowledges lazily in a lazy regime has heard of it.
    fn note_regime(&self, state: &mut State, at: usize, term: u8, ack: Ack) {
        let regime = state.term(term).regime;
        if ack == Ack::Lazy && regime.is_multiple_of(2) {
            state.all[at].regime[term as usize - 1] = regime;
        }
    }

    /// A message of a term's leader: the term counts from here on.
    fn hear(&self, node: &mut Node, term: u8, ack: Ack) {
        if term > node.term {
            if self.rules.first_append_synced || ack == Ack::Synced {
                node.set_vote(term, 0);
            } else {
                (node.term, node.voted) = (term, 0);
            }
        }
        node.role = Role::Follower;
    }

    fn mark(&self, node: &mut Node) {
        if self.rules.mark_before_ack {
            node.lazy = true;
        }
    }

    fn commit(&self, state: &mut State, at: usize) {
        let node = state.all[at];
        let said = state.term_mut(node.term);
        if let Some(index) = self.commit_index(&node, said) {
            said.commit = index;
            state.check_committed(node.term, node.log.prefix(index));
        }
    }

    fn clear(&self, node: &mut Node) {
        if self.rules.cleared_after_sync {
            node.sync();
        }
        node.lazy = false;
    }

    fn power_cut(&self, state: &mut State, at: usize, log: Log, vote_kept: bool) {
        state.used.cuts += 1;
        let node = &mut state.all[at];
        node.log = log;
        node.sync();
        if vote_kept {
            node.synced_vote = (node.term, node.voted);
        } else {
            (node.term, node.voted) = node.synced_vote;
        }
        let learner = !self.membership(log).contains(node.id);
        let stays = node.joining || learner && !self.rules.learner_recovers;
        let forgetful = node.lazy && !stays;
        if node.gate != 0 || forgetful && self.rules.lost_tail_recovers {
            self.recover(node);
        }
        self.restart(state, at);
    }

    fn recover(&self, node: &mut Node) {
        node.starts += 1;
        node.gate = if self.rules.fresh_nonce { node.starts } else { 1 };
    }

    fn kill(&self, state: &mut State, at: usize, keep: u8) {
        state.used.kills += 1;
        let node = &mut state.all[at];
        let led = node.role == Role::Leader;
        node.log = node.log.prefix(keep);
        if node.gate != 0 {
            if self.rules.stays_recovering {
                self.recover(node);
            } else {
                node.gate = 0;
            }
        }
        self.restart(state, at);
        if led && !self.rules.no_restore_in_term {
            state.all[at].role = Role::Leader;
        }
    }

    fn restart(&self, state: &mut State, at: usize) {
        let regimes = state.terms.map(|term| term.regime);
        let node = &mut state.all[at];
        node.role = Role::Follower;
        node.clearing = false;
        node.regime = if self.rules.restart_fences_appends { regimes } else { [0; TERMS] };
    }

    /// Without the rules of rebirth: the machine goes on under its identity, with nothing left.
    fn lose_disk(&self, state: &mut State, at: usize) {
        state.used.losses += 1;
        let node = &mut state.all[at];
        (node.log, node.past) = (Log::default(), Past::default());
        node.set_vote(0, 0);
        node.lazy = false;
        node.gate = 0;
        if self.bounds.losses_recover {
            self.recover(node);
        }
        self.restart(state, at);
    }

    /// A member answers in the thin regime: everything synced, the mark clear.
    fn confirm(&self, state: &mut State, at: usize, term: u8) {
        let regime = state.term(term).regime;
        let known = state.all[at].log.common(state.term(term).log);
        let id = state.all[at].id;
        let leads = state.term(term).leader == id + 1;
        if !leads {
            self.hear(&mut state.all[at], term, Ack::Synced);
        }
        let node = &mut state.all[at];
        node.regime[term as usize - 1] = regime;
        if self.rules.thin_syncs {
            node.sync();
            node.lazy = false;
            acknowledge(state, at, term, known);
        }
        let said = state.term_mut(term);
        said.answered |= 1 << id;
        let (answered, up) = (said.answered, said.up);
        let led = state.nodes().iter().any(|n| n.role == Role::Leader && n.term == term && !n.down);
        if led && self.bounds.reborn == 0 && up != self.bounds.voters() && answered & up == up {
            state.promised = true;
        }
    }
}

fn switch_regime(state: &mut State, at: usize) {
    let up = up(state);
    let said = state.term_mut(state.all[at].term);
    if said.regime.is_multiple_of(2) {
        said.lazy_len = said.log.len();
    }
    said.regime += 1;
    said.answered = 0;
    said.up = up;
}

/// Who is up.
pub(crate) fn up(state: &State) -> u8 {
    state.nodes().iter().filter(|node| !node.down).fold(0, |set, node| set | 1 << node.id)
}

fn write(state: &mut State, at: usize, log: Log) {
    if !state.all[at].write(log) {
        state.break_with(Violation::ModelTooSmall);
    }
}

fn acknowledge(state: &mut State, at: usize, term: u8, len: u8) {
    let id = state.all[at].id;
    let acked = &mut state.term_mut(term).acked[id as usize];
    *acked = len.max(*acked);
}

fn acknowledge_own(state: &mut State, at: usize) {
    let Node { term, log, .. } = state.all[at];
    acknowledge(state, at, term, log.len());
}
