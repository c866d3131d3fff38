//! The actions that are possible in a state.

use crate::bounds::Bounds;
use crate::log::{Content, Id, Log, MAX_LEN};
use crate::rules::Rules;
use crate::state::{Node, REPLACEMENT, Role, State, Term};
use std::fmt;

/// Whether and when a member acknowledges what it wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ack {
    /// Not yet.
    None,
    /// When written, with its unsynced-ack flag set.
    Fast,
    /// After a sync.
    Synced,
}

/// One step. `at` is an index in [`State::nodes`], `term` that of the leader whose message a member
/// receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Campaign { at: usize },
    Grant { at: usize, term: u8, candidate: u8 },
    Elect { at: usize },
    Propose { at: usize, content: Content, ack: Ack },
    SyncOwn { at: usize },
    Append { at: usize, term: u8, ack: Ack },
    Known { at: usize, term: u8, ack: Ack },
    Commit { at: usize },
    Leave { at: usize },
    Join { at: usize },
    Clear { at: usize },
    ClearBegin { at: usize },
    ClearEnd { at: usize },
    PowerCut { at: usize, log: Log, vote_kept: bool },
    CutThenKill { at: usize, log: Log },
    Kill { at: usize, keep: u8 },
    LoseDisk { at: usize },
    LoseIdentity { at: usize },
    Overwrite { at: usize },
    StartCopy { at: usize },
    GoDown { at: usize },
    SwitchAckMode { at: usize },
    Confirm { at: usize, term: u8 },
}

/// The protocol with some rules, within some bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    pub rules: Rules,
    pub bounds: Bounds,
}

impl Model {
    /// Adds to `out` every action that is possible in this state.
    pub(crate) fn actions(&self, state: &State, out: &mut Vec<Action>) {
        for at in 0..state.nodes().len() {
            let node = &state.all[at];
            if node.down {
                if self.bounds.overwrites
                    && node.log.len() > 0
                    && self.may_be_overwritten(state, node.id)
                {
                    out.push(Action::Overwrite { at });
                }
                continue;
            }
            self.elections(state, at, node, out);
            if node.role == Role::Leader {
                self.leading(state, at, node, out);
            }
            for term in node.term.max(1)..=self.bounds.terms {
                let sent = state.term(term);
                if sent.leader != 0 && sent.leader != node.id + 1 {
                    self.receiving(at, node, term, sent, out);
                }
            }
            self.rejoining(state, at, node, out);
            self.flag_clearing(at, node, out);
            self.faults(state, at, node, out);
        }
    }

    /// Leaves out votes that can no longer count, and votes that the candidate's configuration does
    /// not count: they would only restrict the voter. The voter's own log need not list it as a
    /// voter.
    fn elections(&self, state: &State, at: usize, node: &Node, out: &mut Vec<Action>) {
        let rules = &self.rules;
        if self.membership(node.log).contains(node.id)
            && !node.joining
            && self.bounds.candidates >> at & 1 == 1
            && (node.gate == 0 || !rules.recovering_campaigns_never)
            && node.role != Role::Leader
            && node.term < self.bounds.terms
        {
            out.push(Action::Campaign { at });
        }
        if node.role == Role::Candidate && node.log.len() < self.bounds.entries {
            let granted = state.term(node.term).granted[node.id as usize];
            if self.is_quorum(node.log, granted) {
                out.push(Action::Elect { at });
            }
        }
        if node.joining || node.gate != 0 && rules.recovering_grants_none {
            return;
        }
        for candidate in
            state.nodes().iter().filter(|c| c.role == Role::Candidate && c.id != node.id)
        {
            let free = candidate.term > node.term || candidate.term == node.term && node.voted == 0;
            let up_to_date =
                state.term(candidate.term).asked[candidate.id as usize] >= node.log.rank();
            if free && up_to_date && self.membership(candidate.log).contains(node.id) {
                out.push(Action::Grant { at, term: candidate.term, candidate: candidate.id });
            }
        }
    }

    fn leading(&self, state: &State, at: usize, node: &Node, out: &mut Vec<Action>) {
        let sent = state.term(node.term);
        if self.commit_index(node, sent).is_some() {
            out.push(Action::Commit { at });
        }
        if node.log.len() < self.bounds.entries.min(MAX_LEN) {
            let mut contents = Vec::new();
            self.proposals(state, node, sent, &mut contents);
            for content in contents {
                if !self.bounds.degraded || sent.ack_mode.is_multiple_of(2) {
                    out.push(Action::Propose { at, content, ack: Ack::Fast });
                }
                if self.writes_unacknowledged() {
                    out.push(Action::Propose { at, content, ack: Ack::None });
                }
            }
        }
        if self.writes_unacknowledged() && sent.acked[node.id as usize] < node.log.len() {
            out.push(Action::SyncOwn { at });
        }
        if self.bounds.degraded {
            let degraded = sent.ack_mode % 2 == 1;
            let may_switch = !degraded || self.may_be_fast_again(node, sent);
            if may_switch && sent.ack_mode < self.bounds.ack_modes {
                out.push(Action::SwitchAckMode { at });
            }
            if degraded && sent.answered >> node.id & 1 == 0 {
                out.push(Action::Confirm { at, term: node.term });
            }
        }
    }

    fn proposals(&self, state: &State, leader: &Node, sent: &Term, out: &mut Vec<Content>) {
        if state.used.values < self.bounds.values {
            out.push(Content::Value(state.used.values + 1));
        }
        for node in state.nodes() {
            let nonces = if self.bounds.old_requests {
                1..=node.recoveries
            } else {
                node.gate.max(1)..=node.gate
            };
            out.extend(
                nonces
                    .map(|nonce| Content::BootEpoch { id: node.id, nonce })
                    .filter(|record| leader.log.find(*record).is_none()),
            );
        }
        self.changes(state, leader, sent, out);
    }

    /// The highest index that a quorum acknowledged and that this leader may commit by Raft's
    /// rules.
    pub(crate) fn commit_index(&self, leader: &Node, sent: &Term) -> Option<u8> {
        (sent.commit + 1..=leader.log.len())
            .rev()
            .find(|len| self.is_quorum(leader.log, sent.ackers(*len)))
            .filter(|len| leader.log.get(*len).term() == leader.term)
    }

    fn receiving(&self, at: usize, node: &Node, term: u8, sent: &Term, out: &mut Vec<Action>) {
        let known = node.log.common(sent.log);
        let acked = sent.acked[node.id as usize];
        let first = acked == 0;
        if known < sent.log.len() {
            if self.bounds.flags {
                out.push(Action::Append { at, term, ack: Ack::None });
            }
            if self.may_be_fast(node, term, sent, known + 1)
                && !(first && self.rules.first_append_synced)
            {
                out.push(Action::Append { at, term, ack: Ack::Fast });
            }
            if self.may_sync() || first && self.rules.first_append_synced {
                out.push(Action::Append { at, term, ack: Ack::Synced });
            }
        }
        if self.may_sync() && known > acked {
            if self.may_be_fast(node, term, sent, known)
                && !(first && self.rules.first_append_synced)
            {
                out.push(Action::Known { at, term, ack: Ack::Fast });
            }
            out.push(Action::Known { at, term, ack: Ack::Synced });
        }
        let knows_ack_mode = node.ack_mode[term as usize - 1] == sent.ack_mode;
        if self.bounds.degraded
            && sent.ack_mode % 2 == 1
            && node.gate == 0
            && !(knows_ack_mode && sent.answered >> node.id & 1 == 1)
        {
            out.push(Action::Confirm { at, term });
        }
    }

    /// Whether an append of this length can have reached the member that lets it acknowledge before
    /// it syncs.
    fn may_be_fast(&self, node: &Node, term: u8, sent: &Term, len: u8) -> bool {
        if node.clearing && self.rules.no_ack_while_clearing {
            return false;
        }
        if !self.bounds.degraded || sent.ack_mode.is_multiple_of(2) {
            return true;
        }
        let knows_safe_mode = node.ack_mode[term as usize - 1] == sent.ack_mode;
        let old_append =
            len <= sent.fast_len && !(knows_safe_mode && self.rules.old_ack_mode_is_safe);
        old_append || !self.rules.safe_mode_syncs
    }

    fn rejoining(&self, state: &State, at: usize, node: &Node, out: &mut Vec<Action>) {
        if node.term == 0 {
            return;
        }
        let sent = state.term(node.term);
        let same = node.log.common(sent.log);
        let applied = same.min(sent.commit);
        if node.gate != 0 {
            let record = node.log.find(Content::BootEpoch { id: node.id, nonce: node.gate });
            let reached = if self.rules.leave_on_applied { applied } else { same };
            let by_record = record.is_some_and(|index| index <= reached);
            let by_index = !self.rules.leave_by_epoch && sent.commit > 0 && same >= sent.commit;
            if by_record || by_index {
                out.push(Action::Leave { at });
            }
        }
        if node.joining && self.membership(node.log.prefix(applied)).contains(node.id) {
            out.push(Action::Join { at });
        }
    }

    fn flag_clearing(&self, at: usize, node: &Node, out: &mut Vec<Action>) {
        if !self.bounds.flags || self.bounds.degraded || !node.unsynced_acks {
            return;
        }
        match (self.rules.no_ack_while_clearing, node.clearing) {
            (true, _) => out.push(Action::Clear { at }),
            (false, false) => out.push(Action::ClearBegin { at }),
            (false, true) => out.push(Action::ClearEnd { at }),
        }
    }

    fn faults(&self, state: &State, at: usize, node: &Node, out: &mut Vec<Action>) {
        let (used, bounds, rules) = (&state.used, &self.bounds, &self.rules);
        if used.cuts < bounds.cuts && bounds.faulty >> at & 1 == 1 {
            for log in node.past.logs().iter().copied().chain([node.log]) {
                out.push(Action::PowerCut { at, log, vote_kept: true });
                if node.synced_vote != (node.term, node.voted) {
                    out.push(Action::PowerCut { at, log, vote_kept: false });
                }
                if !rules.one_epoch_update {
                    out.push(Action::CutThenKill { at, log });
                }
            }
        }
        if used.kills < bounds.kills {
            if node.role == Role::Leader {
                let written = state.term(node.term).acked[node.id as usize].min(node.log.len());
                out.extend((written..=node.log.len()).map(|keep| Action::Kill { at, keep }));
            } else if node.gate != 0 || node.clearing {
                out.push(Action::Kill { at, keep: node.log.len() });
            }
        }
        if used.lost_disks < bounds.lost_disks {
            out.push(Action::LoseDisk { at });
        }
        if bounds.overwrites && state.nodes().iter().all(|node| !node.down) {
            out.push(Action::LoseIdentity { at });
        }
        if used.copies < bounds.copies && node.id < REPLACEMENT {
            let replaced = |log: Log| !self.membership(log).contains(node.id);
            let voters = self.membership(state.committed);
            let known = state.nodes().iter().all(|n| !voters.contains(n.id) || replaced(n.log));
            if replaced(state.committed) && (known || !rules.copy_after_all_know) {
                out.push(Action::StartCopy { at });
            }
        }
        if bounds.degraded && state.nodes().iter().all(|node| !node.down) {
            out.push(Action::GoDown { at });
        }
    }

    /// Whether a leader confirms that a majority without the lost identity has synced everything
    /// that the leader has, committed or not.
    fn may_be_overwritten(&self, state: &State, lost: u8) -> bool {
        let leaders = state.nodes().iter().filter(|node| node.role == Role::Leader && !node.down);
        leaders.into_iter().any(|leader| {
            let holds = |node: &Node| {
                let survives = |log: &Log| log.starts_with(leader.log);
                let synced = survives(&node.log) && node.past.logs().iter().all(survives);
                node.id != lost
                    && !node.down
                    && node.term == leader.term
                    && (synced || !self.rules.overwritten_when_held)
            };
            let with = state.nodes().iter().filter(|node| holds(node));
            self.is_quorum(leader.log, with.fold(0, |set, node| set | 1 << node.id))
        })
    }

    fn may_sync(&self) -> bool {
        self.bounds.flags || self.bounds.degraded
    }

    fn writes_unacknowledged(&self) -> bool {
        self.may_sync() || self.bounds.kills > 0
    }
}

impl fmt::Display for Ack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ack::None => "does not acknowledge yet",
            Ack::Fast => "acknowledges when written",
            Ack::Synced => "syncs, then acknowledges",
        })
    }
}

impl Action {
    /// The step in plain words, given the state before it.
    pub(crate) fn describe(&self, state: &State, bounds: &Bounds) -> String {
        let name = |id: u8| {
            if bounds.members > REPLACEMENT {
                char::from(b'A' + id).to_string()
            } else {
                Id(id).to_string()
            }
        };
        let id = |at: usize| name(state.all[at].id);
        let term_of = |at: usize| state.all[at].term;
        match *self {
            Action::Campaign { at } => format!("{} campaigns in term {}", id(at), term_of(at) + 1),
            Action::Grant { at, term, candidate } => {
                format!("{} grants {} its vote in term {term}", id(at), name(candidate))
            }
            Action::Elect { at } => format!("{} becomes leader of term {}", id(at), term_of(at)),
            Action::Propose { at, content, ack } => {
                let entry = crate::log::Entry::new(term_of(at), content);
                format!("{} (leader) appends {entry}, sends it, {ack} its own copy", id(at))
            }
            Action::SyncOwn { at } => format!("{} (leader) syncs and counts its own copy", id(at)),
            Action::Append { at, term, ack } => {
                let sent = state.term(term).log;
                let next = sent.get(state.all[at].log.common(sent) + 1);
                format!("{} receives {next} from term {term}'s leader, writes it, {ack}", id(at))
            }
            Action::Known { at, term, ack } => {
                format!(
                    "{} receives entries that it has from term {term}'s leader again, {ack}",
                    id(at)
                )
            }
            Action::Commit { at } => {
                format!("{} (leader) counts a quorum and answers the clients", id(at))
            }
            Action::Leave { at } => format!("{} ends its recovery", id(at)),
            Action::Join { at } => format!("{} applies its own membership", id(at)),
            Action::Clear { at } => format!("{} syncs, then clears its flag", id(at)),
            Action::ClearBegin { at } => format!("{} syncs, and will clear its flag", id(at)),
            Action::ClearEnd { at } => format!("{}'s cleared flag reaches the disk", id(at)),
            Action::PowerCut { at, log, vote_kept } => {
                let vote = if vote_kept { "" } else { " and its last vote" };
                let lost =
                    if log == state.all[at].log && vote_kept { "nothing" } else { "its tail" };
                format!("{} loses power, and with it {lost}{vote}; it starts with {log}", id(at))
            }
            Action::CutThenKill { at, log } => {
                format!(
                    "{} loses power, starts with {log}, is killed before it writes its state, starts again",
                    id(at)
                )
            }
            Action::Kill { at, keep } => {
                let lost = state.all[at].log.len() - keep;
                format!(
                    "{}'s process is killed ({lost} writes not yet on the disk), starts again",
                    id(at)
                )
            }
            Action::LoseDisk { at } => {
                format!("{}'s disk is lost; it starts blank under its old identity", id(at))
            }
            Action::LoseIdentity { at } => format!("{}'s identity becomes unreadable", id(at)),
            Action::Overwrite { at } => format!("{}'s directory is overwritten", id(at)),
            Action::StartCopy { at } => {
                format!("{} is started from a copy of its first state", id(at))
            }
            Action::GoDown { at } => format!("{} goes down for good", id(at)),
            Action::SwitchAckMode { at } => {
                let ack_mode = state.term(term_of(at)).ack_mode + 1;
                let kind = if ack_mode % 2 == 1 { "safe: sync, then acknowledge" } else { "fast" };
                format!("{} (leader) begins ack mode {ack_mode} ({kind})", id(at))
            }
            Action::Confirm { at, term } => {
                format!("{} answers in safe mode of term {term}: synced, flag clear", id(at))
            }
        }
    }
}
