//! How late the main thread is. It replicates, stores and, on a small machine, serves clients: work
//! that takes long there delays everything.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A delay stays visible for one to two of these.
const DELAY_WINDOW: Duration = Duration::from_secs(10);

/// How late the thread that replicates and stores got to what was due: the longest delay of the
/// last ten to twenty seconds.
#[derive(Default)]
pub(crate) struct Delay {
    windows: Mutex<DelayWindows>,
}

#[derive(Default)]
struct DelayWindows {
    began: Option<Instant>,
    present: Duration,
    before: Duration,
}

impl Delay {
    /// Takes one measurement.
    pub(crate) fn observe(&self, late: Duration) {
        let mut windows = self.windows.lock();
        let now = Instant::now();
        let began = *windows.began.get_or_insert(now);
        if now - began >= DELAY_WINDOW {
            *windows = DelayWindows {
                began: Some(now),
                before: windows.present,
                ..DelayWindows::default()
            };
        }
        windows.present = windows.present.max(late);
    }

    /// The longest delay that is visible.
    pub(crate) fn longest(&self) -> Duration {
        let windows = self.windows.lock();
        windows.present.max(windows.before)
    }
}

/// Measures, each `interval`, how late the thread gets to what is due.
pub(crate) async fn measure(delay: Arc<Delay>, interval: Duration) {
    loop {
        let due = Instant::now() + interval;
        tokio::time::sleep_until(due).await;
        delay.observe(due.elapsed());
    }
}
