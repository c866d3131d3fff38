//! The runtime under openraft: tokio's, or the simulation's. The only module of this crate that
//! knows of `cfg(madsim)`.
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
mod wire;

#[cfg(not(madsim))]
mod chosen {
    pub(crate) use openraft_rt_tokio::TokioRuntime as Runtime;
    use std::time::Duration;

    /// No message is duplicated.
    pub(crate) const fn duplicate_after() -> Option<Duration> {
        None
    }

    /// Snapshots are sent in pieces of the usual size.
    pub(crate) const fn piece_bytes(usual: u64) -> u64 {
        usual
    }

    /// Snapshots are read in ranges of the usual size.
    pub(crate) const fn range_bytes(usual: u64) -> u64 {
        usual
    }

    /// Whether nobody listens where a call to a member was sent.
    pub(crate) fn is_refused(_slot: u16, error: &tonic::Status) -> bool {
        let causes = std::iter::successors(std::error::Error::source(error), |one| one.source());
        causes
            .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
            .any(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    }

    /// Nothing observes it.
    pub(crate) const fn note_flushed(_slot: u16, _last: cairn_engine::LogId) {}

    /// The network encodes it.
    pub(crate) const fn on_its_way<M>(message: M) -> Option<M> {
        Some(message)
    }

    /// The real network needs no wrapper.
    pub(crate) const fn behind_network<S>(service: S) -> S {
        service
    }

    /// The tonic service around the peer service.
    pub(crate) type Served<S> = crate::core::proto::peer_server::PeerServer<S>;
}

#[cfg(madsim)]
mod chosen {
    pub(crate) use super::simulated::SimulatedRuntime as Runtime;
    pub(crate) use super::simulated::{
        duplicate_after, is_refused, note_flushed, piece_bytes, range_bytes,
    };

    /// Encodes and decodes a message of a stream; `None` if it is larger than the limit.
    pub(crate) fn on_its_way<M: prost::Message + Default>(message: M) -> Option<M> {
        super::wire::encoded(&message, crate::core::proto::MAX_MESSAGE_BYTES).ok()
    }

    pub(crate) const fn behind_network<S>(service: S) -> super::wire::OverWire<S> {
        super::wire::OverWire(service)
    }

    /// The tonic service around the peer service.
    pub(crate) type Served<S> = crate::core::proto::peer_server::PeerServer<
        super::wire::OverWire<S>,
        tonic::codegen::IdentityInterceptor,
    >;
}

/// What the simulation uses of this module.
pub(crate) mod exports {
    #[cfg(madsim)]
    pub use super::simulated::{
        cut_snapshots, flushed, forget_earlier_run, messages_repeated, refuse_connections,
        repeat_messages, set_clock_rate,
    };
    #[cfg(madsim)]
    pub use super::wire::{calls_reset, encoded, reset_calls, stream_until_reset, until_reset};
}

pub(crate) use chosen::{
    Runtime, Served, behind_network, duplicate_after, is_refused, note_flushed, on_its_way,
    piece_bytes, range_bytes,
};

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

#[cfg(madsim)]
mod simulated {
    //! openraft's runtime over madsim.

    use cairn_engine::LogId;
    use madsim::rand::{Rng, RngCore};
    use madsim::task::NodeId;
    use madsim::time::TimeHandle;
    use openraft_rt::{AsyncRuntime, OptionalSend};
    use openraft_rt_sim::SimWatch;
    use openraft_rt_tokio::{TokioMpsc, TokioMutex, TokioOneshot};
    use std::cell::{Cell, RefCell};
    use std::collections::{BTreeMap, BTreeSet};
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
        /// How many of a thousand messages between members are sent a second time.
        static REPEATS: Cell<u32> = const { Cell::new(0) };
        static REPEATED: Cell<u64> = const { Cell::new(0) };
        /// The size of a snapshot's pieces in bytes, if not the usual one.
        static PIECE_BYTES: Cell<Option<u64>> = const { Cell::new(None) };
        /// By slot, the last entry that a member reported to openraft as stored: from then on it
        /// counts for a quorum.
        static FLUSHED: RefCell<BTreeMap<u16, LogId>> = const { RefCell::new(BTreeMap::new()) };
        /// The slots whose process has ended on a machine that is up.
        static REFUSE: RefCell<BTreeSet<u16>> = const { RefCell::new(BTreeSet::new()) };
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
            self.shown_base
                + scale(real.saturating_sub(self.real_base), u128::from(self.rate), PARTS)
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

    /// From now on sends this many of a thousand messages between members a second time, up to some
    /// seconds later.
    pub fn repeat_messages(per_mille: u32) {
        REPEATS.set(per_mille);
    }

    /// How many messages were sent a second time, since the last call of this function.
    pub fn messages_repeated() -> u64 {
        REPEATED.replace(0)
    }

    /// After how long to send the present message a second time; `None`: never.
    pub(crate) fn duplicate_after() -> Option<Duration> {
        let per_mille = REPEATS.get();
        let mut rng = madsim::rand::thread_rng();
        if per_mille == 0 || rng.gen_range(0..1_000) >= per_mille {
            return None;
        }
        REPEATED.set(REPEATED.get() + 1);
        // Half of the copies overtake messages that were sent soon after; half arrive after the
        // leader, and often the receiver's process, has ended.
        let longest_us = if rng.gen_bool(0.5) { 20_000 } else { 10_000_000 };
        Some(Duration::from_micros(rng.gen_range(0..longest_us)))
    }

    /// From now on snapshots are sent in pieces of this many bytes, or of the usual size.
    pub fn cut_snapshots(piece_bytes: Option<u64>) {
        PIECE_BYTES.set(piece_bytes);
    }

    pub(crate) fn piece_bytes(usual: u64) -> u64 {
        PIECE_BYTES.get().unwrap_or(usual)
    }

    /// A range is cut into several pieces, and the last of them is shorter, as with the usual sizes.
    pub(crate) fn range_bytes(usual: u64) -> u64 {
        PIECE_BYTES.get().map_or(usual, |piece| piece * 5 / 2)
    }

    /// A member reports to openraft that its log is stored through `last`.
    pub(crate) fn note_flushed(slot: u16, last: LogId) {
        FLUSHED.with_borrow_mut(|flushed| flushed.insert(slot, last));
    }

    /// The last entry that the member of this slot reported as stored, in any of its boots.
    pub fn flushed(slot: u16) -> Option<LogId> {
        FLUSHED.with_borrow(|flushed| flushed.get(&slot).copied())
    }

    /// From now on the machine of this slot refuses connections, since no process listens there. One
    /// that is off, or cut from others, does not: it answers nothing.
    pub fn refuse_connections(slot: u16, refuse: bool) {
        REFUSE.with_borrow_mut(|slots| match refuse {
            true => slots.insert(slot),
            false => slots.remove(&slot),
        });
    }

    /// madsim says of a cut link, too, that the connection is refused.
    pub(crate) fn is_refused(slot: u16, error: &tonic::Status) -> bool {
        error.code() == tonic::Code::Unavailable
            && REFUSE.with_borrow(|slots| slots.contains(&slot))
    }

    /// Call this when a simulation begins, since the state of this module belongs to the thread.
    pub fn forget_earlier_run() {
        CLOCKS.with_borrow_mut(BTreeMap::clear);
        FLUSHED.with_borrow_mut(BTreeMap::clear);
        REFUSE.with_borrow_mut(BTreeSet::clear);
        REPEATS.set(0);
        REPEATED.set(0);
        super::wire::reset_calls(0);
        super::wire::calls_reset();
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
}
