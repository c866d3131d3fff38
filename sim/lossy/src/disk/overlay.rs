//! One file's writes since its last sync, kept apart from the synced image below them.
//!
//! Pure: no files and no clock; random choices come from the generator passed in. What holds here:
//! - each block keeps every version written since the last sync, oldest first, each with the number
//!   of its write;
//! - a sync removes exactly the versions that had been written when it began;
//! - a power cut leaves each block as one of its versions, as the synced image has it, or as a
//!   mixture of the sectors of two of these; never as anything else.

use rand::{RngExt, rngs::StdRng};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The unit in which writes are kept, in bytes.
pub const BLOCK: usize = 4096;

/// The unit at which a power cut tears a write, in bytes.
pub const SECTOR: usize = 512;

/// A block's content.
pub type Block = Arc<[u8; BLOCK]>;

/// One write of one block.
#[derive(Clone, Debug)]
struct Version {
    number: u64,
    block: Block,
}

/// Which unsynced writes survive a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutStyle {
    /// Chosen for each block: the newest version, none, or one between; the last writes are torn.
    Scattered,
    /// Everything up to some write survives, nothing after it does; the last surviving writes are
    /// torn.
    InOrder,
    /// Nothing survives.
    Nothing,
    /// Everything survives: a device that keeps completed writes.
    Everything,
}

impl CutStyle {
    /// A style for a volatile cache.
    pub fn random(rng: &mut StdRng) -> CutStyle {
        match rng.random_range(0..4_u8) {
            0 | 1 => CutStyle::Scattered,
            2 => CutStyle::InOrder,
            _ => CutStyle::Nothing,
        }
    }
}

/// A power cut as one disk sees it.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// What survives.
    pub style: CutStyle,
    /// With [`CutStyle::InOrder`]: the last write that survives.
    pub survives_through: u64,
    /// Writes above this number are torn at sectors, if they survive.
    pub torn_above: u64,
}

/// The result of a power cut, in unsynced blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Damage {
    /// Blocks that survived in their newest version.
    pub kept: u64,
    /// Blocks that fell back to an older version or to the synced image.
    pub dropped: u64,
    /// Blocks left as a mixture of old and new sectors.
    pub torn: u64,
}

impl Damage {
    /// Adds another file's or disk's damage.
    pub fn add(&mut self, other: Damage) {
        self.kept += other.kept;
        self.dropped += other.dropped;
        self.torn += other.torn;
    }
}

/// What a power cut makes of one block.
#[derive(Clone, Debug)]
pub struct Survivor {
    /// The block's number.
    pub number: u64,
    /// Its content, apart from `torn` sectors; `None`: that of the synced image.
    pub base: Option<Block>,
    /// If the block was torn: a newer content, and which of its sectors landed.
    pub torn: Option<(Block, [bool; BLOCK / SECTOR])>,
}

/// The unsynced part of one file.
#[derive(Debug, Default)]
pub struct Overlay {
    blocks: BTreeMap<u64, Vec<Version>>,
}

impl Overlay {
    /// Notes that write `number` put `block` at block number `at`.
    pub fn put(&mut self, at: u64, number: u64, block: Block) {
        let versions = self.blocks.entry(at).or_default();
        versions.push(Version { number, block });
    }

    /// The newest unsynced content of a block.
    pub fn newest(&self, at: u64) -> Option<&Block> {
        self.blocks.get(&at).and_then(|versions| versions.last()).map(|version| &version.block)
    }

    /// Replaces the newest unsynced content of a block. False if it has none.
    pub fn replace_newest(&mut self, at: u64, block: Block) -> bool {
        match self.blocks.get_mut(&at).and_then(|versions| versions.last_mut()) {
            Some(version) => {
                version.block = block;
                true
            }
            None => false,
        }
    }

    /// The unsynced blocks in the range, newest content, in order.
    pub fn within(&self, range: std::ops::Range<u64>) -> impl Iterator<Item = (u64, &Block)> {
        self.blocks
            .range(range)
            .filter_map(|(at, versions)| versions.last().map(|version| (*at, &version.block)))
    }

    /// Removes the versions of writes up to `number`, and returns the newest of each block: its new
    /// synced image.
    pub fn take_through(&mut self, number: u64) -> Vec<(u64, Block)> {
        let mut taken = Vec::new();
        self.blocks.retain(|at, versions| {
            let covered = versions.partition_point(|version| version.number <= number);
            if let Some(last) = versions.drain(..covered).next_back() {
                taken.push((*at, last.block));
            }
            !versions.is_empty()
        });
        taken
    }

    /// Drops all blocks from `at` on: the file was made shorter.
    pub fn truncate(&mut self, at: u64) {
        self.blocks.split_off(&at);
    }

    /// The number of the oldest write that is not synced.
    pub fn first_number(&self) -> Option<u64> {
        self.blocks
            .values()
            .filter_map(|versions| versions.first())
            .map(|version| version.number)
            .min()
    }

    /// Decides every unsynced block's fate and drops all versions.
    pub fn cut(&mut self, cut: Cut, rng: &mut StdRng) -> (Vec<Survivor>, Damage) {
        let mut damage = Damage::default();
        let mut survivors = Vec::new();
        for (number, versions) in std::mem::take(&mut self.blocks) {
            let newest = versions.len();
            // How many versions landed: 0 is the synced image.
            let landed = match cut.style {
                CutStyle::Everything => newest,
                CutStyle::Nothing => 0,
                CutStyle::InOrder => {
                    versions.partition_point(|version| version.number <= cut.survives_through)
                }
                CutStyle::Scattered => match rng.random_range(0..5_u8) {
                    0 | 1 => newest,
                    2 | 3 => 0,
                    _ => rng.random_range(0..=newest),
                },
            };
            let content = |count: usize| {
                count
                    .checked_sub(1)
                    .and_then(|last| versions.get(last))
                    .map(|version| version.block.clone())
            };
            let last = landed.checked_sub(1).and_then(|last| versions.get(last));
            let torn = last.filter(|last| {
                let in_flight = last.number > cut.torn_above;
                match cut.style {
                    CutStyle::Everything | CutStyle::Nothing => false,
                    CutStyle::InOrder => in_flight,
                    CutStyle::Scattered => rng.random_ratio(if in_flight { 3 } else { 1 }, 4),
                }
            });
            match torn {
                Some(last) => {
                    damage.torn += 1;
                    let sectors = std::array::from_fn(|_| rng.random_bool(0.5));
                    let torn = Some((last.block.clone(), sectors));
                    survivors.push(Survivor { number, base: content(landed - 1), torn });
                }
                None => {
                    if landed == newest {
                        damage.kept += 1;
                    } else {
                        damage.dropped += 1;
                    }
                    survivors.push(Survivor { number, base: content(landed), torn: None });
                }
            }
        }
        (survivors, damage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn block(byte: u8) -> Block {
        Arc::new([byte; BLOCK])
    }

    fn scattered() -> Cut {
        Cut { style: CutStyle::Scattered, survives_through: 0, torn_above: 2 }
    }

    /// What a block of zeros holds after a cut, sector by sector.
    fn sectors(survivor: &Survivor) -> [u8; BLOCK / SECTOR] {
        let base = survivor.base.as_ref().map_or(0, |base| base[0]);
        std::array::from_fn(|sector| match &survivor.torn {
            Some((new, landed)) if landed[sector] => new[0],
            _ => base,
        })
    }

    fn each_seed(mut test: impl FnMut(&mut StdRng)) {
        for seed in 0..300 {
            test(&mut StdRng::seed_from_u64(seed));
        }
    }

    #[test]
    fn a_sync_takes_what_was_written_before_it_began_and_leaves_the_rest() {
        let mut overlay = Overlay::default();
        overlay.put(7, 1, block(1));
        overlay.put(7, 2, block(2));
        overlay.put(7, 3, block(3));
        overlay.put(9, 3, block(9));
        let taken = overlay.take_through(2);
        assert_eq!(taken, [(7, block(2))]);
        assert_eq!((overlay.newest(7), overlay.newest(9)), (Some(&block(3)), Some(&block(9))));
        assert_eq!(overlay.within(0..u64::MAX).count(), 2);
    }

    #[test]
    fn after_a_cut_a_block_is_any_version_since_the_last_sync_or_the_synced_one_or_two_mixed() {
        let mut seen = [0; 4];
        let mut mixed = 0;
        each_seed(|rng| {
            let mut overlay = Overlay::default();
            for byte in 1..=3 {
                overlay.put(0, u64::from(byte), block(byte));
            }
            let (survivors, damage) = overlay.cut(scattered(), rng);
            let found = sectors(&survivors[0]);
            let (low, high) = (found.iter().min().unwrap(), found.iter().max().unwrap());
            assert!(high - low <= 1 && *high <= 3, "{found:?}");
            seen[*high as usize] += 1;
            mixed += u64::from(high != low);
            assert_eq!(damage.kept + damage.dropped + damage.torn, 1);
            assert_eq!(overlay.within(0..u64::MAX).count(), 0);
        });
        assert!(seen.iter().all(|count| *count > 0) && mixed > 0, "{seen:?}, {mixed} mixed");
    }

    #[test]
    fn a_cut_in_order_keeps_a_prefix_of_all_writes() {
        each_seed(|rng| {
            let mut overlay = Overlay::default();
            for at in 0..8 {
                overlay.put(at, at + 1, block(1));
            }
            let cut = Cut { style: CutStyle::InOrder, survives_through: 5, torn_above: 8 };
            let (survivors, damage) = overlay.cut(cut, rng);
            let kept: Vec<u64> =
                survivors.iter().filter(|one| one.base.is_some()).map(|one| one.number).collect();
            assert_eq!(kept, [0, 1, 2, 3, 4]);
            assert_eq!(damage, Damage { kept: 5, dropped: 3, torn: 0 });
        });
    }

    #[test]
    fn a_device_that_keeps_completed_writes_loses_and_tears_nothing() {
        each_seed(|rng| {
            let mut overlay = Overlay::default();
            overlay.put(0, 1, block(1));
            overlay.put(0, 2, block(2));
            let cut = Cut { style: CutStyle::Everything, survives_through: 0, torn_above: 0 };
            let (survivors, damage) = overlay.cut(cut, rng);
            assert_eq!(sectors(&survivors[0]), [2; BLOCK / SECTOR]);
            assert_eq!(damage, Damage { kept: 1, dropped: 0, torn: 0 });
        });
    }
}
