//! The operations in a ring: what the kernel is to do, what it has done, and what it needs meanwhile.
//!
//! What holds here: an operation keeps its file and its buffer until the kernel has completed it. What the kernel did
//! in part is continued, and what it never began is given to it again. A sync that began is never tried again.

use crate::io::AlignedBuf;
use crate::io::real::device::{Direction, Request, Transfer, TransferProgress};
use io_uring::{opcode, squeue, types};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The most bytes of one ring entry: its length field has 32 bits, and the kernel itself stops a
/// page short of 2 GiB.
const PART_BYTES: usize = 1 << 30;

/// An operation that the kernel has, with all that it needs.
pub(super) struct Operation {
    file: Arc<File>,
    work: Work,
}

enum Work {
    Transfer {
        direction: Direction,
        offset: u64,
        buf: AlignedBuf,
        progress: TransferProgress,
        reply: oneshot::Sender<Transfer>,
    },
    Sync {
        reply: oneshot::Sender<io::Result<()>>,
    },
}

impl Operation {
    pub(super) fn new(file: Arc<File>, request: Request) -> Operation {
        let work = match request {
            Request::Transfer { direction, offset, buf, reply } => {
                let progress = TransferProgress::new(direction, buf.len());
                Work::Transfer { direction, offset, buf, progress, reply }
            }
            Request::Sync { reply } => Work::Sync { reply },
        };
        Operation { file, work }
    }

    /// The ring entry for what remains to be done: a read, a write or a sync, without a link to another one.
    /// No entry cancels another one, on which [`never_began`] relies.
    pub(super) fn entry(&mut self, slot: usize) -> squeue::Entry {
        let fd = types::Fd(self.file.as_raw_fd());
        let entry = match &mut self.work {
            Work::Transfer { direction, offset, buf, progress, .. } => {
                let at = *offset + progress.done() as u64;
                let rest = buf.get_mut(progress.done()..).unwrap_or_default();
                let len = rest.len().min(PART_BYTES) as u32;
                match direction {
                    Direction::Read => {
                        opcode::Read::new(fd, rest.as_mut_ptr(), len).offset(at).build()
                    }
                    Direction::Write => {
                        opcode::Write::new(fd, rest.as_ptr(), len).offset(at).build()
                    }
                }
            }
            Work::Sync { .. } => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        };
        entry.user_data(slot as u64)
    }

    /// Takes the result of the part that the kernel has completed. Returns the operation if more
    /// remains to be done. Else sends the result, after it has released the file.
    pub(super) fn advance(self, result: io::Result<usize>) -> Option<Operation> {
        if result.as_ref().is_err_and(never_began) {
            return Some(self);
        }
        let Operation { file, work } = self;
        match work {
            Work::Transfer { direction, offset, buf, mut progress, reply } => {
                let ended = match progress.advance(result) {
                    Ok(false) => {
                        let work = Work::Transfer { direction, offset, buf, progress, reply };
                        return Some(Operation { file, work });
                    }
                    Ok(true) => Ok(()),
                    Err(error) => Err(error),
                };
                drop(file);
                drop(reply.send((ended, buf)));
            }
            Work::Sync { reply } => {
                // Never retried once it began, whatever the error: the kernel reports a lost page only once.
                drop(file);
                drop(reply.send(result.map(drop)));
            }
        }
        None
    }
}

/// Whether the kernel gave an operation up before it began. What has to wait is done by a worker of io_uring, and
/// where none can be made (a signal came each time, or the user has too many processes) the kernel ends all that
/// waits for one by ECANCELED. We submit no cancel and no link, and no status of a block device becomes this error, so
/// only what never ran ends so: it is given to the kernel again, a sync too. The operation's deadline bounds that.
pub(super) fn never_began(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::CANCELED)
}

/// The operations in the ring, by slot.
#[derive(Default)]
pub(super) struct InFlight {
    slots: Vec<Option<Operation>>,
    free: Vec<usize>,
}

impl InFlight {
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn free_slot(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        })
    }

    /// Puts an operation into a slot that [`InFlight::free_slot`] gave.
    pub(super) fn put(&mut self, slot: usize, operation: Operation) {
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(operation);
        }
    }

    pub(super) fn take(&mut self, slot: usize) -> Option<Operation> {
        let operation = self.slots.get_mut(slot)?.take()?;
        self.free.push(slot);
        Some(operation)
    }

    /// Ends without the results of what the kernel has. Its buffers are never freed, since the kernel may
    /// still write into them; of the file it has a reference of its own.
    pub(super) fn give_up(self) {
        for operation in self.slots.into_iter().flatten() {
            if let Work::Transfer { buf, .. } = operation.work {
                std::mem::forget(buf);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(direction: Direction) -> (Request, oneshot::Receiver<Transfer>) {
        let (reply, replied) = oneshot::channel();
        let buf = AlignedBuf::zeroed(3 * 4096);
        (Request::Transfer { direction, offset: 4096, buf, reply }, replied)
    }

    fn canceled() -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(libc::ECANCELED))
    }

    /// The story: a signal was pending while the kernel made the first worker of a ring, three times, and it ended the
    /// sync that waited for one by ECANCELED. The node took its drive for failed, and had to recover at its next
    /// start.
    #[test]
    fn a_sync_that_no_worker_began_is_given_to_the_kernel_again() {
        let (reply, mut replied) = oneshot::channel();
        let file = Arc::new(tempfile::tempfile().unwrap());
        let sync = Operation::new(file.clone(), Request::Sync { reply });
        let again = sync.advance(canceled()).expect("it never began");
        assert!(replied.try_recv().is_err());
        let mut again = again.advance(canceled()).expect("nor did it then");
        assert_eq!(again.entry(0).get_opcode(), u32::from(opcode::Fsync::CODE));
        assert!(again.advance(Ok(0)).is_none());
        assert!(replied.try_recv().unwrap().is_ok());
        assert_eq!(Arc::strong_count(&file), 1, "the file is released");
    }

    #[test]
    fn a_sync_that_began_and_failed_is_never_tried_again() {
        for error in [libc::EIO, libc::ENOSPC, libc::EINTR, libc::EAGAIN] {
            let (reply, mut replied) = oneshot::channel();
            let file = Arc::new(tempfile::tempfile().unwrap());
            let sync = Operation::new(file, Request::Sync { reply });
            assert!(sync.advance(Err(io::Error::from_raw_os_error(error))).is_none());
            let found = replied.try_recv().unwrap().unwrap_err();
            assert_eq!(found.raw_os_error(), Some(error));
        }
    }

    #[test]
    fn a_transfer_that_no_worker_began_goes_on_where_it_was() {
        for direction in [Direction::Read, Direction::Write] {
            let (request, mut replied) = transfer(direction);
            let operation = Operation::new(Arc::new(tempfile::tempfile().unwrap()), request);
            let rest = operation.advance(Ok(4096)).expect("two blocks remain");
            let rest = rest.advance(canceled()).expect("they still remain");
            assert!(rest.advance(Ok(8192)).is_none());
            assert!(replied.try_recv().unwrap().0.is_ok());
        }
    }

    /// Else an operation that ran could end by ECANCELED, and a sync must not be tried again then.
    #[test]
    fn no_operation_cancels_another_one_or_is_linked_to_one() {
        let (reply, _replied) = oneshot::channel();
        let (read, _replied_read) = transfer(Direction::Read);
        let (write, _replied_write) = transfer(Direction::Write);
        let codes = [opcode::Read::CODE, opcode::Write::CODE, opcode::Fsync::CODE];
        for (request, code) in [read, write, Request::Sync { reply }].into_iter().zip(codes) {
            let mut operation = Operation::new(Arc::new(tempfile::tempfile().unwrap()), request);
            let entry = operation.entry(7);
            assert_eq!((entry.get_opcode(), entry.get_user_data()), (u32::from(code), 7));
            assert!(format!("{entry:?}").contains("flags: 0,"), "{entry:?}");
        }
    }

    #[test]
    fn what_the_kernel_did_in_part_is_continued() {
        let (request, mut replied) = transfer(Direction::Write);
        let file = Arc::new(tempfile::tempfile().unwrap());
        let operation = Operation::new(file.clone(), request);
        let rest = operation.advance(Ok(4096)).expect("two blocks remain");
        assert!(replied.try_recv().is_err());
        assert!(rest.advance(Ok(8192)).is_none());
        assert!(replied.try_recv().unwrap().0.is_ok());
        assert_eq!(Arc::strong_count(&file), 1, "the file is released");
    }
}
