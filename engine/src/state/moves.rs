//! Moving the tails of values out of sparse blocks, in one step under the lock.
//!
//! What holds here:
//! - A tail moves only if all that is live in one of its blocks moves with it, so that the block
//!   dies. What only the log or an installer refers to keeps its block.
//! - Key and log entry change together, and with them the references that the space map counts.
//! - The record of the move, the tail, and the record of the old place's death are in one group
//!   commit: the one that takes the queue next.
//! - A value whose write is in flight does not move: when that write ends, its bytes in memory are
//!   dropped, and the journal may be all that holds it until then.

use super::{MovedValue, Op, Queued, State};
use crate::journal::Moved;
use crate::types::{GroupId, KeyEntry, ValueRef};
use bytes::Bytes;
use std::collections::BTreeMap;

/// A key's value that was read and matched.
pub(crate) struct Movable {
    pub group: GroupId,
    pub key: Bytes,
    pub entry: KeyEntry,
    pub value: Bytes,
}

/// What a step moved.
pub(crate) struct MovedTails {
    /// Blocks that it emptied.
    pub blocks: usize,
    /// Bytes of tails.
    pub bytes: u64,
    /// The offset of one of the values.
    pub offset: u64,
}

/// The most bytes of a record of a move beside its key and the references.
const RECORD_OVERHEAD: usize = 48;

impl Movable {
    /// The most bytes of the record of its move.
    pub(crate) fn record_bytes(&self) -> usize {
        let reference = ValueRef::encoded_bytes_max(u64::from(self.entry.value.len)) as usize;
        RECORD_OVERHEAD + self.key.len() + 2 * reference
    }
}

impl State {
    /// Empties those of these blocks in which only these values are live, and queues the moves. Does
    /// nothing if that would take as many blocks as it frees, or more than compaction may take.
    pub(crate) fn move_tails(&mut self, blocks: &[u32], values: &[Movable]) -> Option<MovedTails> {
        if self.check_open().is_err() || self.checkpoints.hold || self.queue.is_full() {
            return None;
        }
        let current: Vec<&Movable> = values.iter().filter(|value| self.is_current(value)).collect();
        let emptied = self.emptied(blocks, &current);
        let leaves = |value: &&&Movable| {
            value.entry.value.tail_blocks().any(|block| emptied.binary_search(&block).is_ok())
        };
        let moving: Vec<&Movable> = current.iter().filter(leaves).copied().collect();
        let places = self.allocate_places(&moving, emptied.len())?;
        let (mut bytes, mut record_bytes, mut offset) = (0, 0, 0);
        let mut moves = Vec::with_capacity(moving.len());
        for (value, to) in moving.into_iter().zip(places) {
            let (id, from) = (value.entry.version, value.entry.value.clone());
            let moved = Moved { group: value.group, id, key: value.key.clone(), from, to };
            self.refer_to(&moved);
            offset = moved.to.offset();
            self.unwritten.insert(offset, value.value.clone());
            bytes += moved.to.tail().map_or(0, |tail| tail.end - tail.start);
            record_bytes += value.record_bytes();
            moves.push(MovedValue { moved, value: value.value.clone() });
        }
        // No acknowledgement waits for it, so that neither a sync nor the unsynced-ack flag is due.
        let queued = Queued { op: Op::Move(moves), synced: false, done: None };
        self.enqueue(queued, record_bytes, 0);
        Some(MovedTails { blocks: emptied.len(), bytes, offset })
    }

    /// Whether the key still has the value, at the place where it was read, and on the device.
    fn is_current(&self, value: &Movable) -> bool {
        let group = self.groups.get(&value.group).filter(|group| group.is_reapplied());
        let held = group.and_then(|group| group.keys.get(&value.key));
        held.as_ref() == Some(&value.entry)
            && !self.unwritten.contains_key(&value.entry.value.offset())
    }

    /// Those of the blocks, which are sorted, in which only these values are live.
    fn emptied(&self, blocks: &[u32], values: &[&Movable]) -> Vec<u32> {
        let mut live: BTreeMap<u32, u64> = blocks.iter().map(|block| (*block, 0)).collect();
        for value in values {
            let references = 1 + u64::from(self.is_logged(value));
            for (block, bytes) in value.entry.value.tail_parts() {
                if let Some(live) = live.get_mut(&block) {
                    *live += references * bytes;
                }
            }
        }
        let all = |(block, bytes): &(u32, u64)| {
            *bytes > 0 && u64::from(self.space.live_bytes_of(*block)) == *bytes
        };
        live.into_iter().filter(all).map(|(block, _)| block).collect()
    }

    /// Whether the log refers to the value as well.
    fn is_logged(&self, value: &Movable) -> bool {
        let KeyEntry { version, value: at } = &value.entry;
        let log = self.groups.get(&value.group).map(|group| &group.log);
        let entry = log.and_then(|log| log.get(version.index));
        entry.is_some_and(|entry| entry.id == *version && entry.values.contains(at))
    }

    /// New places for all of these values, with one reference each, if they take fewer than `blocks`
    /// blocks.
    fn allocate_places(&mut self, values: &[&Movable], blocks: usize) -> Option<Vec<ValueRef>> {
        if values.is_empty() {
            return None;
        }
        let before = self.space.lent_now();
        let most = (blocks as u32).min(self.space.lendable()).saturating_sub(1);
        let mut places = Vec::with_capacity(values.len());
        for value in values {
            let place = self.space.allocate_moved(&value.entry.value);
            let fits = place.is_some() && self.space.lent_now() - before <= most;
            places.extend(place);
            if !fits {
                places.iter().for_each(|place| self.space.unlink(place));
                return None;
            }
        }
        Some(places)
    }

    /// Key and log refer to the new place, which has one reference so far, and no longer to the old
    /// one.
    fn refer_to(&mut self, moved: &Moved) {
        let Some(group) = self.groups.get_mut(&moved.group) else { return };
        let logged = group.value_moved(moved);
        self.space.unlink(&moved.from);
        if logged {
            self.space.link(&moved.to);
            self.space.unlink(&moved.from);
        }
    }
}
