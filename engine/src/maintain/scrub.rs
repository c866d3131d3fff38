//! What a scrubber asks of the engine beside the extents: the journal, the checkpoints, the superblock, and a place to keep
//! its position. The scrubber itself, which knows the peers, is the caller's.

use crate::checkpoint::{file_of, verify};
use crate::error::{Corruption, CorruptionKind, Result};
use crate::io::{AlignedBuf, BLOCK, FileKind, Pace};
use crate::journal::Block;
use crate::state::Engine;
use crate::types::ScrubMark;

/// Journal blocks checked at once.
const JOURNAL_BLOCKS: u64 = 256;
/// How often a checkpoint is looked at again that was replaced meanwhile.
const ATTEMPTS: usize = 8;

/// What a check of a part found.
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
                    checked.damaged.push(Corruption {
                        file: FileKind::Journal,
                        offset: shared.facts.ring.offset(sequence),
                        length: BLOCK as u64,
                        kind: CorruptionKind::JournalBlock,
                        expected: format!("block {sequence}"),
                        found,
                        log_ids: Vec::new(),
                    });
                }
            }
            next += count;
        }
    }

    async fn check_block(&self, sequence: u64) -> std::result::Result<(), String> {
        let shared = &self.shared;
        let (result, buf) =
            shared.devices.journal.read(shared.facts.ring.offset(sequence), AlignedBuf::zeroed(BLOCK)).await;
        result.map_err(|error| format!("it cannot be read: {error}"))?;
        let block = Block::decode(&buf).ok_or_else(|| "a damaged block".to_owned())?;
        match block.header.sequence == sequence
            && block.header.incarnation == shared.facts.identity.incarnation
        {
            true => Ok(()),
            false => Err(format!("block {}", block.header.sequence)),
        }
    }

    /// Checks the checkpoints of both areas. One that a crash cut short may still lie in an area until two were written
    /// since the engine was opened.
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

    /// `false` where a checkpoint was being written meanwhile, so that nothing is known.
    async fn check_area(&self, area: usize, pace: Pace<'_>, checked: &mut Checked) -> bool {
        let shared = &self.shared;
        let begun = shared
            .wait_until(|shared| {
                let state = shared.state.lock();
                (!state.checkpoints.running || state.failed.is_some()).then_some(state.checkpoints.begun)
            })
            .await;
        let Some(device) = shared.devices.checkpoints.get(area) else { return true };
        let found = verify(device.as_ref(), shared.facts.identity.incarnation, pace).await;
        let (undisturbed, newest, number) = {
            let state = shared.state.lock();
            let checkpoints = &state.checkpoints;
            (checkpoints.begun == begun, checkpoints.area == area, checkpoints.number)
        };
        if !undisturbed {
            return false;
        }
        let damage = |(offset, length, found): (u64, u64, String)| Corruption {
            file: file_of(area),
            offset,
            length,
            kind: CorruptionKind::Checkpoint,
            expected: "an intact checkpoint".to_owned(),
            found,
            log_ids: Vec::new(),
        };
        match found {
            Ok(Some(header)) if !newest || header.number == number => {
                checked.blocks += header.area_bytes() / BLOCK as u64;
            }
            Ok(None) if !newest => {}
            Ok(_) => {
                checked.damaged.push(damage((0, BLOCK as u64, "another checkpoint, or none".to_owned())))
            }
            Err(found) => checked.damaged.push(damage(found)),
        }
        true
    }

    /// Checks the four copies of the superblock and rewrites those that are not as they should be. Returns how many were
    /// damaged.
    ///
    /// # Errors
    /// `Failed`.
    pub async fn check_superblock(&self) -> Result<u64> {
        let shared = &self.shared;
        shared.state.lock().check_open()?;
        let healed = shared.superblock.lock().await.heal().await;
        healed.map(|healed| healed.damaged).inspect_err(|error| shared.fail(error.clone()))
    }

    /// What [`Engine::save_scrub_mark`] last stored.
    pub async fn scrub_mark(&self) -> ScrubMark {
        self.shared.superblock.lock().await.current().scrub
    }

    /// Stores a scrubber's place, synced.
    ///
    /// # Errors
    /// `Failed`, `Closed`.
    pub async fn save_scrub_mark(&self, mark: ScrubMark) -> Result<()> {
        self.shared.state.lock().check_open()?;
        self.shared.update_superblock(|s| s.scrub = mark).await
    }
}
