//! The writer: gathers what is queued into one run of values and as few journal blocks as hold the records, writes
//! both at once, and reports completions in journal order.
//!
//! A few gatherings are in flight together. While they are, requests pile up for the next one: that is how many small
//! puts become few large writes.

use super::checkpointing;
use crate::checkpoint::{Capture, CapturedGroup};
use crate::error::Result;
use crate::io::{AlignedBuf, BLOCK, FileKind, IoFuture};
use crate::journal::{self, Header, Packer, Record};
use crate::space::Dying;
use crate::state::{Op, Queued, Shared, State, Waiting};
use crate::types::{GroupId, LogId};
use bytes::Bytes;
use futures::stream::{FuturesOrdered, StreamExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Gatherings in flight.
const IN_FLIGHT: usize = 4;
/// The largest write of values made of several, in bytes.
const MAX_WRITE: u64 = 1 << 20;
const BLOCK_BYTES: u64 = BLOCK as u64;
/// What two gatherings may take beside twice an eighth of the ring each, half of it unused: see the queue's bounds.
const GATHERING_BLOCKS: u64 = 32;

/// A write under way.
type Write = IoFuture<(std::io::Result<()>, AlignedBuf)>;

/// What was queued, with what else the journal must be told.
struct Gathering {
    queue: Vec<Queued>,
    applied: Vec<(GroupId, LogId)>,
    dying: Dying,
    capture: Option<Capture>,
    /// A block is due even if there is nothing to record: to say what is synced.
    flush: bool,
}

/// A gathering in flight.
struct Flight {
    sequence: u64,
    /// The checksum of that block.
    checksum: u128,
    /// What its blocks say was synced.
    claim: u64,
    bytes: u64,
    /// Values to forget once they are written, by offset.
    offsets: Vec<u64>,
    result: std::result::Result<(), (FileKind, std::io::Error)>,
}

pub(crate) struct Writer {
    shared: Arc<Shared>,
    next: u64,
    /// The checksum of block `next - 1`.
    chain: u128,
    /// The sequence of the last capture.
    captured: u64,
    flights: FuturesOrdered<IoFuture<Flight>>,
}

impl Writer {
    /// Goes on behind what is written.
    pub(crate) fn new(shared: Arc<Shared>) -> Writer {
        let captured = shared.state.lock().checkpoints.sequence;
        let (written, chain) = {
            let progress = shared.progress.lock();
            (progress.written, progress.written_checksum)
        };
        Writer { shared, next: written + 1, chain, captured, flights: FuturesOrdered::new() }
    }

    /// Runs until the engine is closed or fails.
    pub(crate) async fn run(mut self) {
        let shared = self.shared.clone();
        loop {
            if self.flights.len() < IN_FLIGHT
                && let Some(gathering) = self.gather()
            {
                self.write(gathering).await;
                continue;
            }
            if self.flights.is_empty() && self.finished() {
                break;
            }
            tokio::select! {
                biased;
                Some(flight) = self.flights.next(), if !self.flights.is_empty() => self.complete(flight),
                () = shared.signals.writer.notified(), if self.flights.len() < IN_FLIGHT => {}
            }
        }
        shared.progress.lock().writer_ended = true;
        shared.signals.changed.notify_waiters();
    }

    fn finished(&self) -> bool {
        let state = self.shared.state.lock();
        state.failed.is_some() || (state.closing && state.queue.is_empty() && !state.checkpoints.hold)
    }

    /// Takes the whole queue. Everything that is taken together shares no block with what comes later.
    fn gather(&mut self) -> Option<Gathering> {
        let mut state = self.shared.state.lock();
        let checkpoints = &state.checkpoints;
        if state.failed.is_some() || (checkpoints.hold && checkpoints.running) {
            return None;
        }
        let (blocks, since) = (self.shared.facts.ring.blocks(), self.next - 1 - self.captured);
        if checkpoints.running && since >= blocks / 2 - GATHERING_BLOCKS {
            // Only the checkpoint after the running one frees what is written now, and it begins with a gathering:
            // there must be room left for that one, as large as the queue can be.
            return None;
        }
        let capture_now = (checkpoints.requested || since >= blocks / 3) && !checkpoints.running;
        if state.queue.is_empty() && !state.queue.flush && !capture_now {
            return None;
        }
        let flush = std::mem::take(&mut state.queue.flush);
        let queue = state.queue.take();
        let mut applied = Vec::new();
        for (id, group) in &mut state.groups {
            if let Some(through) = group.applied.filter(|_| group.applied > group.applied_recorded) {
                group.applied_recorded = Some(through);
                applied.push((*id, through));
            }
        }
        state.space.close_run();
        let dying = state.space.take_dying();
        let capture = capture_now.then(|| capture(&mut state));
        drop(state);
        self.shared.signals.changed.notify_waiters();
        Some(Gathering { queue, applied, dying, capture, flush })
    }

    async fn write(&mut self, mut gathering: Gathering) {
        let mut packer = Packer::default();
        let mut chunks: Vec<(u64, Bytes)> = Vec::new();
        let mut record = Vec::with_capacity(256);
        let mut pushed = |packer: &mut Packer, r: Record| {
            record.clear();
            r.encode(&mut record);
            packer.push(&record);
        };
        // The sequence of each operation's last block, counted from the gathering's first.
        let mut last_block = Vec::with_capacity(gathering.queue.len());
        for queued in &gathering.queue {
            match &queued.op {
                Op::Append { group, entries } => {
                    for pending in entries {
                        let entry = &pending.entry;
                        let at = entry.values.iter().map(|v| v.offset);
                        chunks.extend(at.zip(pending.values.iter().cloned()).filter(|(_, v)| !v.is_empty()));
                        chunks.extend(entry.spilled.map(|v| v.offset).zip(pending.body.clone()));
                        pushed(
                            &mut packer,
                            Record::Entry { group: *group, id: entry.id, body: entry.body() },
                        );
                    }
                }
                Op::Truncate { group, last } => {
                    pushed(&mut packer, Record::Truncate { group: *group, last: *last })
                }
                Op::Purge { group, through } => {
                    pushed(&mut packer, Record::Purge { group: *group, through: *through });
                }
                Op::Barrier => {}
            }
            last_block.push(packer.len() as u64);
        }
        for (group, through) in &gathering.applied {
            pushed(&mut packer, Record::Applied { group: *group, through: *through });
        }
        if gathering.flush
            || !gathering.queue.is_empty()
            || !gathering.dying.is_empty()
            || !gathering.applied.is_empty()
        {
            packer.at_least_one();
        }
        let begins_checkpoint = gathering.capture.is_some();
        if let Err(error) = self.wait_for_room(packer.len() as u64, begins_checkpoint).await {
            for done in gathering.queue.into_iter().filter_map(|q| q.done) {
                done(Err(error.clone()));
            }
            return;
        }
        let first = self.next;
        self.submit(&packer, chunks, &gathering);
        let sequence = self.next - 1;
        self.shared.state.lock().space.recorded(sequence, gathering.dying);
        let mut progress = self.shared.progress.lock();
        for (queued, blocks) in gathering.queue.drain(..).zip(last_block) {
            if let Some(done) = queued.done {
                let sequence = first + blocks.max(1) - 1;
                let append = matches!(queued.op, Op::Append { .. });
                progress.waiting.push_back(Waiting { sequence, append, synced: queued.synced, done });
            }
        }
        drop(progress);
        if let Some(error) = self.shared.failed() {
            // It may have failed before these waiters were listed.
            self.shared.fail(error);
        }
        if let Some(capture) = gathering.capture {
            self.captured = sequence;
            self.shared.spawn(checkpointing::run(self.shared.clone(), capture, sequence, self.chain));
        }
    }

    /// Waits until the ring has `blocks` free, completing flights meanwhile. Where no checkpoint is being written that
    /// could free any, the journal before the newest one is given up: the older checkpoint, which needs it, is what the
    /// next one overwrites.
    async fn wait_for_room(&mut self, blocks: u64, begins_checkpoint: bool) -> Result<()> {
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
                Some(flight) = self.flights.next(), if !self.flights.is_empty() => self.complete(flight),
                () = changed => {}
            }
        }
    }

    /// Starts the writes of a gathering.
    fn submit(&mut self, packer: &Packer, chunks: Vec<(u64, Bytes)>, gathering: &Gathering) {
        let shared = &self.shared;
        let mut writes: Vec<(FileKind, Write)> = Vec::new();
        let mut bytes = 0;
        for (offset, buf) in coalesce(&chunks) {
            bytes += buf.len() as u64;
            writes.push((FileKind::Data, shared.devices.data.write(offset, buf)));
        }
        let (written, synced) = {
            let progress = shared.progress.lock();
            (progress.written, progress.synced)
        };
        let mut payloads = packer.payloads();
        while !payloads.is_empty() {
            let count = shared.facts.ring.contiguous(self.next, payloads.len() as u64);
            let (now, later) = payloads.split_at(count as usize);
            payloads = later;
            let offset = shared.facts.ring.offset(self.next);
            let mut buf = AlignedBuf::zeroed(now.len() * BLOCK);
            for (payload, block) in now.iter().zip(buf.chunks_mut(BLOCK)) {
                let incarnation = shared.facts.identity.incarnation;
                let (sequence, previous) = (self.next, self.chain);
                let header =
                    Header { incarnation, epoch: shared.facts.epoch, sequence, previous, written, synced };
                self.chain = journal::encode_into(block, &header, payload);
                self.next += 1;
            }
            bytes += buf.len() as u64;
            writes.push((FileKind::Journal, shared.devices.journal.write(offset, buf)));
        }
        shared.counters.device_bytes.fetch_add(bytes, Ordering::Relaxed);
        let (sequence, claim) = (self.next - 1, if packer.len() > 0 { synced } else { 0 });
        let checksum = self.chain;
        let offsets = chunks.iter().map(|(offset, _)| *offset).collect();
        debug_assert!(gathering.queue.is_empty() || !writes.is_empty());
        self.flights.push_back(Box::pin(async move {
            let mut result = Ok(());
            for (file, write) in writes {
                if let (Err(error), _) = write.await {
                    result = Err((file, error));
                }
            }
            Flight { sequence, checksum, claim, bytes, offsets, result }
        }));
    }

    fn complete(&mut self, flight: Flight) {
        if let Err((file, error)) = flight.result {
            self.shared.fail_device(file, "write", error);
            return;
        }
        let mut state = self.shared.state.lock();
        if state.failed.is_some() {
            return;
        }
        for offset in flight.offsets {
            state.unwritten.remove(&offset);
        }
        drop(state);
        if self.shared.written(flight.sequence, flight.checksum, flight.claim, flight.bytes) {
            self.shared.signals.syncer.notify_one();
        }
        self.shared.signals.changed.notify_waiters();
    }
}

/// A picture of everything, for a checkpoint. Nothing is queued when it is taken.
fn capture(state: &mut State) -> Capture {
    state.checkpoints.requested = false;
    state.checkpoints.running = true;
    state.checkpoints.begun += 1;
    let replaces = state.checkpoints.hold;
    Capture { replaces, groups: state.groups.iter().map(CapturedGroup::of).collect() }
}

/// Packs values that lie behind one another into as few writes as possible. The chunks come in the order in which
/// their space was given out.
fn coalesce(chunks: &[(u64, Bytes)]) -> Vec<(u64, AlignedBuf)> {
    let mut groups: Vec<(u64, u64, usize)> = Vec::new();
    for (offset, bytes) in chunks {
        let end = offset + bytes.len() as u64;
        let start = offset / BLOCK_BYTES * BLOCK_BYTES;
        match groups.last_mut() {
            Some((first, last, count))
                if *offset >= *last
                    && start <= last.next_multiple_of(BLOCK_BYTES)
                    && (start < last.next_multiple_of(BLOCK_BYTES) || end - *first <= MAX_WRITE) =>
            {
                *last = end;
                *count += 1;
            }
            _ => groups.push((start, end, 1)),
        }
    }
    let mut rest = chunks;
    let mut writes = Vec::with_capacity(groups.len());
    for (first, last, count) in groups {
        let (now, later) = rest.split_at(count);
        rest = later;
        let mut buf = AlignedBuf::zeroed((last - first) as usize);
        for (offset, bytes) in now {
            let at = (offset - first) as usize;
            if let Some(place) = buf.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        }
        writes.push((first, buf));
    }
    writes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(offset: u64, len: usize) -> (u64, Bytes) {
        (offset, Bytes::from(vec![(offset % 251) as u8 + 1; len]))
    }

    #[test]
    fn neighbours_share_a_write_and_strangers_do_not() {
        let chunks = [chunk(0, 100), chunk(100, 4096), chunk(8192, 10), chunk(40960, 10)];
        let writes = coalesce(&chunks);
        let shape: Vec<(u64, usize)> = writes.iter().map(|(o, b)| (*o, b.len())).collect();
        assert_eq!(shape, [(0, 3 * BLOCK), (40960, BLOCK)]);
        for (offset, bytes) in &chunks {
            let found = writes.iter().any(|(o, b)| {
                offset.checked_sub(*o).and_then(|at| b.get(at as usize..at as usize + bytes.len()))
                    == Some(&bytes[..])
            });
            assert!(found, "the chunk at {offset} is in no write");
        }
    }

    #[test]
    fn a_gap_inside_a_block_stays_inside_one_write() {
        let shape: Vec<_> =
            coalesce(&[chunk(0, 100), chunk(300, 50)]).into_iter().map(|(o, b)| (o, b.len())).collect();
        assert_eq!(shape, [(0, BLOCK)]);
    }

    #[test]
    fn writes_are_bounded_and_split_only_between_blocks() {
        let chunks: Vec<_> = (0..600).map(|i| chunk(i * 4096, 4096)).collect();
        let shape: Vec<_> = coalesce(&chunks).into_iter().map(|(o, b)| (o, b.len())).collect();
        assert_eq!(shape, [(0, 1 << 20), (1 << 20, 1 << 20), (2 << 20, 88 * 4096)]);
        let packed: Vec<_> = (0..900).map(|i| chunk(i * 1500, 1500)).collect();
        let mut end = 0;
        for (offset, buf) in coalesce(&packed) {
            assert!(offset >= end, "two writes share a block");
            end = offset + buf.len() as u64;
        }
    }
}
