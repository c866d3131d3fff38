//! What the engine uses of tokio, with shuttle's scheduler beneath it: each task is a thread of its own that may be stopped
//! wherever a lock is taken or let go, and wherever it waits.
//!
//! What holds here:
//! - tokio's own channels, notifications and locks stand behind the same names. They need no runtime: they wake who waits. One
//!   call of them is one step, and nothing comes in its middle;
//! - atomics are the real ones, and no place to be stopped: what lies between two locks is one step;
//! - time passes only when [`time::advance`] says so. Where nobody can go on, and no time passes, somebody waits for ever: shuttle
//!   calls that a deadlock.

pub mod time;

pub use real_tokio::{select, sync};

use shuttle::future::JoinHandle;

/// Runs a task beside the others.
pub fn spawn<F>(task: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    shuttle::future::spawn(task)
}
