//! Capacity checks, made before anything begins that cannot be undone.
//!
//! A value in the data area needs one free run; fragmented free bytes are not enough. In a
//! checkpoint area all keys, the log's records and the machine image must fit at any time: without
//! a checkpoint nothing can be purged. A leader checks a client's write and keeps reserves. A
//! follower checks what the leader sends, down to the last block, and rejects it for now if it does
//! not fit: an append into a full data area, or a checkpoint that does not fit, would end
//! replication.

use super::Engine;
use crate::error::{Error, Result};
use crate::group::{KEY_RECORD_BYTES, checkpoint_bytes};
use crate::io::BLOCK;
use std::sync::atomic::Ordering;

/// Limits for the use of a checkpoint area, in percent. Beyond them these are refused: puts, by the
/// state alone and by the state with the log; other writes of clients; what a leader sends. Each
/// limit leaves a margin for the later ones: an entry counts with what it will leave in the state
/// only until it is applied, and a follower may hold more of the log than its leader.
const STATE_PERCENT: u64 = 60;
const PUT_PERCENT: u64 = 85;
const CLIENT_PERCENT: u64 = 92;
const LEADER_PERCENT: u64 = 98;

/// The capacity that a write needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Bytes of its values and keys.
    pub bytes: u64,
    /// The longest value, if it has any.
    pub longest: Option<u64>,
    /// Bytes of its record in a checkpoint, [`Engine::index_bytes`], and of what it leaves there
    /// when it is applied: [`Engine::applied_bytes`] and the client's session.
    pub index_bytes: u64,
}

impl Engine {
    /// Checks whether a client's write can be accepted. A reserve of the data area stays free for
    /// the log itself, so that deletes, membership changes and purges always have space, and for
    /// followers whose values are packed less densely. A part of the checkpoint area stays free for
    /// the log.
    ///
    /// # Errors
    /// `Full`, `IndexFull`, `Failed`, `Closed`.
    pub fn check_capacity(&self, need: Need) -> Result<()> {
        let admitted = self.check_client_write(need);
        self.count_refusal(&admitted);
        admitted
    }

    fn check_client_write(&self, need: Need) -> Result<()> {
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
                return Err(state.space.full(longest));
            }
            fits_index(state.checkpoint_state_bytes(), need.index_bytes, area, STATE_PERCENT)?;
            return fits_index(state.index_bytes(), need.index_bytes, area, PUT_PERCENT);
        }
        fits_index(state.index_bytes(), need.index_bytes, area, CLIENT_PERCENT)
    }

    /// Checks whether what a leader sends fits: its records into a checkpoint, and values of these
    /// lengths, written one after another, into the data area. `bytes` is what the values take if
    /// each begins a block ([`Engine::bytes_in_blocks`]); `lengths` is called only if `bytes` alone
    /// does not decide.
    ///
    /// # Errors
    /// `Full`, `IndexFull`.
    pub fn has_capacity(
        &self,
        bytes: u64,
        index_bytes: u64,
        lengths: impl FnOnce() -> Vec<u64>,
    ) -> Result<()> {
        let shared = &self.shared;
        let state = shared.state.lock();
        let area = shared.facts.checkpoint_capacity;
        let fits = fits_index(state.index_bytes(), index_bytes, area, LEADER_PERCENT);
        self.count_refusal(&fits);
        fits?;
        match bytes == 0 || state.space.fits(bytes.div_ceil(BLOCK as u64), lengths) {
            true => Ok(()),
            false => Err(state.space.full(bytes)),
        }
    }

    /// The log's maintenance watches this counter: purging the log may free the space.
    fn count_refusal(&self, result: &Result<()>) {
        if matches!(result, Err(Error::IndexFull { .. })) {
            self.shared.counters.index_refusals.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The bytes that values of these lengths take if each begins a block.
    #[must_use]
    pub fn bytes_in_blocks(lengths: &[u64]) -> u64 {
        let block = BLOCK as u64;
        lengths
            .iter()
            .fold(0, |sum, len| sum.saturating_add(len.div_ceil(block).saturating_mul(block)))
    }

    /// The bytes that an entry with this many values and such a meta takes in a checkpoint.
    #[must_use]
    pub fn index_bytes(values: usize, meta_len: usize) -> u64 {
        checkpoint_bytes(values, meta_len)
    }

    /// The most bytes that an entry leaves in a checkpoint if it puts `puts` keys, which its meta
    /// names.
    #[must_use]
    pub fn applied_bytes(puts: usize, meta_len: usize) -> u64 {
        puts as u64 * KEY_RECORD_BYTES + meta_len as u64
    }
}

/// Whether a complete received state of `bytes` fits into a checkpoint area.
pub(crate) fn fits_state(bytes: u64, capacity: u64) -> Result<()> {
    fits_index(0, bytes, capacity, LEADER_PERCENT)
}

fn fits_index(used: u64, needed: u64, capacity: u64, percent: u64) -> Result<()> {
    match used.saturating_add(needed) <= capacity / 100 * percent {
        true => Ok(()),
        false => Err(Error::IndexFull { needed, used, capacity }),
    }
}
