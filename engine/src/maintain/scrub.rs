//! What a scrubber needs beside the extents: checks of the journal, the checkpoints and the
//! superblock, and storage for its progress. The scrubber itself knows the peers and belongs to the
//! caller.

use crate::checkpoint::verify;
use crate::error::{Corruption, Result};
use crate::io::{BLOCK, FileKind, Pace};
use crate::journal::Block;
use crate::state::Engine;
use crate::types::ScrubProgress;

/// Journal blocks checked at once.
const JOURNAL_BLOCKS: u64 = 256;
/// How often the check of a checkpoint is repeated because a new one was written meanwhile.
const ATTEMPTS: usize = 8;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// 4 KiB blocks read.
    pub blocks: u64,
    /// What is damaged.
    pub damaged: Vec<Corruption>,
}

impl Engine {
    /// Checks the journal's blocks that recovery would need.
    pub async fn check_journal(&self, pace: Pace<'_>) -> Checked {
        let shared = &self.shared;
        let mut checked = Checked::default();
        let mut next = 0;
        loop {
            let first = shared.state.lock().checkpoints.previous + 1;
            let last = shared.progress.lock().written;
            next = first.max(next);
            if next > last {
                return checked;
            }
            let count = shared.facts.ring.contiguous(next, (last - next + 1).min(JOURNAL_BLOCKS));
            pace(count * BLOCK as u64).await;
            for sequence in next..next + count {
                checked.blocks += 1;
                if let Err(found) = self.check_block(sequence).await
                    && shared.state.lock().checkpoints.previous < sequence
                {
                    let (offset, length) = (shared.facts.ring.offset(sequence), BLOCK as u64);
                    let expected = format!("block {sequence}");
                    let file = FileKind::Journal;
                    checked.damaged.push(Corruption::new(file, offset, length, expected, found));
                }
            }
            next += count;
        }
    }

    async fn check_block(&self, sequence: u64) -> std::result::Result<(), String> {
        let shared = &self.shared;
        let block = shared.files.journal.read(shared.facts.ring.offset(sequence), BLOCK).await;
        let block = block.map_err(|error| format!("it cannot be read: {error}"))?;
        let block = Block::decode(&block).ok_or("a damaged block")?;
        match block.header.sequence == sequence
            && block.header.incarnation == shared.facts.identity.incarnation
        {
            true => Ok(()),
            false => Err(format!("block {}", block.header.sequence)),
        }
    }

    /// Checks the checkpoints of both areas. Of one that a crash interrupted at its header, a part may
    /// remain in an area until two checkpoints were written after the open.
    pub async fn check_checkpoints(&self, pace: Pace<'_>) -> Checked {
        let mut checked = Checked::default();
        for area in 0..2 {
            for _ in 0..ATTEMPTS {
                if self.check_area(area, pace, &mut checked).await {
                    break;
                }
            }
        }
        checked
    }

    /// Returns `false` if a checkpoint was begun meanwhile, so that the result means nothing.
    async fn check_area(&self, area: usize, pace: Pace<'_>, checked: &mut Checked) -> bool {
        let shared = &self.shared;
        let begun = shared
            .wait_until(|shared| {
                let state = shared.state.lock();
                (!state.checkpoints.running || state.failed.is_some())
                    .then_some(state.checkpoints.begun)
            })
            .await;
        let file = shared.files.area(area);
        let found = verify(file, shared.facts.identity.incarnation, pace).await;
        let (offset, length, found) = {
            let checkpoints = &mut shared.state.lock().checkpoints;
            if checkpoints.begun != begun {
                return false;
            }
            let newest = (checkpoints.area == area).then_some(checkpoints.number);
            let written = checkpoints.areas.get_mut(area);
            let known = written.as_ref().and_then(|written| Some(written.as_ref()?.header));
            let damage = match found {
                Ok(Some(header))
                    if newest.is_none_or(|number| number == header.number)
                        && known.is_none_or(|known| known == header) =>
                {
                    checked.blocks += header.area_bytes() / BLOCK as u64;
                    return true;
                }
                Ok(None) if newest.is_none() && known.is_none() => return true,
                Ok(_) => (0, BLOCK as u64, "another checkpoint, or none".to_owned()),
                Err(damage) => damage,
            };
            // The next checkpoint there overwrites what is damaged: nothing is added to it.
            if let Some(written) = written {
                *written = None;
            }
            damage
        };
        let expected = "an intact checkpoint";
        checked.damaged.push(Corruption::new(file.kind, offset, length, expected, found));
        true
    }

    /// Checks the four copies of the superblock and rewrites damaged and old ones. Returns how many
    /// were damaged.
    ///
    /// # Errors
    /// `Failed`.
    pub async fn check_superblock(&self) -> Result<u64> {
        let shared = &self.shared;
        shared.state.lock().check_open()?;
        let repaired = shared.superblock.lock().await.repair_copies().await;
        repaired.inspect_err(|error| shared.fail(error))
    }

    /// What [`Engine::save_scrub_progress`] last stored.
    pub async fn scrub_progress(&self) -> ScrubProgress {
        self.shared.superblock.lock().await.current().scrub
    }

    /// Stores the scrubber's progress, synced.
    ///
    /// # Errors
    /// `Failed`, `Closed`.
    pub async fn save_scrub_progress(&self, progress: ScrubProgress) -> Result<()> {
        self.shared.state.lock().check_open()?;
        self.shared.update_superblock(|s| s.scrub = progress).await
    }
}
