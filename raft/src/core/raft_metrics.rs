//! Reads openraft's metrics.
//!
//! openraft publishes its metrics behind a read-write lock, which keeps new readers out while a
//! writer waits. A thread that read them a second time within a first read would wait for the
//! writer, and the writer for the first read: a deadlock. So every read goes through here.
//!
//! What holds here: a thread never reads the metrics within a read.

use super::types::TypeConfig;
use openraft::RaftMetrics;
use openraft::alias::WatchReceiverOf;
use openraft::async_runtime::WatchReceiver;
use openraft::storage::RaftStateMachine;
use std::cell::Cell;
use std::sync::{Arc, OnceLock};

/// openraft's metrics, as a channel that can be watched.
pub(crate) type Metrics = WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>;

/// openraft's metrics for parts that are made before openraft, which publishes none until then.
/// Clones share them.
#[derive(Clone, Default)]
pub(crate) struct LateMetrics(Arc<OnceLock<Metrics>>);

impl LateMetrics {
    /// openraft has started.
    pub(crate) fn set(&self, metrics: Metrics) {
        self.0.set(metrics).ok();
    }

    /// As [`read_metrics`]; `None` until openraft runs.
    pub(crate) fn read_metrics<T>(
        &self,
        see: impl FnOnce(&RaftMetrics<TypeConfig>) -> T,
    ) -> Option<T> {
        self.0.get().map(|metrics| read_metrics(metrics, see))
    }
}

thread_local! {
    static READING: Cell<bool> = const { Cell::new(false) };
}

/// Set while this thread reads the metrics, and cleared by a panic too.
struct ReadGuard;

impl ReadGuard {
    fn begin() -> ReadGuard {
        assert!(!READING.replace(true), "reading the metrics within a read may deadlock");
        ReadGuard
    }
}

impl Drop for ReadGuard {
    fn drop(&mut self) {
        READING.set(false);
    }
}

/// Calls `see` with the present metrics. `see` must not wait for anything: openraft waits until it
/// returns.
pub(crate) fn read_metrics<T>(
    metrics: &Metrics,
    see: impl FnOnce(&RaftMetrics<TypeConfig>) -> T,
) -> T {
    let _guard = ReadGuard::begin();
    #[expect(clippy::disallowed_methods, reason = "the one place that borrows")]
    let seen = metrics.borrow_watched();
    see(&seen)
}

/// As [`read_metrics`], once.
pub(crate) fn with_metrics<M: RaftStateMachine<TypeConfig>, T>(
    raft: &openraft::Raft<TypeConfig, M>,
    see: impl FnOnce(&RaftMetrics<TypeConfig>) -> T,
) -> T {
    read_metrics(&raft.metrics(), see)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::runtime;

    #[test]
    fn a_read_within_a_read_panics_and_the_next_read_works() {
        let (_sender, metrics) =
            runtime::watch(RaftMetrics::new_initial(crate::NodeId::from_u64(1)));
        let nested = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            read_metrics(&metrics, |_| read_metrics(&metrics, |inner| inner.current_term))
        }));
        assert!(nested.is_err());
        assert_eq!(read_metrics(&metrics, |metrics| metrics.current_term), 0);
    }
}
