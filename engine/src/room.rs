//! Whether there is room in the data area, asked before anything is begun that cannot be undone.
//!
//! A value lies in one piece, so bytes that are free in pieces are no room for it. A leader asks for a client's write and
//! keeps a reserve; a follower asks for what the leader sends, down to the last block, and takes it later if it must: an append
//! that meets a full data area ends replication.

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::io::BLOCK;

/// So many requests that are pending are looked at.
const LIKE_MAX: u64 = 32;

impl Engine {
    /// Whether a client's write of `bytes` should be taken, of which the longest value has `longest`. A reserve is kept for
    /// the log itself, so that deletes, membership and purging always find room, and for followers that pack worse.
    ///
    /// # Errors
    /// `Full`, `Failed`, `Closed`.
    pub fn admit(&self, bytes: u64, longest: u64) -> Result<()> {
        let shared = self.shared();
        let state = shared.state.lock();
        state.check_open()?;
        let (free, capacity) = (state.space.free_bytes(), state.space.capacity_bytes());
        let reserve = state.space.reserve_bytes();
        if free < bytes.saturating_add(reserve) {
            return Err(Error::Full { needed: bytes, free: free.saturating_sub(reserve), capacity });
        }
        if !state.space.places_unreserved(longest) {
            return Err(Error::Full { needed: longest, free, capacity });
        }
        let (index, area) = (state.checkpoint_bytes(), shared.checkpoint_capacity);
        if index > area / 10 * 9 {
            return Err(Error::Full { needed: bytes, free: 0, capacity: area });
        }
        Ok(())
    }

    /// Whether values of these lengths find room, beside `pending` bytes that were told so and are not yet appended.
    ///
    /// # Errors
    /// `Full`.
    pub fn has_room(&self, lengths: &[u64], pending: u64) -> Result<()> {
        let state = self.shared().state.lock();
        let (free, capacity) = (state.space.free_bytes(), state.space.capacity_bytes());
        // Values shorter than a block are packed; of the others each may begin one.
        let long: Vec<u64> = lengths.iter().copied().filter(|len| *len >= BLOCK as u64).collect();
        let bytes = lengths.iter().fold(0, |sum: u64, len| sum.saturating_add(*len));
        let needed = bytes.saturating_add(pending).saturating_add((long.len() as u64 + 1) * BLOCK as u64);
        // Those that are pending are taken to be like these.
        let like = (pending / bytes.max(1)).min(LIKE_MAX) as usize + 1;
        let places = || state.space.places(long.iter().copied().cycle().take(long.len() * like));
        match free >= needed && places() {
            true => Ok(()),
            false => Err(Error::Full { needed, free, capacity }),
        }
    }
}
