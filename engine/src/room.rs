//! Whether there is room in the data area, asked before anything is begun that cannot be undone.
//!
//! A value lies in one piece, so bytes that are free in pieces are no room for it. A leader asks for a client's write and
//! keeps a reserve; a follower asks for what the leader sends, down to the last block, and takes it later if it must: an append
//! that meets a full data area ends replication.

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::io::BLOCK;

impl Engine {
    /// Whether a client's write of `bytes` should be taken, of which the longest value has `longest`. A reserve is kept for
    /// the log itself, so that deletes, membership and purging always find room, and for followers that pack worse.
    ///
    /// # Errors
    /// `Full`, `Failed`, `Closed`.
    pub fn admit(&self, bytes: u64, longest: u64) -> Result<()> {
        let shared = self.shared();
        let mut state = shared.state.lock();
        state.check_open()?;
        let (free, capacity) = (state.space.free_bytes(), state.space.capacity_bytes());
        let reserve = state.space.reserve_bytes();
        if free < bytes.saturating_add(reserve) {
            return Err(Error::Full { needed: bytes, free: free.saturating_sub(reserve), capacity });
        }
        if !state.space.fits_unreserved(longest) {
            return Err(Error::Full { needed: longest, free, capacity });
        }
        let (index, area) = (state.checkpoint_bytes(), shared.checkpoint_capacity);
        if index > area / 10 * 9 {
            return Err(Error::Full { needed: bytes, free: 0, capacity: area });
        }
        Ok(())
    }

    /// Whether values of these lengths all find room, put one after another. `bytes`: what they take if each begins a block,
    /// as [`Engine::bytes_in_blocks`] adds it up; the lengths are asked for only where that does not tell.
    ///
    /// # Errors
    /// `Full`.
    pub fn has_room(&self, bytes: u64, lengths: impl FnOnce() -> Vec<u64>) -> Result<()> {
        let state = self.shared().state.lock();
        match state.space.fits(bytes.div_ceil(BLOCK as u64), lengths) {
            true => Ok(()),
            false => {
                let (free, capacity) = (state.space.free_bytes(), state.space.capacity_bytes());
                Err(Error::Full { needed: bytes, free, capacity })
            }
        }
    }

    /// What values of these lengths take, in bytes, if each begins a block.
    #[must_use]
    pub fn bytes_in_blocks(lengths: &[u64]) -> u64 {
        let block = BLOCK as u64;
        lengths.iter().fold(0, |sum, len| sum.saturating_add(len.div_ceil(block).saturating_mul(block)))
    }
}
