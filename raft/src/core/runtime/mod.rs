//! The runtime under openraft: tokio's, or the simulation's.
//!
//! In the simulation, tokio's watch channel and thread-local randomness would make runs differ. So
//! this module chooses each part separately. Each node's clock can run at its own rate.
//!
//! What holds here: everything in this crate that waits or reads the time does so through this
//! module.

use openraft_rt::{AsyncRuntime, Instant as _, Watch};
use std::future::Future;
use std::time::Duration;

#[cfg(madsim)]
pub(crate) mod simulated;

#[cfg(not(madsim))]
pub(crate) use openraft_rt_tokio::TokioRuntime as Runtime;
#[cfg(madsim)]
pub(crate) use simulated::SimulatedRuntime as Runtime;

/// A point on this node's clock.
pub(crate) type Instant = <Runtime as AsyncRuntime>::Instant;

/// Now, on this node's clock.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Waits on this node's clock.
pub(crate) async fn sleep(duration: Duration) {
    Runtime::sleep(duration).await;
}

/// `None` when `future` takes longer than `duration` on this node's clock.
pub(crate) async fn timeout<F: Future + Send>(duration: Duration, future: F) -> Option<F::Output> {
    Runtime::timeout(duration, future).await.ok()
}

pub(crate) type WatchSender<T> = <<Runtime as AsyncRuntime>::Watch as Watch>::Sender<T>;
pub(crate) type WatchReceiver<T> = <<Runtime as AsyncRuntime>::Watch as Watch>::Receiver<T>;

/// A value that can be watched. It wakes waiters in an order that a simulation can repeat.
pub(crate) fn watch<T: Send + Sync + 'static>(value: T) -> (WatchSender<T>, WatchReceiver<T>) {
    <Runtime as AsyncRuntime>::Watch::channel(value)
}

/// Spawns a detached task.
pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    drop(Runtime::spawn(future));
}
