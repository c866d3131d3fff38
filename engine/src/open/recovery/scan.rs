//! One pass over the ring: which block each slot holds, and what the blocks say about one another.

use super::progress::OpenProgress;
use crate::io::{BLOCK, OpenFile, Piece, ReadAhead, is_zero, pieces};
use crate::journal::{Block, Header, Ring};

const READ_BYTES: u64 = 1 << 20;

/// What the caller knows about how the directory's last process ended.
#[derive(Clone, Copy)]
pub(crate) struct ShutdownEvidence {
    /// The machine lost power since.
    pub power_cut: bool,
    /// Completed writes are still there: only the process died, or the device keeps them through a
    /// power cut.
    pub kept_written: bool,
    /// The journal must reach this sequence, or something acknowledged is lost.
    pub reaches: Option<u64>,
    /// The journal is known to be synced through this sequence, whatever its blocks say.
    pub synced: u64,
}

/// What a slot of the ring holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Empty,
    /// Neither zeros nor an intact block of this directory.
    Garbage,
    /// The device cannot read it.
    Unreadable,
    Block {
        sequence: u64,
        checksum: u128,
        previous: u128,
        written: u64,
        synced: u64,
    },
}

/// The ring as read.
pub(super) struct Scan {
    ring: Ring,
    slots: Vec<Slot>,
}

/// How the chain ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Nothing, an old block, or (after a power cut) a torn one: the last write before the crash.
    Tail,
    /// A later block says that this one was completed.
    Missing { evidence_block: u64 },
    /// A block that is neither old nor intact, though no power cut could have torn it; or one that
    /// cannot be read.
    Damaged,
}

impl Scan {
    pub(super) async fn read(
        journal: &OpenFile,
        ring: Ring,
        incarnation: u64,
        progress: &mut OpenProgress,
    ) -> Scan {
        let mut slots = Vec::with_capacity(ring.blocks() as usize);
        let total = ring.blocks() * BLOCK as u64;
        let mut ahead = ReadAhead::new(journal, pieces(0..total, READ_BYTES));
        while let Some(Piece { at, bytes }) = ahead.next().await {
            progress.at("bytes of the journal read", at.start, total);
            match bytes {
                Ok(bytes) => slots.extend(bytes.chunks(BLOCK).map(|b| slot(b, incarnation))),
                Err(_) => {
                    for offset in at.step_by(BLOCK) {
                        slots.push(read_slot(journal, offset, incarnation).await);
                    }
                }
            }
        }
        Scan { ring, slots }
    }

    /// Reads the slot of `sequence` once more. Returns true if it now holds something else: the
    /// first read was wrong.
    pub(super) async fn read_again(
        &mut self,
        journal: &OpenFile,
        sequence: u64,
        incarnation: u64,
    ) -> bool {
        let now = read_slot(journal, self.ring.offset(sequence), incarnation).await;
        match self.slots.get_mut((sequence % self.ring.blocks()) as usize) {
            Some(slot) => std::mem::replace(slot, now) != now,
            None => false,
        }
    }

    #[cfg(test)]
    pub(super) fn of(slots: Vec<Slot>) -> Scan {
        Scan { ring: Ring::new(slots.len() as u64), slots }
    }

    fn slot(&self, sequence: u64) -> Slot {
        self.slots.get((sequence % self.ring.blocks()) as usize).copied().unwrap_or(Slot::Empty)
    }

    /// Follows the chain behind block `after`, whose checksum is `chain`. Returns its last block
    /// and that block's checksum.
    pub(super) fn follow(&self, after: u64, chain: u128) -> (u64, u128) {
        let (mut end, mut checksum) = (after, chain);
        // A chain longer than the ring would follow itself.
        while end - after < self.ring.blocks() {
            match self.slot(end + 1) {
                Slot::Block { sequence, checksum: next, previous, .. }
                    if sequence == end + 1 && previous == checksum =>
                {
                    (end, checksum) = (sequence, next);
                }
                _ => break,
            }
        }
        (end, checksum)
    }

    /// The checksum of block `sequence`, if it is still there.
    pub(super) fn checksum(&self, sequence: u64) -> Option<u128> {
        match self.slot(sequence) {
            Slot::Block { sequence: found, checksum, .. } if found == sequence => Some(checksum),
            _ => None,
        }
    }

    /// Whether the slot of `sequence` is damaged and its neighbours are not, so that only this one
    /// block is lost.
    pub(super) fn single_block_damaged(&self, sequence: u64) -> bool {
        let damaged = |sequence| matches!(self.slot(sequence), Slot::Garbage | Slot::Unreadable);
        damaged(sequence) && !damaged(sequence + 1) && self.checksum(sequence - 1).is_some()
    }

    /// The highest sequence that any block says is done, and the block that says so. Done means
    /// written if completed writes survive, else synced.
    pub(super) fn highest_done(&self, evidence: ShutdownEvidence) -> Option<(u64, u64)> {
        let done = |(sequence, written, synced)| {
            (if evidence.kept_written { written } else { synced }, sequence)
        };
        self.blocks().map(done).max()
    }

    /// The highest sequence that any block up to `end` says was synced.
    pub(super) fn highest_synced(&self, end: u64) -> u64 {
        self.blocks()
            .filter(|(sequence, ..)| *sequence <= end)
            .map(|(.., synced)| synced)
            .max()
            .unwrap_or(0)
    }

    fn blocks(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Block { sequence, written, synced, .. } => Some((*sequence, *written, *synced)),
            _ => None,
        })
    }

    /// Judges the end of a chain that reaches `end`. Only a power cut can tear a block in flight.
    pub(super) fn judge(&self, end: u64, evidence: ShutdownEvidence) -> End {
        if let Some((_, evidence_block)) =
            self.highest_done(evidence).filter(|(done, _)| *done > end)
        {
            return End::Missing { evidence_block };
        }
        match self.slot(end + 1) {
            Slot::Garbage if !evidence.power_cut => End::Damaged,
            // A torn write leaves bytes; what cannot be read may have been the newest that was
            // acknowledged.
            Slot::Unreadable => End::Damaged,
            _ => End::Tail,
        }
    }

    /// Sequences behind `end` whose slots hold anything but an older block: leftovers of writes
    /// that were cut, to be cleared before new blocks are written.
    pub(super) fn leftovers(&self, end: u64) -> Vec<u64> {
        // One lap: it covers every slot, also those that the first lap has not reached yet. The last
        // is that of `end` itself. What is left of that block, if damaged, shows that it was written.
        let last = end + self.ring.blocks();
        (end + 1..=last)
            .filter(|sequence| match self.slot(*sequence) {
                Slot::Empty => false,
                Slot::Garbage | Slot::Unreadable => *sequence != last,
                Slot::Block { sequence: found, .. } => found > end,
            })
            .collect()
    }
}

/// Whether anything was ever written to a journal.
pub(crate) async fn is_written(journal: &OpenFile) -> bool {
    let size = journal.size() / BLOCK as u64 * BLOCK as u64;
    for start in (0..size).step_by(READ_BYTES as usize) {
        let buf = journal.read(start, READ_BYTES.min(size - start) as usize).await.ok();
        // A block that cannot be read was written once.
        if buf.is_none_or(|buf| !is_zero(&buf)) {
            return true;
        }
    }
    false
}

async fn read_slot(journal: &OpenFile, offset: u64, incarnation: u64) -> Slot {
    let block = journal.read(offset, BLOCK).await;
    block.map_or(Slot::Unreadable, |block| slot(&block, incarnation))
}

fn slot(bytes: &[u8], incarnation: u64) -> Slot {
    if is_zero(bytes) {
        return Slot::Empty;
    }
    match Block::decode(bytes) {
        Some(Block { header, checksum, .. }) if header.incarnation == incarnation => {
            let Header { sequence, previous, written, synced, .. } = header;
            Slot::Block { sequence, checksum, previous, written, synced }
        }
        _ => Slot::Garbage,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Block `sequence`, whose checksum is its sequence, chained to the one before it.
    fn block(sequence: u64, written: u64, synced: u64) -> Slot {
        let (checksum, previous) = (u128::from(sequence), u128::from(sequence) - 1);
        Slot::Block { sequence, checksum, previous, written, synced }
    }

    /// A ring of eight whose slots from 1 on hold the given ones.
    fn ring(slots: &[Slot]) -> Scan {
        let mut all = vec![Slot::Empty; 8];
        for (place, slot) in all.iter_mut().skip(1).zip(slots) {
            *place = *slot;
        }
        Scan::of(all)
    }

    #[test]
    fn the_end_of_the_chain_is_judged_by_what_later_blocks_say_and_how_the_machine_stopped() {
        use Slot::{Empty, Garbage};
        let killed =
            ShutdownEvidence { power_cut: false, kept_written: true, reaches: None, synced: 0 };
        let device =
            ShutdownEvidence { power_cut: true, kept_written: true, reaches: None, synced: 0 };
        let volatile =
            ShutdownEvidence { power_cut: true, kept_written: false, reaches: None, synced: 0 };
        let missing = |evidence_block| End::Missing { evidence_block };
        let stranger =
            Slot::Block { sequence: 3, checksum: 9, previous: 77, written: 1, synced: 0 };
        // (slots from sequence 1, end of the chain, judgement when killed, cut with and without a
        // protected cache)
        let table = [
            (vec![block(1, 0, 0), block(2, 1, 0)], 2, End::Tail, End::Tail, End::Tail),
            (vec![block(1, 0, 0), block(2, 1, 0), Garbage], 2, End::Damaged, End::Tail, End::Tail),
            (
                vec![block(1, 0, 0), block(2, 1, 0), Empty, block(4, 2, 0)],
                2,
                End::Tail,
                End::Tail,
                End::Tail,
            ),
            (vec![block(1, 0, 0), block(2, 1, 0), stranger], 2, End::Tail, End::Tail, End::Tail),
            (vec![block(1, 0, 0), Empty, block(3, 2, 0)], 1, missing(3), missing(3), End::Tail),
            (vec![block(1, 0, 0), Empty, block(3, 2, 2)], 1, missing(3), missing(3), missing(3)),
            (
                vec![block(1, 0, 0), Garbage, Empty, block(4, 3, 1)],
                1,
                missing(4),
                missing(4),
                End::Tail,
            ),
            (vec![Garbage, block(2, 0, 0)], 0, End::Damaged, End::Tail, End::Tail),
            (vec![block(1, 0, 0), Slot::Unreadable], 1, End::Damaged, End::Damaged, End::Damaged),
            (vec![block(1, 0, 0), Empty, Slot::Unreadable], 1, End::Tail, End::Tail, End::Tail),
        ];
        for (slots, expected_end, when_killed, when_device, when_volatile) in table {
            let scan = ring(&slots);
            let (end, _) = scan.follow(0, 0);
            assert_eq!(end, expected_end, "{slots:?}");
            assert_eq!(scan.judge(end, killed), when_killed, "killed: {slots:?}");
            assert_eq!(scan.judge(end, device), when_device, "device: {slots:?}");
            assert_eq!(scan.judge(end, volatile), when_volatile, "volatile: {slots:?}");
        }
    }

    #[test]
    fn blocks_of_the_last_lap_are_old_and_not_leftovers() {
        let mut slots = vec![Slot::Empty; 8];
        for sequence in 5..=12u64 {
            slots[(sequence % 8) as usize] = block(sequence, sequence - 1, sequence - 1);
        }
        let scan = Scan::of(slots);
        let (end, checksum) = scan.follow(9, 9);
        assert_eq!((end, checksum), (12, 12));
        assert_eq!(scan.leftovers(12), [] as [u64; 0]);
        assert_eq!(scan.leftovers(10), [11, 12]);
        assert_eq!(scan.highest_synced(12), 11);
    }

    /// The story: the last block that a checkpoint covers decayed. An open cleared it, and the next one
    /// took the journal for one of another checkpoint.
    #[test]
    fn a_damaged_end_is_not_a_leftover() {
        let mut slots = vec![Slot::Empty; 8];
        for sequence in 5..=11u64 {
            slots[(sequence % 8) as usize] = block(sequence, sequence - 1, sequence - 1);
        }
        slots[12 % 8] = Slot::Garbage;
        let scan = Scan::of(slots);
        assert!(scan.single_block_damaged(12));
        assert_eq!(scan.leftovers(12), [] as [u64; 0]);
        assert_eq!(scan.leftovers(11), [12]);
    }

    /// The story: both checkpoints were damaged, and the state began again behind block 0. A block of
    /// a later lap in the slot of block 0 stayed, and said at the next open that all before it was
    /// written.
    #[test]
    fn a_later_block_in_the_slot_of_the_end_is_a_leftover() {
        let mut slots = vec![Slot::Empty; 8];
        slots[0] = block(16, 15, 15);
        assert_eq!(Scan::of(slots).leftovers(0), [8]);
    }

    #[test]
    fn blocks_behind_a_gap_on_the_first_lap_are_leftovers() {
        let scan =
            ring(&[block(1, 0, 0), block(2, 1, 0), Slot::Empty, block(4, 3, 0), Slot::Garbage]);
        assert_eq!(
            scan.leftovers(2),
            [4, 5],
            "left in place they would say that block 3 was completed"
        );
    }
}
