//! The device seam: everything the engine asks of a disk, and nothing else.
//!
//! Three implementations stand behind [`Directory`] and [`Device`]: io_uring on a thread of its own, a pool of
//! threads with `pread`/`pwrite` (both in this module, for real files), and the simulated disk of the `sim` crate.
//!
//! What holds here: offsets and lengths are multiples of [`BLOCK`]; buffers are owned by the operation until it ends;
//! an operation begins when its method is called, and dropping the returned future does not cancel it. An open engine bounds the
//! time of each, whichever stands behind (`deadline.rs`).

mod buffer;
mod deadline;
mod real;

pub use buffer::AlignedBuf;
pub(crate) use deadline::{Hung, Watch, Watched};
pub use real::{
    Backend, DirectAlignment, Extents, FileDirectory, FileProbe, NvmeIdentify, Room, boot_id, boot_id_from,
    nvme_identify, probe_directory, probe_file, probe_io_uring, room,
};

pub use crate::types::FileKind;

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

/// The unit of every offset, length and alignment, in bytes.
pub const BLOCK: usize = 4096;

/// The size of the superblock file in bytes, whatever the geometry.
pub const SUPERBLOCK_BYTES: u64 = 64 * 1024;

/// A device operation under way. Dropping it does not cancel the operation.
pub type IoFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// Called before so many bytes are read: returns when they may be.
pub type Pace<'a> = &'a (dyn Fn(u64) -> IoFuture<()> + Send + Sync);

/// One file of fixed size, open for direct I/O.
pub trait Device: Send + Sync + 'static {
    /// The file's size in bytes; it never changes while the device is open.
    fn size(&self) -> u64;

    /// Fills the whole buffer from `offset` (bytes, a multiple of [`BLOCK`]). A short read is an error.
    fn read(&self, offset: u64, buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)>;

    /// Writes the whole buffer at `offset` (bytes, a multiple of [`BLOCK`]). A short write is an error. Completion
    /// means *written*, not *synced*.
    fn write(&self, offset: u64, buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)>;

    /// `fdatasync`: covers every write that completed before this call.
    fn sync(&self) -> IoFuture<io::Result<()>>;
}

/// A data directory whose files can be opened.
///
/// Opening is the only place that may fail for reasons of names and permissions; the size of each file is checked
/// against the superblock's geometry by the engine.
pub trait Directory: Send + Sync + 'static {
    /// Opens one file. The open file description carries the directory's exclusive lock.
    ///
    /// # Errors
    /// `NotFound` if the directory was never formatted, `WouldBlock` if another process holds the lock.
    fn open(&self, kind: FileKind) -> io::Result<Arc<dyn Device>>;

    /// Where it is, for messages: a path, or the simulated disk's name.
    fn location(&self) -> String;

    /// How it does I/O, for status: `io_uring`, `threads` or `simulated`.
    fn backend(&self) -> &'static str;
}

/// Lets other tasks run once. Not the runtime's own way of doing so, which hands the task to that runtime and so never
/// returns where another one polls it, as in the simulation.
pub(crate) async fn give_way() {
    let mut gave_way = false;
    poll_fn(|context| {
        if std::mem::replace(&mut gave_way, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
