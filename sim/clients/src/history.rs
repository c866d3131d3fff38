//! The requests of clients and their answers: the input of every check on behaviour.
//!
//! Keys belong to groups, and a request touches one group only, so each group's history can be
//! checked alone (linearizability is local). A request whose outcome is unknown has no return time:
//! it may take effect at any time after its invocation, or never.

use std::fmt;

/// Keys in one group.
pub const GROUP_KEYS: usize = 4;

/// A key inside its group, below [`GROUP_KEYS`].
pub type Key = usize;

/// A value's unique number; no two writes share one.
pub type Value = u64;

/// A key's version: the log index of the write that put it.
pub type Version = u64;

/// What one operation of a write does to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Puts a value.
    Put(Value),
    /// Deletes the key, if present.
    Delete,
    /// Changes nothing: a condition for the whole request.
    Check,
}

/// What must hold for a write to be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// No condition.
    None,
    /// The key does not exist.
    Absent,
    /// The key exists.
    Exists,
    /// The key has this version.
    Version(Version),
}

/// One operation of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOperation {
    /// The key.
    pub key: Key,
    /// The effect.
    pub change: Change,
    /// The condition.
    pub condition: Condition,
}

/// The deletion of a range of a group's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeSpec {
    /// The first key that may be in it.
    pub from: Key,
    /// The first key behind it, above `from` and at most [`GROUP_KEYS`].
    pub until: Key,
    /// At most so many keys are deleted, from the first on.
    pub most: usize,
    /// None is deleted if there are more.
    pub whole: bool,
}

impl RangeSpec {
    /// The keys that may be in it.
    pub fn keys(self) -> std::ops::Range<Key> {
        self.from..self.until
    }

    /// Whether none of its keys exists afterwards, whatever was there.
    pub fn leaves_none(self) -> bool {
        self.keys().len() <= self.most
    }
}

/// A page of a group's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListSpec {
    /// Only keys after this one (before it, in reverse).
    pub start_after: Option<Key>,
    /// Only keys before this one, in either direction.
    pub end: Option<Key>,
    /// The most items of a page.
    pub limit: usize,
    /// From the last to the first.
    pub reverse: bool,
    /// Without values.
    pub keys_only: bool,
    /// The page ends before its keys and values exceed this many bytes; it holds at least one item.
    pub max_bytes: u64,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// One or more operations, atomically.
    Write(Vec<WriteOperation>),
    /// The first keys of a range, or all of them.
    DeleteRange(RangeSpec),
    /// One key.
    Get(Key),
    /// One key from any node's state, however old.
    StaleGet(Key),
    /// One key from a state that lacks nothing acknowledged so many milliseconds before, by a member's clock.
    BoundedGet(Key, u64),
    /// Several keys at one index.
    GetMany(Vec<Key>),
    /// Several keys at one index, of a state that lacks nothing acknowledged so many milliseconds before, as above.
    BoundedGetMany(Vec<Key>, u64),
    /// One key's version.
    Version(Key),
    /// A page.
    List(ListSpec),
    /// All keys of the group at one index.
    Scan,
}

impl Action {
    /// Whether it may change something.
    pub fn is_write(&self) -> bool {
        matches!(self, Action::Write(_) | Action::DeleteRange(_))
    }
}

/// A listed key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// The key.
    pub key: Key,
    /// Its value, unless only keys were requested.
    pub value: Option<Value>,
    /// Its version.
    pub version: Version,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A write took effect.
    Applied {
        /// Its log index.
        index: Version,
        /// Its term.
        term: u64,
        /// Each operation's key's version before it.
        previous: Vec<Option<Version>>,
    },
    /// A write's conditions did not hold; nothing changed.
    ConditionFailed {
        /// The log index at which they were evaluated.
        index: Version,
        /// The operations whose conditions failed, with the versions found.
        failed: Vec<(usize, Option<Version>)>,
    },
    /// Keys of a range were deleted.
    RangeDeleted {
        /// The log index.
        index: Version,
        /// The term.
        term: u64,
        /// How many keys.
        deleted: usize,
        /// Whether the range had more.
        more: bool,
    },
    /// A range had more keys than it could be deleted with; nothing changed.
    RangeTooLarge {
        /// The log index at which they were counted.
        index: Version,
    },
    /// A get.
    Found(Option<(Value, Version)>),
    /// A get of several keys, or a scan of all keys in order: what each has, and the log index of their state.
    FoundMany(Vec<Option<(Value, Version)>>, Version),
    /// A key's version.
    FoundVersion(Option<Version>),
    /// A list: items in the requested order, and whether more follow.
    Listed(Vec<Item>, bool),
    /// The request failed and certainly had no effect.
    NoEffect,
    /// The request may have taken effect, may yet take effect, or never will.
    Unknown,
}

/// One request and its answer. Times are nanoseconds since the run began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The client's number.
    pub client: u32,
    /// The group of its keys.
    pub group: u32,
    /// The request.
    pub action: Action,
    /// Whether a write asked for a sync on a majority before its answer.
    pub synced: bool,
    /// When the request was sent.
    pub invoked: u64,
    /// When the answer came; meaningless for [`Outcome::Unknown`].
    pub returned: u64,
    /// The answer.
    pub outcome: Outcome,
}

impl Record {
    /// Whether its outcome stays unknown.
    pub fn is_open(&self) -> bool {
        self.outcome == Outcome::Unknown
    }

    /// Whether it is a write that took effect.
    pub fn is_applied(&self) -> bool {
        self.log_id().is_some()
    }

    /// Term and log index of a write that took effect.
    pub fn log_id(&self) -> Option<(u64, Version)> {
        match self.outcome {
            Outcome::Applied { index, term, .. } | Outcome::RangeDeleted { index, term, .. } => {
                Some((term, index))
            }
            _ => None,
        }
    }

    /// The log index in the answer to a write.
    pub fn index(&self) -> Option<Version> {
        match self.outcome {
            Outcome::Applied { index, .. }
            | Outcome::ConditionFailed { index, .. }
            | Outcome::RangeDeleted { index, .. }
            | Outcome::RangeTooLarge { index } => Some(index),
            _ => None,
        }
    }

    /// The keys that it leaves absent as far as its answer tells, if it deletes a range and took effect.
    pub fn surely_deleted(&self) -> std::ops::Range<Key> {
        match (&self.action, &self.outcome) {
            (Action::DeleteRange(spec), Outcome::RangeDeleted { more: false, .. }) => spec.keys(),
            _ => 0..0,
        }
    }

    /// The keys that it may have deleted, if it deletes a range and nobody was told which.
    pub fn perhaps_deleted(&self) -> std::ops::Range<Key> {
        match (&self.action, &self.outcome) {
            (
                Action::DeleteRange(spec),
                Outcome::Unknown | Outcome::RangeDeleted { more: true, .. },
            ) => spec.keys(),
            _ => 0..0,
        }
    }

    /// The values that the request puts, with their keys, in order.
    pub fn puts(&self) -> impl Iterator<Item = (Key, Value)> + '_ {
        let operations: &[WriteOperation] = match &self.action {
            Action::Write(operations) => operations,
            _ => &[],
        };
        operations.iter().filter_map(|operation| match operation.change {
            Change::Put(value) => Some((operation.key, value)),
            Change::Delete | Change::Check => None,
        })
    }

    /// The values in the answer: key, value, version.
    pub fn seen(&self) -> Vec<(Key, Value, Version)> {
        match (&self.action, &self.outcome) {
            (
                Action::Get(key) | Action::StaleGet(key) | Action::BoundedGet(key, _),
                Outcome::Found(Some((value, version))),
            ) => vec![(*key, *value, *version)],
            (
                Action::GetMany(keys) | Action::BoundedGetMany(keys, _),
                Outcome::FoundMany(found, _),
            ) => {
                let found = keys.iter().zip(found);
                found
                    .filter_map(|(key, found)| found.map(|(value, version)| (*key, value, version)))
                    .collect()
            }
            (Action::Scan, Outcome::FoundMany(found, _)) => {
                let found = found.iter().enumerate();
                found
                    .filter_map(|(key, found)| found.map(|(value, version)| (key, value, version)))
                    .collect()
            }
            (_, Outcome::Listed(items, _)) => items
                .iter()
                .filter_map(|item| item.value.map(|value| (item.key, value, item.version)))
                .collect(),
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |ns: u64| ns as f64 / 1e9;
        write!(f, "client {} group {} {:.6}", self.client, self.group, seconds(self.invoked))?;
        if self.is_open() {
            write!(f, "..       ")?;
        } else {
            write!(f, "..{:.6}", seconds(self.returned))?;
        }
        write!(f, " {:?} -> {:?}", self.action, self.outcome)
    }
}

/// The records of one run, in order of invocation.
#[derive(Clone, Debug, Default)]
pub struct History {
    records: Vec<Record>,
}

impl History {
    /// Creates a history from records in any order.
    pub fn new(mut records: Vec<Record>) -> History {
        records.sort_by_key(|record| (record.invoked, record.client));
        History { records }
    }

    /// All records.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The groups, each with its records.
    pub fn by_group(&self) -> std::collections::BTreeMap<u32, Vec<&Record>> {
        let mut groups = std::collections::BTreeMap::<u32, Vec<&Record>>::new();
        for record in &self.records {
            groups.entry(record.group).or_default().push(record);
        }
        groups
    }
}
