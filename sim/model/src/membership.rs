//! The voters, and how a member is replaced: a configuration has one half or, in the middle of a
//! replacement, two.

use crate::actions::Model;
use crate::log::{Content, Log};
use crate::state::{Node, REPLACEMENT, State, Term};

/// The member that leaves, in searches that shrink.
const SHRINKS: u8 = 2;

/// Sets of identities, as bits. Both halves are equal unless a replacement is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Membership {
    old: u8,
    new: u8,
}

impl Membership {
    /// The membership of a log. Raft uses a configuration as soon as it is in the log.
    pub(crate) fn of(log: Log, first: u8) -> Membership {
        log.entries().fold(Membership::uniform(first), |m, entry| match entry.content() {
            Content::Joint(slot) => Membership { old: m.old, new: replaced(m.new, slot) },
            Content::Back(slot) => {
                Membership { old: m.old, new: m.new & !(1 << (slot + REPLACEMENT)) | 1 << slot }
            }
            Content::Final(_) => Membership::uniform(m.new),
            Content::Undo(_) => Membership::uniform(m.old),
            Content::Direct(slot) => Membership::uniform(replaced(m.new, slot)),
            Content::Add(slot) => Membership::uniform(m.new | 1 << (slot + REPLACEMENT)),
            Content::Remove(slot) => Membership::uniform(m.new & !(1 << slot)),
            Content::Shrink(slot) => Membership { old: m.old, new: m.new & !(1 << slot) },
            Content::Blank | Content::Value(_) | Content::BootEpoch { .. } | Content::Strict => m,
        })
    }

    fn uniform(voters: u8) -> Membership {
        Membership { old: voters, new: voters }
    }

    pub(crate) fn contains(self, id: u8) -> bool {
        self.voters() >> id & 1 == 1
    }

    /// All voters.
    fn voters(self) -> u8 {
        self.old | self.new
    }

    /// Whether one of the halves has fewer than three voters.
    pub(crate) fn is_few(self) -> bool {
        self.old.count_ones() < 3 || self.new.count_ones() < 3
    }

    /// Whether it is a voter of the newer half.
    pub(crate) fn stays(self, id: u8) -> bool {
        self.new >> id & 1 == 1
    }

    /// Whether this is a joint configuration.
    fn is_joint(self) -> bool {
        self.old != self.new
    }

    pub(crate) fn is_quorum(self, ids: u8) -> bool {
        let majority = |voters: u8| 2 * (ids & voters).count_ones() > voters.count_ones();
        majority(self.old) && majority(self.new)
    }
}

fn replaced(voters: u8, slot: u8) -> u8 {
    voters & !(1 << slot) | 1 << (slot + REPLACEMENT)
}

impl Model {
    pub(crate) fn membership(&self, log: Log) -> Membership {
        Membership::of(log, self.bounds.voters())
    }

    /// Whether these identities are a quorum for a member with this log.
    pub(crate) fn is_quorum(&self, log: Log, ids: u8) -> bool {
        let Membership { old, new } = self.membership(log);
        let old = if self.rules.joint_quorum { old } else { new };
        Membership { old, new }.is_quorum(ids)
    }

    /// Whether a leader in safe mode may return to fast mode.
    pub(crate) fn may_be_fast_again(&self, leader: &Node, sent: &Term) -> bool {
        let now = self.membership(leader.log);
        let answered = now.voters() & !sent.answered == 0 || !self.rules.return_needs_all;
        let committed =
            self.membership(sent.log.prefix(sent.commit)) == now || !self.rules.return_needs_commit;
        answered && committed
    }

    /// The changes that this leader may propose. Whether the old member is really gone makes no
    /// difference: it may only be silent.
    pub(crate) fn changes(
        &self,
        state: &State,
        leader: &Node,
        sent: &Term,
        out: &mut Vec<Content>,
    ) {
        let rules = &self.rules;
        let own_term = sent.commit > 0 && sent.log.get(sent.commit).term() == leader.term;
        let now = self.membership(leader.log);
        if self.bounds.shrinks && leader.log.find(Content::Strict).is_none() {
            out.push(Content::Strict);
        }
        if self.bounds.replacement == 0 && !self.bounds.shrinks
            || rules.own_term_first && !own_term
            || rules.one_change_in_flight && self.membership(known_committed(state, leader)) != now
        {
            return;
        }
        if self.bounds.shrinks && now.is_joint() {
            out.push(Content::Final(SHRINKS));
        } else if self.bounds.shrinks && !now.is_few() && self.may_shrink(state, sent) {
            out.push(Content::Shrink(SHRINKS));
        }
        for id in state.nodes().iter().map(|node| node.id).filter(|id| *id >= REPLACEMENT) {
            let slot = id - REPLACEMENT;
            let waits = rules.caught_up && sent.acked[id as usize] < sent.commit;
            match (now.contains(slot), now.contains(id)) {
                (true, false) if now.is_joint() || waits => {}
                (true, false) if !rules.one_replacing_change => out.push(Content::Add(slot)),
                (true, false) if !rules.joint_change => out.push(Content::Direct(slot)),
                (true, false) => out.push(Content::Joint(slot)),
                (true, true) if now.is_joint() => {
                    out.push(Content::Final(slot));
                    if self.bounds.undo {
                        out.push(Content::Undo(slot));
                    }
                }
                (true, true) => out.push(Content::Remove(slot)),
                (false, true) if self.bounds.back && !now.is_joint() => {
                    out.push(Content::Back(slot))
                }
                (false, _) => {}
            }
        }
    }
}

impl Model {
    /// Whether a leader may begin a change to two voters.
    fn may_shrink(&self, state: &State, sent: &Term) -> bool {
        let strict = sent.log.find(Content::Strict).filter(|index| *index <= sent.commit);
        let stays = || state.nodes().iter().filter(|node| node.id != SHRINKS);
        let active = stays().all(|node| node.gate == 0);
        let hold =
            stays().all(|node| strict.is_some_and(|index| sent.acked[node.id as usize] >= index));
        let clean = stays().all(|node| !node.unsynced_acks);
        active
            && (strict.is_some() || !self.rules.fewer_after_strict)
            && (hold || !self.rules.fewer_when_held || !self.rules.fewer_after_strict)
            && (clean || !self.rules.fewer_when_clean)
    }

    /// Whether what a member has in its log asks it to sync before it acknowledges.
    pub(crate) fn is_strict(&self, log: Log) -> bool {
        self.rules.strict_binds_on_append && log.find(Content::Strict).is_some()
    }
}

/// The longest log that a leader may know to be committed, in its own term and earlier ones.
fn known_committed(state: &State, leader: &Node) -> Log {
    let terms = state.terms[..leader.term as usize].iter();
    terms
        .map(|sent| sent.log.prefix(sent.commit))
        .filter(|log| leader.log.starts_with(*log))
        .max_by_key(|log| log.len())
        .unwrap_or_default()
}
