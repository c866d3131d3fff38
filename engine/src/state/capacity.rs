//! Capacity checks, made before anything begins that cannot be undone.
//!
//! A value finds space in the data area if there are enough free blocks. In a checkpoint area all
//! keys, the log's records and the machine image must fit at any time: without a checkpoint nothing
//! can be purged. A leader checks a client's write and keeps reserves. A follower checks what the
//! leader sends, down to the last block, and rejects it for now if it does not fit: an append into
//! a full data area, or a checkpoint that does not fit, would end replication.

use super::{Engine, State};
use crate::error::{Error, Result};
use crate::geometry::STATE_PERCENT;
use crate::group::{KEY_FIXED_BYTES_MAX, Keys, checkpoint_bytes_max};
use crate::layout::BLOCK_BYTES;
use crate::types::ValueRef;
use std::sync::atomic::Ordering;

/// Limits for the use of a checkpoint area, in percent. Beyond them these are refused: puts, by the
/// state alone ([`STATE_PERCENT`]) and by the state with the log; other writes of clients; what a leader sends. Each
/// limit leaves a margin for the later ones: an entry counts with what it will leave in the state
/// only until it is applied, and a follower may hold more of the log than its leader.
const PUT_PERCENT: u64 = 85;
const CLIENT_PERCENT: u64 = 92;
const LEADER_PERCENT: u64 = 98;

/// The capacity that a write needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Bytes of its values and keys.
    pub bytes: u64,
    /// Whether it has values, even empty ones.
    pub puts: bool,
    /// Bytes of its record in a checkpoint, [`Engine::index_bytes`], and of what it leaves there
    /// when it is applied: [`Engine::applied_bytes`] and the client's session.
    pub index_bytes: u64,
}

impl Engine {
    /// Checks whether a client's write can be accepted. A reserve of the data area stays free for
    /// the log itself, so that deletes, membership changes and purges always have space, and for
    /// followers that need a few blocks more. A part of the checkpoint area stays free for
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
        if need.puts {
            let (free, capacity) = (state.space.writable_bytes(), state.space.capacity_bytes());
            if free < need.bytes {
                self.space_is_refused(&mut state);
                return Err(Error::Full { needed: need.bytes, free, capacity });
            }
            let used = state.checkpoint_state_bytes();
            fits_index(used, need.index_bytes, (area, STATE_PERCENT), || state.key_use())?;
            let used = state.index_bytes();
            return fits_index(used, need.index_bytes, (area, PUT_PERCENT), || state.key_use());
        }
        let used = state.index_bytes();
        fits_index(used, need.index_bytes, (area, CLIENT_PERCENT), || state.key_use())
    }

    /// Checks whether what a leader sends fits: its records into a checkpoint, and its values into
    /// `blocks` blocks of the data area ([`Engine::blocks_for`]).
    ///
    /// # Errors
    /// `Full`, `IndexFull`.
    pub fn has_capacity(&self, blocks: u64, index_bytes: u64) -> Result<()> {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        let area = shared.facts.checkpoint_capacity;
        let used = state.index_bytes();
        let fits = fits_index(used, index_bytes, (area, LEADER_PERCENT), || state.key_use());
        self.count_refusal(&fits);
        fits?;
        let needed = blocks.saturating_mul(BLOCK_BYTES);
        match needed <= state.space.promisable_bytes() {
            true => Ok(()),
            false => {
                self.space_is_refused(&mut state);
                Err(state.space.full(needed))
            }
        }
    }

    /// What is dead is wanted now.
    fn space_is_refused(&self, state: &mut State) {
        state.scarcity.refused = true;
        self.shared.signals.syncer.notify_one();
        self.shared.signals.compactor.notify_one();
    }

    /// The log's maintenance watches this counter: purging the log may free the space.
    fn count_refusal(&self, result: &Result<()>) {
        if matches!(result, Err(Error::IndexFull { .. })) {
            self.shared.counters.index_refusals.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The most bytes that an entry with values of these lengths and such a meta takes in a
    /// checkpoint.
    #[must_use]
    pub fn index_bytes(lengths: impl IntoIterator<Item = u64>, meta_len: usize) -> u64 {
        checkpoint_bytes_max(lengths, meta_len)
    }

    /// The most bytes that an entry leaves in a checkpoint if it puts values of these lengths under
    /// keys that its meta names.
    #[must_use]
    pub fn applied_bytes(lengths: impl IntoIterator<Item = u64>, meta_len: usize) -> u64 {
        let of = |len| KEY_FIXED_BYTES_MAX + ValueRef::encoded_bytes_max(len);
        lengths.into_iter().map(of).fold(meta_len as u64, u64::saturating_add)
    }
}

/// How many keys there are, and the bytes of their values.
#[derive(Clone, Copy, Default)]
pub(crate) struct KeyUse {
    pub keys: u64,
    pub value_bytes: u64,
}

impl State {
    fn key_use(&self) -> KeyUse {
        let keys = || self.groups.values().map(|group| &group.keys);
        KeyUse {
            keys: keys().map(|keys| keys.len() as u64).sum(),
            value_bytes: keys().map(Keys::value_bytes).sum(),
        }
    }
}

/// Whether a complete received state of `bytes` with these keys fits into a checkpoint area.
pub(crate) fn fits_state(bytes: u64, capacity: u64, key_use: KeyUse) -> Result<()> {
    fits_index(0, bytes, (capacity, LEADER_PERCENT), || key_use)
}

/// The bytes of keys in a checkpoint area of this capacity beyond which puts are refused.
pub(crate) fn state_limit(capacity: u64) -> u64 {
    capacity / 100 * STATE_PERCENT
}

fn fits_index(
    used: u64,
    needed: u64,
    (capacity, percent): (u64, u64),
    key_use: impl FnOnce() -> KeyUse,
) -> Result<()> {
    if used.saturating_add(needed) <= capacity / 100 * percent {
        return Ok(());
    }
    let KeyUse { keys, value_bytes } = key_use();
    let mean_value = value_bytes.checked_div(keys).unwrap_or_default();
    Err(Error::IndexFull { needed, used, capacity, keys, mean_value })
}
