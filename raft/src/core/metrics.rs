//! Looks at what openraft says of itself.
//!
//! What openraft publishes stands behind a read-write lock, which keeps new readers out while a writer waits. Whoever looked a
//! second time within a first look would wait for the writer, and the writer for the first look: the replica would stand still
//! for ever. So every look goes through here.
//!
//! What holds here: a thread does not look while it looks.

use super::types::TypeConfig;
use openraft::RaftMetrics;
use openraft::alias::WatchReceiverOf;
use openraft::async_runtime::WatchReceiver;
use openraft::storage::RaftStateMachine;
use std::cell::Cell;
use std::sync::{Arc, OnceLock};

/// What changes whenever openraft does.
pub(crate) type Metrics = WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>;

/// openraft's metrics, for those that are made before openraft, which publishes none until then. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct LateMetrics(Arc<OnceLock<Metrics>>);

impl LateMetrics {
    /// openraft runs from now on.
    pub(crate) fn set(&self, metrics: Metrics) {
        self.0.set(metrics).ok();
    }

    /// As [`look`]; `None` until openraft runs.
    pub(crate) fn look<T>(&self, see: impl FnOnce(&RaftMetrics<TypeConfig>) -> T) -> Option<T> {
        self.0.get().map(|metrics| look(metrics, see))
    }
}

thread_local! {
    static LOOKS: Cell<bool> = const { Cell::new(false) };
}

/// Set while this thread looks, also where that ends by a panic.
struct Looking;

impl Looking {
    fn begin() -> Looking {
        assert!(!LOOKS.replace(true), "a look within a look may wait for ever");
        Looking
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        LOOKS.set(false);
    }
}

/// What `see` makes of the metrics as they are now. It must wait for nothing: openraft waits for its end.
pub(crate) fn look<T>(metrics: &Metrics, see: impl FnOnce(&RaftMetrics<TypeConfig>) -> T) -> T {
    let _looking = Looking::begin();
    #[expect(clippy::disallowed_methods, reason = "the one place that borrows")]
    let seen = metrics.borrow_watched();
    see(&seen)
}

/// As [`look`], once.
pub(crate) fn look_at<M: RaftStateMachine<TypeConfig>, T>(
    raft: &openraft::Raft<TypeConfig, M>,
    see: impl FnOnce(&RaftMetrics<TypeConfig>) -> T,
) -> T {
    look(&raft.metrics(), see)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::runtime;

    #[test]
    fn a_look_within_a_look_is_refused_and_the_next_one_is_not() {
        let (_sender, metrics) = runtime::watch(RaftMetrics::new_initial(crate::NodeId::from_u64(1)));
        let nested = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            look(&metrics, |_| look(&metrics, |inner| inner.current_term))
        }));
        assert!(nested.is_err());
        assert_eq!(look(&metrics, |metrics| metrics.current_term), 0);
    }
}
