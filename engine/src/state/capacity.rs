//! Whether there is room, asked before anything is begun that cannot be undone.
//!
//! In the data area a value lies in one piece, so bytes that are free in pieces are no room for it. In a checkpoint area all
//! keys, the log's records and the machine's image must fit at any time: without a checkpoint nothing can be purged. A leader
//! asks for a client's write and keeps reserves; a follower asks for what the leader sends, down to the last block, and takes
//! it later if it must: an append that meets a full data area, and a checkpoint that does not fit, end replication.

use super::Engine;
use crate::error::{Error, Result};
use crate::group::{KEY_RECORD_BYTES, checkpoint_bytes};
use crate::io::BLOCK;
use std::sync::atomic::Ordering;

/// The parts of a checkpoint area, in hundredths, beyond which is refused: puts, by the state alone, and by the state with the
/// log; clients' other writes; what a leader sends. The rest is for what those that come later are asked to carry: an entry is
/// counted with what it leaves in the state only until it is applied, and a follower may hold more of the log than its leader.
const STATE_PERCENT: u64 = 60;
const PUT_PERCENT: u64 = 85;
const CLIENT_PERCENT: u64 = 92;
const LEADER_PERCENT: u64 = 98;

/// What a write takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Bytes of its values and keys.
    pub bytes: u64,
    /// The longest value, if it has any.
    pub longest: Option<u64>,
    /// Bytes of its record in a checkpoint, [`Engine::index_bytes`], and of what it leaves there when it is applied:
    /// [`Engine::applied_bytes`], and what is remembered of its client.
    pub index_bytes: u64,
}

impl Engine {
    /// Whether a client's write should be taken. Of the data area a reserve is kept for the log itself, so that deletes,
    /// membership and purging always find room, and for followers that pack worse; of a checkpoint area, for the log.
    ///
    /// # Errors
    /// `Full`, `IndexFull`, `Failed`, `Closed`.
    pub fn admit(&self, need: Need) -> Result<()> {
        let admitted = self.judge(need);
        self.count_refusal(&admitted);
        admitted
    }

    fn judge(&self, need: Need) -> Result<()> {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        state.check_open()?;
        let area = shared.facts.checkpoint_capacity;
        if let Some(longest) = need.longest {
            let (free, capacity) = (state.space.free_bytes(), state.space.capacity_bytes());
            let reserve = state.space.reserve_bytes();
            if free < need.bytes.saturating_add(reserve) {
                let free = free.saturating_sub(reserve);
                return Err(Error::Full { needed: need.bytes, free, capacity });
            }
            if !state.space.fits_unreserved(longest) {
                return Err(Error::Full { needed: longest, free, capacity });
            }
            fits_index(state.checkpoint_state_bytes(), need.index_bytes, area, STATE_PERCENT)?;
            return fits_index(state.index_bytes(), need.index_bytes, area, PUT_PERCENT);
        }
        fits_index(state.index_bytes(), need.index_bytes, area, CLIENT_PERCENT)
    }

    /// Whether what a leader sends has room: its records in a checkpoint, and values of these lengths, put one after another.
    /// `bytes`: what they take if each begins a block, as [`Engine::bytes_in_blocks`] adds it up; the lengths are asked for
    /// only where that does not tell.
    ///
    /// # Errors
    /// `Full`, `IndexFull`.
    pub fn has_room(&self, bytes: u64, index_bytes: u64, lengths: impl FnOnce() -> Vec<u64>) -> Result<()> {
        let shared = &self.shared;
        let state = shared.state.lock();
        let fits =
            fits_index(state.index_bytes(), index_bytes, shared.facts.checkpoint_capacity, LEADER_PERCENT);
        self.count_refusal(&fits);
        fits?;
        match bytes == 0 || state.space.fits(bytes.div_ceil(BLOCK as u64), lengths) {
            true => Ok(()),
            false => {
                let (free, capacity) = (state.space.free_bytes(), state.space.capacity_bytes());
                Err(Error::Full { needed: bytes, free, capacity })
            }
        }
    }

    /// Whoever looks after the log hears of it: with less log there may be room.
    fn count_refusal(&self, result: &Result<()>) {
        if matches!(result, Err(Error::IndexFull { .. })) {
            self.shared.counters.index_refusals.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What values of these lengths take, in bytes, if each begins a block.
    #[must_use]
    pub fn bytes_in_blocks(lengths: &[u64]) -> u64 {
        let block = BLOCK as u64;
        lengths.iter().fold(0, |sum, len| sum.saturating_add(len.div_ceil(block).saturating_mul(block)))
    }

    /// What an entry with so many values and such a meta takes in a checkpoint.
    #[must_use]
    pub fn index_bytes(values: usize, meta_len: usize) -> u64 {
        checkpoint_bytes(values, meta_len)
    }

    /// What an entry that puts so many keys, which its meta names, leaves in a checkpoint at most.
    #[must_use]
    pub fn applied_bytes(puts: usize, meta_len: usize) -> u64 {
        puts as u64 * KEY_RECORD_BYTES + meta_len as u64
    }
}

/// Whether a state of so many bytes, received whole, fits into a checkpoint area.
pub(crate) fn fits_state(bytes: u64, capacity: u64) -> Result<()> {
    fits_index(0, bytes, capacity, LEADER_PERCENT)
}

fn fits_index(used: u64, needed: u64, capacity: u64, percent: u64) -> Result<()> {
    match used.saturating_add(needed) <= capacity / 100 * percent {
        true => Ok(()),
        false => Err(Error::IndexFull { needed, used, capacity }),
    }
}
