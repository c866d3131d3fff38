//! Requests under way: each from its arrival until the kernel has taken the last byte of its answer.
//! A clean stop waits for them. It does not wait for streams on which nothing is under way, for scans and backups that
//! have begun, nor for connections that are silent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

/// Counts them. Clones share the count.
#[derive(Clone, Default)]
pub(super) struct UnderWay(Arc<Count>);

#[derive(Default)]
struct Count {
    requests: AtomicUsize,
    none: Notify,
}

/// One of them. Ends when it is dropped.
pub(super) struct Request(Arc<Count>);

impl UnderWay {
    pub(super) fn begin(&self) -> Request {
        self.0.requests.fetch_add(1, Ordering::SeqCst);
        Request(Arc::clone(&self.0))
    }

    /// Returns when none is under way. May be cancelled.
    pub(super) async fn none(&self) {
        loop {
            let mut ended = std::pin::pin!(self.0.none.notified());
            // Before the count is read: the last one may end in between.
            ended.as_mut().enable();
            if self.0.requests.load(Ordering::SeqCst) == 0 {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.0.requests.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.none.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn a_stop_waits_until_the_last_request_has_ended() {
        let all = UnderWay::default();
        assert!(all.none().now_or_never().is_some());
        let (one, other) = (all.begin(), all.clone().begin());
        let mut none = Box::pin(all.none());
        assert!(none.as_mut().now_or_never().is_none());
        drop(one);
        assert!(none.as_mut().now_or_never().is_none());
        drop(other);
        assert!(none.as_mut().now_or_never().is_some());
    }
}
