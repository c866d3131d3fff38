//! What a watch was told and its user has not read: the changes in order, and how far they reach.
//!
//! What holds here: whoever tells, each change of an entry is read once, in order, and inside the watch's range. A position is
//! given out once everything up to it was read. An entry of which a part was told when a node was left is told anew as a
//! whole: what was not read of it is dropped, and what was read is passed over. What is not read is bounded: a change
//! beyond that is refused, and the watch begins anew at its position once all was read.

use std::collections::VecDeque;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::Error;
use crate::proto;
use crate::types::{Change, Position, Version};

/// The most changes that wait to be read: as many as one entry has that deletes a range, and four times as many as a node tells
/// in a message. The story: these were fewer than a message had. Each message was cut, and each cut cost the end of the watch
/// and a new begin behind a barrier, so a client that was behind caught up at that pace however fast it read.
pub(crate) const MOST_CHANGES: usize = 4096;
/// With this many bytes of keys and values waiting, no further change is taken.
pub(crate) const MOST_BYTES: usize = 4 << 20;
/// Memory of a change beside its key and value.
const CHANGE_BYTES: usize = 128;

/// Why a watch is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// The node says so, or what it told shows it: of [`Error::Compacted`] for itself alone, of others for each node.
    Said(Error),
    /// The node told what no node may tell: a sentence about it.
    Breach(String),
}

impl From<String> for Over {
    fn from(breach: String) -> Over {
        Over::Breach(breach)
    }
}

/// Whether what was told was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    All,
    /// Too much waits to be read. Nothing further is taken before [`Inbox::restart`].
    Full,
}

/// Which node may tell now. What one that was left tells late is not taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turn(u64);

/// The inbox of one watch. One node at a time fills it.
pub(crate) struct Inbox {
    range: proto::Range,
    keys_only: bool,
    state: Mutex<State>,
    /// There is something new for the reader.
    arrived: Notify,
    /// Everything was read.
    emptied: Notify,
}

#[derive(Default)]
struct State {
    items: VecDeque<Item>,
    /// Of the changes in `items`.
    changes: usize,
    bytes: usize,
    turn: Turn,
    /// The present node has begun to tell.
    began: bool,
    /// All of every entry up to this one was told; `None`: where the watch begins is not known yet.
    told: Option<Position>,
    /// The entry behind `told` that was told in part.
    open: Option<Position>,
    /// Whether the last change in `items` is the last one of its entry shows later.
    undecided: bool,
    /// The entry behind `told` that the reader has a part of, and how many of its changes.
    given: Option<(Position, usize)>,
    /// The same, while the present node tells that entry anew: how many changes are still to be passed over.
    again: Option<(Position, usize)>,
    /// The reader has everything up to here.
    read: Position,
    failed: Option<Error>,
}

enum Item {
    Change(Change),
    /// Nothing else was changed up to here.
    Through(Position),
}

impl Inbox {
    /// Of a watch that begins behind this entry; `None`: where the first node says.
    pub(crate) fn new(range: proto::Range, keys_only: bool, after: Option<Position>) -> Inbox {
        let state = State { told: after, read: after.unwrap_or_default(), ..State::default() };
        let (arrived, emptied) = (Notify::new(), Notify::new());
        Inbox { range, keys_only, state: Mutex::new(state), arrived, emptied }
    }

    /// Another node is about to tell. Returns its turn, and the entry behind which it begins, if that is known.
    pub(crate) fn restart(&self) -> (Turn, Option<Position>) {
        let mut state = self.state.lock();
        state.leave();
        let told = state.told.unwrap_or_default();
        state.again = state.given.filter(|(entry, _)| entry.index > told.index);
        (state.turn, state.told)
    }

    /// The state, if it is this node's turn.
    fn filled(&self, turn: Turn) -> Option<MutexGuard<'_, State>> {
        let state = self.state.lock();
        (state.turn == turn).then_some(state)
    }

    /// The node begins behind this entry.
    pub(super) fn began(&self, turn: Turn, at: Position) -> Result<(), Over> {
        let Some(mut state) = self.filled(turn) else { return Ok(()) };
        if state.began {
            return Err("it began a watch twice".to_owned().into());
        }
        let told = state.told;
        match told {
            None => (state.told, state.read) = (Some(at), at),
            Some(after) => {
                let is_it = after.term == at.term || after.term == 0 || at.term == 0;
                if after.index != at.index || !is_it {
                    let breach = || {
                        format!(
                            "it was asked for what follows entry {after}, and began behind {at}"
                        )
                    };
                    return Err(backwards(after, at, breach));
                }
                if after.term == 0 {
                    state.told = Some(at);
                    if state.read == after {
                        state.read = at;
                    }
                }
            }
        }
        state.began = true;
        Ok(())
    }

    /// The node told these changes.
    pub(super) fn changes(&self, turn: Turn, told: proto::WatchChanges) -> Result<Taken, Over> {
        let Some(mut state) = self.filled(turn) else { return Ok(Taken::All) };
        if !state.began {
            return Err("it told changes of a watch that it had not begun".to_owned().into());
        }
        for change in told.changes {
            let change = self.checked(change)?;
            if state.take(change)? == Taken::Full {
                self.arrived.notify_one();
                return Ok(Taken::Full);
            }
        }
        if let Some(through) = told.through {
            state.complete(through.into())?;
        }
        self.arrived.notify_one();
        Ok(Taken::All)
    }

    /// Everything up to this entry was told to each watch of the stream. One that began behind it learns nothing.
    pub(super) fn through(&self, turn: Turn, through: Position) -> Result<(), Over> {
        let Some(mut state) = self.filled(turn) else { return Ok(()) };
        let told = state.told.unwrap_or_default();
        let is_behind = |entry: &Position| through.index < entry.index;
        if !state.began || is_behind(&told) || state.open.as_ref().is_some_and(is_behind) {
            return Ok(());
        }
        state.complete(through)?;
        self.arrived.notify_one();
        Ok(())
    }

    /// No node tells anything more, for this reason.
    pub(crate) fn fail(&self, error: Error) {
        let mut state = self.state.lock();
        state.leave();
        state.failed = Some(error);
        self.arrived.notify_one();
    }

    /// The next change, if there is one; the reason why there is none any more.
    pub(crate) fn next(&self) -> Option<Result<Change, Error>> {
        let mut state = self.state.lock();
        let change = state.next();
        if state.items.is_empty() {
            self.emptied.notify_one();
        }
        match change {
            Some(change) => Some(Ok(change)),
            None => state.failed.clone().map(Err),
        }
    }

    /// Whether [`Inbox::next`] has an answer.
    pub(crate) fn is_ready(&self) -> bool {
        let mut state = self.state.lock();
        state.advance();
        state.has_change() || state.failed.is_some()
    }

    /// Waits until something new came since the last call.
    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }

    /// Waits until everything was read.
    pub(crate) async fn emptied(&self) {
        while !self.state.lock().items.is_empty() {
            self.emptied.notified().await;
        }
    }

    /// The reader has everything up to this entry.
    pub(crate) fn position(&self) -> Position {
        let mut state = self.state.lock();
        state.advance();
        state.read
    }

    /// Everything up to this entry was told.
    pub(crate) fn told(&self) -> Option<Position> {
        self.state.lock().told
    }

    /// A change that this watch may be told.
    fn checked(&self, change: proto::Change) -> Result<Change, String> {
        let Some(at) = change.at else {
            return Err("it told a change without its entry".to_owned());
        };
        let proto::Range { start, end } = &self.range;
        let is_within = change.key >= *start && (end.is_empty() || change.key < *end);
        if !is_within || change.key.is_empty() {
            return Err(format!(
                "it told a change at entry {} outside of the range",
                Position::from(at)
            ));
        }
        if change.previous >= at.index {
            let (at, previous) = (Position::from(at), change.previous);
            return Err(format!("it told that entry {at} followed version {previous} of a key"));
        }
        let has_value = !change.deleted && !self.keys_only;
        Ok(Change {
            key: change.key,
            version: Version(at.index),
            term: at.term,
            deleted: change.deleted,
            value: has_value.then_some(change.value),
            previous: (change.previous != 0).then_some(Version(change.previous)),
            last_of_version: false,
        })
    }
}

impl State {
    /// Takes the next change in order.
    fn take(&mut self, change: Change) -> Result<Taken, Over> {
        let at = entry(&change);
        if self.open != Some(at) {
            let before = self.open.or(self.told).unwrap_or_default();
            if at.index <= before.index || at.term < before.term {
                let breach = || format!("it told a change of entry {at} behind entry {before}");
                return Err(backwards(before, at, breach));
            }
            if let Some(open) = self.open {
                self.complete(open)?;
            }
        }
        if let Some((entry, left)) = self.again {
            if at != entry {
                let breach =
                    || format!("it told entry {at} where another node had told entry {entry}");
                return Err(otherwise(entry, at, breach));
            }
            self.open = Some(at);
            self.again = left.checked_sub(1).map(|left| (entry, left));
            if left > 0 {
                return Ok(Taken::All);
            }
        }
        self.open = Some(at);
        // What follows the last change shows whether it is the last one of its entry.
        self.undecided = false;
        if self.changes >= MOST_CHANGES || self.bytes >= MOST_BYTES {
            return Ok(Taken::Full);
        }
        self.changes += 1;
        self.bytes += size(&change);
        self.undecided = true;
        self.items.push_back(Item::Change(change));
        Ok(Taken::All)
    }

    /// Everything up to this entry was told.
    fn complete(&mut self, through: Position) -> Result<(), Over> {
        let before = self.open.or(self.told).unwrap_or_default();
        let is_other = through.index == before.index && through.term != before.term;
        let is_known = before.term != 0;
        if through.index < before.index || through.term < before.term || (is_other && is_known) {
            let breach =
                || format!("it told everything up to entry {through} behind entry {before}");
            return Err(backwards(before, through, breach));
        }
        if let Some((entry, _)) = self.again.filter(|(entry, _)| through.index >= entry.index) {
            let breach = || format!("it told less of entry {entry} than another node");
            return Err(otherwise(entry, through, breach));
        }
        if let Some(Item::Change(last)) = self.items.back_mut()
            && self.open == Some(entry(last))
        {
            last.last_of_version = true;
        }
        (self.open, self.undecided, self.told) = (None, false, Some(through));
        match self.items.back_mut() {
            Some(Item::Through(last)) => *last = through,
            Some(Item::Change(last)) if last.version.0 == through.index => {}
            _ => self.items.push_back(Item::Through(through)),
        }
        self.advance();
        Ok(())
    }

    /// The present node tells nothing any more. Drops what was not read of the entry that was told in part.
    fn leave(&mut self) {
        (self.turn, self.began, self.undecided) = (Turn(self.turn.0 + 1), false, false);
        let Some(open) = self.open.take() else { return };
        while let Some(Item::Change(last)) = self.items.back()
            && entry(last) == open
        {
            (self.changes, self.bytes) =
                (self.changes.saturating_sub(1), self.bytes.saturating_sub(size(last)));
            self.items.pop_back();
        }
    }

    /// Gives out the positions up to the next change.
    fn advance(&mut self) {
        while let Some(Item::Through(through)) = self.items.front() {
            self.read = *through;
            self.items.pop_front();
        }
    }

    fn has_change(&self) -> bool {
        match self.items.front() {
            Some(Item::Change(_)) => !(self.items.len() == 1 && self.undecided),
            _ => false,
        }
    }

    fn next(&mut self) -> Option<Change> {
        self.advance();
        if !self.has_change() {
            return None;
        }
        let Some(Item::Change(change)) = self.items.pop_front() else { return None };
        self.changes = self.changes.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(size(&change));
        let at = entry(&change);
        if change.last_of_version {
            (self.read, self.given) = (at, None);
        } else {
            let before = self.given.filter(|(entry, _)| *entry == at).map_or(0, |(_, count)| count);
            self.given = Some((at, before + 1));
        }
        self.advance();
        Some(change)
    }
}

/// What it means that a node tells of entry `at` behind entry `before`, at the same index or an earlier one. The story: an unsafe
/// recovery discarded entries that were told. A member told what the cluster has since at their indexes, in a later term, and the
/// watch ended as if that member lied.
fn backwards(before: Position, at: Position, breach: impl FnOnce() -> String) -> Over {
    match at.index <= before.index {
        true => otherwise(before, at, breach),
        false => Over::Breach(breach()),
    }
}

/// The same, where it tells of entry `at` and not of entry `known`. An entry of a later term takes the place of one only where
/// that was discarded.
fn otherwise(known: Position, at: Position, breach: impl FnOnce() -> String) -> Over {
    match known.term != 0 && at.term > known.term {
        true => Over::Said(Error::HistoryDiscarded),
        false => Over::Breach(breach()),
    }
}

fn entry(change: &Change) -> Position {
    Position { term: change.term, index: change.version.0 }
}

fn size(change: &Change) -> usize {
    change.key.len() + change.value.as_ref().map_or(0, |value| value.len()) + CHANGE_BYTES
}

#[cfg(test)]
mod tests;
