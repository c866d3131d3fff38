//! The values that the journal carries, and which of them an open puts at their places.

use crate::group::{Group, LogEntry};
use crate::journal::Moved;
use crate::types::{GroupId, LogId, ValueRef};
use bytes::Bytes;
use std::collections::BTreeMap;

/// An entry whose values a journal block carries.
pub(super) struct Carried {
    pub(super) sequence: u64,
    group: GroupId,
    id: LogId,
    places: Box<[ValueRef]>,
    values: Bytes,
}

impl Carried {
    /// The entry's values with their places; `None` if the bytes are not those of the values.
    pub(super) fn new(
        sequence: u64,
        group: GroupId,
        entry: &LogEntry,
        values: Bytes,
    ) -> Option<Carried> {
        let places = entry.values.clone();
        let carried = Carried { sequence, group, id: entry.id, places, values };
        let bytes: u64 = carried.places.iter().map(|at| u64::from(at.len)).sum();
        let intact = bytes == carried.values.len() as u64
            && carried.split().all(|(at, bytes)| at.matches(&bytes));
        intact.then_some(carried)
    }

    fn split(&self) -> impl Iterator<Item = (&ValueRef, Bytes)> {
        let mut rest = self.values.clone();
        self.places.iter().map(move |at| (at, rest.split_to((at.len as usize).min(rest.len()))))
    }

    /// Whether it has the value at its old place.
    pub(super) fn has(&self, moved: &Moved) -> bool {
        self.group == moved.group && self.id == moved.id && self.places.contains(&moved.from)
    }

    /// The value goes to its new place. Only its tail was written there: its whole blocks may not
    /// have arrived, and its old tail's place may belong to another value.
    pub(super) fn value_moved(&mut self, moved: &Moved) {
        let mine = self.group == moved.group && self.id == moved.id;
        if let Some(place) = self.places.iter_mut().find(|place| mine && **place == moved.from) {
            *place = moved.to.clone();
        }
    }

    /// The values whose places the log still refers to, if those cannot belong to other values.
    pub(super) fn due(&self, groups: &BTreeMap<GroupId, Group>) -> Vec<(ValueRef, Bytes)> {
        let group = groups.get(&self.group);
        let group = group.filter(|group| group.keeps_extents_of(self.id.index));
        let entry = group.and_then(|group| group.log.get(self.id.index));
        let Some(entry) = entry.filter(|entry| entry.id == self.id) else { return Vec::new() };
        let values = self.split().zip(&entry.values);
        let due = values.filter(|((at, bytes), now)| at == now && !bytes.is_empty());
        due.map(|((at, bytes), _)| (at.clone(), bytes)).collect()
    }
}
