//! How far writes and syncs have come, and which acknowledgements wait for them.

use super::Done;
use crate::types::{Mode, Options, UNSYNCED_PER_SYNC};
use std::collections::VecDeque;
use tokio::time::Instant;

/// The acknowledgement of an operation whose write is in flight, in journal order.
pub(crate) struct PendingAck {
    pub sequence: u64,
    /// An append: others rely on it once it is acknowledged.
    pub append: bool,
    pub synced: bool,
    pub done: Done,
}

/// How far writes and syncs have come.
pub(crate) struct WriteProgress {
    pub written: u64,
    pub synced: u64,
    pub waiting: VecDeque<PendingAck>,
    /// For each written group commit that no sync covers yet: its last block, and what its blocks
    /// say was synced.
    pub synced_stamps: VecDeque<(u64, u64)>,
    /// Bytes written since the last sync began.
    pub unsynced_bytes: u64,
    /// Bytes that the sync under way covers.
    pub syncing_bytes: u64,
    /// While more is written and not synced, nothing more is acknowledged ahead of a sync: so much can
    /// be lost in a power cut, and no more, however long a sync takes.
    pub most_unsynced: u64,
    pub oldest_unsynced: Option<Instant>,
    /// The oldest write that the sync under way covers.
    pub oldest_syncing: Option<Instant>,
    /// The writer has ended.
    pub writer_ended: bool,
    /// The checksum of block `written`.
    pub written_checksum: u128,
    /// When an append was last acknowledged ahead of its sync, or when that was last allowed.
    pub last_unsynced_ack: Instant,
    /// Acknowledgements may run ahead of the sync that covers them. In mode `replicated` only while
    /// the unsynced-ack flag is set on the device.
    pub acks_before_sync: bool,
}

impl WriteProgress {
    /// Everything through block `written` is synced.
    pub(crate) fn new(written: u64, written_checksum: u128, options: &Options) -> WriteProgress {
        let most_unsynced = match options.mode {
            Mode::Replicated => options.sync_bytes.saturating_mul(UNSYNCED_PER_SYNC),
            // What is written is kept, or what is acknowledged is synced.
            Mode::Device | Mode::Sync => u64::MAX,
        };
        WriteProgress {
            written,
            synced: written,
            waiting: VecDeque::new(),
            synced_stamps: VecDeque::new(),
            unsynced_bytes: 0,
            syncing_bytes: 0,
            most_unsynced,
            oldest_unsynced: None,
            oldest_syncing: None,
            writer_ended: false,
            written_checksum,
            last_unsynced_ack: Instant::now(),
            acks_before_sync: options.mode == Mode::Device,
        }
    }

    /// Returns what the synced blocks say was synced. Freed blocks whose record lies at or below
    /// that may be used again.
    ///
    /// That the record is synced is not enough: recovery must also be able to see that it was.
    /// Recovery checks the values named behind the last sync that it knows of, and takes a mismatch
    /// for a write that never arrived. Suppose an extent were reused before a synced block says
    /// that the freeing record is synced. A crash could then leave the new value in place, no block
    /// that names it, and an acknowledged entry whose value does not match: recovery would cut the
    /// journal there.
    pub(crate) fn take_synced_stamp(&mut self, synced: u64) -> Option<u64> {
        let mut synced_stamp = None;
        while let Some((_, newest)) =
            self.synced_stamps.pop_front_if(|(sequence, _)| *sequence <= synced)
        {
            synced_stamp = Some(newest);
        }
        synced_stamp
    }

    /// A sync of everything that is written begins. One before it may have been given up.
    pub(crate) fn sync_begins(&mut self) {
        self.syncing_bytes += std::mem::take(&mut self.unsynced_bytes);
        self.oldest_syncing = self.oldest_syncing.or(self.oldest_unsynced);
        self.oldest_unsynced = None;
    }

    /// It has ended: everything through block `target` is synced.
    pub(crate) fn sync_ended(&mut self, target: u64) {
        self.synced = self.synced.max(target);
        (self.syncing_bytes, self.oldest_syncing) = (0, None);
        self.complete_ready();
    }

    /// It has failed.
    pub(crate) fn sync_failed(&mut self) {
        self.unsynced_bytes += std::mem::take(&mut self.syncing_bytes);
        self.oldest_unsynced = self.oldest_syncing.take().or(self.oldest_unsynced);
    }

    /// Bytes written and not synced.
    pub(crate) fn all_unsynced(&self) -> u64 {
        self.unsynced_bytes + self.syncing_bytes
    }

    /// Whether an acknowledgement may run ahead of the sync that covers it.
    fn may_run_ahead(&self) -> bool {
        self.acks_before_sync && self.all_unsynced() <= self.most_unsynced
    }

    /// Whether an acknowledgement waits for a sync of what is written.
    pub(crate) fn wants_sync(&self) -> bool {
        self.waiting
            .front()
            .is_some_and(|w| (w.synced || !self.may_run_ahead()) && w.sequence <= self.written)
    }

    /// Whether an acknowledgement waits for a sync that it would not need with the unsynced-ack
    /// flag set.
    pub(crate) fn wants_unsynced_acks(&self) -> bool {
        !self.acks_before_sync
            && self.waiting.front().is_some_and(|w| !w.synced && w.sequence <= self.written)
    }

    /// Acknowledges every operation whose promise holds, strictly in order.
    pub(crate) fn complete_ready(&mut self) {
        let (written, synced, may_run_ahead) = (self.written, self.synced, self.may_run_ahead());
        let holds = |w: &mut PendingAck| {
            w.sequence <= if w.synced || !may_run_ahead { synced } else { written }
        };
        let mut acked_unsynced = false;
        while let Some(waiting) = self.waiting.pop_front_if(holds) {
            acked_unsynced |= waiting.append && waiting.sequence > synced;
            (waiting.done)(Ok(()));
        }
        if acked_unsynced {
            self.last_unsynced_ack = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::KernelBootId;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Progress in a mode, and the last group commit whose append was acknowledged.
    fn progress(mode: Mode) -> (WriteProgress, Arc<AtomicU64>) {
        let options = Options { sync_bytes: 100, ..Options::new(mode, KernelBootId(1), 1) };
        let acknowledged = Arc::<AtomicU64>::default();
        let mut progress = WriteProgress::new(0, 0, &options);
        progress.acks_before_sync = mode != Mode::Sync;
        for sequence in 1..=40 {
            let last = Arc::clone(&acknowledged);
            progress.waiting.push_back(PendingAck {
                sequence,
                append: true,
                synced: false,
                done: Box::new(move |_| last.store(sequence, Ordering::Relaxed)),
            });
        }
        (progress, acknowledged)
    }

    fn write(progress: &mut WriteProgress, through: u64) {
        progress.unsynced_bytes += 100 * (through - progress.written);
        progress.written = through;
        progress.complete_ready();
    }

    /// The story: a flush took 100 ms and more, and all that was written meanwhile was acknowledged
    /// beside what it covered: more could be lost than the mode's promise says.
    #[test]
    fn acknowledgements_wait_for_a_sync_while_too_much_is_unsynced() {
        let (mut progress, acknowledged) = progress(Mode::Replicated);
        let last = || acknowledged.load(Ordering::Relaxed);
        write(&mut progress, 10);
        // A sync begins and is given up; the next one lasts.
        progress.sync_begins();
        write(&mut progress, 11);
        progress.sync_begins();
        write(&mut progress, 16);
        assert_eq!((last(), progress.wants_sync(), progress.all_unsynced()), (16, false, 1600));
        write(&mut progress, 20);
        assert_eq!((last(), progress.wants_sync()), (16, true));
        progress.sync_ended(11);
        assert_eq!((last(), progress.wants_sync(), progress.all_unsynced()), (20, false, 900));
        // A single write that is larger.
        write(&mut progress, 40);
        assert_eq!((last(), progress.wants_sync()), (20, true));
        progress.sync_begins();
        progress.sync_ended(40);
        assert_eq!(last(), 40);
    }

    #[test]
    fn a_device_that_keeps_what_is_written_has_no_such_bound() {
        let (mut progress, acknowledged) = progress(Mode::Device);
        write(&mut progress, 40);
        assert_eq!((acknowledged.load(Ordering::Relaxed), progress.wants_sync()), (40, false));
    }
}
