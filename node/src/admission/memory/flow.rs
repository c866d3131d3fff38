//! The flow of one connection: what its client took, and whether the node closes it.
//!
//! What holds here: whoever closes or ends it wakes its task.

use futures::task::AtomicWaker;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;

/// The state of a connection as its requests see it: how much its client took, whether the node
/// closes it, and whether one of its streams is open.
#[derive(Default)]
pub struct ConnectionFlow {
    /// A stream is open that is not charged: each connection may have one.
    streams: AtomicBool,
    written: AtomicU64,
    closed: AtomicBool,
    ended: AtomicBool,
    task: AtomicWaker,
}

impl ConnectionFlow {
    /// Counts bytes that the kernel took, and returns their number.
    pub fn counted(&self, bytes: usize) -> usize {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
        bytes
    }

    /// Bytes that it took so far.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Takes the one stream that a connection may have without a charge. `false`: it is open.
    pub fn open_stream(&self) -> bool {
        !self.streams.swap(true, Ordering::AcqRel)
    }

    /// Gives it back.
    pub fn close_stream(&self) {
        self.streams.store(false, Ordering::Release);
    }

    /// Closes the connection: wakes its task, whose next poll ends the connection.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.task.wake();
    }

    /// Ends the connection: wakes its task, which reads the end of the client's side.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.task.wake();
    }

    /// Whether nothing more is to be read.
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Whether the connection is to end.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// The same. If it is open, closing it wakes `task`.
    pub fn poll_closed(&self, task: &Waker) -> bool {
        self.task.register(task);
        self.is_closed()
    }
}
