//! Whether there is room in the data area, asked before anything is begun that cannot be undone.
//!
//! A value lies in one piece, so bytes that are free in pieces are no room for it. A leader asks for a client's write and
//! keeps a reserve; a follower asks for what the leader sends, down to the last block, and takes it later if it must: an append
//! that meets a full data area ends replication.

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::io::BLOCK;

/// The part of the data area that is kept for the log itself.
const RESERVE_PART: u64 = 16;
const RESERVE_MAX: u64 = 1 << 30;

impl Engine {
    /// Whether a client's write of `bytes` should be taken. A reserve is kept for the log itself, so that deletes,
    /// membership and purging always find room.
    ///
    /// # Errors
    /// `Full`, `Failed`, `Closed`.
    pub fn admit(&self, bytes: u64) -> Result<()> {
        let shared = self.shared();
        let state = shared.state.lock();
        state.check_open()?;
        let (free, capacity) = (state.space.free_bytes(), state.space.capacity_bytes());
        let reserve = (capacity / RESERVE_PART).min(RESERVE_MAX);
        if free < bytes.saturating_add(reserve) || !state.space.places([bytes]) {
            return Err(Error::Full { needed: bytes, free: free.saturating_sub(reserve), capacity });
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
        // Each may begin a block of its own.
        let needed = lengths.iter().map(|len| len + BLOCK as u64).fold(pending, u64::saturating_add);
        let room = match pending {
            _ if free < needed => false,
            0 => state.space.places(lengths.iter().copied()),
            // Where those that are pending will lie is not known.
            _ => state.space.places([needed]),
        };
        match room {
            true => Ok(()),
            false => Err(Error::Full { needed, free, capacity }),
        }
    }
}
