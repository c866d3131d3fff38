//! io_uring, on one thread per directory.
//!
//! At each wakeup the thread takes the queued operations from its channel, up to [`DEPTH`] in
//! flight; the rest wait in the channel. The thread owns the open files: a file is closed, and its
//! lock released, when its device is dropped and its last operation has ended. The thread itself
//! ends when the directory and all its devices are dropped.

use super::device::{Direction, FileDevice, Request, Submit, Transfer, TransferProgress};
use crate::io::{AlignedBuf, Device};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::collections::BTreeMap;
use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_uring::buf::{IoBuf, IoBufMut};

/// Operations in flight, and entries of the ring.
const DEPTH: usize = 256;

/// The most bytes of one ring entry: its length field has 32 bits, and the kernel itself stops a
/// page short of 2 GiB.
const PART_BYTES: usize = 1 << 30;

enum Message {
    Open { id: u64, file: File },
    Operate { id: u64, request: Request },
    Close { id: u64 },
}

/// A handle on the thread. The thread ends after its last handle and its last file are dropped.
pub(super) struct Ring {
    messages: UnboundedSender<Message>,
    next_id: AtomicU64,
}

impl Ring {
    /// Starts the thread, with a ring that has completed one read.
    ///
    /// # Errors
    /// The system's error, if io_uring is forbidden or absent.
    pub(super) fn start() -> io::Result<Ring> {
        let (messages, receiver) = unbounded_channel();
        let (ready, started) = std::sync::mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name("cairn-uring".to_owned())
            .spawn(move || run(receiver, &ready))?;
        started
            .recv()
            .map_err(|_| io::Error::other("the io_uring thread ended at its start"))??;
        Ok(Ring { messages, next_id: AtomicU64::new(0) })
    }

    /// Hands an open file of `size` bytes to the thread.
    pub(super) fn attach(&self, file: File, size: u64) -> Arc<dyn Device> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let messages = self.messages.clone();
        // If the thread died, the file is closed here and each operation on the device reports it.
        drop(messages.send(Message::Open { id, file }));
        Arc::new(FileDevice::new(size, RingFile { id, messages }))
    }
}

struct RingFile {
    id: u64,
    messages: UnboundedSender<Message>,
}

impl Submit for RingFile {
    fn submit(&self, request: Request) {
        drop(self.messages.send(Message::Operate { id: self.id, request }));
    }
}

impl Drop for RingFile {
    fn drop(&mut self) {
        drop(self.messages.send(Message::Close { id: self.id }));
    }
}

/// The thread: creates the ring, reports the result, and serves until all handles are dropped.
fn run(receiver: UnboundedReceiver<Message>, ready: &std::sync::mpsc::SyncSender<io::Result<()>>) {
    let runtime = match tokio_uring::Runtime::new(tokio_uring::builder().entries(DEPTH as u32)) {
        Ok(runtime) => runtime,
        Err(error) => return drop(ready.send(Err(error))),
    };
    runtime.block_on(async {
        let tried = try_read().await;
        let works = tried.is_ok();
        drop(ready.send(tried));
        if works {
            serve(receiver).await;
        }
    });
}

/// Tries one read through the ring: a kernel or a filter may allow the ring and refuse the
/// operations.
async fn try_read() -> io::Result<()> {
    let zeros = tokio_uring::fs::File::from_std(File::open("/dev/zero")?);
    let (read, _) = zeros.read_at(Window::new(AlignedBuf::zeroed(1)), 0).await;
    read.map(drop)
}

/// Starts operations and completes them, until no message can come and nothing is in flight.
async fn serve(mut receiver: UnboundedReceiver<Message>) {
    let mut files = BTreeMap::new();
    let mut in_flight = FuturesUnordered::new();
    let mut messages = Vec::with_capacity(DEPTH);
    let mut open = true;
    poll_fn(|context| {
        loop {
            let mut moved = false;
            let capacity = DEPTH.saturating_sub(in_flight.len());
            if open && capacity > 0 {
                match receiver.poll_recv_many(context, &mut messages, capacity) {
                    Poll::Ready(0) => open = false,
                    Poll::Ready(_) => {
                        in_flight.extend(
                            messages.drain(..).filter_map(|message| accept(&mut files, message)),
                        );
                        moved = true;
                    }
                    Poll::Pending => {}
                }
            }
            if let Poll::Ready(Some(())) = in_flight.poll_next_unpin(context) {
                moved = true;
            }
            if !open && in_flight.is_empty() {
                return Poll::Ready(());
            }
            if !moved {
                return Poll::Pending;
            }
        }
    })
    .await;
}

type RingFiles = BTreeMap<u64, Rc<tokio_uring::fs::File>>;

/// Updates the table of open files. Turns an operation into a future that shares its file.
fn accept(files: &mut RingFiles, message: Message) -> Option<impl Future<Output = ()> + use<>> {
    match message {
        Message::Open { id, file } => {
            files.insert(id, Rc::new(tokio_uring::fs::File::from_std(file)));
            None
        }
        Message::Close { id } => {
            files.remove(&id);
            None
        }
        Message::Operate { id, request } => {
            files.get(&id).cloned().map(|file| operate(file, request))
        }
    }
}

/// Does one operation, releases the file, and sends the result.
async fn operate(file: Rc<tokio_uring::fs::File>, request: Request) {
    match request {
        Request::Transfer { direction, offset, buf, reply } => {
            let (result, buf) = transfer(&file, direction, offset, buf).await;
            drop(file);
            drop(reply.send((result, buf)));
        }
        Request::Sync { reply } => {
            // Never retried, whatever the error: the kernel reports a lost page only once.
            let result = file.sync_data().await;
            drop(file);
            drop(reply.send(result));
        }
    }
}

async fn transfer(
    file: &tokio_uring::fs::File,
    direction: Direction,
    offset: u64,
    buf: AlignedBuf,
) -> Transfer {
    let mut progress = TransferProgress::new(direction, buf.len());
    let mut window = Window::new(buf);
    loop {
        window.skip_to(progress.done());
        let at = offset + progress.done() as u64;
        let (part, back) = match direction {
            Direction::Read => file.read_at(window, at).await,
            Direction::Write => file.write_at(window, at).submit().await,
        };
        window = back;
        match progress.advance(part) {
            Ok(false) => {}
            Ok(true) => return (Ok(()), window.buf),
            Err(error) => return (Err(error), window.buf),
        }
    }
}

/// The part of a buffer that remains to be transferred.
struct Window {
    buf: AlignedBuf,
    start: usize,
}

impl Window {
    fn new(buf: AlignedBuf) -> Window {
        Window { buf, start: 0 }
    }

    /// Begins at `start` of the buffer, or at the buffer's end if that comes first.
    fn skip_to(&mut self, start: usize) {
        self.start = start.min(self.buf.len());
    }

    fn len(&self) -> usize {
        (self.buf.len() - self.start).min(PART_BYTES)
    }
}

// SAFETY: the pointer stays valid and in place while `Window` moves, because the blocks are on the
// heap and nothing resizes them; `start <= buf.len()` (`skip_to` sees to it), so `stable_ptr`
// points into the allocation, or to its end with a length of zero; `len` bytes from there are
// inside it, and all are initialised since `AlignedBuf` is made zeroed.
unsafe impl IoBuf for Window {
    fn stable_ptr(&self) -> *const u8 {
        self.buf.as_ptr().wrapping_add(self.start)
    }

    fn bytes_init(&self) -> usize {
        self.len()
    }

    fn bytes_total(&self) -> usize {
        self.len()
    }
}

// SAFETY: as for `IoBuf`; the pointer comes from a unique borrow, and the ring owns `Window` until
// the read ends, so the kernel is the only writer. Any bytes are valid content, so there is nothing
// for `set_init` to record.
unsafe impl IoBufMut for Window {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.buf.as_mut_ptr().wrapping_add(self.start)
    }

    unsafe fn set_init(&mut self, _: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_ends_when_the_last_device_is_gone() {
        let (messages, receiver) = unbounded_channel();
        let (ready, started) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::spawn(move || run(receiver, &ready));
        if started.recv().unwrap().is_ok() {
            let ring = Ring { messages, next_id: AtomicU64::new(0) };
            let device = ring.attach(tempfile::tempfile().unwrap(), 4096);
            drop(ring);
            drop(device.write(0, AlignedBuf::zeroed(4096)));
            drop(device);
        }
        thread.join().unwrap();
    }

    #[test]
    fn a_window_never_reaches_outside_its_buffer() {
        let mut window = Window::new(AlignedBuf::zeroed(8192));
        for (start, left) in [(0, 8192), (4096, 4096), (8192, 0), (usize::MAX, 0)] {
            window.skip_to(start);
            assert_eq!((window.bytes_init(), window.bytes_total()), (left, left));
            assert_eq!(window.stable_ptr() as usize + left, window.buf.as_ptr() as usize + 8192);
        }
    }
}
