//! Values that small group commits carried into the journal, and that are not yet at their places
//! in the data area.
//!
//! What holds here: only a value whose blocks still belong to it is written to its place later. A
//! block that is free again may belong to another value.

use super::State;
use crate::types::{Run, ValueRef};
use bytes::Bytes;
use std::collections::BTreeMap;

/// The most bytes of deferred values. A write of so many costs little more than a smaller one.
const DEFERRED_BYTES: u64 = 1 << 20;

/// Values to be written later, by the offset of their first byte.
#[derive(Default)]
pub(crate) struct Deferred {
    values: BTreeMap<u64, (ValueRef, Bytes)>,
    bytes: u64,
}

impl Deferred {
    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Whether it has room for so many bytes more.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.bytes + bytes <= DEFERRED_BYTES
    }

    pub(crate) fn push(&mut self, at: ValueRef, bytes: Bytes) {
        self.bytes += bytes.len() as u64;
        let before = self.values.insert(at.offset(), (at, bytes));
        assert!(before.is_none(), "two deferred values have the same place");
    }
}

impl State {
    /// Takes the deferred values that something still refers to. The others stay out of the data
    /// area: their blocks may be free by the time of a write.
    pub(crate) fn take_deferred(&mut self) -> Vec<(ValueRef, Bytes)> {
        let Deferred { values, .. } = std::mem::take(&mut self.deferred);
        let (live, dead): (Vec<_>, Vec<_>) =
            values.into_values().partition(|(at, _)| self.space.is_live(at));
        for (at, _) in dead {
            self.unwritten.remove(&at.offset());
        }
        live
    }

    /// Frees the dead blocks whose death is recorded and synced, and forgets deferred values in
    /// them.
    pub(crate) fn release_space(&mut self, synced_stamp: u64) {
        for freed in self.space.release(synced_stamp) {
            self.scarcity.refused = false;
            self.forget_deferred(freed);
        }
    }

    fn forget_deferred(&mut self, freed: Run) {
        let touches = |at: &ValueRef| {
            at.block_runs().any(|run| run.first < freed.end() && freed.first < run.end())
        };
        let values = &mut self.deferred.values;
        let gone: Vec<u64> =
            values.iter().filter(|(_, (at, _))| touches(at)).map(|(offset, _)| *offset).collect();
        for offset in gone {
            if let Some((_, bytes)) = values.remove(&offset) {
                self.deferred.bytes -= bytes.len() as u64;
            }
            self.unwritten.remove(&offset);
        }
    }
}
