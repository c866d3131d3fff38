//! The parts of tokio that the engine uses, on shuttle's scheduler: each task is a thread of its
//! own that may be stopped wherever a lock is taken or released, and wherever it waits.
//!
//! What holds here:
//! - tokio's own channels, notifications and locks are used under the same names. They need no
//!   runtime, since they wake their waiters directly. One call of them is one step that no other
//!   thread interrupts.
//! - Atomics are the real ones, and a thread is not stopped at them: the code between two locks is
//!   one step.
//! - Time passes only with [`time::advance`]. If no thread can continue and no time passes, a
//!   thread waits forever: shuttle reports that as a deadlock.

pub mod task;
pub mod time;

pub use real_tokio::{io, runtime, select, sync};

use shuttle::future::JoinHandle;

/// Spawns a task beside the others.
pub fn spawn<F>(task: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    shuttle::future::spawn(task)
}
