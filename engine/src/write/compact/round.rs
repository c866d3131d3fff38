//! One round: reads the values whose tails lie in the next blocks, and moves them in steps.

use super::Compactor;
use super::choose::GroupKey;
use crate::error::Result;
use crate::io::yield_once;
use crate::layout::{BLOCK_BYTES, shared_tail};
use crate::state::{Movable, Shared, View};
use crate::types::{GroupId, KeyEntry};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// About the most bytes of values that one round reads. Meanwhile they are in memory.
const ROUND_READ_BYTES: u64 = 4 << 20;
/// A step under the lock moves about so many tails: others wait for less than a millisecond. It
/// moves more where fewer would gain no block.
const STEP_TAILS: usize = 128;
/// The most bytes of the records of a step, as for an append. A block of so many tiny values that it
/// would need more stays as it is.
const STEP_RECORD_BYTES: usize = 32 << 10;
/// A round begins while no more than this waits to be written; where space is scarce, as soon as
/// the queue takes more.
const QUEUED_BYTES: u64 = 128 << 10;

/// Blocks to empty in one step under the lock, in order, and the values whose tails lie in them.
#[derive(Default)]
struct Step {
    blocks: Vec<u32>,
    values: Vec<Movable>,
    tail_bytes: u64,
    record_bytes: usize,
}

impl Step {
    fn add(&mut self, block: u32, values: Vec<Movable>) {
        self.blocks.push(block);
        self.tail_bytes += values.iter().map(tail_bytes).sum::<u64>();
        self.record_bytes += record_bytes(&values);
        self.values.extend(values);
    }

    /// Whether it frees more blocks than its tails take, one block apart for those that are filled
    /// only partly.
    fn gains(&self) -> bool {
        self.tail_bytes.div_ceil(BLOCK_BYTES) < self.blocks.len() as u64
    }

    /// Whether the records of these values fit into it as well.
    fn takes(&self, values: &[Movable]) -> bool {
        self.record_bytes + record_bytes(values) <= STEP_RECORD_BYTES
    }

    fn is_large(&self, most_bytes: u64) -> bool {
        self.values.len() >= STEP_TAILS && self.gains() || self.tail_bytes >= most_bytes
    }
}

fn tail_bytes(value: &Movable) -> u64 {
    u64::from(shared_tail(value.entry.value.len))
}

fn record_bytes(values: &[Movable]) -> usize {
    values.iter().map(Movable::record_bytes).sum()
}

impl Compactor {
    /// Empties the next blocks of the plan. Returns when what was moved is written.
    pub(super) async fn round(&mut self) {
        let shared = self.shared.clone();
        // Two blocks that are filled one after the other hold more than one block's bytes.
        let lendable = u64::from(shared.state.lock().space.lendable());
        let most_bytes = lendable.saturating_sub(1) * BLOCK_BYTES / 2;
        let (mut step, mut last) = (Step::default(), None);
        let round_bytes = self.room().round_bytes().min(most_bytes);
        for (block, values) in self.read_next(round_bytes).await {
            if step.is_large(most_bytes) || !step.takes(&values) {
                last = self.take(std::mem::take(&mut step)).or(last);
                // The writer is not woken before the end: fewer group commits leave fewer blocks
                // partly filled.
                yield_once().await;
            }
            if step.takes(&values) {
                step.add(block, values);
            }
        }
        last = self.take(step).or(last);
        // What was read and did not move cost the device as well.
        self.allowed = self.allowed.saturating_sub(BLOCK_BYTES);
        if let Some(offset) = last {
            shared.signals.writer.notify_one();
            wait_until_written(&shared, offset).await;
        }
    }

    /// Takes a step. Returns the offset of a moved value.
    fn take(&mut self, mut step: Step) -> Option<u64> {
        if !step.gains() {
            return None;
        }
        step.blocks.sort_unstable();
        let moved = self.shared.state.lock().move_tails(&step.blocks, &step.values)?;
        self.allowed = self.allowed.saturating_sub(moved.bytes);
        self.outcome.1 += moved.blocks;
        self.shared.counters.moved_bytes.fetch_add(moved.bytes, Ordering::Relaxed);
        Some(moved.offset)
    }

    /// The next blocks of the plan, each with its values as far as they are intact. A value whose
    /// tail lies in two of them comes with the first.
    async fn read_next(&mut self, most_bytes: u64) -> Vec<(u32, Vec<Movable>)> {
        let shared = self.shared.clone();
        let group = self.plan.front().and_then(|block| block.keys.first()).map(|(group, _)| *group);
        // Before the places are looked up: it keeps them until they are read.
        let pinned = View::new(&shared, group.unwrap_or(GroupId(0)));
        let (mut tails, mut bytes) = (0, 0);
        let mut found: BTreeMap<GroupKey, (u32, KeyEntry)> = BTreeMap::new();
        let mut blocks = Vec::new();
        while tails < most_bytes && bytes < ROUND_READ_BYTES {
            let Some(sparse) = self.plan.pop_front() else { break };
            blocks.push((sparse.block, Vec::new()));
            let state = shared.state.lock();
            for (group, key) in sparse.keys {
                let held = state.groups.get(&group).and_then(|group| group.keys.get(&key));
                let held = held.filter(|held| held.value.tail_blocks().contains(&sparse.block));
                let Some(held) = held else { continue };
                if let std::collections::btree_map::Entry::Vacant(new) = found.entry((group, key)) {
                    tails += u64::from(shared_tail(held.value.len));
                    bytes += u64::from(held.value.len);
                    new.insert((sparse.block, held));
                }
            }
        }
        let values: Vec<_> =
            found.values().map(|(_, held)| (held.value.clone(), held.version)).collect();
        let read = shared.read_all_quietly(&values, |read| read.ok()).await;
        drop(pinned);
        let mut of: BTreeMap<u32, Vec<Movable>> = BTreeMap::new();
        for (((group, key), (block, entry)), value) in found.into_iter().zip(read) {
            let movable = value.map(|value| Movable { group, key: key.into(), entry, value });
            of.entry(block).or_default().extend(movable);
        }
        for (block, values) in &mut blocks {
            *values = of.remove(block).unwrap_or_default();
        }
        blocks
    }
}

/// Waits until little is queued. Foreground work goes first, unless space is scarce.
///
/// # Errors
/// `Failed`, `Closed`.
pub(super) async fn wait_for_quiet(shared: &Shared) -> Result<()> {
    let quiet = |shared: &Shared| {
        let state = shared.state.lock();
        if let Err(error) = state.check_open() {
            return Some(Err(error));
        }
        let little = state.queue.bytes() <= QUEUED_BYTES;
        let takes = little || (state.is_scarce() && !state.queue.is_full());
        (takes && !state.checkpoints.hold).then_some(Ok(()))
    };
    shared.wait_until(quiet).await
}

/// Waits until the value that begins at `offset` is written, or never will be.
async fn wait_until_written(shared: &Shared, offset: u64) {
    let ended = |shared: &Shared| {
        let state = shared.state.lock();
        (state.failed.is_some() || !state.unwritten.contains_key(&offset)).then_some(())
    };
    shared.wait_until(ended).await;
}
