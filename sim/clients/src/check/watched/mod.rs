//! What watches told is what was changed: each change in the range behind the beginning of a watch, once, in
//! order, with its value and the version before it, and nothing else.
//!
//! What holds here: only clients are believed. A change is known by the answer to its write, by a read that
//! showed its value, by a state that somebody took, by a list, or by another watch. Every watch must tell all
//! that is known in its range, behind its beginning and up to its last position. What it tells must come from
//! a write that took effect there, or of which nobody was told whether it did. `facts` collects what is
//! known; `course` looks at one watch alone.
//!
//! A history that an unsafe recovery discarded contradicts what came after it. So this is for watches of one
//! history, none of which may be told that its position was discarded.

mod course;
mod facts;

use crate::Violation;
use crate::check::state::SentState;
use crate::history::{GROUP_KEYS, History, Key, Value, Version};
use crate::workload::{GROUPS_PREFIX, encode_key};
use cairn_client::{Position, Range};
use course::Times;
use facts::Facts;
use std::collections::BTreeMap;

/// The property's name.
pub const NAME: &str = "a watch tells each change once, in order";

/// Faults of one kind in one watch that are told. More of them tell nothing new.
const TOLD_MOST: usize = 4;

/// The keys in the range of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those of all groups.
    All,
    /// Keys of a group.
    Keys {
        /// The group.
        group: u32,
        /// The first key.
        from: Key,
        /// The first key behind them, above `from` and at most [`GROUP_KEYS`].
        until: Key,
    },
}

impl Scope {
    /// All keys of a group.
    pub fn group(group: u32) -> Scope {
        Scope::Keys { group, from: 0, until: GROUP_KEYS }
    }

    /// Whether a key is in it.
    pub fn has(self, (group, key): (u32, Key)) -> bool {
        match self {
            Scope::All => true,
            Scope::Keys { group: own, from, until } => own == group && (from..until).contains(&key),
        }
    }

    /// The range to ask for.
    pub fn range(self) -> Range {
        match self {
            Scope::All => Range::prefix(GROUPS_PREFIX),
            Scope::Keys { group, from, until } => {
                Range::from(encode_key(group, from)..encode_key(group, until))
            }
        }
    }
}

/// What a change left of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// A value; `None`: one that nobody asked for.
    Put(Option<Value>),
    /// Nothing: the key was deleted.
    Deleted,
}

/// A change that a watch told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The key, with its group.
    pub key: (u32, Key),
    /// The entry.
    pub at: Position,
    /// What it left.
    pub left: Left,
    /// The key's version before.
    pub previous: Option<Version>,
    /// Whether the watch says that nothing more of the entry follows.
    pub last_of_entry: bool,
    /// When it was told.
    pub when: u64,
}

/// Where a watch was asked to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begins {
    /// Behind everything that was acknowledged before.
    Now,
    /// Behind a position that an earlier watch of the same keys had.
    Kept(Position),
    /// Behind a list of its keys, with their versions.
    Listed(Position, BTreeMap<(u32, Key), Version>),
}

/// A position that a watch said to be at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// How many changes it had told by then.
    pub told: usize,
    /// The position.
    pub through: Position,
    /// When.
    pub when: u64,
}

/// Why a watch ended that was not dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The changes behind its position are no longer kept.
    Compacted {
        /// Those behind this entry are.
        oldest: Position,
        /// The last entry.
        now: Position,
    },
    /// Its position is in a history that was discarded.
    Discarded,
}

/// One watch, from its beginning to its end. Times are those of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Whose it is.
    pub watcher: u32,
    /// Its keys.
    pub scope: Scope,
    /// When it was asked for, or its list.
    pub asked: u64,
    /// Where it was to begin.
    pub begins: Begins,
    /// Where it began; `None`: it did not.
    pub began: Option<Position>,
    /// What it told, in order.
    pub told: Vec<Told>,
    /// Where it said to be, in order.
    pub marks: Vec<Mark>,
    /// How and when it ended, if it was told to.
    pub end: Option<(End, u64)>,
}

impl Watched {
    /// One that was asked for and has not begun.
    pub fn new(watcher: u32, scope: Scope, asked: u64, begins: Begins) -> Watched {
        let (told, marks) = (Vec::new(), Vec::new());
        Watched { watcher, scope, asked, begins, began: None, told, marks, end: None }
    }

    /// The position up to which it has told everything.
    pub fn through(&self) -> Option<Position> {
        self.marks.last().map(|mark| mark.through).or(self.began)
    }

    /// Whether it told all changes of a key behind the entry `from` up to the entry `to`.
    fn covers(&self, key: (u32, Key), from: Version, to: Version) -> bool {
        let (Some(began), Some(through)) = (self.began, self.through()) else { return false };
        self.scope.has(key) && began.index <= from && to <= through.index
    }
}

/// Checks watches against what clients were told, and against states that were taken meanwhile.
pub fn check(history: &History, states: &[SentState], watches: &[Watched]) -> Vec<Violation> {
    if watches.is_empty() {
        return Vec::new();
    }
    let (facts, times) = (Facts::of(history, states, watches), Times::of(history));
    let mut found = facts.contradictions(watches);
    for watch in watches {
        let unexplained = watch.told.iter().filter_map(|told| {
            let why = facts.why_wrong(told)?;
            Some(format!("{} tells {}: {why}", name(watch), shown(told)))
        });
        found.extend(unexplained.take(TOLD_MOST));
        found.extend(facts.missed(watch).into_iter().take(TOLD_MOST));
        found.extend(course::disorder(watch).into_iter().take(TOLD_MOST));
        found.extend(times.wrong(watch).into_iter().take(TOLD_MOST));
    }
    found.into_iter().map(|detail| Violation::new(NAME, detail)).collect()
}

fn name(watch: &Watched) -> String {
    format!("watch of {:?} by {}", watch.scope, watch.watcher)
}

fn at(position: Position) -> String {
    format!("{}.{}", position.term, position.index)
}

fn shown(told: &Told) -> String {
    let (group, key) = told.key;
    let (left, previous) = (told.left, told.previous);
    format!("{left:?} of key {group}/{key} at {}, before it {previous:?}", at(told.at))
}

#[cfg(test)]
mod tests;
