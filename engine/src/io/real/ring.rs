//! io_uring: one ring per directory, and the loop that fills and empties it.
//!
//! A call of a device's method puts the operation into a queue and wakes the loop. The loop hands
//! over to the kernel what was queued since its last turn, with one system call, and sends the
//! results of what has completed. It runs as a task of the caller's runtime, so that a write that
//! begins on the thread of that runtime costs no switch to another thread; or on a thread of its
//! own, where the caller has none.
//!
//! What holds here:
//! - At most [`DEPTH`] operations are in the ring; the others wait in the queue.
//! - An operation holds its file and its buffer until the kernel has completed it
//!   ([`operation`]). A loop that ends earlier, because its runtime ends, gives up the buffers for
//!   good: the kernel may still write into them.
//! - A file is closed, and its lock released, when its device is dropped and its last operation has
//!   ended. The loop ends when the directory and all its devices are dropped.

mod operation;

use super::device::{FileDevice, Request, Submit, has_no_room};
use crate::io::{AlignedBuf, Device};
use io_uring::{IoUring, cqueue, opcode, types};
use operation::{InFlight, Operation, never_began};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Operations in flight, and entries of the ring.
const DEPTH: usize = 256;

/// The most completions of one turn. Those that wait for them begin their next operations before
/// the turn after it, so that the device is not idle while a hundred of them are served.
const TURN: usize = 16;

/// How often a start tries to have a first worker. A signal that is pending meanwhile ends one try.
const WORKER_TRIES: usize = 8;

/// A handle on the loop. The loop ends after its last handle and its last file are dropped.
pub(super) struct Ring {
    owner: Arc<Owner>,
}

/// Keeps the loop running. The loop itself holds only the queue.
struct Owner(Arc<Mutex<Queue>>);

impl Drop for Owner {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.closed = true;
        queue.wake();
    }
}

/// Operations that are not in the ring yet.
#[derive(Default)]
struct Queue {
    operations: VecDeque<(Arc<File>, Request)>,
    /// Of the loop, while it waits.
    waker: Option<Waker>,
    /// No operation can come any more.
    closed: bool,
    /// The loop has ended, with its runtime.
    ended: bool,
}

impl Queue {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Ring {
    /// Makes a ring that has completed one read and one sync, and its loop. The caller runs [`RingLoop::run`].
    ///
    /// # Errors
    /// The system's error, if io_uring is forbidden or absent, or can make no worker.
    pub(super) fn new() -> io::Result<(Ring, RingLoop)> {
        let mut ring = build()?;
        try_read(&mut ring)?;
        try_sync(&mut ring)?;
        let queue = Arc::new(Mutex::new(Queue::default()));
        let owner = Arc::new(Owner(queue.clone()));
        let (taken, in_flight) = (VecDeque::new(), InFlight::default());
        Ok((Ring { owner }, RingLoop { ring, queue, taken, in_flight }))
    }

    /// The same, with the loop on a thread of its own.
    ///
    /// # Errors
    /// The same, or that of starting the thread.
    pub(super) fn start() -> io::Result<Ring> {
        let (ring, ring_loop) = Ring::new()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new()
            .name("cairn-uring".to_owned())
            .spawn(move || runtime.block_on(ring_loop.run()))?;
        Ok(ring)
    }

    /// Makes a device of an open file of `size` bytes.
    pub(super) fn attach(&self, file: File, size: u64) -> Arc<dyn Device> {
        let owner = Arc::clone(&self.owner);
        Arc::new(FileDevice::new(size, RingFile { file: Arc::new(file), owner }))
    }
}

struct RingFile {
    file: Arc<File>,
    owner: Arc<Owner>,
}

impl Submit for RingFile {
    fn submit(&self, request: Request) {
        let mut queue = self.owner.0.lock();
        if !queue.ended {
            queue.operations.push_back((Arc::clone(&self.file), request));
            queue.wake();
        }
    }
}

/// A ring. Completions do not interrupt the thread where the kernel can avoid that: they are
/// noticed at its next system call, at the latest when it waits.
fn build() -> io::Result<IoUring> {
    let cooperative = IoUring::builder().setup_coop_taskrun().build(DEPTH as u32);
    cooperative.or_else(|_| IoUring::new(DEPTH as u32))
}

/// Tries one read: a kernel or a filter may allow the ring and refuse the operations.
fn try_read(ring: &mut IoUring) -> io::Result<()> {
    let zeros = File::open("/dev/zero")?;
    let mut buf = AlignedBuf::zeroed(1);
    let len = buf.len() as u32;
    let read = opcode::Read::new(types::Fd(zeros.as_raw_fd()), buf.as_mut_ptr(), len).build();
    // SAFETY: file and buffer outlive the operation: this function waits for it. If waiting fails,
    // neither is dropped.
    let (zeros, buf) = (ManuallyDrop::new(zeros), ManuallyDrop::new(buf));
    unsafe { ring.submission().push(&read) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    let done = ring.completion().next().ok_or_else(|| io::Error::other("no completion"))?;
    drop((ManuallyDrop::into_inner(zeros), ManuallyDrop::into_inner(buf)));
    result_of(&done).map(drop)
}

/// Tries one sync, which no kernel does without a worker. So the thread's first worker is made before anything depends on
/// it. Where none can be made at all, for instance because the user has too many processes, io_uring is of no use.
fn try_sync(ring: &mut IoUring) -> io::Result<()> {
    let zeros = File::open("/dev/zero")?;
    let sync = opcode::Fsync::new(types::Fd(zeros.as_raw_fd())).build();
    for _ in 0..WORKER_TRIES {
        // SAFETY: the operation has no buffer. The kernel has a reference of its own to the file once it has the entry,
        // and until then the file is open: an entry that the kernel did not take is gone with the ring, which the
        // caller drops after an error.
        unsafe { ring.submission().push(&sync) }.map_err(io::Error::other)?;
        let done = loop {
            // A signal ends the wait, and not the operation.
            if let Err(error) = ring.submit_and_wait(1)
                && error.kind() != io::ErrorKind::Interrupted
            {
                return Err(error);
            }
            if let Some(done) = ring.completion().next() {
                break done;
            }
        };
        match result_of(&done) {
            Err(error) if never_began(&error) => {}
            // This file cannot be synced, as a worker has found.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(()),
            result => return result.map(drop),
        }
    }
    Err(io::Error::other(
        "the kernel makes no worker for it: raise the user's limit of processes (RLIMIT_NPROC, TasksMax)",
    ))
}

fn result_of(completion: &cqueue::Entry) -> io::Result<usize> {
    usize::try_from(completion.result())
        .map_err(|_| io::Error::from_raw_os_error(-completion.result()))
}

/// The ring and what is in it.
pub(super) struct RingLoop {
    ring: IoUring,
    queue: Arc<Mutex<Queue>>,
    /// Taken from the queue, and not in the ring yet.
    taken: VecDeque<(Arc<File>, Request)>,
    in_flight: InFlight,
}

impl Drop for RingLoop {
    fn drop(&mut self) {
        let waiting = {
            let mut queue = self.queue.lock();
            queue.ended = true;
            std::mem::take(&mut queue.operations)
        };
        drop(waiting);
        std::mem::take(&mut self.in_flight).give_up();
    }
}

impl RingLoop {
    /// Serves until no operation can come and none is in flight. Runs inside a tokio runtime with
    /// I/O.
    pub(super) async fn run(mut self) {
        let completions = match self.completions() {
            Ok(completions) => completions,
            // The queue ends with the loop: every operation reports that the loop is gone.
            Err(error) => return tracing::error!(%error, "the io_uring loop cannot wait"),
        };
        std::future::poll_fn(|context| self.turn(&completions, context)).await;
    }

    /// The ring's descriptor, to wait for completions.
    fn completions(&self) -> io::Result<AsyncFd<OwnedFd>> {
        let descriptor = self.ring.as_fd().try_clone_to_owned()?;
        // SAFETY: it owns the descriptor.
        Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?)
    }

    /// One turn: what completed is answered, what was queued goes to the kernel.
    fn turn(&mut self, completions: &AsyncFd<OwnedFd>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let (continued, mut later) = self.complete();
            let (started, closed) = self.start(context);
            if closed && self.in_flight.len() == 0 {
                return Poll::Ready(());
            }
            if !self.ring.submission().is_empty() {
                match self.submit() {
                    Ok(all) => later |= !all,
                    Err(error) => {
                        tracing::error!(%error, "io_uring does not accept operations any more");
                        return Poll::Ready(());
                    }
                }
            }
            if later {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if continued || started {
                // A write that needs no waiting is complete already.
                continue;
            }
            match completions.poll_read_ready(context) {
                Poll::Ready(Ok(mut ready)) => ready.clear_ready(),
                Poll::Ready(Err(error)) => {
                    tracing::error!(%error, "the io_uring loop cannot wait");
                    return Poll::Ready(());
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Fills the submission queue. Returns whether it put anything in, and whether no operation can
    /// come any more. An operation that is queued later wakes the task.
    fn start(&mut self, context: &mut Context<'_>) -> (bool, bool) {
        let closed = {
            let mut queue = self.queue.lock();
            if self.taken.is_empty() {
                std::mem::swap(&mut self.taken, &mut queue.operations);
            }
            if !queue.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                queue.waker = Some(context.waker().clone());
            }
            queue.closed && queue.operations.is_empty()
        };
        let mut started = false;
        while self.in_flight.len() < DEPTH
            && let Some((file, request)) = self.taken.pop_front()
        {
            let slot = self.in_flight.free_slot();
            self.push(slot, Operation::new(file, request));
            started = true;
        }
        (started, closed && self.taken.is_empty())
    }

    /// Puts an operation into its slot and into the submission queue, which has an entry for each
    /// slot.
    fn push(&mut self, slot: usize, mut operation: Operation) {
        let entry = operation.entry(slot);
        self.in_flight.put(slot, operation);
        // SAFETY: the operation with its file and its buffer stays in `in_flight` until its
        // completion is taken from the ring; if the loop is dropped before, the buffer is never
        // freed. The buffer's bytes are on the heap and do not move with it, and nothing else
        // refers to them meanwhile.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "the ring has fewer entries than slots");
    }

    /// Hands the submission queue to the kernel. Returns whether that took all of it: if not, it has no
    /// memory for more operations now, or no space for their completions.
    fn submit(&mut self) -> io::Result<bool> {
        loop {
            match self.ring.submit() {
                // The kernel may take some of them only.
                Ok(_) if self.ring.submission().is_empty() => return Ok(true),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error)
                    if matches!(Errno::from_io_error(&error), Some(Errno::AGAIN | Errno::BUSY)) =>
                {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes completions and answers their operations. Returns whether it put the rest of any into
    /// the submission queue, and whether others should run first: there are more completions, or the
    /// kernel had no room or no worker.
    fn complete(&mut self) -> (bool, bool) {
        let (mut continued, mut later) = (Vec::new(), false);
        let (_, _, mut completions) = self.ring.split();
        for completion in completions.by_ref().take(TURN) {
            let slot = completion.user_data() as usize;
            let operation = self.in_flight.take(slot);
            let result = result_of(&completion);
            later |= result.as_ref().is_err_and(|error| has_no_room(error) || never_began(error));
            if let Some(rest) = operation.and_then(|it| it.advance(result)) {
                continued.push(rest);
            }
        }
        later |= !completions.is_empty();
        drop(completions);
        let continues = !continued.is_empty();
        for operation in continued {
            let slot = self.in_flight.free_slot();
            self.push(slot, operation);
        }
        (continues, later)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn ring() -> Option<(Ring, RingLoop)> {
        let ring = Ring::new();
        let allowed = ring.is_ok();
        assert!(allowed || Ring::start().is_err());
        ring.ok()
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn the_loop_ends_when_the_last_device_is_gone() {
        let Some((ring, ring_loop)) = ring() else { return };
        let thread = std::thread::spawn(move || runtime().block_on(ring_loop.run()));
        let device = ring.attach(tempfile::tempfile().unwrap(), 4096);
        drop(ring);
        drop(device.write(0, AlignedBuf::zeroed(4096)));
        drop(device);
        thread.join().unwrap();
    }

    #[test]
    fn a_loop_as_a_task_needs_no_other_thread() {
        let Some((ring, ring_loop)) = ring() else { return };
        let written = runtime().block_on(async {
            tokio::spawn(ring_loop.run());
            let device = ring.attach(tempfile::tempfile().unwrap(), 1 << 20);
            let writes = (0..1000).map(|i| device.write(i % 256 * 4096, AlignedBuf::zeroed(4096)));
            let written = futures::future::join_all(writes);
            // The limit only turns a hang into a failure.
            let written = tokio::time::timeout(Duration::from_secs(60), written).await.unwrap();
            device.sync().await.unwrap();
            written
        });
        assert!(written.iter().all(|(result, buf)| result.is_ok() && buf.len() == 4096));
    }

    /// An operation must not wait forever for a loop that its runtime has dropped.
    #[test]
    fn operations_end_with_an_error_when_the_runtime_ends() {
        let Some((ring, ring_loop)) = ring() else { return };
        let device = ring.attach(tempfile::tempfile().unwrap(), 4096);
        let before = device.write(0, AlignedBuf::zeroed(4096));
        let runtime = runtime();
        drop(runtime.spawn(ring_loop.run()));
        drop(runtime);
        for operation in [before, device.write(0, AlignedBuf::zeroed(4096))] {
            let error = futures::executor::block_on(operation).0.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        }
    }
}
