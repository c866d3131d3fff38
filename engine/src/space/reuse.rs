//! From dead to free: when a block may be used again.
//!
//! What holds here: a dead block is free only once the journal block that recorded its death is
//! synced, a synced block says so, and no view made before its death is left. Until then an older
//! state of the disk, or a reader, may still need its bytes.

use super::SpaceMap;
use crate::layout::BLOCK_BYTES;
use crate::value_ref::Run;

/// Blocks in the order of their death.
#[derive(Default)]
pub(super) struct Blocks(pub(super) Vec<Run>);

impl Blocks {
    pub(super) fn push(&mut self, block: u32) {
        match self.0.last_mut() {
            Some(last) if last.end() == block => last.blocks += 1,
            _ => self.0.push(Run { first: block, blocks: 1 }),
        }
    }

    /// Takes at most so many of the last run.
    pub(super) fn pop(&mut self, most: u32) -> Option<Run> {
        let last = self.0.last_mut()?;
        if last.blocks <= most {
            return self.0.pop();
        }
        last.blocks -= most;
        Some(Run { first: last.end(), blocks: most })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|run| u64::from(run.blocks)).sum::<u64>() * BLOCK_BYTES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Blocks that died before a group commit was closed.
pub(crate) struct NewlyDead {
    view: u64,
    blocks: Blocks,
    /// Blocks that compaction took since the last group commit. These deaths give them back.
    lent: u32,
}

impl NewlyDead {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

/// Blocks whose death is recorded in journal block `sequence`.
pub(super) struct Dead {
    sequence: u64,
    view: u64,
    pub(super) blocks: Blocks,
    lent: u32,
}

/// Bytes in dead blocks, by what they wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeadBytes {
    /// A journal block that records their death.
    pub record: u64,
    /// The sync of that block, and a synced block that says so.
    pub sync: u64,
    /// The end of a view.
    pub view: u64,
}

impl SpaceMap {
    /// The deaths so far. Pass them to [`SpaceMap::recorded`] once the journal block that records
    /// them is known.
    pub(crate) fn take_newly_dead(&mut self) -> NewlyDead {
        let view = self.view_clock;
        let blocks = std::mem::take(&mut self.unrecorded);
        self.view_clock += u64::from(!blocks.is_empty());
        self.recording += blocks.bytes();
        NewlyDead { view, blocks, lent: std::mem::take(&mut self.lent_now) }
    }

    /// These deaths are recorded in journal block `sequence`.
    pub(crate) fn recorded(&mut self, sequence: u64, newly_dead: NewlyDead) {
        let NewlyDead { view, blocks, lent } = newly_dead;
        self.recording -= blocks.bytes();
        if !blocks.is_empty() || lent > 0 {
            self.unsynced += blocks.bytes();
            self.dead.push_back(Dead { sequence, view, blocks, lent });
        }
    }

    /// Synced journal blocks say that everything up to `synced_stamp` is synced.
    pub(crate) fn synced(&mut self, synced_stamp: u64) {
        self.synced_stamp = self.synced_stamp.max(synced_stamp);
        let synced = |dead: &mut Dead| dead.sequence <= self.synced_stamp;
        while let Some(dead) = self.dead.pop_front_if(synced) {
            self.unsynced -= dead.blocks.bytes();
            self.viewed.push_back(dead);
        }
    }

    /// Frees blocks whose death is recorded and synced and that no view can reach: at most so many.
    /// Returns them; nothing once all are free.
    pub(crate) fn release(&mut self, mut most: u32) -> Vec<Run> {
        let oldest_view = self.views.keys().next().copied().unwrap_or(u64::MAX);
        let mut freed = Vec::new();
        // A view made at clock c sees the blocks that lived then: those whose deaths were recorded
        // at c or later.
        while let Some(dead) = self.viewed.front_mut().filter(|dead| dead.view < oldest_view) {
            while most > 0
                && let Some(run) = dead.blocks.pop(most)
            {
                most -= run.blocks;
                freed.push(run);
            }
            if !dead.blocks.is_empty() {
                break;
            }
            self.lent -= dead.lent;
            self.viewed.pop_front();
        }
        for run in &freed {
            for block in run.first..run.end() {
                assert_eq!(self.live_in(block), 0, "block {block} is freed while referenced");
            }
            self.free.give(*run);
        }
        freed
    }

    /// Begins a view. Pass its number to [`SpaceMap::view_ends`].
    pub(crate) fn view_begins(&mut self) -> u64 {
        *self.views.entry(self.view_clock).or_default() += 1;
        self.view_clock
    }

    /// Whether a view is left that may reach what is dead.
    pub(crate) fn has_views(&self) -> bool {
        !self.views.is_empty()
    }

    /// Frees nothing until [`SpaceMap::view_ends`]: a view as old as any.
    pub(crate) fn hold_all(&mut self) -> u64 {
        *self.views.entry(0).or_default() += 1;
        0
    }

    pub(crate) fn view_ends(&mut self, view: u64) {
        if let Some(count) = self.views.get_mut(&view) {
            *count -= 1;
            if *count == 0 {
                self.views.remove(&view);
            }
        }
    }
}
