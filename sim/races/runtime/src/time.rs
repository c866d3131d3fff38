//! Time that passes only when a test advances it.

use std::cell::RefCell;
use std::ops::{Add, Sub};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

#[derive(Default)]
struct Clock {
    now: Duration,
    asleep: Vec<(Instant, Waker)>,
}

// All tasks of one exploration run on one OS thread.
thread_local! {
    static CLOCK: RefCell<Clock> = RefCell::default();
}

/// A moment, counted from the beginning of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    /// This moment.
    pub fn now() -> Instant {
        CLOCK.with_borrow(|clock| Instant(clock.now))
    }

    /// The time since then.
    pub fn elapsed(&self) -> Duration {
        Instant::now() - *self
    }

    /// The time since an earlier moment; zero for a later one.
    pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, time: Duration) -> Instant {
        Instant(self.0.saturating_add(time))
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

/// Begins a new run.
pub fn reset() {
    CLOCK.take();
}

/// Advances time, and wakes every task whose sleep has ended.
pub fn advance(time: Duration) {
    let woken: Vec<Waker> = CLOCK.with_borrow_mut(|clock| {
        clock.now += time;
        let now = Instant(clock.now);
        clock.asleep.extract_if(.., |(until, _)| *until <= now).map(|(_, waker)| waker).collect()
    });
    woken.into_iter().for_each(Waker::wake);
}

/// Ends when `time` has passed.
pub fn sleep(time: Duration) -> Sleep {
    Sleep(Instant::now() + time)
}

/// See [`sleep`].
#[derive(Debug)]
pub struct Sleep(Instant);

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.0 {
            return Poll::Ready(());
        }
        CLOCK.with_borrow_mut(|clock| clock.asleep.push((self.0, context.waker().clone())));
        Poll::Pending
    }
}
