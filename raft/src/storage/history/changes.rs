//! The changes of one entry: its log record, read with what the history keeps of it.
//!
//! What holds here: a key occurs once. The last operation of a key decides what became of it, and all
//! of them saw the state before the entry. A key that was not there and is not there is no change.

use super::{Effect, UNCHANGED};
use crate::core::codec::{LogRecord, StoredCommand, StoredKind};
use crate::core::command::Version;
use crate::core::error::Malformed;
use bytes::Bytes;
use std::collections::HashSet;

/// A key that an entry put or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// The key.
    pub key: Bytes,
    /// Its new value; `None`: the key was deleted.
    pub value: Option<LoggedValue>,
    /// Its version before the entry; `None`: the key did not exist.
    pub previous: Option<Version>,
}

/// A value of an entry, which the log holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedValue {
    /// Which of the entry's values it is.
    pub number: usize,
    /// Its length.
    pub bytes: u32,
}

/// What an entry changed, in the order of its operations, and for a range in the order of keys. `lengths`
/// are those of its values.
///
/// # Errors
/// The record has other operations, or other values, than the entry that was applied.
pub(crate) fn changes_of(
    meta: &Bytes,
    lengths: &[u32],
    effect: &Effect,
) -> Result<Vec<KeyChange>, Malformed> {
    if effect.is_nothing() {
        return Ok(Vec::new());
    }
    let LogRecord::Command(command) = LogRecord::decode(meta)? else {
        return Err(Malformed("no command, and it changed keys"));
    };
    let found: &[u64] = match effect {
        Effect::One(found) => std::slice::from_ref(found),
        Effect::Each(each) => each,
        Effect::Keys(deleted) => return of_range(&command, deleted),
    };
    if found.len() != command.operations.len() {
        return Err(Malformed("not as many operations as were applied"));
    }
    let mut values = lengths.iter().copied().enumerate();
    let mut last = Vec::with_capacity(found.len());
    for (operation, found) in command.operations.into_iter().zip(found) {
        let value = match operation.kind {
            StoredKind::Check => continue,
            StoredKind::Delete => None,
            StoredKind::DeleteRange(_) => {
                return Err(Malformed("a range, and single keys changed"));
            }
            StoredKind::Put => {
                let (number, bytes) = values.next().ok_or(Malformed("a put without its value"))?;
                Some(LoggedValue { number, bytes })
            }
        };
        last.push((operation.key, value, *found));
    }
    let mut seen = HashSet::with_capacity(last.len());
    let mut changes = Vec::with_capacity(last.len());
    for (key, value, found) in last.into_iter().rev() {
        if seen.insert(key.clone()) && found != UNCHANGED {
            changes.push(KeyChange {
                key,
                value,
                previous: Some(found).filter(|found| *found > 0),
            });
        }
    }
    changes.reverse();
    Ok(changes)
}

/// The changes of a command that deleted these keys of a range, beside which there are only checks.
fn of_range(
    command: &StoredCommand,
    deleted: &[(Bytes, Version)],
) -> Result<Vec<KeyChange>, Malformed> {
    let mut ranges = command.operations.iter().filter_map(|operation| match &operation.kind {
        StoredKind::DeleteRange(range) => Some((&operation.key, &range.end)),
        _ => None,
    });
    let (start, end) = ranges.next().ok_or(Malformed("no range, and its keys were deleted"))?;
    let is_within = |key: &Bytes| key >= start && (end.is_empty() || key < end);
    if !deleted.iter().all(|(key, _)| is_within(key)) {
        return Err(Malformed("another range than the one of which keys were deleted"));
    }
    let changes = deleted.iter().map(|(key, version)| KeyChange {
        key: key.clone(),
        value: None,
        previous: Some(*version),
    });
    Ok(changes.collect())
}
