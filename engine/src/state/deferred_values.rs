//! Values that small group commits carried into the journal, and that are not yet at their places
//! in the data area.
//!
//! What holds here: only a value whose blocks still belong to it is written to its place later. A
//! block that is free again may belong to another value. A value that a view can reach stays readable.

use super::{Shared, State};
use crate::io::yield_once;
use crate::types::{Run, ValueRef};
use bytes::Bytes;
use std::collections::BTreeMap;

/// The most bytes of deferred values. A write of so many costs little more than a smaller one.
const DEFERRED_BYTES: u64 = 1 << 20;

/// Blocks that are freed at once: the lock is held for at most half a millisecond, even if each is a
/// run of its own.
const RELEASED_BLOCKS: u32 = 1024;

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

/// Deferred values that are being written to their places.
#[derive(Default)]
pub(crate) struct Placing {
    pub values: Vec<(ValueRef, Bytes)>,
    /// Holds the dead among them, until they are written.
    pub hold: Option<u64>,
}

impl State {
    /// Takes the deferred values that something still refers to, a view among others: its reader
    /// finds the value at its place soon. The others stay out of the data area: their blocks may be
    /// free by the time of a write. So may be those that only a view refers to, if it ends: no block
    /// is freed while they are being written. Pass the hold to [`crate::space::SpaceMap::view_ends`]
    /// then.
    pub(crate) fn take_deferred(&mut self) -> Placing {
        let Deferred { values, .. } = std::mem::take(&mut self.deferred);
        let (mut values, dead): (Vec<_>, Vec<_>) =
            values.into_values().partition(|(at, _)| self.space.is_live(at));
        let viewed = !dead.is_empty() && self.space.has_views();
        if viewed {
            values.extend(dead);
            values.sort_unstable_by_key(|(at, _)| at.offset());
            return Placing { values, hold: Some(self.space.hold_all()) };
        }
        for (at, _) in dead {
            self.unwritten.remove(&at.offset());
        }
        Placing { values, hold: None }
    }

    /// Frees some of the dead blocks whose death is recorded and synced, and forgets deferred values
    /// in them. False once all are free.
    fn release_some(&mut self) -> bool {
        let mut freed = self.space.release(RELEASED_BLOCKS);
        if freed.is_empty() {
            return false;
        }
        self.scarcity.refused = false;
        freed.sort_unstable_by_key(|run| run.first);
        let is_freed = |run: Run| {
            let behind = freed.partition_point(|free| free.end() <= run.first);
            freed.get(behind).is_some_and(|free| free.first < run.end())
        };
        let Deferred { values, bytes } = &mut self.deferred;
        values.retain(|offset, (at, value)| {
            let gone = at.block_runs().any(is_freed);
            if gone {
                *bytes -= value.len() as u64;
                self.unwritten.remove(offset);
            }
            !gone
        });
        true
    }
}

impl Shared {
    /// Synced journal blocks say that everything up to `synced_stamp` is synced: frees what died
    /// before, in steps.
    pub(crate) async fn release_space(&self, synced_stamp: u64) {
        self.state.lock().space.synced(synced_stamp);
        while self.state.lock().release_some() {
            yield_once().await;
        }
    }
}
