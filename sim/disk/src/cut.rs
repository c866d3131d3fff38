//! What is left of a file when the process or the machine ends.

use crate::image::{Block, FileImage};
use cairn_engine::io::BLOCK;
use rand::{RngExt, rngs::StdRng};
use std::sync::Arc;

/// The unit, in bytes, at which a disk without a promise about write units may tear.
pub const SECTOR: usize = 512;
/// The share of unsynced completed blocks that come back as a mixture of older and newer sectors.
const MIXED: f64 = 0.08;

/// What a power cut or a kill did to one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Completed blocks, not synced, that survived.
    pub kept: u64,
    /// Completed blocks, not synced, that were lost or fell back to an older version.
    pub dropped: u64,
    /// Completed blocks, not synced, that hold sectors of several versions.
    pub mixed: u64,
    /// Blocks in flight that landed completely.
    pub landed: u64,
    /// Blocks in flight that left no trace.
    pub lost: u64,
    /// Blocks in flight that landed in part or as garbage.
    pub torn: u64,
}

/// What the end of a process makes of blocks that a failed sync should have covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedSyncs {
    /// They stay, and the next sync covers them.
    Kept,
    /// They stay, and no sync covers them until they are written again.
    Unsafe,
    /// Some fall back: from now on reads see an older version. The others are as with `Unsafe`.
    Dropped,
}

impl Damage {
    /// Adds another file's damage.
    pub fn add(&mut self, other: Damage) {
        self.kept += other.kept;
        self.dropped += other.dropped;
        self.mixed += other.mixed;
        self.landed += other.landed;
        self.lost += other.lost;
        self.torn += other.torn;
    }
}

impl FileImage {
    /// The process ended and the machine continues: completed writes stay, and each write in flight
    /// lands, or not, or some of its blocks do: that is decided now.
    pub fn kill(&mut self, failed: FailedSyncs, rng: &mut StdRng) -> Damage {
        let mut damage = Damage::default();
        match failed {
            FailedSyncs::Kept => {
                self.dirty.values_mut().flatten().for_each(|version| version.sync_failed = false);
            }
            FailedSyncs::Unsafe => {}
            FailedSyncs::Dropped => self.drop_failed_syncs(rng, &mut damage),
        }
        for write in std::mem::take(&mut self.in_flight_writes).into_values() {
            let fate = rng.random_range(0..5_u8);
            for (number, block) in (write.first..).zip(write.blocks) {
                let lands = match fate {
                    0 | 1 => true,
                    2 | 3 => false,
                    _ => rng.random_bool(0.5),
                };
                damage.landed += u64::from(lands);
                damage.lost += u64::from(!lands);
                if lands {
                    self.put(number, block);
                }
            }
        }
        damage
    }

    /// Drops the newest versions of some blocks that a failed sync should have covered: from now on
    /// reads see an older version.
    fn drop_failed_syncs(&mut self, rng: &mut StdRng, damage: &mut Damage) {
        let fallen = &mut self.fallen;
        self.dirty.retain(|number, versions| {
            if versions.last().is_some_and(|version| version.sync_failed) && rng.random_bool(0.5) {
                damage.dropped += 1;
                fallen.insert(*number);
                versions.truncate(rng.random_range(0..versions.len()));
            }
            !versions.is_empty()
        });
    }

    /// The machine lost power. With `honours_contract` completed writes survive, and writes in
    /// flight are old or new per 4 KiB block. Without it each completed block may be any version
    /// since the last sync, and each sector in flight may be old, new, half-written or garbage.
    /// Afterwards everything left counts as synced.
    pub fn cut(&mut self, honours_contract: bool, rng: &mut StdRng) -> Damage {
        let mut damage = Damage::default();
        for (number, mut versions) in std::mem::take(&mut self.dirty) {
            let newest = versions.len();
            // 0 is the synced image, `newest` the last completed write; both ends are likely.
            let survivor = match rng.random_range(0..5_u8) {
                _ if honours_contract => newest,
                0 | 1 => newest,
                2 | 3 => 0,
                _ => rng.random_range(0..=newest),
            };
            let kept = survivor == newest;
            damage.kept += u64::from(kept);
            damage.dropped += u64::from(!kept);
            // A disk that writes its cache back in pieces may leave a mixture of older and newer
            // sectors.
            if !honours_contract && rng.random_bool(MIXED) {
                damage.mixed += 1;
                let mut mixed = self.synced.get(&number).map_or([0; BLOCK], |old| **old);
                for (sector, target) in mixed.chunks_mut(SECTOR).enumerate() {
                    let version = versions.get(rng.random_range(0..=newest));
                    if let Some(source) =
                        version.and_then(|version| version.block.chunks(SECTOR).nth(sector))
                    {
                        target.copy_from_slice(source);
                    }
                }
                self.left(number, Arc::new(mixed));
                continue;
            }
            versions.truncate(survivor);
            if let Some(version) = versions.pop() {
                self.left(number, version.block);
            }
        }
        for in_flight_write in std::mem::take(&mut self.in_flight_writes).into_values() {
            for (number, block) in (in_flight_write.first..).zip(in_flight_write.blocks) {
                self.land_in_part(number, &block, honours_contract, rng, &mut damage);
            }
        }
        self.syncs += 1;
        damage
    }

    /// Ends the writes in flight: all of them land, or none.
    pub fn settle(&mut self, land: bool) {
        for write in std::mem::take(&mut self.in_flight_writes).into_values().filter(|_| land) {
            for (number, block) in (write.first..).zip(write.blocks) {
                self.put(number, block);
            }
        }
    }

    /// The worst that a power cut may leave: only synced writes, or all completed ones if the disk
    /// keeps them, and no write in flight.
    pub fn fall_back(&mut self, honours_contract: bool) {
        for (number, mut versions) in std::mem::take(&mut self.dirty) {
            if let Some(version) = versions.pop().filter(|_| honours_contract) {
                self.left(number, version.block);
            }
        }
        self.in_flight_writes.clear();
        self.syncs += 1;
    }

    /// Stores a block that a power cut left: it counts as synced by the cut, and no earlier.
    fn left(&mut self, number: u64, block: Block) {
        if let Some(old) = self.synced.insert(number, block) {
            self.former.insert(number, old);
        }
        self.synced_in.insert(number, self.syncs + 1);
    }

    fn land_in_part(
        &mut self,
        number: u64,
        new: &Block,
        atomic: bool,
        rng: &mut StdRng,
        damage: &mut Damage,
    ) {
        if atomic || rng.random_bool(0.4) {
            if rng.random_bool(0.5) {
                damage.landed += 1;
                self.intact(number);
                self.left(number, new.clone());
            } else {
                damage.lost += 1;
            }
            return;
        }
        damage.torn += 1;
        let mut mixed = self.synced.get(&number).map_or([0; BLOCK], |old| **old);
        for (target, source) in mixed.chunks_mut(SECTOR).zip(new.chunks(SECTOR)) {
            match rng.random_range(0..8_u8) {
                0..=2 => target.copy_from_slice(source),
                3..=5 => {}
                6 => {
                    let part = rng.random_range(1..SECTOR);
                    for (byte, from) in target.iter_mut().zip(source).take(part) {
                        *byte = *from;
                    }
                }
                _ => target.fill_with(|| rng.random()),
            }
        }
        self.left(number, Arc::new(mixed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::tests::{each_seed, first_byte, write};
    use rand::SeedableRng;

    #[test]
    fn a_synced_block_survives_every_cut() {
        each_seed(|rng| {
            let mut file = FileImage::zeroed(1 << 20);
            write(&mut file, 1, 3, 9);
            let watermark = file.begin_sync();
            file.synced_through(watermark);
            assert_eq!(file.cut(false, rng), Damage::default());
            assert_eq!(first_byte(&file, 3), 9);
        });
    }

    #[test]
    fn at_worst_a_cut_leaves_what_is_synced_or_what_the_disk_keeps() {
        for honours_contract in [false, true] {
            let mut file = FileImage::zeroed(1 << 20);
            write(&mut file, 1, 0, 1);
            file.synced_through(file.begin_sync());
            write(&mut file, 2, 0, 2);
            write(&mut file, 3, 1, 3);
            file.begin(4, 2 * BLOCK as u64, &[4; BLOCK]);
            file.fall_back(honours_contract);
            let left = [0, 1, 2].map(|block| first_byte(&file, block));
            assert_eq!(left, if honours_contract { [2, 3, 0] } else { [1, 0, 0] });
        }
    }

    #[test]
    fn a_completed_block_may_come_back_in_part_older_and_in_part_newer() {
        let mut mixed = 0;
        each_seed(|rng| {
            let mut file = FileImage::zeroed(1 << 20);
            write(&mut file, 1, 0, 1);
            write(&mut file, 2, 0, 2);
            mixed += file.cut(false, rng).mixed;
            let mut block = vec![0; BLOCK];
            file.read(0, &mut block);
            assert!(
                block.chunks(SECTOR).all(|sector| sector.iter().all(|byte| *byte == sector[0]))
            );
        });
        assert!(mixed > 5, "{mixed}");
    }

    #[test]
    fn a_volatile_disk_may_fall_back_to_any_version_since_the_last_sync() {
        let mut seen = [0; 4];
        each_seed(|rng| {
            let mut file = FileImage::zeroed(1 << 20);
            for version in 1..=3 {
                write(&mut file, u64::from(version), 0, version);
            }
            file.cut(false, rng);
            seen[first_byte(&file, 0) as usize] += 1;
        });
        assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    }

    #[test]
    fn a_disk_that_honours_the_contract_keeps_every_completed_write_and_tears_nothing() {
        each_seed(|rng| {
            let mut file = FileImage::zeroed(1 << 20);
            write(&mut file, 1, 0, 1);
            write(&mut file, 2, 1, 2);
            file.begin(3, 0, &[5; 3 * BLOCK]);
            let damage = file.cut(true, rng);
            assert_eq!((damage.kept, damage.dropped, damage.torn), (2, 0, 0));
            for (block, old) in [(0, 1), (1, 2), (2, 0)] {
                let mut buf = vec![0; BLOCK];
                file.read(block * BLOCK as u64, &mut buf);
                assert!(buf.iter().all(|byte| *byte == old) || buf.iter().all(|byte| *byte == 5));
            }
        });
    }

    #[test]
    fn a_volatile_disk_tears_writes_in_flight_at_sectors() {
        let mut torn = 0;
        each_seed(|rng| {
            let mut file = FileImage::zeroed(1 << 20);
            file.begin(1, 0, &[5; BLOCK]);
            torn += file.cut(false, rng).torn;
        });
        assert!(torn > 20);
    }

    #[test]
    fn a_kill_keeps_completed_writes_and_decides_the_others_at_once() {
        let (mut landed, mut lost) = (0, 0);
        each_seed(|rng| {
            let mut file = FileImage::zeroed(1 << 20);
            write(&mut file, 1, 0, 1);
            file.begin(2, BLOCK as u64, &[2; BLOCK]);
            let damage = file.kill(FailedSyncs::Kept, rng);
            landed += damage.landed;
            lost += damage.lost;
            assert_eq!(first_byte(&file, 0), 1);
            assert_eq!(u64::from(first_byte(&file, 1)), 2 * damage.landed);
            assert!(!file.complete(2), "no write of the dead process lands later");
        });
        assert!(landed > 20 && lost > 20);
    }

    #[test]
    fn blocks_of_a_failed_sync_may_fall_back_when_the_process_ends_and_else_stay_unsafe() {
        let (mut dropped, mut kept, mut gone) = (0, 0, 0);
        each_seed(|rng| {
            let mut file = FileImage::zeroed(1 << 20);
            write(&mut file, 1, 0, 1);
            file.sync_failed(file.begin_sync());
            write(&mut file, 2, 1, 2);
            dropped += file.kill(FailedSyncs::Dropped, rng).dropped;
            kept += u64::from(first_byte(&file, 0));
            let before = first_byte(&file, 0);
            file.synced_through(file.begin_sync());
            file.cut(false, rng);
            assert_eq!(first_byte(&file, 1), 2, "no failed sync should have covered it");
            gone += u64::from(first_byte(&file, 0) < before);
        });
        assert_eq!(dropped + kept, 200);
        assert!(dropped > 20 && gone > 20, "{dropped} fell back at once, {gone} with the power");
    }

    #[test]
    fn what_a_cut_left_is_no_older_than_the_cut() {
        for honours_contract in [true, false] {
            let mut file = FileImage::zeroed(1 << 20);
            let mut rng = StdRng::seed_from_u64(5);
            for round in 0..20_u8 {
                file.begin(0, u64::from(round) * 4096, &[1; 4096]);
                assert!(file.complete(0));
                file.synced_through(file.begin_sync());
            }
            file.begin(0, 0, &[2; 4096]);
            assert!(file.complete(0));
            file.begin(1, 4096, &[2; 4096]);
            assert!(file.long_synced(12).contains(&1));
            file.cut(honours_contract, &mut rng);
            let mut now = [0; 2 * 4096];
            file.read(0, &mut now);
            for (number, block) in now.chunks(4096).enumerate() {
                let changed = block.iter().any(|byte| *byte != 1);
                assert!(!changed || !file.long_synced(1).contains(&(number as u64)));
            }
            assert!(file.long_synced(12).contains(&2));
        }
    }
}
