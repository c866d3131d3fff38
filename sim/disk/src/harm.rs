//! Arranged faults of a disk: errors, misread blocks, decay, and operations that do not do what was
//! asked.
//!
//! What holds here: an arranged error is applied once, and so is an arranged wrong operation. A
//! misread block reads right in the next process. At most one of the superblock's copies is damaged
//! at a time.

use crate::core::{Arranged, Core, Failing};
use crate::cut::Damage;
use crate::decay::Decay;
use crate::image::FileImage;
use cairn_engine::io::{BLOCK, FileKind, SUPERBLOCK_BYTES};
use rand::{RngExt, rngs::StdRng};

/// A journal block may be misread, and a write of journal or data may turn out to be lost, only if
/// this many syncs came after the one that made it safe. A journal block must also be among the
/// newest of these: older ones are covered by a checkpoint and no longer needed.
const SYNCS_AFTER: u64 = 12;
/// A bit may flip, or a block wear out, in newer blocks too: after this many syncs a synced block
/// records that this one was safe.
const SYNCS_AFTER_THE_NEWEST: u64 = 2;
const RECENT_BLOCKS: usize = 40;
/// Checkpoints and the superblock may decay as soon as they are synced, since they have copies.
const ROUNDS_OF_COPIES: u64 = 0;
/// In the larger files only this many of the newest candidates may decay.
const NEWEST_DATA: usize = 400;

/// The superblock's copies, and how far apart they begin.
const SUPERBLOCK_COPIES: u64 = 4;
const BLOCKS_BETWEEN_COPIES: u64 = SUPERBLOCK_BYTES / SUPERBLOCK_COPIES / BLOCK as u64;

impl Core {
    /// Arranges an error for a write or a sync, of one file or any, after `spared` of them.
    pub fn arrange(&mut self, failing: Failing, kind: Option<FileKind>, spared: u32) {
        self.arranged = Some(Arranged { failing, kind, spared });
    }

    /// Whether the process can record a failure in the superblock: the disk is there, and no sync of
    /// that file failed.
    pub fn takes_superblock(&self) -> bool {
        let superblock = self.files.get(&FileKind::Superblock);
        !self.away && superblock.is_some_and(|file| !file.has_failed())
    }

    /// Cancels an arranged error that was not applied yet.
    pub fn disarm(&mut self) {
        self.arranged = None;
    }

    /// From now on every operation does what was asked.
    pub fn behave(&mut self) {
        self.wrong.disarm();
    }

    /// How many arranged errors were applied so far.
    pub fn errors(&self) -> u64 {
        self.errors
    }

    /// Until the process ends, reads of one journal block return a flipped bit, as over a bad
    /// cable. It is a block that later blocks record as synced. False if there is none.
    pub fn misread_journal(&mut self, rng: &mut StdRng) -> bool {
        let Some(file) = self.files.get(&FileKind::Journal) else { return false };
        let candidates = file.long_synced(SYNCS_AFTER);
        let recent = candidates.len().min(RECENT_BLOCKS);
        if recent == 0 {
            return false;
        }
        let block = candidates.get(rng.random_range(0..recent)).copied();
        self.misread = block.map(|block| (FileKind::Journal, block));
        self.misread.is_some()
    }

    /// Ends the misreading.
    pub fn read_right(&mut self) {
        self.misread = None;
    }

    /// Whether a block is misread at present.
    pub fn misreads(&self) -> bool {
        self.misread.is_some()
    }

    /// Applies this damage to up to `count` blocks of a file, and returns how many it damaged. At
    /// most one of the superblock's copies is damaged at a time: more would lose the identity.
    pub fn decay(&mut self, decay: Decay, kind: FileKind, count: usize, rng: &mut StdRng) -> usize {
        let Some(file) = self.files.get_mut(&kind) else { return 0 };
        let late = match decay {
            Decay::Rot | Decay::Wear => SYNCS_AFTER_THE_NEWEST,
            Decay::Lost | Decay::Astray => SYNCS_AFTER,
        };
        let (rounds, newest, most) = match kind {
            FileKind::Superblock => {
                (ROUNDS_OF_COPIES, RECENT_BLOCKS, usize::from(file.decayed() == 0))
            }
            FileKind::Checkpoint0 | FileKind::Checkpoint1 => {
                (ROUNDS_OF_COPIES, RECENT_BLOCKS, count)
            }
            FileKind::Journal => (late, RECENT_BLOCKS, count),
            FileKind::Data => (late, NEWEST_DATA, count),
        };
        let mut done = 0;
        for _ in 0..most.min(count) {
            let mut among = file.aged(rounds);
            among.truncate(newest);
            done += usize::from(file.decay(decay, &among, rng));
        }
        if done > 0 {
            self.harms += 1;
            self.note(b'a', kind, decay as u64, done as u64);
        }
        done
    }

    /// Applies this damage to one block of a file, however new. False if it would change nothing.
    pub fn decay_block(
        &mut self,
        decay: Decay,
        kind: FileKind,
        number: u64,
        rng: &mut StdRng,
    ) -> bool {
        let done = self.files.get_mut(&kind).is_some_and(|file| file.decay(decay, &[number], rng));
        self.harms += u64::from(done);
        self.note(b'o', kind, number, u64::from(done));
        done
    }

    /// A file to be changed, by what does not pass for a write.
    pub fn file_mut(&mut self, kind: FileKind) -> Option<&mut FileImage> {
        self.files.get_mut(&kind)
    }

    /// Whether two copies of the superblock agree.
    pub fn has_identity(&self) -> bool {
        let Some(file) = self.files.get(&FileKind::Superblock) else { return false };
        let copies: Vec<Vec<u8>> = (0..SUPERBLOCK_COPIES)
            .map(|copy| copy * BLOCKS_BETWEEN_COPIES * BLOCK as u64)
            .filter(|offset| file.unreadable(*offset, BLOCK).is_none())
            .map(|offset| {
                let mut copy = vec![0; BLOCK];
                file.read(offset, &mut copy);
                copy
            })
            .filter(|copy| copy.iter().any(|byte| *byte != 0))
            .collect();
        copies
            .iter()
            .enumerate()
            .any(|(number, copy)| copies.iter().skip(number + 1).any(|other| other == copy))
    }

    /// Damages so many copies of the superblock that no two agree: three, or all four.
    pub fn lose_identity(&mut self, rng: &mut StdRng) {
        let spared = rng.random_range(0..2 * SUPERBLOCK_COPIES);
        for copy in (0..SUPERBLOCK_COPIES).filter(|copy| *copy != spared) {
            let decay = if rng.random_bool(0.7) { Decay::Rot } else { Decay::Wear };
            let block = copy * BLOCKS_BETWEEN_COPIES;
            self.decay_block(decay, FileKind::Superblock, block, rng);
        }
        // Only what is synced decays; two copies may just have been written.
        if self.has_identity() {
            self.erase(FileKind::Superblock);
        }
    }

    /// Overwrites a file with zeros, as an operator may.
    pub fn erase(&mut self, kind: FileKind) {
        if let Some(file) = self.files.get_mut(&kind) {
            file.replace();
        }
        self.note(b'z', kind, 0, 0);
    }

    /// Flips a bit of the byte at `offset` of a file. False if it is not synced.
    pub fn flip(&mut self, kind: FileKind, offset: u64) -> bool {
        let flipped = self.files.get_mut(&kind).is_some_and(|file| file.flip(offset, 1));
        if flipped {
            self.note(b'f', kind, offset, 1);
        }
        flipped
    }

    /// The next write to a file is reported as complete and lost, or lands `astray` blocks further
    /// on. False, and nothing is arranged, if that could not be noticed: a copy of the superblock
    /// is damaged already.
    pub fn arrange_wrong_write(&mut self, kind: FileKind, astray: Option<u64>) -> bool {
        let spare = kind != FileKind::Superblock
            || self.files.get(&kind).is_some_and(|file| file.decayed() == 0);
        if spare {
            self.wrong.write(kind, astray);
        }
        spare
    }

    /// The next read of a file returns one block of another offset.
    pub fn arrange_wrong_read(&mut self, kind: FileKind, choice: u64) {
        self.wrong.read(kind, choice);
    }

    /// The number of damaged blocks that were not forgiven.
    pub fn decayed(&self) -> usize {
        self.files.values().map(FileImage::decayed).sum()
    }

    /// How often the disk was damaged so far.
    pub fn harms(&self) -> u64 {
        let wrongs = self.stats().wrongs;
        self.harms + wrongs.lost_writes + wrongs.stray_writes
    }

    /// Blocks of the journal, the checkpoints and the superblock that were damaged since they were
    /// forgiven.
    pub fn harmed_beside_data(&self) -> usize {
        self.files
            .iter()
            .filter(|(kind, _)| **kind != FileKind::Data)
            .map(|(_, file)| file.harmed())
            .sum()
    }

    /// Stops counting the blocks that are still damaged: the harness has checked that they are not
    /// needed.
    pub fn forgive(&mut self) {
        self.files.values_mut().for_each(FileImage::forgive);
    }

    /// The disk loses power alone, while its machine continues: unsynced blocks are as after any
    /// power cut, and operations in flight fail. With `away` every later write and sync fails too,
    /// until the process ends; else the disk is back at once. If no write is in flight, nothing
    /// happens and this returns `None`: no error would reveal the loss.
    pub fn lose_power(&mut self, away: bool, rng: &mut StdRng) -> Option<Damage> {
        if self.files.values().all(|file| file.in_flight_writes.is_empty()) {
            return None;
        }
        self.doomed
            .extend(self.files.values().flat_map(|file| file.in_flight_writes.keys().copied()));
        self.wrong.forget_in_flight();
        self.errors += 1;
        self.power_losses += 1;
        self.away = away;
        // The running process counts them as written.
        for file in self.files.values_mut() {
            let unsafe_blocks: Vec<u64> = file.dirty.keys().copied().collect();
            file.fallen.extend(unsafe_blocks);
        }
        Some(self.cut_files(b'P', rng))
    }

    /// Whether the write or sync that begins now never returns.
    pub fn hangs(&mut self, kind: FileKind) -> bool {
        self.arranged_now(Failing::Hang, kind)
    }

    /// Whether the operation that begins now gets the arranged error.
    pub(crate) fn arranged_now(&mut self, failing: Failing, kind: FileKind) -> bool {
        let Some(arranged) = &mut self.arranged else { return false };
        if arranged.failing != failing || arranged.kind.is_some_and(|only| only != kind) {
            return false;
        }
        if arranged.spared > 0 {
            arranged.spared -= 1;
            return false;
        }
        self.arranged = None;
        self.errors += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{ARRANGED, tests::geometry};
    use crate::cut::FailedSyncs;
    use crate::wrong::Wrongs;
    use rand::SeedableRng;

    fn disk() -> Core {
        Core::new(false, &geometry())
    }

    #[test]
    fn an_arranged_error_is_applied_once_and_its_operation_makes_nothing_safe() {
        let mut disk = disk();
        let (epoch, _) = disk.open(FileKind::Data).unwrap();
        disk.arrange(Failing::Write, Some(FileKind::Data), 1);
        let mut ends = Vec::new();
        for block in 0..3 {
            let id = disk.begin_write(epoch, FileKind::Data, block * 4096, &[1; 4096]).unwrap();
            ends.push(disk.complete_write(epoch, FileKind::Data, id).is_ok());
        }
        assert_eq!((ends, disk.errors()), (vec![true, false, true], 1));
        disk.arrange(Failing::Sync, None, 0);
        let begun = disk.begin_sync(epoch, FileKind::Data).unwrap();
        let error = disk.complete_sync(epoch, FileKind::Data, begun).unwrap_err();
        assert!(error.to_string().contains(ARRANGED));
        let begun = disk.begin_sync(epoch, FileKind::Data).unwrap();
        disk.complete_sync(epoch, FileKind::Data, begun).unwrap();
        assert_eq!(
            disk.dirty_blocks(),
            2,
            "the second sync covers nothing that the first one should have"
        );
    }

    #[test]
    fn a_misread_block_reads_right_again_in_the_next_process() {
        let mut disk = disk();
        let (epoch, _) = disk.open(FileKind::Journal).unwrap();
        for block in 0..20 {
            let id = disk.begin_write(epoch, FileKind::Journal, block * 4096, &[7; 4096]).unwrap();
            disk.complete_write(epoch, FileKind::Journal, id).unwrap();
            let begun = disk.begin_sync(epoch, FileKind::Journal).unwrap();
            disk.complete_sync(epoch, FileKind::Journal, begun).unwrap();
        }
        let mut rng = StdRng::seed_from_u64(1);
        let wrong = |disk: &mut Core, epoch| {
            let mut all = vec![0; 20 * 4096];
            disk.read(epoch, FileKind::Journal, 0, &mut all).unwrap();
            all.iter().filter(|byte| **byte != 7).count()
        };
        assert_eq!(wrong(&mut disk, epoch), 0);
        assert!(disk.misread_journal(&mut rng));
        assert_eq!(wrong(&mut disk, epoch), 1);
        disk.kill(|_| FailedSyncs::Kept, &mut rng);
        let (epoch, _) = disk.open(FileKind::Journal).unwrap();
        assert_eq!(wrong(&mut disk, epoch), 0);
    }

    #[test]
    fn a_wrong_read_and_a_wrong_write_happen_once_and_report_success() {
        let mut disk = disk();
        let (epoch, _) = disk.open(FileKind::Data).unwrap();
        let write = |disk: &mut Core, block: u64, byte: u8| {
            let id = disk.begin_write(epoch, FileKind::Data, block * 4096, &[byte; 4096]).unwrap();
            disk.complete_write(epoch, FileKind::Data, id).unwrap();
        };
        let read = |disk: &mut Core| {
            let mut all = vec![0; 4 * 4096];
            disk.read(epoch, FileKind::Data, 0, &mut all).unwrap();
            all.chunks(4096).map(|block| block[0]).collect::<Vec<u8>>()
        };
        for block in 0..4 {
            write(&mut disk, block, 10 + block as u8);
        }
        disk.arrange_wrong_read(FileKind::Data, 1);
        assert_eq!(
            read(&mut disk).iter().zip(10..14).filter(|(one, other)| *one != other).count(),
            1
        );
        assert_eq!(read(&mut disk), [10, 11, 12, 13]);
        assert!(disk.arrange_wrong_write(FileKind::Data, None));
        write(&mut disk, 0, 20);
        assert!(disk.arrange_wrong_write(FileKind::Data, Some(2)));
        write(&mut disk, 1, 21);
        write(&mut disk, 2, 22);
        assert_eq!(read(&mut disk), [10, 11, 22, 21]);
        let wrongs = Wrongs { lost_writes: 1, stray_writes: 1, stray_reads: 1 };
        assert_eq!((disk.stats().wrongs, disk.decayed()), (wrongs, 3));
    }

    #[test]
    fn one_copy_of_the_superblock_decays_at_a_time() {
        let mut disk = disk();
        let (epoch, _) = disk.open(FileKind::Superblock).unwrap();
        for copy in 0..4 {
            let id = disk.begin_write(epoch, FileKind::Superblock, copy << 14, &[1; 4096]).unwrap();
            disk.complete_write(epoch, FileKind::Superblock, id).unwrap();
        }
        let begun = disk.begin_sync(epoch, FileKind::Superblock).unwrap();
        disk.complete_sync(epoch, FileKind::Superblock, begun).unwrap();
        let rng = &mut StdRng::seed_from_u64(1);
        assert_eq!(disk.decay(Decay::Rot, FileKind::Superblock, 3, rng), 1);
        assert_eq!(disk.decay(Decay::Wear, FileKind::Superblock, 3, rng), 0);
        assert!(!disk.arrange_wrong_write(FileKind::Superblock, None));
        disk.forgive();
        assert_eq!(disk.decay(Decay::Wear, FileKind::Superblock, 3, rng), 1);
    }
}
