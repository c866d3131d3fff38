//! A state of the whole cluster: three machines, with up to two reborn, or five; and everything that was ever said.
//!
//! Messages are never removed, so the network is a record per term of the most that was said in it. A leader's log only
//! grows within its term: every append that it can have sent is a prefix of the longest, every acknowledgement a prefix of
//! the longest acknowledged, and "delivered late, twice, out of order or never" is choosing any of them at any time.

use crate::log::{Log, mirror};
use crate::properties::Violation;
use std::hash::{Hash, Hasher};

/// The most machines.
pub(crate) const SLOTS: usize = 5;
/// What a reborn machine's identity is greater by than the one that it replaces; of three machines only.
pub(crate) const REBORN: u8 = 3;
/// Identities: each machine's first, and, of three machines, the one that it gets when reborn.
pub(crate) const IDS: usize = 6;
/// Terms.
pub(crate) const TERMS: usize = 3;
const PAST: usize = 6;

/// What a member takes itself for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    Follower,
    Candidate,
    Leader,
}

/// The states of the log that a power cut can bring back: every one since the last sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Past {
    logs: [Log; PAST],
    len: u8,
}

impl Past {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn logs(&self) -> &[Log] {
        &self.logs[..self.len as usize]
    }

    /// Remembers a log. False if there is no room, which a search reports as bounds too large.
    #[must_use]
    pub(crate) fn insert(&mut self, log: Log) -> bool {
        match self.logs().binary_search(&log) {
            Ok(_) => true,
            Err(_) if self.len as usize == PAST => false,
            Err(at) => {
                self.logs.copy_within(at..self.len as usize, at + 1);
                self.logs[at] = log;
                self.len += 1;
                true
            }
        }
    }

    fn mirrored(&self) -> Past {
        let mut past = *self;
        for log in &mut past.logs[..self.len as usize] {
            *log = log.mirrored();
        }
        past.logs[..self.len as usize].sort_unstable();
        past
    }
}

/// One machine: what its disk holds, and what its process knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Its slot; three more if it is the one that was reborn.
    pub id: u8,
    pub term: u8,
    /// One more than the identity voted for in `term`; zero for none.
    pub voted: u8,
    /// Term and vote that a power cut brings back; equal to the above unless a rule is left out.
    pub synced_vote: (u8, u8),
    pub role: Role,
    /// The log as written.
    pub log: Log,
    /// What a power cut may leave instead.
    pub past: Past,
    /// While recovering, the nonce of the record that ends it; zero otherwise.
    pub gate: u8,
    /// Recoveries begun, from which nonces come.
    pub starts: u8,
    /// Reborn, and silent until its own membership is applied (only without `joining_recovers`).
    pub joining: bool,
    /// The mark on the disk.
    pub lazy: bool,
    /// The clear mark is on its way to the disk (only without `no_ack_while_clearing`).
    pub clearing: bool,
    /// Off, for good.
    pub down: bool,
    /// Per term, the newest regime heard of.
    pub regime: [u8; TERMS],
}

impl Node {
    /// Replaces the log; a power cut may bring the old one back. False if `past` is full.
    #[must_use]
    pub(crate) fn write(&mut self, log: Log) -> bool {
        let old = std::mem::replace(&mut self.log, log);
        self.past.insert(old)
    }

    /// Everything written is synced.
    pub(crate) fn sync(&mut self) {
        self.past = Past::default();
    }

    /// A term and vote, synced.
    pub(crate) fn set_vote(&mut self, term: u8, voted: u8) {
        (self.term, self.voted, self.synced_vote) = (term, voted, (term, voted));
    }

    /// Whether it may take part in elections.
    pub(crate) fn is_active(&self) -> bool {
        self.gate == 0 && !self.joining
    }

    fn mirrored(&self) -> Node {
        let vote = |voted: u8| if voted == 0 { 0 } else { mirror(voted - 1) + 1 };
        Node {
            id: mirror(self.id),
            voted: vote(self.voted),
            synced_vote: (self.synced_vote.0, vote(self.synced_vote.1)),
            log: self.log.mirrored(),
            past: self.past.mirrored(),
            ..*self
        }
    }
}

/// Everything said in one term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Term {
    /// One more than the leader's identity; zero for none.
    pub leader: u8,
    /// The leader's log at its longest: every append is a prefix of it.
    pub log: Log,
    /// The leader's commit index at its highest.
    pub commit: u8,
    /// By candidate: the rank of its log, zero if it did not campaign.
    pub asked: [u8; IDS],
    /// By candidate: who granted.
    pub granted: [u8; IDS],
    /// By member: the longest acknowledged prefix.
    pub acked: [u8; IDS],
    /// The leader's regime: odd is thin, even is lazy. Zero where regimes are not modelled.
    pub regime: u8,
    /// The leader's log length when a lazy regime last ended: older appends that allow laziness reach so far.
    pub lazy_len: u8,
    /// Who answered within the current regime.
    pub answered: u8,
    /// Who was up when the current regime began.
    pub up: u8,
}

impl Term {
    /// The leader's log when it was elected in this term.
    pub(crate) fn elected_with(&self, term: u8) -> Log {
        let before = self.log.entries().take_while(|entry| entry.term() < term).count();
        self.log.prefix(before as u8)
    }

    /// Which identities acknowledged at least so much.
    pub(crate) fn ackers(&self, len: u8) -> u8 {
        (0..IDS).filter(|id| self.acked[*id] >= len).fold(0, |set, id| set | 1 << id)
    }

    fn mirrored(&self) -> Term {
        let ids = |from: [u8; IDS]| std::array::from_fn(|id| from[mirror(id as u8) as usize]);
        let bits =
            |set: u8| (0..IDS as u8).filter(|id| set >> id & 1 == 1).fold(0, |s, id| s | 1 << mirror(id));
        Term {
            leader: if self.leader == 0 { 0 } else { mirror(self.leader - 1) + 1 },
            log: self.log.mirrored(),
            asked: ids(self.asked),
            granted: ids(self.granted).map(bits),
            acked: ids(self.acked),
            answered: bits(self.answered),
            up: bits(self.up),
            ..*self
        }
    }
}

/// What was used up of the bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Used {
    pub values: u8,
    pub cuts: u8,
    pub kills: u8,
    pub losses: u8,
    pub copies: u8,
}

/// The cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// All that there can be; use [`State::nodes`].
    pub all: [Node; SLOTS],
    /// How many there are.
    pub members: u8,
    pub terms: [Term; TERMS],
    /// What clients were told is committed.
    pub committed: Log,
    pub used: Used,
    /// The thin regime was established with a machine down: from here on the others must stay clear and active.
    pub promised: bool,
    /// The first property that a step broke.
    pub broken: Option<Violation>,
}

// States are hashed far more often than anything else is done, so all that is small is hashed in one piece.

impl Hash for Node {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Node {
            id,
            term,
            voted,
            synced_vote,
            role,
            log,
            past,
            gate,
            starts,
            joining,
            lazy,
            clearing,
            down,
            regime,
        } = *self;
        let flags = [joining, lazy, clearing, down].map(u8::from);
        hasher.write(&[id, term, voted, synced_vote.0, synced_vote.1, role as u8, gate, starts]);
        hasher.write(&[flags[0], flags[1], flags[2], flags[3], regime[0], regime[1], regime[2], past.len]);
        log.hash(hasher);
        for log in past.logs() {
            log.hash(hasher);
        }
    }
}

impl Hash for Term {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Term { leader, log, commit, asked, granted, acked, regime, lazy_len, answered, up } = *self;
        hasher.write(&[leader, commit, regime, lazy_len, answered, up]);
        hasher.write(&asked);
        hasher.write(&granted);
        hasher.write(&acked);
        log.hash(hasher);
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let State { terms, committed, used, promised, broken, .. } = self;
        for node in self.nodes() {
            node.hash(hasher);
        }
        (terms, committed, used, promised, broken).hash(hasher);
    }
}

impl State {
    pub(crate) fn nodes(&self) -> &[Node] {
        &self.all[..self.members as usize]
    }

    pub(crate) fn term(&self, term: u8) -> &Term {
        &self.terms[term as usize - 1]
    }

    pub(crate) fn term_mut(&mut self, term: u8) -> &mut Term {
        &mut self.terms[term as usize - 1]
    }

    /// The same with slots B and C exchanged: what holds for one holds for the other.
    pub(crate) fn mirrored(&self) -> State {
        let mut all = self.all.map(|node| node.mirrored());
        all.swap(1, 2);
        if all[3].id > all[4].id {
            all.swap(3, 4);
        }
        State {
            all,
            terms: self.terms.map(|term| term.mirrored()),
            committed: self.committed.mirrored(),
            ..*self
        }
    }
}
