//! One simulated file: what is synced, what is written and not yet synced, and what is in flight.
//!
//! Pure: no clock, no runtime, random choices from the generator passed in. What holds here:
//! - a read sees every completed write and no write in flight;
//! - a sync makes exactly those versions safe that had completed when it began;
//! - what was dirty when a sync failed is not made safe by a later sync: it may be gone, and only a write of the block
//!   itself, or the end of the process, settles that;
//! - a write that failed stays in flight until the process or the machine ends, which decides what is left of it;
//! - a power cut leaves no block that was never asked for, except where a sector in flight was torn.

use cairn_engine::io::BLOCK;
use rand::{RngExt, rngs::StdRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The unit that a disk without a write-unit promise may tear at, in bytes.
pub const SECTOR: usize = 512;

pub(super) type Block = Arc<[u8; BLOCK]>;

/// A completed write of one block.
#[derive(Clone, Debug)]
pub(super) struct Version {
    order: u64,
    block: Block,
    /// A sync that should have covered it failed.
    forsaken: bool,
}

/// A write that was begun and has not completed.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) first: u64,
    pub(super) blocks: Vec<Block>,
}

/// What a power cut or a kill did to one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Completed blocks, not synced, that survived.
    pub kept: u64,
    /// Completed blocks, not synced, that vanished or fell back to an older version.
    pub dropped: u64,
    /// Blocks in flight that landed whole.
    pub landed: u64,
    /// Blocks in flight that left no trace.
    pub lost: u64,
    /// Blocks in flight that landed in part or as garbage.
    pub torn: u64,
}

impl Damage {
    /// Adds another file's damage.
    pub fn add(&mut self, other: Damage) {
        self.kept += other.kept;
        self.dropped += other.dropped;
        self.landed += other.landed;
        self.lost += other.lost;
        self.torn += other.torn;
    }
}

/// A file of fixed size, all zeros at first; only blocks that were written take memory.
#[derive(Clone, Debug)]
pub struct FileImage {
    size: u64,
    pub(super) synced: BTreeMap<u64, Block>,
    pub(super) dirty: BTreeMap<u64, Vec<Version>>,
    pub(super) flights: BTreeMap<u64, Flight>,
    /// Blocks that cannot be read until they are written again.
    pub(super) worn: BTreeSet<u64>,
    /// Blocks that are not as they were written, unless somebody has seen that nobody needs them.
    pub(super) decayed: BTreeSet<u64>,
    /// What stood in a safe block before it was last synced; nothing means zeros.
    pub(super) former: BTreeMap<u64, Block>,
    order: u64,
    /// Syncs that made something safe, and the one that did so last for each block.
    syncs: u64,
    synced_in: BTreeMap<u64, u64>,
}

impl FileImage {
    /// A zeroed file of `size` bytes.
    pub fn zeroed(size: u64) -> FileImage {
        FileImage {
            size,
            synced: BTreeMap::new(),
            dirty: BTreeMap::new(),
            flights: BTreeMap::new(),
            worn: BTreeSet::new(),
            decayed: BTreeSet::new(),
            former: BTreeMap::new(),
            order: 0,
            syncs: 0,
            synced_in: BTreeMap::new(),
        }
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether `offset..offset + len` is aligned and inside.
    pub fn accepts(&self, offset: u64, len: usize) -> bool {
        offset.is_multiple_of(BLOCK as u64)
            && len.is_multiple_of(BLOCK)
            && len > 0
            && offset.checked_add(len as u64).is_some_and(|end| end <= self.size)
    }

    /// Fills `target` from `offset`; the range must be accepted.
    pub fn read(&self, offset: u64, target: &mut [u8]) {
        let first = offset / BLOCK as u64;
        for (number, chunk) in (first..).zip(target.chunks_mut(BLOCK)) {
            match self.current(number) {
                Some(block) => chunk.copy_from_slice(block.as_slice()),
                None => chunk.fill(0),
            }
        }
    }

    fn current(&self, number: u64) -> Option<&Block> {
        let newest = self.dirty.get(&number).and_then(|versions| versions.last());
        newest.map(|version| &version.block).or_else(|| self.synced.get(&number))
    }

    /// Begins a write; it is invisible until [`FileImage::complete`].
    pub fn begin(&mut self, id: u64, offset: u64, bytes: &[u8]) {
        let blocks = bytes.chunks(BLOCK).map(padded).collect();
        self.flights.insert(id, Flight { first: offset / BLOCK as u64, blocks });
    }

    /// Completes a write. False if it is no longer known: a kill or a cut came first.
    pub fn complete(&mut self, id: u64) -> bool {
        let Some(flight) = self.flights.remove(&id) else {
            return false;
        };
        for (number, block) in (flight.first..).zip(flight.blocks) {
            self.put(number, block);
        }
        true
    }

    pub(super) fn put(&mut self, number: u64, block: Block) {
        self.order += 1;
        self.whole(number);
        self.dirty.entry(number).or_default().push(Version { order: self.order, block, forsaken: false });
    }

    /// A block is written: whatever decay had done to it is over.
    fn whole(&mut self, number: u64) {
        self.worn.remove(&number);
        self.decayed.remove(&number);
    }

    /// The watermark of a sync that begins now, to be given to [`FileImage::synced_through`] when it ends.
    pub fn begin_sync(&self) -> u64 {
        self.order
    }

    /// Makes every version up to `watermark` safe, save those that a failed sync has left behind.
    pub fn synced_through(&mut self, watermark: u64) {
        let (synced, synced_in, round) = (&mut self.synced, &mut self.synced_in, self.syncs + 1);
        let former = &mut self.former;
        let mut any = false;
        self.dirty.retain(|number, versions| {
            let covered = versions.partition_point(|version| version.order <= watermark);
            let safe = versions.iter().take(covered).rposition(|version| !version.forsaken);
            if let Some(last) = safe.and_then(|safe| versions.drain(..=safe).next_back()) {
                if let Some(old) = synced.insert(*number, last.block) {
                    former.insert(*number, old);
                }
                synced_in.insert(*number, round);
                any = true;
            }
            !versions.is_empty()
        });
        self.syncs += u64::from(any);
    }

    /// A sync that began with `watermark` failed.
    pub fn sync_failed(&mut self, watermark: u64) {
        let versions = self.dirty.values_mut().flatten();
        versions.filter(|version| version.order <= watermark).for_each(|version| version.forsaken = true);
    }

    /// The blocks that were synced last, newest first, without those of the last `rounds` syncs: so much was synced
    /// after them that whoever reads the file can know that they must be there.
    pub fn long_synced(&self, rounds: u64) -> Vec<u64> {
        let mut blocks: Vec<(u64, u64)> =
            self.synced_in.iter().map(|(number, round)| (*round, *number)).collect();
        blocks.retain(|(round, number)| round + rounds <= self.syncs && !self.dirty.contains_key(number));
        blocks.sort_unstable_by(|one, other| other.cmp(one));
        blocks.into_iter().map(|(_, number)| number).collect()
    }

    /// Blocks that completed and are not synced.
    pub fn dirty_blocks(&self) -> usize {
        self.dirty.len()
    }

    /// Writes in flight.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// The process died and the machine runs on: completed writes stay, each write in flight lands or not, now. Of what a
    /// failed sync left behind some blocks fall back, with `drops`, and the others stay in doubt; else all of it stays.
    pub fn kill(&mut self, drops: bool, rng: &mut StdRng) -> Damage {
        let mut damage = Damage::default();
        if drops {
            self.drop_forsaken(rng, &mut damage);
        } else {
            self.dirty.values_mut().flatten().for_each(|version| version.forsaken = false);
        }
        for flight in std::mem::take(&mut self.flights).into_values() {
            let all = flight.blocks.len() as u64;
            let landing = match rng.random_range(0..5_u8) {
                0 | 1 => all,
                2 | 3 => 0,
                _ => rng.random_range(0..=all),
            };
            damage.landed += landing;
            damage.lost += all - landing;
            for (number, block) in (flight.first..).zip(flight.blocks).take(landing as usize) {
                self.put(number, block);
            }
        }
        damage
    }

    /// Reads of a block whose newest version a failed sync left behind may from now on see an older one.
    fn drop_forsaken(&mut self, rng: &mut StdRng, damage: &mut Damage) {
        self.dirty.retain(|_, versions| {
            if versions.last().is_some_and(|version| version.forsaken) && rng.random_bool(0.5) {
                damage.dropped += 1;
                versions.truncate(rng.random_range(0..versions.len()));
            }
            !versions.is_empty()
        });
    }

    /// The machine lost power. With `honours_contract` completed writes survive and writes in flight are old or new
    /// per 4 KiB block; without it each completed block may be any version since the last sync, and each sector in
    /// flight may be old, new, half-written or garbage. Afterwards everything left is as if synced.
    pub fn cut(&mut self, honours_contract: bool, rng: &mut StdRng) -> Damage {
        let mut damage = Damage::default();
        for (number, mut versions) in std::mem::take(&mut self.dirty) {
            let newest = versions.len();
            // 0 is the synced image, `newest` the last completed write; the ends are the likely ones.
            let survivor = match rng.random_range(0..5_u8) {
                _ if honours_contract => newest,
                0 | 1 => newest,
                2 | 3 => 0,
                _ => rng.random_range(0..=newest),
            };
            if survivor == newest {
                damage.kept += 1;
            } else {
                damage.dropped += 1;
            }
            versions.truncate(survivor);
            if let Some(version) = versions.pop() {
                self.left(number, version.block);
            }
        }
        for flight in std::mem::take(&mut self.flights).into_values() {
            for (number, block) in (flight.first..).zip(flight.blocks) {
                self.land_in_part(number, &block, honours_contract, rng, &mut damage);
            }
        }
        self.syncs += 1;
        damage
    }

    /// A cut left this: as if synced by then, and no earlier.
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
                self.whole(number);
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

fn padded(chunk: &[u8]) -> Block {
    let mut block = [0; BLOCK];
    for (to, from) in block.iter_mut().zip(chunk) {
        *to = *from;
    }
    Arc::new(block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn write(file: &mut FileImage, id: u64, block: u64, byte: u8) {
        file.begin(id, block * BLOCK as u64, &[byte; BLOCK]);
        assert!(file.complete(id));
    }

    fn first_byte(file: &FileImage, block: u64) -> u8 {
        let mut buf = vec![0; BLOCK];
        file.read(block * BLOCK as u64, &mut buf);
        buf[0]
    }

    fn each_seed(mut test: impl FnMut(&mut StdRng)) {
        for seed in 0..200 {
            test(&mut StdRng::seed_from_u64(seed));
        }
    }

    #[test]
    fn a_write_is_visible_only_once_it_completed() {
        let mut file = FileImage::zeroed(1 << 20);
        file.begin(1, 0, &[7; BLOCK]);
        assert_eq!(first_byte(&file, 0), 0);
        assert!(file.complete(1));
        assert_eq!(first_byte(&file, 0), 7);
        assert!(!file.complete(1), "a second completion is unknown");
    }

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
    fn a_sync_covers_only_what_completed_before_it_began() {
        let (mut kept, mut gone) = (0, 0);
        each_seed(|rng| {
            let mut file = FileImage::zeroed(1 << 20);
            write(&mut file, 1, 0, 1);
            let watermark = file.begin_sync();
            write(&mut file, 2, 0, 2);
            file.synced_through(watermark);
            file.cut(false, rng);
            match first_byte(&file, 0) {
                1 => gone += 1,
                2 => kept += 1,
                other => panic!("byte {other} was never the block's"),
            }
        });
        assert!(kept > 20 && gone > 20, "{kept} kept, {gone} gone");
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
            let damage = file.kill(false, rng);
            landed += damage.landed;
            lost += damage.lost;
            assert_eq!(first_byte(&file, 0), 1);
            assert_eq!(u64::from(first_byte(&file, 1)), 2 * damage.landed);
            assert!(!file.complete(2), "no write of the dead process lands later");
        });
        assert!(landed > 20 && lost > 20);
    }

    #[test]
    fn what_a_failed_sync_left_behind_is_not_made_safe_by_the_next_one() {
        let (mut old, mut new) = (0, 0);
        each_seed(|rng| {
            let mut file = FileImage::zeroed(1 << 20);
            write(&mut file, 1, 0, 1);
            file.sync_failed(file.begin_sync());
            write(&mut file, 2, 1, 2);
            file.synced_through(file.begin_sync());
            file.cut(false, rng);
            assert_eq!(first_byte(&file, 1), 2, "written after the failure, and synced");
            match first_byte(&file, 0) {
                0 => old += 1,
                _ => new += 1,
            }
        });
        assert!(old > 20 && new > 20, "{old} old, {new} new");
    }

    #[test]
    fn what_a_failed_sync_left_behind_may_fall_back_when_the_process_ends_and_else_stays_in_doubt() {
        let (mut dropped, mut kept, mut gone) = (0, 0, 0);
        each_seed(|rng| {
            let mut file = FileImage::zeroed(1 << 20);
            write(&mut file, 1, 0, 1);
            file.sync_failed(file.begin_sync());
            write(&mut file, 2, 1, 2);
            dropped += file.kill(true, rng).dropped;
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
    fn a_block_written_again_after_a_failed_sync_is_safe_once_synced() {
        each_seed(|rng| {
            let mut file = FileImage::zeroed(1 << 20);
            write(&mut file, 1, 0, 1);
            file.sync_failed(file.begin_sync());
            write(&mut file, 2, 0, 2);
            file.synced_through(file.begin_sync());
            file.cut(false, rng);
            assert_eq!(first_byte(&file, 0), 2);
        });
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

    #[test]
    fn blocks_count_as_long_synced_once_enough_was_synced_after_them() {
        let mut file = FileImage::zeroed(1 << 20);
        for block in 0..5 {
            write(&mut file, block, block, 1);
            file.synced_through(file.begin_sync());
        }
        assert_eq!(file.long_synced(2), [2, 1, 0]);
        write(&mut file, 9, 1, 2);
        assert_eq!(file.long_synced(2), [2, 0], "one is being replaced");
    }

    #[test]
    fn only_aligned_ranges_inside_the_file_are_accepted() {
        let file = FileImage::zeroed(8192);
        assert!(file.accepts(4096, 4096));
        assert!(!file.accepts(4096, 8192));
        assert!(!file.accepts(1, 4096));
        assert!(!file.accepts(0, 100));
        assert!(!file.accepts(u64::MAX - 4095, 4096));
    }
}
