//! What one group commit writes: what it takes from the queue, and how that is encoded.

use crate::checkpoint::Capture;
use crate::journal::{Packer, Payload, Record};
use crate::space::NewlyDead;
use crate::state::{Op, Placing, Queued, State};
use crate::types::{GroupId, LogId, ValueRef};
use bytes::Bytes;

/// The most bytes of values that a group commit carries in its journal blocks. One write for both
/// is sooner complete than two, and the values wait for a large write to their places.
const CARRIED_BYTES: u64 = 8 << 10;

/// What was queued, and what else the journal must record.
pub(super) struct GroupCommit {
    /// Bytes of values and records, as they were queued.
    pub(super) bytes: u64,
    pub(super) queue: Vec<Queued>,
    applied: Vec<(GroupId, LogId)>,
    pub(super) newly_dead: NewlyDead,
    pub(super) capture: Option<Capture>,
    /// A block is due even without records: to say what is synced.
    flush: bool,
    /// Its journal blocks carry its values.
    pub(super) carries: bool,
    /// Values of earlier group commits that this one writes to their places.
    deferred: Placing,
}

/// The same as bytes.
pub(super) struct Encoded {
    pub(super) payloads: Vec<Payload>,
    /// Values that are written to their places.
    pub(super) chunks: Vec<(ValueRef, Bytes)>,
    /// Values that the blocks carry instead.
    pub(super) carried: Vec<(ValueRef, Bytes)>,
    pub(super) moved_offsets: Vec<u64>,
    /// What keeps dead ones among earlier values from being freed until they are written.
    pub(super) hold: Option<u64>,
    /// The number of each operation's last block, counted from the first one of the group commit.
    pub(super) last_block: Vec<u64>,
}

impl GroupCommit {
    /// Takes the first part of the queue, or all of it. A group commit shares no block with a later
    /// one. With `user_bytes`, those written so far, it begins a checkpoint.
    pub(super) fn take(state: &mut State, user_bytes: Option<u64>) -> GroupCommit {
        let waiting = state.queue.bytes();
        let flush = is_flush_due(state);
        state.queue.flush = false;
        let value_bytes = state.queue.value_bytes();
        let carries = !flush
            && user_bytes.is_none()
            && value_bytes <= CARRIED_BYTES
            && state.deferred.has_room(value_bytes)
            && !state.queue.needs_data_area();
        // A checkpoint captures what is queued as done, so its group commit takes all of that.
        let queue = match user_bytes.is_some() || !parts_are_apart(state) {
            true => state.queue.take(),
            false => state.queue.take_part(),
        };
        let bytes = waiting - state.queue.bytes();
        let mut applied = Vec::new();
        for (id, group) in &mut state.groups {
            if let Some(through) = group.applied.filter(|_| group.applied > group.applied_recorded)
            {
                group.applied_recorded = Some(through);
                applied.push((*id, through));
            }
        }
        let deferred = match carries {
            // Nothing is written to the data area: the next values may share the block.
            true => Placing::default(),
            false => {
                state.space.close_block();
                state.take_deferred()
            }
        };
        let newly_dead = state.space.take_newly_dead();
        let capture = user_bytes.map(|user_bytes| capture(state, user_bytes));
        GroupCommit { bytes, queue, applied, newly_dead, capture, flush, carries, deferred }
    }

    /// Its records in journal blocks, and the values that are written beside them. Call it once: it
    /// takes the deferred values.
    pub(super) fn encode(&mut self) -> Encoded {
        let mut packer = Packer::default();
        let Placing { values: mut chunks, hold } = std::mem::take(&mut self.deferred);
        let mut moved_offsets = Vec::new();
        let mut last_block = Vec::with_capacity(self.queue.len());
        for queued in &self.queue {
            match &queued.op {
                Op::Append { group, entries } => {
                    for pending in entries {
                        let entry = &pending.entry;
                        let written = pending.chunks();
                        chunks.extend(written.map(|(at, bytes)| (at.clone(), bytes.clone())));
                        let (group, id, body) =
                            (*group, entry.id, pending.record_body(self.carries));
                        packer.push(&Record::Entry { group, id, body });
                    }
                }
                Op::Truncate { group, last } => {
                    packer.push(&Record::Truncate { group: *group, last: *last });
                }
                Op::Purge { group, through } => {
                    packer.push(&Record::Purge { group: *group, through: *through });
                }
                Op::Move(values) => {
                    for value in values {
                        chunks.extend(value.chunk());
                        moved_offsets.push(value.moved.to.offset());
                        packer.push(&Record::Moved(value.moved.clone()));
                    }
                }
                Op::Barrier => {}
            }
            last_block.push(packer.payloads.len() as u64);
        }
        // Behind the entries: an open that replays these finds what they apply.
        for (group, through) in &self.applied {
            packer.push(&Record::Applied { group: *group, through: *through });
        }
        // Whatever is written is followed by a block: syncs and checkpoints wait for the sequence of
        // one.
        if !chunks.is_empty()
            || self.flush
            || !self.queue.is_empty()
            || !self.newly_dead.is_empty()
            || !self.applied.is_empty()
        {
            packer.at_least_one();
        }
        // Values in the journal need no write of their own now.
        let carried = if self.carries { std::mem::take(&mut chunks) } else { Vec::new() };
        Encoded { payloads: packer.payloads, chunks, carried, moved_offsets, hold, last_block }
    }
}

/// Whether a block is due even without records.
pub(super) fn is_flush_due(state: &State) -> bool {
    state.queue.flush || state.closing && owes_at_end(state)
}

/// Whether something must still be written at the end, though nothing is queued. Values that are
/// deferred go to their places, since the last checkpoint covers the blocks that carry them. And the
/// journal learns what is applied, for an open from the older checkpoint.
pub(super) fn owes_at_end(state: &State) -> bool {
    !state.deferred.is_empty()
        || state.groups.values().any(|group| group.applied > group.applied_recorded)
}

/// Whether the first part of the queue can be written before what waits behind it. The blocks that
/// died so far are recorded with it, and what is applied: nothing behind it may have caused that.
fn parts_are_apart(state: &State) -> bool {
    state.queue.behind().all(|queued| match &queued.op {
        Op::Append { group, entries } => {
            let applied = state.groups.get(group).and_then(|group| group.applied);
            let first = entries.first().map(|pending| pending.entry.id);
            applied.is_none() || first.is_none_or(|first| applied < Some(first))
        }
        Op::Barrier => true,
        Op::Truncate { .. } | Op::Purge { .. } | Op::Move(_) => false,
    })
}

/// Captures everything for a checkpoint. The queue is empty at that moment.
fn capture(state: &mut State, user_bytes: u64) -> Capture {
    state.checkpoints.user_bytes = user_bytes;
    state.checkpoints.requested = false;
    state.checkpoints.running = true;
    state.checkpoints.begun += 1;
    let replaces = state.checkpoints.hold;
    Capture::next(replaces, &mut state.groups)
}
