//! Damage of data at rest: rotten bits, blocks that can no longer be read, writes that land elsewhere, a disk that is
//! gone. Nothing draws these yet; they wait for nodes that repair what they find.
//!
//! What holds here: no damage touches a block that is not safe, so that it is never mistaken for a lost write; a block
//! that is written again is whole.

use super::image::FileImage;
use rand::{RngExt, rngs::StdRng};
use std::sync::Arc;

impl FileImage {
    /// Flips one bit of a safe block, and tells which block.
    pub fn rot(&mut self, rng: &mut StdRng) -> Option<u64> {
        let safe: Vec<u64> =
            self.synced.keys().copied().filter(|number| !self.dirty.contains_key(number)).collect();
        let number = *safe.get(rng.random_range(0..safe.len().max(1)))?;
        let block = Arc::make_mut(self.synced.get_mut(&number)?);
        let at = rng.random_range(0..block.len());
        *block.get_mut(at)? ^= 1 << rng.random_range(0..8_u8);
        Some(number)
    }

    /// One safe block cannot be read any more, until it is written again. Tells which.
    pub fn wear_out(&mut self, rng: &mut StdRng) -> Option<u64> {
        let safe: Vec<u64> =
            self.synced.keys().copied().filter(|number| !self.dirty.contains_key(number)).collect();
        let number = *safe.get(rng.random_range(0..safe.len().max(1)))?;
        self.worn.insert(number);
        Some(number)
    }

    /// The first block from `offset` on, within `len` bytes, that cannot be read.
    pub fn unreadable(&self, offset: u64, len: usize) -> Option<u64> {
        let block = cairn_engine::io::BLOCK as u64;
        self.worn.range(offset / block..(offset + len as u64).div_ceil(block)).next().copied()
    }

    /// A write in flight lands so many blocks behind its place, inside the file; its own place keeps what it held.
    pub fn misdirect(&mut self, id: u64, blocks: u64) {
        let all = self.size() / cairn_engine::io::BLOCK as u64;
        if let Some(flight) = self.flights.get_mut(&id) {
            flight.first = (flight.first + blocks) % (all - flight.blocks.len() as u64 + 1);
        }
    }

    /// Another disk takes this one's place: zeros.
    pub fn replace(&mut self) {
        *self = FileImage::zeroed(self.size());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_engine::io::BLOCK;
    use rand::SeedableRng;

    fn file() -> (FileImage, StdRng) {
        let mut file = FileImage::zeroed(16 * BLOCK as u64);
        for block in 0..4 {
            file.begin(block, block * BLOCK as u64, &[9; BLOCK]);
            assert!(file.complete(block));
        }
        file.synced_through(file.begin_sync());
        (file, StdRng::seed_from_u64(3))
    }

    fn content(file: &FileImage) -> Vec<u8> {
        let mut all = vec![0; 16 * BLOCK];
        file.read(0, &mut all);
        all
    }

    #[test]
    fn rot_changes_one_bit_of_a_safe_block() {
        let (mut file, mut rng) = file();
        let before = content(&file);
        let block = file.rot(&mut rng).unwrap();
        let after = content(&file);
        let bits: u32 = before.iter().zip(&after).map(|(one, other)| (one ^ other).count_ones()).sum();
        let place = before.iter().zip(&after).position(|(one, other)| one != other).unwrap();
        assert_eq!((bits, (place / BLOCK) as u64), (1, block));
    }

    #[test]
    fn a_block_being_written_does_not_rot() {
        let mut file = FileImage::zeroed(16 * BLOCK as u64);
        file.begin(0, 0, &[9; BLOCK]);
        assert!(file.complete(0));
        assert_eq!(file.rot(&mut StdRng::seed_from_u64(1)), None);
    }

    #[test]
    fn a_worn_block_is_unreadable_until_it_is_written_again() {
        let (mut file, mut rng) = file();
        let block = file.wear_out(&mut rng).unwrap();
        assert_eq!(file.unreadable(0, 16 * BLOCK), Some(block));
        assert_eq!(file.unreadable((block + 1) * BLOCK as u64, BLOCK), None);
        file.begin(9, block * BLOCK as u64, &[7; BLOCK]);
        assert!(file.complete(9));
        assert_eq!(file.unreadable(0, 16 * BLOCK), None);
    }

    #[test]
    fn a_misdirected_write_damages_another_block_and_leaves_its_own() {
        let (mut file, _) = file();
        file.begin(9, 0, &[7; BLOCK]);
        file.misdirect(9, 2);
        assert!(file.complete(9));
        let after = content(&file);
        assert_eq!((after[0], after[2 * BLOCK]), (9, 7));
    }

    #[test]
    fn a_replaced_disk_is_empty() {
        let (mut file, _) = file();
        file.replace();
        assert!(content(&file).iter().all(|byte| *byte == 0));
    }
}
