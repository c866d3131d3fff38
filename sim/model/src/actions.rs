//! What can happen next in a state.

use crate::bounds::Bounds;
use crate::log::{Content, Id, Log, MAX_LEN};
use crate::rules::Rules;
use crate::state::{Node, REBORN, Role, State, Term};
use std::fmt;

/// How a member answers for what it wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ack {
    /// Not at all, yet.
    None,
    /// When written, under the mark.
    Lazy,
    /// After a sync.
    Synced,
}

/// One step. `at` is a slot, `term` names the leader whose message is received.
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
    SwitchRegime { at: usize },
    Confirm { at: usize, term: u8 },
}

/// The protocol with some rules, within some bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    pub rules: Rules,
    pub bounds: Bounds,
}

impl Model {
    /// Everything that can happen next.
    pub(crate) fn actions(&self, state: &State, out: &mut Vec<Action>) {
        for at in 0..state.nodes().len() {
            let node = &state.all[at];
            if node.down {
                if self.bounds.overwrites && node.log.len() > 0 && self.may_be_overwritten(state, node.id) {
                    out.push(Action::Overwrite { at });
                }
                continue;
            }
            self.elections(state, at, node, out);
            if node.role == Role::Leader {
                self.leading(state, at, node, out);
            }
            for term in node.term.max(1)..=self.bounds.terms {
                let said = state.term(term);
                if said.leader != 0 && said.leader != node.id + 1 {
                    self.receiving(at, node, term, said, out);
                }
            }
            self.rejoining(state, at, node, out);
            self.marking(at, node, out);
            self.faults(state, at, node, out);
        }
    }

    /// A vote that can no longer count, or that the candidate's configuration does not count, is not modelled: it would
    /// only forbid things to its voter. Whether a voter is a voter by its own log does not matter.
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
        for candidate in state.nodes().iter().filter(|c| c.role == Role::Candidate && c.id != node.id) {
            let free = candidate.term > node.term || candidate.term == node.term && node.voted == 0;
            let up_to_date = state.term(candidate.term).asked[candidate.id as usize] >= node.log.rank();
            if free && up_to_date && self.membership(candidate.log).contains(node.id) {
                out.push(Action::Grant { at, term: candidate.term, candidate: candidate.id });
            }
        }
    }

    fn leading(&self, state: &State, at: usize, node: &Node, out: &mut Vec<Action>) {
        let said = state.term(node.term);
        if self.commit_index(node, said).is_some() {
            out.push(Action::Commit { at });
        }
        if node.log.len() < self.bounds.entries.min(MAX_LEN) {
            let mut contents = Vec::new();
            self.proposals(state, node, said, &mut contents);
            for content in contents {
                if !self.bounds.thin || said.regime.is_multiple_of(2) {
                    out.push(Action::Propose { at, content, ack: Ack::Lazy });
                }
                if self.writes_unacknowledged() {
                    out.push(Action::Propose { at, content, ack: Ack::None });
                }
            }
        }
        if self.writes_unacknowledged() && said.acked[node.id as usize] < node.log.len() {
            out.push(Action::SyncOwn { at });
        }
        if self.bounds.thin {
            let thin = said.regime % 2 == 1;
            let may_switch = !thin || self.may_be_lazy_again(node, said);
            if may_switch && said.regime < self.bounds.regimes {
                out.push(Action::SwitchRegime { at });
            }
            if thin && said.answered >> node.id & 1 == 0 {
                out.push(Action::Confirm { at, term: node.term });
            }
        }
    }

    fn proposals(&self, state: &State, leader: &Node, said: &Term, out: &mut Vec<Content>) {
        if state.used.values < self.bounds.values {
            out.push(Content::Value(state.used.values + 1));
        }
        for node in state.nodes() {
            let requested =
                if self.bounds.old_requests { 1..=node.starts } else { node.gate.max(1)..=node.gate };
            out.extend(
                requested
                    .map(|nonce| Content::Start { id: node.id, nonce })
                    .filter(|start| leader.log.find(*start).is_none()),
            );
        }
        self.changes(state, leader, said, out);
    }

    /// The highest index that a quorum acknowledged and that Raft lets this leader commit.
    pub(crate) fn commit_index(&self, leader: &Node, said: &Term) -> Option<u8> {
        (said.commit + 1..=leader.log.len())
            .rev()
            .find(|len| self.is_quorum(leader.log, said.ackers(*len)))
            .filter(|len| leader.log.get(*len).term() == leader.term)
    }

    fn receiving(&self, at: usize, node: &Node, term: u8, said: &Term, out: &mut Vec<Action>) {
        let known = node.log.common(said.log);
        let acked = said.acked[node.id as usize];
        let first = acked == 0;
        if known < said.log.len() {
            if self.bounds.marks {
                out.push(Action::Append { at, term, ack: Ack::None });
            }
            if self.may_be_lazy(node, term, said, known + 1) && !(first && self.rules.first_append_synced) {
                out.push(Action::Append { at, term, ack: Ack::Lazy });
            }
            if self.may_sync() || first && self.rules.first_append_synced {
                out.push(Action::Append { at, term, ack: Ack::Synced });
            }
        }
        if self.may_sync() && known > acked {
            if self.may_be_lazy(node, term, said, known) && !(first && self.rules.first_append_synced) {
                out.push(Action::Known { at, term, ack: Ack::Lazy });
            }
            out.push(Action::Known { at, term, ack: Ack::Synced });
        }
        let heard = node.regime[term as usize - 1] == said.regime;
        if self.bounds.thin
            && said.regime % 2 == 1
            && node.gate == 0
            && !(heard && said.answered >> node.id & 1 == 1)
        {
            out.push(Action::Confirm { at, term });
        }
    }

    /// Whether an append of this length reached the member that lets it acknowledge lazily.
    fn may_be_lazy(&self, node: &Node, term: u8, said: &Term, len: u8) -> bool {
        if node.clearing && self.rules.no_ack_while_clearing {
            return false;
        }
        if !self.bounds.thin || said.regime.is_multiple_of(2) {
            return true;
        }
        let heard_of_thin = node.regime[term as usize - 1] == said.regime;
        let old_append = len <= said.lazy_len && !(heard_of_thin && self.rules.old_regime_is_thin);
        old_append || !self.rules.thin_syncs
    }

    fn rejoining(&self, state: &State, at: usize, node: &Node, out: &mut Vec<Action>) {
        if node.term == 0 {
            return;
        }
        let said = state.term(node.term);
        let same = node.log.common(said.log);
        let applied = same.min(said.commit);
        if node.gate != 0 {
            let start = node.log.find(Content::Start { id: node.id, nonce: node.gate });
            let reached = if self.rules.leave_on_applied { applied } else { same };
            let by_start = start.is_some_and(|index| index <= reached);
            let by_index = !self.rules.leave_by_start && said.commit > 0 && same >= said.commit;
            if by_start || by_index {
                out.push(Action::Leave { at });
            }
        }
        if node.joining && self.membership(node.log.prefix(applied)).contains(node.id) {
            out.push(Action::Join { at });
        }
    }

    fn marking(&self, at: usize, node: &Node, out: &mut Vec<Action>) {
        if !self.bounds.marks || self.bounds.thin || !node.lazy {
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
                if !rules.one_start_update {
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
        if used.losses < bounds.losses {
            out.push(Action::LoseDisk { at });
        }
        if bounds.overwrites && state.nodes().iter().all(|node| !node.down) {
            out.push(Action::LoseIdentity { at });
        }
        if used.copies < bounds.copies && node.id < REBORN {
            let replaced = |log: Log| !self.membership(log).contains(node.id);
            let voters = self.membership(state.committed);
            let known = state.nodes().iter().all(|n| !voters.contains(n.id) || replaced(n.log));
            if replaced(state.committed) && (known || !rules.copy_after_all_know) {
                out.push(Action::StartCopy { at });
            }
        }
        if bounds.thin && state.nodes().iter().all(|node| !node.down) {
            out.push(Action::GoDown { at });
        }
    }

    /// Whether a leader says that a majority does without the member whose identity is lost: it holds all that the leader
    /// has by then, be it committed or not.
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
        self.bounds.marks || self.bounds.thin
    }

    fn writes_unacknowledged(&self) -> bool {
        self.may_sync() || self.bounds.kills > 0
    }
}

impl fmt::Display for Ack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ack::None => "does not acknowledge yet",
            Ack::Lazy => "acknowledges when written",
            Ack::Synced => "syncs, then acknowledges",
        })
    }
}

impl Action {
    /// The step in plain words, given the state before it.
    pub(crate) fn describe(&self, state: &State, bounds: &Bounds) -> String {
        let name = |id: u8| {
            if bounds.members > REBORN { char::from(b'A' + id).to_string() } else { Id(id).to_string() }
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
                let said = state.term(term).log;
                let next = said.get(state.all[at].log.common(said) + 1);
                format!("{} receives {next} of term {term}'s leader, writes it, {ack}", id(at))
            }
            Action::Known { at, term, ack } => {
                format!("{} hears term {term}'s leader repeat entries that it has, {ack}", id(at))
            }
            Action::Commit { at } => format!("{} (leader) counts a quorum and tells clients", id(at)),
            Action::Leave { at } => format!("{} ends its recovery", id(at)),
            Action::Join { at } => format!("{} applies its own membership", id(at)),
            Action::Clear { at } => format!("{} syncs, then clears its mark", id(at)),
            Action::ClearBegin { at } => format!("{} syncs, about to clear its mark", id(at)),
            Action::ClearEnd { at } => format!("{}'s clear mark reaches the disk", id(at)),
            Action::PowerCut { at, log, vote_kept } => {
                let vote = if vote_kept { "" } else { " and its last vote" };
                let lost = if log == state.all[at].log && vote_kept { "nothing" } else { "its tail" };
                format!("{} loses power, and with it {lost}{vote}; it starts with {log}", id(at))
            }
            Action::CutThenKill { at, log } => {
                format!(
                    "{} loses power, starts with {log}, is killed before it wrote its state, starts again",
                    id(at)
                )
            }
            Action::Kill { at, keep } => {
                let lost = state.all[at].log.len() - keep;
                format!("{}'s process is killed ({lost} writes not yet on the disk), starts again", id(at))
            }
            Action::LoseDisk { at } => format!("{}'s disk is lost; it starts blank as who it was", id(at)),
            Action::LoseIdentity { at } => format!("{}'s identity cannot be read any more", id(at)),
            Action::Overwrite { at } => format!("{}'s directory is overwritten", id(at)),
            Action::StartCopy { at } => {
                format!("{} is started from a copy that was made in the beginning", id(at))
            }
            Action::GoDown { at } => format!("{} goes down for good", id(at)),
            Action::SwitchRegime { at } => {
                let regime = state.term(term_of(at)).regime + 1;
                let kind = if regime % 2 == 1 { "thin: sync before you acknowledge" } else { "lazy" };
                format!("{} (leader) begins regime {regime}, {kind}", id(at))
            }
            Action::Confirm { at, term } => {
                format!("{} answers in term {term}'s thin regime: synced, mark clear", id(at))
            }
        }
    }
}
