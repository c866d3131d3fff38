//! openraft's runtime over madsim.

use madsim::rand::RngCore;
use madsim::task::NodeId;
use madsim::time::TimeHandle;
use openraft_rt::{AsyncRuntime, OptionalSend};
use openraft_rt_sim::SimWatch;
use openraft_rt_tokio::{TokioMpsc, TokioMutex, TokioOneshot};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

const PARTS: u128 = 1_000_000;

/// A node's clock: at `real_base` of simulated time it showed `shown_base`, and it has run at
/// `rate` since.
#[derive(Clone, Copy)]
struct Clock {
    real_base: Duration,
    shown_base: Duration,
    rate: u32,
}

thread_local! {
    // A simulation runs on one thread.
    static CLOCKS: RefCell<BTreeMap<NodeId, Clock>> = const { RefCell::new(BTreeMap::new()) };
}

impl Clock {
    const TRUE: Clock =
        Clock { real_base: Duration::ZERO, shown_base: Duration::ZERO, rate: PARTS as u32 };

    fn of(node: NodeId) -> Clock {
        CLOCKS.with_borrow(|clocks| clocks.get(&node).copied().unwrap_or(Clock::TRUE))
    }

    fn here() -> Clock {
        Clock::of(madsim::plugin::node())
    }

    fn shown(self, real: Duration) -> Duration {
        self.shown_base + scale(real.saturating_sub(self.real_base), u128::from(self.rate), PARTS)
    }

    fn real(self, shown: Duration) -> Duration {
        scale(shown, PARTS, u128::from(self.rate))
    }
}

fn scale(duration: Duration, by: u128, per: u128) -> Duration {
    let nanos = duration.as_nanos().saturating_mul(by) / per;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// From now on `node`'s clock runs at `parts_per_million` of the true rate: 1,000,000 is true,
/// more is fast. Zero counts as one.
pub fn set_clock_rate(node: NodeId, parts_per_million: u32) {
    let real_base = TimeHandle::current().elapsed();
    let shown_base = Clock::of(node).shown(real_base);
    let clock = Clock { real_base, shown_base, rate: parts_per_million.max(1) };
    CLOCKS.with_borrow_mut(|clocks| clocks.insert(node, clock));
}

/// Call this when a simulation begins, since clocks belong to the thread.
pub(crate) fn forget_earlier_run() {
    CLOCKS.with_borrow_mut(BTreeMap::clear);
}

/// What a node's clock shows, since the simulation began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SimulatedInstant(Duration);

impl openraft_rt::Instant for SimulatedInstant {
    fn now() -> Self {
        SimulatedInstant(Clock::here().shown(TimeHandle::current().elapsed()))
    }
}

impl Add<Duration> for SimulatedInstant {
    type Output = Self;
    fn add(self, by: Duration) -> Self {
        SimulatedInstant(self.0.saturating_add(by))
    }
}

impl AddAssign<Duration> for SimulatedInstant {
    fn add_assign(&mut self, by: Duration) {
        *self = *self + by;
    }
}

impl Sub<Duration> for SimulatedInstant {
    type Output = Self;
    fn sub(self, by: Duration) -> Self {
        SimulatedInstant(self.0.saturating_sub(by))
    }
}

impl SubAssign<Duration> for SimulatedInstant {
    fn sub_assign(&mut self, by: Duration) {
        *self = *self - by;
    }
}

impl Sub<SimulatedInstant> for SimulatedInstant {
    type Output = Duration;
    fn sub(self, other: Self) -> Duration {
        self.0.saturating_sub(other.0)
    }
}

/// madsim's randomness, in the shape that openraft's version of `rand` expects.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimulatedRng;

impl rand::TryRng for SimulatedRng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(madsim::rand::thread_rng().next_u32())
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(madsim::rand::thread_rng().next_u64())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        madsim::rand::thread_rng().fill_bytes(bytes);
        Ok(())
    }
}

/// A timeout elapsed.
#[derive(Debug, thiserror::Error)]
#[error("the time was up")]
pub struct Elapsed;

/// A future with a timeout.
pub struct Timeout<F> {
    future: Pin<Box<F>>,
    sleep: Pin<Box<madsim::time::Sleep>>,
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = self.future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        self.sleep.as_mut().poll(context).map(|()| Err(Elapsed))
    }
}

/// openraft's runtime over madsim.
#[derive(Debug)]
pub struct SimulatedRuntime;

impl AsyncRuntime for SimulatedRuntime {
    type JoinError = madsim::task::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = madsim::task::JoinHandle<T>;
    type Sleep = madsim::time::Sleep;
    type Instant = SimulatedInstant;
    type TimeoutError = Elapsed;
    type Timeout<R, F: Future<Output = R> + OptionalSend> = Timeout<F>;
    type ThreadLocalRng = SimulatedRng;
    type Mpsc = TokioMpsc;
    type Watch = SimWatch;
    type Oneshot = TokioOneshot;
    type Mutex<T: OptionalSend + 'static> = TokioMutex<T>;

    #[track_caller]
    fn spawn<F>(future: F) -> Self::JoinHandle<F::Output>
    where
        F: Future + OptionalSend + 'static,
        F::Output: OptionalSend + 'static,
    {
        madsim::task::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        madsim::time::sleep(Clock::here().real(duration))
    }

    fn sleep_until(deadline: SimulatedInstant) -> Self::Sleep {
        let now = <SimulatedInstant as openraft_rt::Instant>::now();
        Self::sleep(deadline - now)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        Timeout { future: Box::pin(future), sleep: Box::pin(Self::sleep(duration)) }
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: SimulatedInstant,
        future: F,
    ) -> Self::Timeout<R, F> {
        Timeout { future: Box::pin(future), sleep: Box::pin(Self::sleep_until(deadline)) }
    }

    fn is_panic(error: &Self::JoinError) -> bool {
        error.is_panic()
    }

    fn thread_rng() -> SimulatedRng {
        SimulatedRng
    }

    fn new(_threads: usize) -> Self {
        SimulatedRuntime
    }

    fn block_on<F: Future<Output = T>, T>(&mut self, future: F) -> T {
        futures::executor::block_on(future)
    }

    fn spawn_blocking<F, T>(work: F) -> impl Future<Output = Result<T, std::io::Error>> + Send
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        std::future::ready(Ok(work()))
    }
}
