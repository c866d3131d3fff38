//! The queue of the writer.

use crate::error::Result;
use crate::group::LogEntry;
use crate::io::BLOCK;
use crate::journal::{Body, Moved, encode_body};
use crate::layout::shares_nothing;
use crate::types::{GroupId, LogId, ValueRef};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;

/// The most bytes of values in the queue.
const MAX_VALUE_BYTES: u64 = 32 << 20;

/// Values of a part of the queue: two writes of the largest size.
const PART_BYTES: u64 = 2 << 20;

/// Called once when an operation's promise holds, or with the error that ended the engine.
pub(crate) type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// An operation waiting to be written.
pub(crate) enum Op {
    Append {
        group: GroupId,
        entries: Vec<Pending>,
    },
    Truncate {
        group: GroupId,
        last: Option<u64>,
    },
    Purge {
        group: GroupId,
        through: LogId,
    },
    /// The tails of these values are at new places.
    Move(Vec<MovedValue>),
    /// Changes nothing. It is done when everything before it is.
    Barrier,
}

/// An appended entry with the bytes that go to the data area.
pub(crate) struct Pending {
    pub entry: Arc<LogEntry>,
    pub values: Arc<[Bytes]>,
    /// The body, if it goes to an extent of its own.
    pub body: Option<Bytes>,
}

impl Pending {
    /// What goes to the data area, and where.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = (&ValueRef, &Bytes)> {
        let values = self.entry.values.iter().zip(self.values.iter());
        let values = values.filter(|(_, value)| !value.is_empty());
        values.chain(self.entry.spilled.as_ref().zip(self.body.as_ref()))
    }

    /// The body of its record; with `carried`, the record has the values with it.
    pub(crate) fn record_body(&self, carried: bool) -> Body {
        match carried && self.values.iter().any(|value| !value.is_empty()) {
            true => Body::Carried {
                body: encode_body(&self.entry.values, &self.entry.meta).into(),
                values: self.values.concat().into(),
            },
            false => self.entry.body(),
        }
    }
}

/// A value whose tail goes to a new place.
pub(crate) struct MovedValue {
    pub moved: Moved,
    /// All of its bytes.
    pub value: Bytes,
}

impl MovedValue {
    /// What goes to the data area, and where: the tail alone, as a value of its own.
    pub(crate) fn chunk(&self) -> Option<(ValueRef, Bytes)> {
        let tail = self.moved.to.tail()?;
        let len = usize::try_from(tail.end - tail.start).ok()?;
        let bytes = self.value.slice(self.value.len().checked_sub(len)?..);
        Some((ValueRef::contiguous(tail.start, len as u32, self.moved.to.hash)?, bytes))
    }
}

/// An operation, whether its acknowledgement needs a sync, and the callback.
pub(crate) struct Queued {
    pub op: Op,
    pub synced: bool,
    pub done: Option<Done>,
}

/// Operations that are written in one group commit.
#[derive(Default)]
struct Part {
    steps: Vec<Queued>,
    record_bytes: usize,
    value_bytes: u64,
    /// Of the bytes of records, those of moves.
    moved_record_bytes: usize,
}

/// Operations in journal order. Appends wait while it is full.
///
/// Many bytes are divided into parts, each for a group commit of its own: the device writes one
/// while the next is filled. Values of two parts share no block.
#[derive(Default)]
pub(crate) struct Queue {
    /// The parts that are full, and the one that is being filled.
    full: VecDeque<Part>,
    last: Part,
    most_record_bytes: usize,
    /// Write a block even if nothing is queued, to record what was applied.
    pub flush: bool,
}

impl Queue {
    /// For a ring of `blocks` blocks, of which the queued records take at most an eighth.
    pub(crate) fn new(blocks: u64) -> Queue {
        Queue { most_record_bytes: blocks as usize / 8 * BLOCK, ..Queue::default() }
    }

    /// Returns whether it filled a part. Then the caller closes the block of the next tail.
    #[must_use]
    pub(crate) fn push(&mut self, step: Queued, record_bytes: usize, value_bytes: u64) -> bool {
        if matches!(step.op, Op::Move(_)) {
            self.last.moved_record_bytes += record_bytes;
        }
        self.last.steps.push(step);
        self.last.record_bytes += record_bytes;
        self.last.value_bytes += value_bytes;
        let full = self.last.value_bytes >= PART_BYTES;
        if full {
            self.full.push_back(std::mem::take(&mut self.last));
        }
        full
    }

    /// Takes the first part.
    pub(crate) fn take_part(&mut self) -> Vec<Queued> {
        let part = self.full.pop_front().unwrap_or_else(|| std::mem::take(&mut self.last));
        part.steps
    }

    /// Takes everything.
    pub(crate) fn take(&mut self) -> Vec<Queued> {
        let parts = std::mem::take(&mut self.full).into_iter();
        parts.chain([std::mem::take(&mut self.last)]).flat_map(|part| part.steps).collect()
    }

    /// What waits behind the first part.
    pub(crate) fn behind(&self) -> impl Iterator<Item = &Queued> {
        let last = (!self.full.is_empty()).then_some(&self.last);
        self.full.iter().skip(1).chain(last).flat_map(|part| &part.steps)
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        self.full.iter().chain([&self.last])
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts().all(|part| part.steps.is_empty())
    }

    /// Bytes of the queued values.
    pub(crate) fn value_bytes(&self) -> u64 {
        self.parts().map(|part| part.value_bytes).sum()
    }

    /// Whether something waits that no journal block carries: a long body, a moved value, or one that
    /// shares no block with others. Carried, such a value would be written twice, and nothing is gained.
    pub(crate) fn needs_data_area(&self) -> bool {
        let needs = |step: &Queued| match &step.op {
            Op::Append { entries, .. } => entries.iter().any(|pending| {
                pending.body.is_some()
                    || pending.values.iter().any(|value| shares_nothing(value.len() as u32))
            }),
            Op::Move(_) => true,
            _ => false,
        };
        self.parts().flat_map(|part| &part.steps).any(needs)
    }

    /// Bytes of the queued values and records, without moves: nobody waits for those, and no other
    /// group commit waits for one that has many.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes =
            |part: &Part| part.value_bytes + (part.record_bytes - part.moved_record_bytes) as u64;
        self.parts().map(bytes).sum()
    }

    pub(crate) fn is_full(&self) -> bool {
        let record_bytes: usize = self.parts().map(|part| part.record_bytes).sum();
        record_bytes >= self.most_record_bytes || self.value_bytes() >= MAX_VALUE_BYTES
    }
}
