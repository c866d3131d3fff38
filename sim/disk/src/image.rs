//! One simulated file: what is synced, what is written and not yet synced, and what is in flight.
//!
//! Pure: no clock and no runtime; random choices come from the generator passed in. What holds
//! here:
//! - a read sees every completed write and no write in flight;
//! - a sync makes exactly those versions safe that had completed when it began;
//! - a later sync does not make safe what was dirty when a sync failed: it may be lost, until the
//!   block is written again or the process ends;
//! - a write that failed stays in flight until the process or the machine ends, which decides what
//!   is left of it;
//! - a power cut leaves only blocks that were written, except where a sector in flight was torn.

use cairn_engine::io::BLOCK;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) type Block = Arc<[u8; BLOCK]>;

/// A completed write of one block.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    order: u64,
    pub(crate) block: Block,
    /// A sync that should have covered it failed.
    pub(crate) sync_failed: bool,
}

/// A write that was begun and has not completed.
#[derive(Clone, Debug)]
pub(crate) struct InFlightWrite {
    pub(crate) first: u64,
    pub(crate) blocks: Vec<Block>,
}

/// A file of fixed size, all zeros at first; only blocks that were written take memory.
#[derive(Clone, Debug)]
pub struct FileImage {
    size: u64,
    pub(crate) synced: BTreeMap<u64, Block>,
    pub(crate) dirty: BTreeMap<u64, Vec<Version>>,
    pub(crate) in_flight_writes: BTreeMap<u64, InFlightWrite>,
    /// Blocks that cannot be read until they are written again.
    pub(crate) worn: BTreeSet<u64>,
    /// Damaged blocks, without the forgiven ones.
    pub(crate) decayed: BTreeSet<u64>,
    /// Blocks that were damaged at any time since [`FileImage::forgive`], also if they were
    /// rewritten since: a repair of one value leaves another damaged value of the same block as it
    /// is.
    pub(crate) harmed: BTreeSet<u64>,
    /// Blocks that show older content, since a failed sync dropped the newer one.
    pub(crate) fallen: BTreeSet<u64>,
    /// The content of a safe block before its last sync; none means zeros.
    pub(crate) former: BTreeMap<u64, Block>,
    order: u64,
    /// How many syncs made something safe, and which of them did so last for each block.
    pub(crate) syncs: u64,
    pub(crate) synced_in: BTreeMap<u64, u64>,
}

impl FileImage {
    /// A zeroed file of `size` bytes.
    pub fn zeroed(size: u64) -> FileImage {
        FileImage {
            size,
            synced: BTreeMap::new(),
            dirty: BTreeMap::new(),
            in_flight_writes: BTreeMap::new(),
            worn: BTreeSet::new(),
            decayed: BTreeSet::new(),
            harmed: BTreeSet::new(),
            fallen: BTreeSet::new(),
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

    /// Whether all these bytes are as last written: only writes changed their blocks.
    pub fn as_written(&self, offset: u64, len: usize) -> bool {
        let block = BLOCK as u64;
        let blocks = offset / block..(offset + len as u64).div_ceil(block);
        let touched = |set: &BTreeSet<u64>| set.range(blocks.clone()).next().is_some();
        !touched(&self.worn) && !touched(&self.harmed) && !touched(&self.fallen)
    }

    /// These bytes as a read would return them; `None` if one of their blocks cannot be read.
    pub fn bytes(&self, offset: u64, len: usize) -> Option<Vec<u8>> {
        if self.unreadable(offset, len).is_some() {
            return None;
        }
        let block = BLOCK as u64;
        let first = offset / block * block;
        let mut all =
            vec![0; usize::try_from((offset + len as u64).next_multiple_of(block) - first).ok()?];
        self.read(first, &mut all);
        let skipped = usize::try_from(offset - first).ok()?;
        all.get(skipped..skipped + len).map(<[u8]>::to_vec)
    }

    /// All bytes of the file, also those of blocks that cannot be read.
    pub fn content(&self) -> Vec<u8> {
        let mut all = vec![0; self.size as usize];
        self.read(0, &mut all);
        all
    }

    /// Changes the stored bytes. All that completed is safe then.
    pub fn change(&mut self, change: impl FnOnce(&mut [u8])) {
        let mut all = self.content();
        change(&mut all);
        self.dirty.clear();
        self.synced = (0..).zip(all.chunks(BLOCK).map(padded)).collect();
    }

    /// Makes the file longer, by zeros that are safe, or shorter.
    pub fn resize(&mut self, size: u64) {
        self.size = size;
        self.synced.split_off(&(size / BLOCK as u64));
        self.dirty.split_off(&(size / BLOCK as u64));
    }

    fn current(&self, number: u64) -> Option<&Block> {
        let newest = self.dirty.get(&number).and_then(|versions| versions.last());
        newest.map(|version| &version.block).or_else(|| self.synced.get(&number))
    }

    /// Begins a write; it is invisible until [`FileImage::complete`].
    pub fn begin(&mut self, id: u64, offset: u64, bytes: &[u8]) {
        let blocks = bytes.chunks(BLOCK).map(padded).collect();
        self.in_flight_writes.insert(id, InFlightWrite { first: offset / BLOCK as u64, blocks });
    }

    /// Completes a write. False if it is no longer known: a kill or a cut came first.
    pub fn complete(&mut self, id: u64) -> bool {
        let Some(in_flight_write) = self.in_flight_writes.remove(&id) else {
            return false;
        };
        for (number, block) in (in_flight_write.first..).zip(in_flight_write.blocks) {
            self.put(number, block);
        }
        true
    }

    pub(crate) fn put(&mut self, number: u64, block: Block) {
        self.order += 1;
        self.intact(number);
        self.dirty.entry(number).or_default().push(Version {
            order: self.order,
            block,
            sync_failed: false,
        });
    }

    /// A block is written, which ends any damage to it.
    pub(crate) fn intact(&mut self, number: u64) {
        self.worn.remove(&number);
        self.decayed.remove(&number);
        self.fallen.remove(&number);
    }

    /// The watermark of a sync that begins now, to be given to [`FileImage::synced_through`] when
    /// it ends.
    pub fn begin_sync(&self) -> u64 {
        self.order
    }

    /// Makes every version up to `watermark` safe, except those of a failed sync.
    pub fn synced_through(&mut self, watermark: u64) {
        let (synced, synced_in, round) = (&mut self.synced, &mut self.synced_in, self.syncs + 1);
        let former = &mut self.former;
        let mut any = false;
        self.dirty.retain(|number, versions| {
            let covered = versions.partition_point(|version| version.order <= watermark);
            let safe = versions.iter().take(covered).rposition(|version| !version.sync_failed);
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
        versions
            .filter(|version| version.order <= watermark)
            .for_each(|version| version.sync_failed = true);
    }

    /// Whether a sync failed since the process began, and what it should have covered is not safe.
    pub fn has_failed(&self) -> bool {
        self.dirty.values().flatten().any(|version| version.sync_failed)
    }

    /// The synced blocks, newest first, without those of the last `rounds` syncs. So much was
    /// synced after them that a reader of the file can know that they must be there.
    pub fn long_synced(&self, rounds: u64) -> Vec<u64> {
        let mut blocks: Vec<(u64, u64)> =
            self.synced_in.iter().map(|(number, round)| (*round, *number)).collect();
        blocks.retain(|(round, number)| {
            round + rounds <= self.syncs && !self.dirty.contains_key(number)
        });
        blocks.sort_unstable_by(|one, other| other.cmp(one));
        blocks.into_iter().map(|(_, number)| number).collect()
    }

    /// Blocks that completed and are not synced.
    pub fn dirty_blocks(&self) -> usize {
        self.dirty.len()
    }

    /// Writes in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight_writes.len()
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
pub(crate) mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    pub(crate) fn write(file: &mut FileImage, id: u64, block: u64, byte: u8) {
        file.begin(id, block * BLOCK as u64, &[byte; BLOCK]);
        assert!(file.complete(id));
    }

    pub(crate) fn first_byte(file: &FileImage, block: u64) -> u8 {
        let mut buf = vec![0; BLOCK];
        file.read(block * BLOCK as u64, &mut buf);
        buf[0]
    }

    pub(crate) fn each_seed(mut test: impl FnMut(&mut StdRng)) {
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
    fn the_next_sync_does_not_make_blocks_of_a_failed_sync_safe() {
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
    fn bytes_changed_by_anything_but_writes_are_not_as_written() {
        let mut file = FileImage::zeroed(1 << 20);
        write(&mut file, 1, 1, 7);
        file.synced_through(file.begin_sync());
        assert!(file.as_written(0, 3 * BLOCK));
        assert_eq!(file.bytes(4_090, 10), Some(vec![0, 0, 0, 0, 0, 0, 7, 7, 7, 7]));
        assert!(file.flip(5_000, 1));
        assert!(!file.as_written(8_000, 200), "the block that ends there was damaged");
        assert!(file.as_written(8_192, 200));
        write(&mut file, 1, 1, 8);
        assert!(!file.as_written(8_000, 200), "another value of the block may still be damaged");
        file.forgive();
        assert!(file.as_written(0, 3 * BLOCK));
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
