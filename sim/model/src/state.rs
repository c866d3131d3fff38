//! A state of the whole cluster: three machines and up to two replacements, or five machines; and
//! every message that was ever sent.
//!
//! Messages are never removed, so the network is one record per term of the most that was sent in
//! it. A leader's log only grows within its term: every append that it can have sent is a prefix of
//! the longest, and every acknowledgement a prefix of the longest acknowledged. To deliver a
//! message late, twice, out of order or never is to choose any of these prefixes at any time.

use crate::log::{Log, mirror};
use crate::violation::Violation;
use std::hash::{Hash, Hasher};

/// The most machines in a search.
pub(crate) const SLOTS: usize = 5;
/// A replacement's identity is the replaced identity plus this. Only with three machines.
pub(crate) const REPLACEMENT: u8 = 3;
/// Identities: the first one of each machine and, with three machines, the replacement's.
pub(crate) const IDS: usize = 6;
/// Terms.
pub(crate) const TERMS: usize = 3;
const PAST: usize = 6;

/// The member's Raft role, in its own view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    Follower,
    Candidate,
    Leader,
}

/// The states of the log that a power cut can bring back: each one since the last sync.
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

    /// Keeps a log. False if there is no capacity left; the search then reports that its bounds are
    /// too large.
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
    /// The slot; plus three for a replacement.
    pub id: u8,
    pub term: u8,
    /// The identity voted for in `term`, plus one. Zero for none.
    pub voted: u8,
    /// The term and vote that a power cut brings back. Equal to `term` and `voted` unless a rule is
    /// left out.
    pub synced_vote: (u8, u8),
    pub role: Role,
    /// The log as written.
    pub log: Log,
    /// What a power cut may leave instead.
    pub past: Past,
    /// While recovering, the nonce of the boot-epoch record that ends the recovery. Zero otherwise.
    pub gate: u8,
    /// The number of recoveries begun; nonces are these numbers.
    pub recoveries: u8,
    /// A replacement that is silent until it has applied its own membership (only without
    /// `joining_recovers`).
    pub joining: bool,
    /// The unsynced-ack flag on the disk.
    pub unsynced_acks: bool,
    /// The cleared flag is on its way to the disk (only without `no_ack_while_clearing`).
    pub clearing: bool,
    /// Off, for good.
    pub down: bool,
    /// The newest ack mode number that the member knows, per term.
    pub ack_mode: [u8; TERMS],
}

impl Node {
    /// Replaces the log. A power cut may bring the old one back. False if `past` is full.
    #[must_use]
    pub(crate) fn write(&mut self, log: Log) -> bool {
        let old = std::mem::replace(&mut self.log, log);
        self.past.insert(old)
    }

    /// Syncs everything written.
    pub(crate) fn sync(&mut self) {
        self.past = Past::default();
    }

    /// Sets term and vote, and syncs them.
    pub(crate) fn set_vote(&mut self, term: u8, voted: u8) {
        (self.term, self.voted, self.synced_vote) = (term, voted, (term, voted));
    }

    /// Whether the member may take part in elections.
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

/// Everything that was sent in one term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Term {
    /// The leader's identity plus one. Zero for none.
    pub leader: u8,
    /// The leader's longest log. Every append is a prefix of it.
    pub log: Log,
    /// The leader's highest commit index.
    pub commit: u8,
    /// By candidate: the rank of its log. Zero if it did not campaign.
    pub asked: [u8; IDS],
    /// By candidate: the members that granted their vote, as bits.
    pub granted: [u8; IDS],
    /// By member: the longest acknowledged prefix.
    pub acked: [u8; IDS],
    /// The leader's ack mode number: odd is safe mode, even is fast mode. Zero where the search has
    /// no ack modes.
    pub ack_mode: u8,
    /// The leader's log length when fast mode last ended. Late appends of fast mode are not longer.
    pub fast_len: u8,
    /// The members that answered with the present ack mode number, as bits.
    pub answered: u8,
    /// The members that were up when the present ack mode began, as bits.
    pub up: u8,
}

impl Term {
    /// The leader's log when it was elected in this term.
    pub(crate) fn elected_with(&self, term: u8) -> Log {
        let before = self.log.entries().take_while(|entry| entry.term() < term).count();
        self.log.prefix(before as u8)
    }

    /// The identities that acknowledged at least this length, as bits.
    pub(crate) fn ackers(&self, len: u8) -> u8 {
        (0..IDS).filter(|id| self.acked[*id] >= len).fold(0, |set, id| set | 1 << id)
    }

    fn mirrored(&self) -> Term {
        let ids = |from: [u8; IDS]| std::array::from_fn(|id| from[mirror(id as u8) as usize]);
        let bits = |set: u8| {
            (0..IDS as u8).filter(|id| set >> id & 1 == 1).fold(0, |s, id| s | 1 << mirror(id))
        };
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

/// What is used up of the bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Used {
    pub values: u8,
    pub cuts: u8,
    pub kills: u8,
    pub lost_disks: u8,
    pub copies: u8,
}

/// The cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// All nodes that there can be. Use [`State::nodes`].
    pub all: [Node; SLOTS],
    /// How many nodes there are.
    pub members: u8,
    pub terms: [Term; TERMS],
    /// The log that leaders reported to clients as committed.
    pub committed: Log,
    pub used: Used,
    /// Safe mode was established with a machine down. From here on the others must stay active with
    /// clear flags.
    pub promised: bool,
    /// The first property that a step broke.
    pub broken: Option<Violation>,
}

// Hashing states is by far the most frequent operation, so small fields are hashed in one piece.

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
            recoveries,
            joining,
            unsynced_acks,
            clearing,
            down,
            ack_mode,
        } = *self;
        let flags = [joining, unsynced_acks, clearing, down].map(u8::from);
        hasher.write(&[
            id,
            term,
            voted,
            synced_vote.0,
            synced_vote.1,
            role as u8,
            gate,
            recoveries,
        ]);
        hasher.write(&[
            flags[0],
            flags[1],
            flags[2],
            flags[3],
            ack_mode[0],
            ack_mode[1],
            ack_mode[2],
            past.len,
        ]);
        log.hash(hasher);
        for log in past.logs() {
            log.hash(hasher);
        }
    }
}

impl Hash for Term {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Term { leader, log, commit, asked, granted, acked, ack_mode, fast_len, answered, up } =
            *self;
        hasher.write(&[leader, commit, ack_mode, fast_len, answered, up]);
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

    /// The same state with slots B and C exchanged. What holds for one holds for the other.
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
