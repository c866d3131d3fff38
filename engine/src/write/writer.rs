//! The writer task. It takes everything that is queued as one group commit: one run of values and
//! as few journal blocks as hold the records. It writes both at once and reports completions in
//! journal order.
//!
//! A few group commits are in flight together. Meanwhile requests queue up for the next one: that
//! is how many small puts become few large writes.

use super::checkpointing;
use super::coalesce::coalesce;
use super::group_commit::{Encoded, GroupCommit, is_flush_due, owes_at_end};
use super::spare::SpareBuffers;
use crate::error::Result;
use crate::io::{AlignedBuf, BLOCK, IoFuture, yield_once};
use crate::journal::{self, Header, Payload};
use crate::state::{Op, PendingAck, Shared, State};
use crate::types::ValueRef;
use bytes::Bytes;
use futures::stream::{FuturesOrdered, StreamExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most group commits in flight.
const IN_FLIGHT: usize = 16;
/// With so many bytes in flight, no further group commit begins: buffers, and the time that a write
/// waits for others, stay bounded.
const MOST_BYTES: u64 = 32 << 20;
/// With so many bytes waiting, another group commit begins beside those in flight: a larger write
/// would hardly be cheaper, and on an aged disk it would be many small ones, whose slowest all wait
/// for.
const ENOUGH_BYTES: u64 = 128 << 10;
/// Below this many bytes, a group commit waits for those in flight unless they are smaller: it would
/// be mostly padding.
const FEW_BYTES: u64 = 16 << 10;
/// The blocks that two group commits may take beyond twice an eighth of the ring each, half of it
/// unused (see the queue's bounds).
const GROUP_COMMIT_BLOCKS: u64 = 32;

/// Below this part of the ring free, a checkpoint is taken whether it will fit or not.
const SPARE_RING_PART: u64 = 8;

/// A group commit in flight.
struct InFlightCommit {
    sequence: u64,
    /// The checksum of that block.
    checksum: u128,
    /// What its blocks say was synced.
    synced_stamp: u64,
    /// Bytes as they were queued, and as they were written.
    queued_bytes: u64,
    bytes: u64,
    /// Offsets of the values to drop from memory once they are written.
    offsets: Vec<u64>,
    /// What keeps dead ones among them from being freed until then.
    hold: Option<u64>,
    result: Result<()>,
    /// The buffers of its writes.
    buffers: Vec<AlignedBuf>,
}

pub(crate) struct Writer {
    shared: Arc<Shared>,
    next: u64,
    /// The checksum of block `next - 1`.
    chain: u128,
    /// The values that blocks up to this sequence carry are at their places once the group commits
    /// begun so far are written.
    placed: u64,
    /// The sequence of the last capture.
    captured: u64,
    in_flight: FuturesOrdered<IoFuture<InFlightCommit>>,
    /// Bytes of the group commits in flight, as they were queued.
    in_flight_bytes: u64,
    spare: SpareBuffers,
}

impl Writer {
    /// Continues behind the last written block.
    pub(crate) fn new(shared: Arc<Shared>) -> Writer {
        let captured = shared.state.lock().checkpoints.sequence;
        let (written, chain) = {
            let progress = shared.progress.lock();
            (progress.written, progress.written_checksum)
        };
        Writer {
            shared,
            next: written + 1,
            chain,
            placed: written,
            captured,
            in_flight: FuturesOrdered::new(),
            in_flight_bytes: 0,
            spare: SpareBuffers::default(),
        }
    }

    /// Runs until the engine is closed or fails.
    pub(crate) async fn run(mut self) {
        let shared = self.shared.clone();
        loop {
            if self.in_flight.len() < IN_FLIGHT
                && let Some(group_commit) = self.next_group_commit()
            {
                self.write(group_commit).await;
                if !self.shared.state.lock().queue.is_empty() {
                    // The device writes this one while the next is filled.
                    yield_once().await;
                }
                continue;
            }
            if self.in_flight.is_empty() && self.finished() {
                break;
            }
            tokio::select! {
                biased;
                Some(commit) = self.in_flight.next(), if !self.in_flight.is_empty() => self.complete(commit),
                () = shared.signals.writer.notified(), if self.in_flight.len() < IN_FLIGHT => {
                    if self.in_flight.is_empty() {
                        // What woke it, and the others that are ready, go first: a leader sends to its
                        // followers before it writes, for they answer last.
                        yield_once().await;
                    }
                }
            }
        }
        shared.progress.lock().writer_ended = true;
        shared.signals.changed.notify_waiters();
        shared.signals.compactor.notify_one();
    }

    fn finished(&self) -> bool {
        let state = self.shared.state.lock();
        let owes = !state.queue.is_empty() || state.checkpoints.hold || owes_at_end(&state);
        state.failed.is_some() || (state.closing && !owes)
    }

    /// The next group commit, if one may begin now.
    fn next_group_commit(&mut self) -> Option<GroupCommit> {
        let mut state = self.shared.state.lock();
        let begins_checkpoint = self.may_begin(&state)?;
        let user_bytes = self.shared.counters.user_bytes.load(Ordering::Relaxed);
        let group_commit = GroupCommit::take(&mut state, begins_checkpoint.then_some(user_bytes));
        drop(state);
        self.shared.signals.changed.notify_waiters();
        Some(group_commit)
    }

    /// Whether a group commit may begin now: whether it begins a checkpoint, too.
    fn may_begin(&self, state: &State) -> Option<bool> {
        let checkpoints = &state.checkpoints;
        if state.failed.is_some() || (checkpoints.hold && checkpoints.running) {
            return None;
        }
        let (blocks, since) = (self.shared.facts.ring.blocks(), self.next - 1 - self.captured);
        if checkpoints.running && since >= blocks / 2 - GROUP_COMMIT_BLOCKS {
            // Only the checkpoint after the running one frees what is written now, and that one
            // begins with a group commit. Leave space for that group commit at the queue's maximum
            // size.
            return None;
        }
        let begins_checkpoint = (checkpoints.requested || since >= blocks / 3)
            && !checkpoints.running
            && !self.waits_for_reapply(state);
        if state.queue.is_empty() && !is_flush_due(state) && !begins_checkpoint {
            return None;
        }
        let beside = !self.in_flight.is_empty();
        let worth = !beside || worth_beginning(state.queue.bytes(), self.in_flight_bytes);
        worth.then_some(begins_checkpoint)
    }

    /// Whether a checkpoint is better taken later. After an open from an older one the log is also
    /// what has been purged since, until it is applied again: it may not fit. Without space in the
    /// journal nothing can wait.
    fn waits_for_reapply(&self, state: &State) -> bool {
        let facts = &self.shared.facts;
        let free = facts.ring.free(self.next, state.checkpoints.sequence);
        !state.checkpoints.hold
            && state.groups.values().any(|group| !group.is_reapplied())
            && state.index_bytes() > facts.checkpoint_capacity
            && free >= facts.ring.blocks() / SPARE_RING_PART
    }

    async fn write(&mut self, mut group_commit: GroupCommit) {
        let encoded = group_commit.encode();
        let (blocks, begins_checkpoint) =
            (encoded.payloads.len() as u64, group_commit.capture.is_some());
        if let Err(error) = self.wait_for_journal_space(blocks, begins_checkpoint).await {
            for done in group_commit.queue.into_iter().filter_map(|q| q.done) {
                done(Err(error.clone()));
            }
            return;
        }
        let first = self.next;
        self.in_flight_bytes += group_commit.bytes;
        // A capture that replaces the state drops deferred values of the old one, which counts until
        // that checkpoint is complete.
        let replaces = group_commit.capture.as_ref().is_some_and(|capture| capture.replaces);
        if !group_commit.carries && !replaces {
            self.placed = first - 1;
        }
        let Encoded { payloads, chunks, carried, moved_offsets, hold, last_block } = encoded;
        self.submit(group_commit.bytes, &payloads, chunks, moved_offsets, hold);
        let sequence = self.next - 1;
        {
            // What died is free once a synced block says that this one is synced: then an open knows
            // it, too.
            let mut state = self.shared.state.lock();
            state.space.recorded(sequence, group_commit.newly_dead);
            carried.into_iter().for_each(|(at, bytes)| state.deferred.push(at, bytes));
        }
        // Acknowledged in this order, each when its last block and all before it are written, or
        // synced where it asks for that.
        let mut progress = self.shared.progress.lock();
        for (queued, blocks) in group_commit.queue.drain(..).zip(last_block) {
            if let Some(done) = queued.done {
                let sequence = first + blocks.max(1) - 1;
                let (append, synced) = (matches!(queued.op, Op::Append { .. }), queued.synced);
                progress.waiting.push_back(PendingAck { sequence, append, synced, done });
            }
        }
        drop(progress);
        if let Some(error) = self.shared.failed() {
            // It may have failed before these acknowledgements were listed.
            self.shared.fail(&error);
        }
        if let Some(capture) = group_commit.capture {
            self.captured = sequence;
            let shared = self.shared.clone();
            self.shared.spawn(checkpointing::run(shared, capture, sequence, self.chain));
        }
    }

    /// Waits until the ring has `blocks` free, and completes group commits meanwhile. If no running
    /// checkpoint could free any, it gives up the journal before the newest checkpoint. Only the
    /// older checkpoint needs that part, and the next checkpoint overwrites the older one.
    async fn wait_for_journal_space(&mut self, blocks: u64, begins_checkpoint: bool) -> Result<()> {
        let shared = self.shared.clone();
        loop {
            let changed = shared.signals.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            let (reclaimed, failed) = {
                let mut state = shared.state.lock();
                let checkpoints = &mut state.checkpoints;
                let idle = begins_checkpoint || !checkpoints.running;
                if idle && shared.facts.ring.free(self.next, checkpoints.previous) < blocks {
                    checkpoints.previous = checkpoints.sequence;
                }
                (checkpoints.previous, state.failed.clone())
            };
            if let Some(error) = failed {
                return Err(error);
            }
            if shared.facts.ring.free(self.next, reclaimed) >= blocks {
                return Ok(());
            }
            tokio::select! {
                biased;
                Some(commit) = self.in_flight.next(), if !self.in_flight.is_empty() => self.complete(commit),
                () = changed => {}
            }
        }
    }

    /// Starts the writes of a group commit.
    fn submit(
        &mut self,
        queued_bytes: u64,
        mut payloads: &[Payload],
        chunks: Vec<(ValueRef, Bytes)>,
        moved_offsets: Vec<u64>,
        hold: Option<u64>,
    ) {
        let shared = &self.shared;
        let mut writes = Vec::new();
        let mut bytes = 0;
        for (offset, buf) in coalesce(&chunks, |bytes| self.spare.take(bytes)) {
            bytes += buf.len() as u64;
            writes.push(shared.files.data.write_reusing(offset, buf));
        }
        let (written, synced) = {
            let progress = shared.progress.lock();
            (progress.written, progress.synced)
        };
        // Without a block, this group commit says nothing.
        let synced_stamp = if payloads.is_empty() { 0 } else { synced };
        while !payloads.is_empty() {
            let count = shared.facts.ring.contiguous(self.next, payloads.len() as u64);
            let (now, later) = payloads.split_at(count as usize);
            payloads = later;
            let offset = shared.facts.ring.offset(self.next);
            let mut buf = self.spare.take(now.len() * BLOCK);
            for (payload, block) in now.iter().zip(buf.chunks_mut(BLOCK)) {
                let header = Header {
                    incarnation: shared.facts.identity.incarnation,
                    epoch: shared.facts.epoch,
                    sequence: self.next,
                    previous: self.chain,
                    written,
                    synced,
                    placed: self.placed,
                };
                self.chain = journal::encode_into(block, &header, payload);
                self.next += 1;
            }
            bytes += buf.len() as u64;
            writes.push(shared.files.journal.write_reusing(offset, buf));
        }
        shared.counters.device_bytes.fetch_add(bytes, Ordering::Relaxed);
        let (sequence, checksum) = (self.next - 1, self.chain);
        let mut offsets = moved_offsets;
        offsets.extend(chunks.iter().map(|(at, _)| at.offset()));
        self.in_flight.push_back(Box::pin(async move {
            let mut result = Ok(());
            let mut buffers = Vec::with_capacity(writes.len());
            for write in writes {
                let (written, buf) = write.await;
                // The last error counts.
                result = written.and(result);
                buffers.push(buf);
            }
            InFlightCommit {
                sequence,
                checksum,
                synced_stamp,
                queued_bytes,
                bytes,
                offsets,
                hold,
                result,
                buffers,
            }
        }));
    }

    fn complete(&mut self, commit: InFlightCommit) {
        self.in_flight_bytes -= commit.queued_bytes;
        commit.buffers.into_iter().for_each(|buf| self.spare.put(buf));
        if let Err(error) = commit.result {
            return self.shared.fail(&error);
        }
        let mut state = self.shared.state.lock();
        if state.failed.is_some() {
            return;
        }
        for offset in commit.offsets {
            state.unwritten.remove(&offset);
        }
        if let Some(hold) = commit.hold {
            state.space.view_ends(hold);
        }
        let space_wants_sync = state.space_wants_sync();
        drop(state);
        let due = self.shared.written(
            commit.sequence,
            commit.checksum,
            commit.synced_stamp,
            commit.bytes,
        );
        if due || space_wants_sync {
            self.shared.signals.syncer.notify_one();
        }
        self.shared.signals.changed.notify_waiters();
    }
}

/// Whether a group commit of `waiting` bytes should begin beside those in flight. Small ones wait
/// and become one; where little is under way, nothing waits for long.
fn worth_beginning(waiting: u64, in_flight: u64) -> bool {
    let enough = waiting >= ENOUGH_BYTES;
    in_flight < MOST_BYTES
        && (enough || (waiting >= in_flight && (waiting >= FEW_BYTES || in_flight < FEW_BYTES)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_commit_begins_beside_others_where_it_is_not_small() {
        let kib = |n: u64| n << 10;
        // Nothing waits where little is under way; at 100 requests of 4 KiB each write is large.
        assert!(worth_beginning(kib(4), kib(4)) && worth_beginning(kib(1), kib(1)));
        assert!(!worth_beginning(kib(64), kib(128)) && worth_beginning(kib(128), kib(400)));
        // 100 requests of 256 bytes are one group commit after another.
        assert!(!worth_beginning(kib(8), kib(17)) && !worth_beginning(100, kib(25)));
        assert!(worth_beginning(kib(16), kib(16)));
        // A disk that falls behind what is applied gets no more than a bounded part of the queue.
        assert!(!worth_beginning(kib(32 << 10), kib(32 << 10)));
    }
}
