//! Damage of data at rest: flipped bits, unreadable blocks, writes that were never stored or went
//! astray, a replaced disk.
//!
//! What holds here: decay damages only blocks that are safe (synced), so that it is never mistaken
//! for a lost unsynced write. Writing a block again repairs it. The disk knows what is damaged, so
//! that the harness can keep enough of the cluster intact.
//!
//! A device that acknowledged a write and did not store it shows that only once its cache drops the
//! block. So a lost write, and one that went astray, are simulated on blocks that were synced long
//! ago: they fall back to their former content. That also limits the damage to what can be noticed
//! at all. If the very last write before a power cut is lost, it looks like no write at all, and
//! nothing on that disk tells otherwise.

use crate::image::FileImage;
use cairn_engine::io::BLOCK;
use rand::{RngExt, rngs::StdRng};
use std::sync::Arc;

/// A kind of damage to blocks at rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// A bit flips.
    Rot,
    /// The block cannot be read any more, until it is written again.
    Wear,
    /// The block's last write was never stored.
    Lost,
    /// The block's last write went to another offset in the file.
    Astray,
}

impl FileImage {
    /// Blocks that decay may damage: safe, not damaged yet, synced at least `rounds` syncs ago, the
    /// newest first.
    pub fn aged(&self, rounds: u64) -> Vec<u64> {
        let mut blocks = self.long_synced(rounds);
        blocks.retain(|number| !self.decayed.contains(number));
        blocks
    }

    /// Applies this damage to one of these blocks, chosen at random. False if it would change
    /// nothing.
    pub fn decay(&mut self, decay: Decay, among: &[u64], rng: &mut StdRng) -> bool {
        let Some(number) = among.get(rng.random_range(0..among.len().max(1))).copied() else {
            return false;
        };
        match decay {
            Decay::Rot => self.rot(number, rng),
            Decay::Wear => self.wear_out(number),
            Decay::Lost => self.lose(number),
            Decay::Astray => {
                let onto = among.get(rng.random_range(0..among.len())).copied().unwrap_or(number);
                self.stray(number, onto)
            }
        }
    }

    fn rot(&mut self, number: u64, rng: &mut StdRng) -> bool {
        let at = rng.random_range(0..BLOCK as u64);
        self.flip(number * BLOCK as u64 + at, 1 << rng.random_range(0..8_u8))
    }

    /// Flips these bits of the byte at `offset`, if it is synced.
    pub fn flip(&mut self, offset: u64, bits: u8) -> bool {
        let (number, at) = (offset / BLOCK as u64, (offset % BLOCK as u64) as usize);
        let Some(block) = self.synced.get_mut(&number).map(Arc::make_mut) else { return false };
        if let Some(byte) = block.get_mut(at) {
            *byte ^= bits;
        }
        self.harm(number)
    }

    /// A block cannot be read any more, until it is written again.
    pub fn wear_out(&mut self, number: u64) -> bool {
        self.worn.insert(number);
        self.harm(number)
    }

    fn lose(&mut self, number: u64) -> bool {
        let former = self.former.get(&number).cloned().unwrap_or_else(|| Arc::new([0; BLOCK]));
        match self.synced.insert(number, former.clone()) {
            Some(held) if held == former => false,
            _ => self.harm(number),
        }
    }

    fn stray(&mut self, number: u64, onto: u64) -> bool {
        let Some(written) = self.synced.get(&number).cloned() else { return false };
        if number == onto || !self.lose(number) {
            return false;
        }
        self.synced.insert(onto, written);
        self.harm(onto);
        true
    }

    /// Every block can be read again.
    pub fn unwear(&mut self) {
        self.worn.clear();
    }

    /// The number of damaged blocks.
    pub fn decayed(&self) -> usize {
        self.decayed.len()
    }

    /// Stops counting the blocks that are still damaged: the harness has checked that they are not
    /// needed.
    pub fn forgive(&mut self) {
        self.decayed.clear();
        self.harmed.clear();
    }

    /// Marks a block as damaged. False if it was damaged before.
    fn harm(&mut self, number: u64) -> bool {
        self.harmed.insert(number);
        self.decayed.insert(number)
    }

    /// Blocks that were damaged since [`FileImage::forgive`].
    pub fn harmed(&self) -> usize {
        self.harmed.len()
    }

    /// Whether a block is damaged or shows older content, and was not written again since.
    pub fn is_damaged(&self, number: u64) -> bool {
        let sets = [&self.worn, &self.decayed, &self.fallen];
        sets.into_iter().any(|blocks| blocks.contains(&number))
    }

    /// The first block from `offset` on, within `len` bytes, that cannot be read.
    pub fn unreadable(&self, offset: u64, len: usize) -> Option<u64> {
        let block = BLOCK as u64;
        self.worn.range(offset / block..(offset + len as u64).div_ceil(block)).next().copied()
    }

    /// Completes a write in flight without storing it, or stores it `astray` blocks after its
    /// offset, inside the file. False if the write is no longer known.
    pub fn complete_wrongly(&mut self, id: u64, astray: Option<u64>) -> bool {
        let Some(in_flight_write) = self.in_flight_writes.remove(&id) else { return false };
        let all = self.size() / BLOCK as u64;
        let len = in_flight_write.blocks.len() as u64;
        if let Some(blocks) = astray {
            let first = (in_flight_write.first + blocks) % (all - len + 1);
            for (number, block) in (first..).zip(in_flight_write.blocks) {
                self.put(number, block);
                self.harm(number);
            }
        }
        for number in in_flight_write.first..in_flight_write.first + len {
            self.harm(number);
        }
        true
    }

    /// Replaces the file by an empty disk's: zeros.
    pub fn replace(&mut self) {
        *self = FileImage::zeroed(self.size());
        self.harmed = (0..self.size() / BLOCK as u64).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_engine::io::BLOCK;
    use rand::SeedableRng;

    fn file() -> (FileImage, StdRng) {
        let mut file = FileImage::zeroed(16 * BLOCK as u64);
        for round in 8..=9 {
            for block in 0..4 {
                file.begin(block, block * BLOCK as u64, &[round; BLOCK]);
                assert!(file.complete(block));
            }
            file.synced_through(file.begin_sync());
        }
        (file, StdRng::seed_from_u64(3))
    }

    fn content(file: &FileImage) -> Vec<u8> {
        let mut all = vec![0; 16 * BLOCK];
        file.read(0, &mut all);
        all
    }

    fn first_bytes(file: &FileImage) -> Vec<u8> {
        content(file).chunks(BLOCK).take(4).map(|block| block[0]).collect()
    }

    #[test]
    fn rot_changes_one_bit_of_one_block() {
        let (mut file, mut rng) = file();
        let before = content(&file);
        assert!(file.decay(Decay::Rot, &[2], &mut rng));
        let after = content(&file);
        let bits: u32 =
            before.iter().zip(&after).map(|(one, other)| (one ^ other).count_ones()).sum();
        let at = before.iter().zip(&after).position(|(one, other)| one != other).unwrap();
        assert_eq!((bits, at / BLOCK, file.decayed()), (1, 2, 1));
    }

    #[test]
    fn a_block_that_is_not_safe_or_already_damaged_is_not_damaged() {
        let (mut file, mut rng) = file();
        assert!(file.decay(Decay::Wear, &[1], &mut rng));
        file.begin(9, 0, &[7; BLOCK]);
        assert!(file.complete(9));
        assert_eq!(file.aged(0), [3, 2], "block 0 is being written, block 1 is damaged");
        assert_eq!(file.aged(1), [] as [u64; 0], "all were synced in the last round");
        assert!(!file.decay(Decay::Rot, &[], &mut rng));
    }

    #[test]
    fn a_worn_block_is_unreadable_until_it_is_written_again() {
        let (mut file, mut rng) = file();
        assert!(file.decay(Decay::Wear, &[3], &mut rng));
        assert_eq!(file.unreadable(0, 16 * BLOCK), Some(3));
        assert_eq!(file.unreadable(4 * BLOCK as u64, BLOCK), None);
        file.begin(9, 3 * BLOCK as u64, &[7; BLOCK]);
        assert!(file.complete(9));
        assert_eq!((file.unreadable(0, 16 * BLOCK), file.decayed()), (None, 0));
    }

    #[test]
    fn a_lost_write_leaves_what_was_there_before() {
        let (mut file, mut rng) = file();
        assert!(file.decay(Decay::Lost, &[1], &mut rng));
        assert_eq!(first_bytes(&file), [9, 8, 9, 9]);
        assert_eq!(file.decayed(), 1);
    }

    #[test]
    fn a_write_that_went_astray_damages_two_blocks() {
        let (mut file, mut rng) = file();
        while !file.decay(Decay::Astray, &[0, 1], &mut rng) {}
        let mut first_two = first_bytes(&file)[..2].to_vec();
        first_two.sort_unstable();
        assert_eq!((first_two, file.decayed()), (vec![8, 9], 2));
    }

    #[test]
    fn a_write_in_flight_may_never_be_stored_or_land_elsewhere() {
        let (mut file, _) = file();
        file.begin(9, 0, &[7; BLOCK]);
        assert!(file.complete_wrongly(9, Some(2)));
        assert_eq!((first_bytes(&file), file.decayed()), (vec![9, 9, 7, 9], 2));
        file.begin(10, BLOCK as u64, &[6; BLOCK]);
        assert!(file.complete_wrongly(10, None));
        assert!(!file.complete(10), "it has completed");
        assert_eq!((first_bytes(&file), file.decayed()), (vec![9, 9, 7, 9], 3));
    }

    #[test]
    fn forgiven_damage_is_not_counted_and_stays() {
        let (mut file, mut rng) = file();
        assert!(file.decay(Decay::Wear, &[3], &mut rng));
        file.forgive();
        assert_eq!((file.decayed(), file.unreadable(0, 16 * BLOCK)), (0, Some(3)));
    }

    #[test]
    fn a_replaced_disk_is_empty() {
        let (mut file, _) = file();
        file.replace();
        assert!(content(&file).iter().all(|byte| *byte == 0));
    }
}
