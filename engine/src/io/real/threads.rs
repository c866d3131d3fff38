//! `pread` and `pwrite` on a pool of threads, for systems where io_uring is forbidden, as in many
//! containers.
//!
//! One unbounded queue per directory, first in, first out; the engine's own limits bound it. An
//! operation in the queue holds its file, so the file is closed, and its lock released, when its
//! device is dropped and its last operation has ended. The threads end when the directory and all
//! its devices are dropped and the queue is empty.

use super::device::{Direction, FileDevice, Request, Submit, TransferProgress};
use crate::io::{AlignedBuf, Device};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Threads per directory, and so the depth at the device.
const THREADS: usize = 8;

struct Job {
    file: Arc<File>,
    request: Request,
}

#[derive(Default)]
struct QueuedJobs {
    jobs: VecDeque<Job>,
    closed: bool,
}

#[derive(Default)]
struct Queue {
    queued: Mutex<QueuedJobs>,
    changed: Condvar,
}

impl Queue {
    /// The work of one thread, until no job can come.
    fn serve(&self) {
        while let Some(Job { file, request }) = self.next() {
            operate(file, request);
        }
    }

    /// The next job; `None` when no job can come any more.
    fn next(&self) -> Option<Job> {
        let mut queued = self.queued.lock();
        loop {
            if let Some(job) = queued.jobs.pop_front() {
                return Some(job);
            }
            if queued.closed {
                return None;
            }
            self.changed.wait(&mut queued);
        }
    }
}

/// The owner that keeps the threads running. The threads hold only the queue.
struct Owner(Arc<Queue>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.queued.lock().closed = true;
        self.0.changed.notify_all();
    }
}

/// A handle on the pool.
pub(super) struct Pool {
    owner: Arc<Owner>,
}

impl Pool {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system's error, if a thread cannot be created.
    pub(super) fn start() -> io::Result<Pool> {
        let queue = Arc::new(Queue::default());
        let owner = Arc::new(Owner(Arc::clone(&queue)));
        for number in 0..THREADS {
            let queue = Arc::clone(&queue);
            std::thread::Builder::new()
                .name(format!("cairn-io-{number}"))
                .spawn(move || queue.serve())?;
        }
        Ok(Pool { owner })
    }

    /// Makes a device of an open file of `size` bytes.
    pub(super) fn attach(&self, file: File, size: u64) -> Arc<dyn Device> {
        Arc::new(FileDevice::new(
            size,
            PoolFile { file: Arc::new(file), owner: Arc::clone(&self.owner) },
        ))
    }
}

struct PoolFile {
    file: Arc<File>,
    owner: Arc<Owner>,
}

impl Submit for PoolFile {
    fn submit(&self, request: Request) {
        let queue = &self.owner.0;
        queue.queued.lock().jobs.push_back(Job { file: Arc::clone(&self.file), request });
        queue.changed.notify_one();
    }
}

/// Does one operation, releases the file, and sends the result.
fn operate(file: Arc<File>, request: Request) {
    match request {
        Request::Transfer { direction, offset, mut buf, reply } => {
            let result = transfer(&file, direction, offset, &mut buf);
            drop(file);
            drop(reply.send((result, buf)));
        }
        Request::Sync { reply } => {
            // `sync_data` of std retries after an interruption. A signal may cause one before any
            // page is written; a failed write-back is never reported as one.
            let result = file.sync_data();
            drop(file);
            drop(reply.send(result));
        }
    }
}

/// Reads or writes all of `buf`, whole blocks, at `offset`.
pub(super) fn transfer(
    file: &File,
    direction: Direction,
    offset: u64,
    buf: &mut AlignedBuf,
) -> io::Result<()> {
    let mut progress = TransferProgress::new(direction, buf.len());
    loop {
        let rest = buf.get_mut(progress.done()..).unwrap_or_default();
        let at = offset + progress.done() as u64;
        let part = match direction {
            Direction::Read => file.read_at(rest, at),
            Direction::Write => file.write_at(rest, at),
        };
        if progress.advance(part)? {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_ends_when_the_last_device_is_gone() {
        let queue = Arc::new(Queue::default());
        let pool = Pool { owner: Arc::new(Owner(Arc::clone(&queue))) };
        let thread = std::thread::spawn(move || queue.serve());
        let device = pool.attach(tempfile::tempfile().unwrap(), 4096);
        drop(pool);
        drop(device.write(0, AlignedBuf::zeroed(4096)));
        drop(device);
        thread.join().unwrap();
    }
}
