//! The device seam: everything that the engine needs from a disk, and nothing else.
//!
//! There are three implementations of [`Directory`] and [`Device`]: io_uring in a task or on a
//! thread of its own, a pool of threads with `pread`/`pwrite` (both in this module, for real files), and the
//! simulated disk of the `sim` crate.
//!
//! What holds here: Offsets and lengths are multiples of [`BLOCK`]. An operation owns its buffer
//! until it ends. An operation begins when its method is called, and dropping the returned future
//! does not cancel it. An open engine bounds the time of each operation, whatever the
//! implementation (`deadline.rs`).

mod buffer;
mod deadline;
mod file;
#[cfg(test)]
pub(crate) mod memory;
mod read_ahead;
mod real;

pub use buffer::AlignedBuf;
pub(crate) use buffer::is_zero;
pub(crate) use deadline::{BoundedDirectory, Hung, IoDeadlines};
pub(crate) use file::OpenFile;
pub(crate) use read_ahead::{Piece, ReadAhead, pieces};
pub use real::{
    Backend, Created, DirectAlignment, Extents, FileDirectory, FileProbe, FreeSpace, NvmeIdentify,
    boot_id, boot_id_from, file_extents, free_space, nvme_identify, probe_directory, probe_file,
    probe_io_uring,
};

pub use crate::types::FileKind;

use std::future::{Future, poll_fn};
use std::io;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

/// The unit of every offset, length and alignment, in bytes.
pub const BLOCK: usize = 4096;

/// The size of the superblock file in bytes, whatever the geometry.
pub const SUPERBLOCK_BYTES: u64 = 64 * 1024;

/// A device operation in flight. Dropping it does not cancel the operation.
pub type IoFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// Called before so many bytes are read. Returns when they may be read: a rate limit.
pub type Pace<'a> = &'a (dyn Fn(u64) -> IoFuture<()> + Send + Sync);

/// Bytes of zeros after which a [`Progress`] knows how fast they are written.
pub const MEASURED_BYTES: u64 = 32 << 20;

/// Told the bytes that are zeroed so far, and all bytes: at the beginning, and after each piece. The
/// piece that reaches [`MEASURED_BYTES`] is synced. `Break` ends the work.
pub type Progress<'a> = &'a mut (dyn FnMut(u64, u64) -> ControlFlow<()> + Send);

/// One file of fixed size, open for direct I/O.
pub trait Device: Send + Sync + 'static {
    /// The file's size in bytes; it never changes while the device is open.
    fn size(&self) -> u64;

    /// Fills the whole buffer from `offset` (bytes, a multiple of [`BLOCK`]). A short read is an
    /// error.
    fn read(&self, offset: u64, buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)>;

    /// Writes the whole buffer at `offset` (bytes, a multiple of [`BLOCK`]). A short write is an
    /// error. Completion means *written*, not *synced*.
    fn write(&self, offset: u64, buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)>;

    /// `fdatasync`: covers every write that completed before this call.
    fn sync(&self) -> IoFuture<io::Result<()>>;
}

/// A data directory whose files can be opened.
///
/// Only opening may fail because of names and permissions. The engine checks the size of each file
/// against the superblock's geometry.
pub trait Directory: Send + Sync + 'static {
    /// Opens one file. Its open file description holds the directory's exclusive lock.
    ///
    /// # Errors
    /// `NotFound` if the directory was never formatted, `WouldBlock` if another process holds the
    /// lock.
    fn open(&self, kind: FileKind) -> io::Result<Arc<dyn Device>>;

    /// The directory's location, for messages: a path, or the simulated disk's name.
    fn location(&self) -> String;

    /// The kind of backend, for status: `io_uring`, `threads` or `simulated`.
    fn backend(&self) -> &'static str;

    /// Copies superblock, journal and checkpoints to a place beside them that is named by this
    /// number, as far as they can be read. The copy is synced, and stays until somebody removes it.
    /// Returns where it is.
    ///
    /// # Errors
    /// `Unsupported`; `StorageFull` if there is no room, or if there are enough copies; those of the
    /// system. Nothing is left of the copy then.
    fn set_aside(&self, number: u64) -> IoFuture<io::Result<String>> {
        let _ = number;
        Box::pin(std::future::ready(Err(io::ErrorKind::Unsupported.into())))
    }
}

/// Yields once to other tasks.
pub async fn yield_once() {
    if cfg!(not(madsim)) {
        // Before the task's next turn, the runtime looks for finished I/O. A task that only woke
        // itself would go on until the runtime's next look, dozens of turns later.
        return tokio::task::yield_now().await;
    }
    // In the simulation another runtime polls the task. The runtime's own yield would never return.
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
