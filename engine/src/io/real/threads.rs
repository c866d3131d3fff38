//! `pread` and `pwrite` on a pool of threads, for where io_uring is forbidden, as in many containers.
//!
//! One queue per directory, first in, first out, without a bound: what bounds it is the engine's own window. An
//! operation in the queue holds its file, so the file is closed, and its lock released, when its device is dropped and
//! its last operation has ended. The threads end when the directory and all its devices are gone and the queue is empty.

use super::device::{FileDevice, Progress, Request, Submit};
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
struct Waiting {
    jobs: VecDeque<Job>,
    closed: bool,
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Queue {
    /// One thread's work, until there will be no more.
    fn serve(&self) {
        while let Some(Job { file, request }) = self.next() {
            operate(file, request);
        }
    }

    /// The next job; `None` when there will be no more.
    fn next(&self) -> Option<Job> {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(job) = waiting.jobs.pop_front() {
                return Some(job);
            }
            if waiting.closed {
                return None;
            }
            self.changed.wait(&mut waiting);
        }
    }
}

/// The only owner that keeps the threads alive; they themselves hold just the queue.
struct Owner(Arc<Queue>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.waiting.lock().closed = true;
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
    /// The system's error if a thread cannot be made.
    pub(super) fn start() -> io::Result<Pool> {
        let queue = Arc::new(Queue::default());
        let owner = Arc::new(Owner(Arc::clone(&queue)));
        for number in 0..THREADS {
            let queue = Arc::clone(&queue);
            std::thread::Builder::new().name(format!("cairn-io-{number}")).spawn(move || queue.serve())?;
        }
        Ok(Pool { owner })
    }

    /// Makes a device of an open file of `size` bytes.
    pub(super) fn attach(&self, file: File, size: u64) -> Arc<dyn Device> {
        Arc::new(FileDevice::new(size, PoolFile { file: Arc::new(file), owner: Arc::clone(&self.owner) }))
    }
}

struct PoolFile {
    file: Arc<File>,
    owner: Arc<Owner>,
}

impl Submit for PoolFile {
    fn submit(&self, request: Request) {
        let queue = &self.owner.0;
        queue.waiting.lock().jobs.push_back(Job { file: Arc::clone(&self.file), request });
        queue.changed.notify_one();
    }
}

/// Does one operation, lets go of the file, and reports.
fn operate(file: Arc<File>, request: Request) {
    match request {
        Request::Read { offset, mut buf, reply } => {
            let result = read(&file, offset, &mut buf);
            drop(file);
            drop(reply.send((result, buf)));
        }
        Request::Write { offset, buf, reply } => {
            let result = write(&file, offset, &buf);
            drop(file);
            drop(reply.send((result, buf)));
        }
        Request::Sync { reply } => {
            // `sync_data` of std tries again after an interruption, which a signal may cause before any page is
            // written; a failed write-back is never reported as one.
            let result = file.sync_data();
            drop(file);
            drop(reply.send(result));
        }
    }
}

fn read(file: &File, offset: u64, buf: &mut AlignedBuf) -> io::Result<()> {
    let mut progress = Progress::new(buf.len());
    loop {
        let rest = buf.get_mut(progress.done()..).unwrap_or_default();
        let part = file.read_at(rest, offset + progress.done() as u64);
        if progress.advance(part, io::ErrorKind::UnexpectedEof)? {
            return Ok(());
        }
    }
}

/// Writes all of `buf`, whole blocks, at `offset`.
pub(super) fn write(file: &File, offset: u64, buf: &AlignedBuf) -> io::Result<()> {
    let mut progress = Progress::new(buf.len());
    loop {
        let rest = buf.get(progress.done()..).unwrap_or_default();
        let part = file.write_at(rest, offset + progress.done() as u64);
        if progress.advance(part, io::ErrorKind::WriteZero)? {
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
