//! The effect of each action on the state.

use crate::actions::{Ack, Action, Model};
use crate::log::{Content, Entry, Log};
use crate::state::{Node, Past, Role, State, TERMS};
use crate::violation::Violation;

impl Model {
    /// The state after an action that is possible in `before`.
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
                state.all[at].unsynced_acks = false;
            }
            Action::PowerCut { at, log, vote_kept } => {
                self.power_cut(&mut state, at, log, vote_kept)
            }
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
                state.all[at] =
                    Node { recoveries: state.all[at].recoveries, ..self.start().all[at] };
            }
            Action::GoDown { at } => state.all[at].down = true,
            Action::SwitchAckMode { at } => switch_ack_mode(&mut state, at),
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
        let sent = state.term_mut(state.all[at].term);
        sent.asked[id as usize] = rank;
        sent.granted[id as usize] |= 1 << id;
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
        let sent = state.term_mut(term);
        sent.leader = id + 1;
        sent.log = log;
        if self.bounds.degraded {
            sent.ack_mode = if self.rules.new_leader_safe { 1 } else { 2 };
            let up = up(state);
            state.term_mut(term).up = up;
        }
        if self.rules.first_append_synced {
            self.lead(state, at, Content::Blank, Ack::None);
            state.all[at].sync();
            acknowledge_own(state, at);
        } else {
            self.lead(state, at, Content::Blank, Ack::Fast);
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
        let sent = state.term_mut(node.term);
        if sent.log.starts_with(log) {
            // A leader that resumed its term sends the same entry again.
        } else if log.starts_with(sent.log) {
            sent.log = log;
        } else {
            state.break_with(Violation::IdReused);
        }
        if ack == Ack::Fast {
            let acked = state.term(node.term).acked[node.id as usize];
            if self.synced_first(log, acked + 1) {
                state.all[at].sync();
            } else if self.rules.leader_flags_own_ack {
                self.set_flag(&mut state.all[at]);
            }
            acknowledge_own(state, at);
        }
    }

    fn append(&self, state: &mut State, at: usize, term: u8, ack: Ack) {
        self.adopt_term(&mut state.all[at], term, ack);
        let sent = state.term(term).log;
        let known = state.all[at].log.common(sent);
        let acked = state.term(term).acked[state.all[at].id as usize];
        write(state, at, sent.prefix(known + 1));
        let node = &mut state.all[at];
        match ack {
            Ack::None => {}
            Ack::Fast if self.synced_first(sent.prefix(known + 1), acked + 1) => node.sync(),
            Ack::Fast => self.set_flag(node),
            Ack::Synced => node.sync(),
        }
        if ack != Ack::None {
            acknowledge(state, at, term, known + 1);
        }
        self.note_ack_mode(state, at, term, ack);
    }

    fn known(&self, state: &mut State, at: usize, term: u8, ack: Ack) {
        self.adopt_term(&mut state.all[at], term, ack);
        let sent = *state.term(term);
        let node = &mut state.all[at];
        let known = node.log.common(sent.log);
        if ack == Ack::Synced
            || self.synced_first(sent.log.prefix(known), sent.acked[node.id as usize] + 1)
        {
            node.sync();
        } else if self.rules.known_entries_wait {
            self.set_flag(node);
        }
        acknowledge(state, at, term, known);
        self.note_ack_mode(state, at, term, ack);
    }

    /// Whether an acknowledgement of a log from this index on must wait for a sync in every ack
    /// mode.
    fn synced_first(&self, log: Log, from: u8) -> bool {
        let asks = |content: Content| content.is_membership() || content == Content::Strict;
        self.is_strict(log)
            || self.rules.membership_synced
                && (from..=log.len()).any(|i| asks(log.get(i).content()))
    }

    /// A member that acknowledges before it syncs, in fast mode, knows that ack mode number.
    fn note_ack_mode(&self, state: &mut State, at: usize, term: u8, ack: Ack) {
        let ack_mode = state.term(term).ack_mode;
        if ack == Ack::Fast && ack_mode.is_multiple_of(2) {
            state.all[at].ack_mode[term as usize - 1] = ack_mode;
        }
    }

    /// The member receives a message of a term's leader and adopts the term.
    fn adopt_term(&self, node: &mut Node, term: u8, ack: Ack) {
        if term > node.term {
            if self.rules.first_append_synced || ack == Ack::Synced {
                node.set_vote(term, 0);
            } else {
                (node.term, node.voted) = (term, 0);
            }
        }
        node.role = Role::Follower;
    }

    fn set_flag(&self, node: &mut Node) {
        if self.rules.flag_before_ack {
            node.unsynced_acks = true;
        }
    }

    fn commit(&self, state: &mut State, at: usize) {
        let node = state.all[at];
        let sent = state.term_mut(node.term);
        if let Some(index) = self.commit_index(&node, sent) {
            sent.commit = index;
            state.check_committed(node.term, node.log.prefix(index));
        }
    }

    fn clear(&self, node: &mut Node) {
        if self.rules.cleared_after_sync {
            node.sync();
        }
        node.unsynced_acks = false;
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
        let lost_tail = node.unsynced_acks && !stays;
        if node.gate != 0 || lost_tail && self.rules.lost_tail_recovers {
            self.recover(node);
        }
        self.restart(state, at);
    }

    fn recover(&self, node: &mut Node) {
        node.recoveries += 1;
        node.gate = if self.rules.fresh_nonce { node.recoveries } else { 1 };
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
        let ack_modes = state.terms.map(|term| term.ack_mode);
        let node = &mut state.all[at];
        node.role = Role::Follower;
        node.clearing = false;
        node.ack_mode = if self.rules.restart_fences_appends { ack_modes } else { [0; TERMS] };
    }

    /// Only without a rule about new identities: the machine continues under its identity, with an
    /// empty disk.
    fn lose_disk(&self, state: &mut State, at: usize) {
        state.used.lost_disks += 1;
        let node = &mut state.all[at];
        (node.log, node.past) = (Log::default(), Past::default());
        node.set_vote(0, 0);
        node.unsynced_acks = false;
        node.gate = 0;
        if self.bounds.lost_disks_recover {
            self.recover(node);
        }
        self.restart(state, at);
    }

    /// A member answers in safe mode: everything is synced, the flag is clear.
    fn confirm(&self, state: &mut State, at: usize, term: u8) {
        let ack_mode = state.term(term).ack_mode;
        let known = state.all[at].log.common(state.term(term).log);
        let id = state.all[at].id;
        let leads = state.term(term).leader == id + 1;
        if !leads {
            self.adopt_term(&mut state.all[at], term, Ack::Synced);
        }
        let node = &mut state.all[at];
        node.ack_mode[term as usize - 1] = ack_mode;
        if self.rules.safe_mode_syncs {
            node.sync();
            node.unsynced_acks = false;
            acknowledge(state, at, term, known);
        }
        let sent = state.term_mut(term);
        sent.answered |= 1 << id;
        let (answered, up) = (sent.answered, sent.up);
        let led = state.nodes().iter().any(|n| n.role == Role::Leader && n.term == term && !n.down);
        if led && self.bounds.replacement == 0 && up != self.bounds.voters() && answered & up == up
        {
            state.promised = true;
        }
    }
}

fn switch_ack_mode(state: &mut State, at: usize) {
    let up = up(state);
    let sent = state.term_mut(state.all[at].term);
    if sent.ack_mode.is_multiple_of(2) {
        sent.fast_len = sent.log.len();
    }
    sent.ack_mode += 1;
    sent.answered = 0;
    sent.up = up;
}

/// The members that are up, as bits.
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
