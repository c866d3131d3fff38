//! What both backends share: the checks before an operation, and the return of its result.
//!
//! The call of the [`Device`] method passes the operation to the backend, with the sending half of
//! a channel. The future is only the receiving half. So the operation runs whether or not the
//! future is polled, and dropping the future does not cancel it.

use crate::io::{AlignedBuf, BLOCK, Device, IoFuture};
use std::io;
use tokio::sync::oneshot;

/// The result of a read or a write. The buffer comes back in both cases.
pub(super) type Transfer = (io::Result<()>, AlignedBuf);

/// One operation on one file, within the file's bounds.
pub(super) enum Request {
    Transfer {
        direction: Direction,
        offset: u64,
        buf: AlignedBuf,
        reply: oneshot::Sender<Transfer>,
    },
    Sync {
        reply: oneshot::Sender<io::Result<()>>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

/// A backend's handle on one open file. Dropping it closes the file once the operations already
/// submitted have ended.
pub(super) trait Submit: Send + Sync + 'static {
    /// Queues the request. If the backend is gone, drops it, and with it the sending half of its
    /// channel.
    fn submit(&self, request: Request);
}

/// One open, locked file.
pub(super) struct FileDevice<S> {
    size: u64,
    backend: S,
}

impl<S: Submit> FileDevice<S> {
    pub(super) fn new(size: u64, backend: S) -> FileDevice<S> {
        FileDevice { size, backend }
    }

    /// Whether `length` bytes at `offset` are whole blocks inside the file. A write past the end
    /// would make the file grow, so it must not reach the kernel.
    fn check(&self, offset: u64, length: usize) -> io::Result<()> {
        if !offset.is_multiple_of(BLOCK as u64) {
            let text = format!("offset {offset} is not a multiple of {BLOCK}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        if offset.checked_add(length as u64).is_none_or(|end| end > self.size) {
            let text = format!(
                "{length} bytes at offset {offset} reach past the end of the file, {}",
                self.size
            );
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        Ok(())
    }

    fn transfer(&self, direction: Direction, offset: u64, buf: AlignedBuf) -> IoFuture<Transfer> {
        let checked = self.check(offset, buf.len());
        if checked.is_err() || buf.is_empty() {
            return Box::pin(std::future::ready((checked, buf)));
        }
        let (reply, result) = oneshot::channel();
        self.backend.submit(Request::Transfer { direction, offset, buf, reply });
        Box::pin(
            async move { result.await.unwrap_or_else(|_| (Err(gone()), AlignedBuf::zeroed(0))) },
        )
    }
}

impl<S: Submit> Device for FileDevice<S> {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, buf: AlignedBuf) -> IoFuture<Transfer> {
        self.transfer(Direction::Read, offset, buf)
    }

    fn write(&self, offset: u64, buf: AlignedBuf) -> IoFuture<Transfer> {
        self.transfer(Direction::Write, offset, buf)
    }

    fn sync(&self) -> IoFuture<io::Result<()>> {
        let (reply, result) = oneshot::channel();
        self.backend.submit(Request::Sync { reply });
        Box::pin(async move { result.await.unwrap_or_else(|_| Err(gone())) })
    }
}

/// The backend's thread died during the operation: what happened on the device is unknown.
fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the I/O thread ended before the operation did")
}

/// The progress of a transfer. The kernel may do a large one in parts.
pub(super) struct TransferProgress {
    done: usize,
    total: usize,
    /// The error for a part that is too short.
    short: io::ErrorKind,
}

impl TransferProgress {
    pub(super) fn new(direction: Direction, total: usize) -> TransferProgress {
        let short = match direction {
            Direction::Read => io::ErrorKind::UnexpectedEof,
            Direction::Write => io::ErrorKind::WriteZero,
        };
        TransferProgress { done: 0, total, short }
    }

    /// Bytes done, always whole blocks, so that the next part is aligned again.
    pub(super) fn done(&self) -> usize {
        self.done
    }

    /// Takes the result of one part. `Ok(true)` when all is done.
    ///
    /// # Errors
    /// The system's error, except an interruption, and a kernel that has no room for the part now: that
    /// transferred nothing, and the part is retried. The deadline of the operation bounds it.
    /// `UnexpectedEof` or `WriteZero` if a part was shorter than a block.
    pub(super) fn advance(&mut self, part: io::Result<usize>) -> io::Result<bool> {
        match part {
            Err(error) if has_no_room(&error) || error.kind() == io::ErrorKind::Interrupted => {
                Ok(false)
            }
            Err(error) => Err(error),
            Ok(bytes) => {
                let blocks = bytes - bytes % BLOCK;
                if blocks == 0 || blocks > self.total - self.done {
                    let text = format!("{bytes} bytes transferred of {}", self.total - self.done);
                    return Err(io::Error::new(self.short, text));
                }
                self.done += blocks;
                Ok(self.done == self.total)
            }
        }
    }
}

/// Whether the kernel had no memory or no place in the device's queue for a transfer.
pub(super) fn has_no_room(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_in_parts_goes_on_until_all_is_done() {
        let mut progress = TransferProgress::new(Direction::Write, 4 * BLOCK);
        assert!(!progress.advance(Ok(2 * BLOCK)).unwrap());
        assert!(!progress.advance(Err(io::ErrorKind::WouldBlock.into())).unwrap());
        assert!(!progress.advance(Err(io::ErrorKind::Interrupted.into())).unwrap());
        assert_eq!(progress.done(), 2 * BLOCK);
        assert!(progress.advance(Ok(2 * BLOCK)).unwrap());
    }

    #[test]
    fn a_part_that_ends_inside_a_block_is_continued_at_the_block() {
        let mut progress = TransferProgress::new(Direction::Write, 4 * BLOCK);
        assert!(!progress.advance(Ok(BLOCK + 512)).unwrap());
        assert_eq!(progress.done(), BLOCK);
    }

    #[test]
    fn no_progress_and_too_much_progress_are_errors() {
        for bytes in [0, 512, 3 * BLOCK] {
            let error =
                TransferProgress::new(Direction::Write, 2 * BLOCK).advance(Ok(bytes)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WriteZero);
        }
        let failed = io::Error::other("broken");
        assert!(TransferProgress::new(Direction::Write, BLOCK).advance(Err(failed)).is_err());
    }
}
