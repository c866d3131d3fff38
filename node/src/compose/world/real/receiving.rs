//! Requests of clients on their way in. A message is in memory from its first bytes, long before the
//! service can admit or refuse it.
//!
//! What holds here:
//! - A message that has not arrived completely is charged to its connection with its whole length.
//!   While that does not fit into the budget ([`Shares`]), nothing more of it is taken.
//! - A call of one message is charged until the client has ended it.
//! - A message that takes too long fails, and what it was charged is free again.

use crate::admission::memory::Reader;
use crate::admission::shares::{Owner, Shares};
use bytes::Bytes;
use http_body::Frame;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

/// A flag and the length.
const HEADER_BYTES: usize = 5;
/// The calls whose messages are a stream: each is decoded once it is complete.
const STREAMS: &str = "/Multiplex";

/// The memory that messages on their way in may take, for all connections. Clones share it.
#[derive(Clone)]
pub(super) struct Arrivals {
    state: Arc<Mutex<State>>,
    /// How long a message may take from its first bytes to its last, waiting included.
    time: Duration,
}

struct State {
    held: Shares,
    /// Bodies that wait, by the number that each gets when it begins to.
    waiting: BTreeMap<u64, Waker>,
    next: u64,
}

impl Arrivals {
    pub(super) fn new(most: usize, time: Duration) -> Arrivals {
        let state = State { held: Shares::new(most), waiting: BTreeMap::new(), next: 0 };
        Arrivals { state: Arc::new(Mutex::new(state)), time }
    }

    /// A service whose requests are charged to this.
    pub(super) fn receive<S>(&self, service: S) -> Receiving<S> {
        Receiving { service, arrivals: self.clone() }
    }
}

/// A service whose requests are charged while they arrive.
#[derive(Clone)]
pub(super) struct Receiving<S> {
    service: S,
    arrivals: Arrivals,
}

impl<S: NamedService> NamedService for Receiving<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Service<http::Request<Body>>> Service<http::Request<Body>> for Receiving<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> S::Future {
        let owner = request.extensions().get::<Reader>().map(Reader::owner);
        let streams = request.uri().path().ends_with(STREAMS);
        let request = match owner {
            Some(owner) => request
                .map(|body| Body::new(Arriving::new(body, self.arrivals.clone(), owner, streams))),
            None => request,
        };
        self.service.call(request)
    }
}

/// The body of a request.
struct Arriving<B> {
    body: B,
    arrivals: Arrivals,
    owner: Owner,
    streams: bool,
    /// The bytes of the present message's header so far, and what is missing of its content.
    header: Vec<u8>,
    missing: usize,
    /// What is charged.
    held: usize,
    /// Taken from the connection, and not yet passed on: it waits for so much memory.
    taken: Option<(Frame<Bytes>, usize)>,
    /// Its number among those that wait.
    waits: Option<u64>,
    end: Option<Pin<Box<Sleep>>>,
}

impl<B> Arriving<B> {
    fn new(body: B, arrivals: Arrivals, owner: Owner, streams: bool) -> Arriving<B> {
        Arriving {
            body,
            arrivals,
            owner,
            streams,
            header: Vec::with_capacity(HEADER_BYTES),
            missing: 0,
            held: 0,
            taken: None,
            waits: None,
            end: None,
        }
    }

    /// Follows the messages through these bytes. Returns what is to be charged behind them, and
    /// whether a message begins in them.
    fn follow(&mut self, mut bytes: &[u8]) -> (usize, bool) {
        let (mut whole, mut begins) = (self.held, false);
        while !bytes.is_empty() {
            if self.missing > 0 {
                let now = self.missing.min(bytes.len());
                self.missing -= now;
                bytes = bytes.get(now..).unwrap_or_default();
            } else {
                let now = (HEADER_BYTES - self.header.len()).min(bytes.len());
                let (header, rest) = bytes.split_at(now);
                self.header.extend_from_slice(header);
                bytes = rest;
                if let [_, length @ ..] = self.header.as_slice()
                    && let Ok(length) = <[u8; 4]>::try_from(length)
                {
                    self.missing = u32::from_be_bytes(length) as usize;
                    (whole, begins) = (HEADER_BYTES + self.missing, true);
                    self.header.clear();
                }
            }
        }
        let between = self.missing == 0 && self.header.is_empty();
        (if between && self.streams { 0 } else { whole }, begins)
    }

    /// Charges so many bytes in place of what is held, once they fit.
    fn poll_charge(&mut self, bytes: usize, context: &Context<'_>) -> Poll<()> {
        let arrivals = self.arrivals.clone();
        let mut state = arrivals.state.lock();
        if bytes > self.held && !state.held.fits(self.owner, bytes - self.held) {
            let next = state.next;
            let number = *self.waits.get_or_insert(next);
            state.next += u64::from(number == next);
            state.waiting.insert(number, context.waker().clone());
            return Poll::Pending;
        }
        self.charge(&mut state, bytes);
        Poll::Ready(())
    }

    fn charge(&mut self, state: &mut State, bytes: usize) {
        state.held.take(self.owner, bytes.saturating_sub(self.held));
        state.held.release(self.owner, self.held.saturating_sub(bytes));
        if let Some(number) = self.waits.take() {
            state.waiting.remove(&number);
        }
        if bytes < self.held {
            std::mem::take(&mut state.waiting).into_values().for_each(Waker::wake);
        }
        self.held = bytes;
    }

    /// Fails a message that is not complete in time.
    fn late(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        let Some(end) = &mut self.end else { return Poll::Pending };
        end.as_mut().poll(context).map(|()| {
            let limit = self.arrivals.time.as_secs();
            Status::deadline_exceeded(format!("the request did not arrive within {limit} s"))
        })
    }
}

impl<B> Arriving<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    Status: From<B::Error>,
{
    fn poll_taken(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.taken.is_none() {
            let frame = match std::task::ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            };
            let (charged, begins) =
                frame.data_ref().map_or((self.held, false), |bytes| self.follow(bytes));
            if charged == 0 {
                self.end = None;
            } else if begins {
                self.end = Some(Box::pin(tokio::time::sleep(self.arrivals.time)));
            }
            self.taken = Some((frame, charged));
        }
        if let Some((_, charged)) = &self.taken {
            let charged = *charged;
            std::task::ready!(self.poll_charge(charged, context));
        }
        Poll::Ready(self.taken.take().map(|(frame, _)| Ok(frame)))
    }
}

impl<B> http_body::Body for Arriving<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    Status: From<B::Error>,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        match this.poll_taken(context) {
            Poll::Pending => this.late(context).map(|late| Some(Err(late))),
            ready => ready,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.taken.is_none() && self.body.is_end_stream()
    }
}

impl<B> Drop for Arriving<B> {
    fn drop(&mut self) {
        if self.held > 0 || self.waits.is_some() {
            let arrivals = self.arrivals.clone();
            self.charge(&mut arrivals.state.lock(), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use tokio::sync::mpsc;

    const TIME: Duration = Duration::from_secs(600);
    const ONE: Owner = Owner::Connection(1);
    const OTHER: Owner = Owner::Connection(2);

    /// A body whose frames the test sends.
    struct Sent(mpsc::UnboundedReceiver<Vec<u8>>);

    impl http_body::Body for Sent {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            self.0.poll_recv(context).map(|bytes| Some(Ok(Frame::data(bytes?.into()))))
        }
    }

    fn body(
        arrivals: &Arrivals,
        owner: Owner,
        streams: bool,
    ) -> (mpsc::UnboundedSender<Vec<u8>>, Arriving<Sent>) {
        let (sender, frames) = mpsc::unbounded_channel();
        (sender, Arriving::new(Sent(frames), arrivals.clone(), owner, streams))
    }

    fn message(length: usize) -> Vec<u8> {
        let header = [&[0][..], &u32::try_from(length).expect("short").to_be_bytes()].concat();
        [header, vec![7; length]].concat()
    }

    fn held(arrivals: &Arrivals) -> usize {
        arrivals.state.lock().held.held()
    }

    async fn next(body: &mut Arriving<Sent>) -> Result<Frame<Bytes>, Status> {
        use http_body::Body as _;
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
        frame.expect("a frame")
    }

    async fn taken(body: &mut Arriving<Sent>) -> usize {
        let frame = next(body).await.expect("no error");
        frame.into_data().expect("data").len()
    }

    #[tokio::test]
    async fn a_message_is_charged_with_its_length_until_it_is_complete() {
        let arrivals = Arrivals::new(1000, TIME);
        let (sender, mut body) = body(&arrivals, ONE, true);
        let bytes = [message(100), message(50)].concat();
        // Cut in the first header, in the content, and in the second header.
        let cuts = [0, 3, 60, 107, bytes.len()];
        let mut charged = Vec::new();
        for cut in cuts.windows(2) {
            sender.send(bytes[cut[0]..cut[1]].to_vec()).expect("sent");
            assert_eq!(taken(&mut body).await, cut[1] - cut[0]);
            charged.push(held(&arrivals));
        }
        assert_eq!(charged, [0, 105, 105, 0]);
        // Complete messages are never charged.
        sender.send([message(900), message(0), message(900)].concat()).expect("sent");
        taken(&mut body).await;
        assert_eq!(held(&arrivals), 0);
    }

    #[tokio::test]
    async fn a_call_of_one_message_is_charged_until_it_is_dropped() {
        let arrivals = Arrivals::new(1000, TIME);
        let (sender, mut body) = body(&arrivals, ONE, false);
        sender.send(message(100)).expect("sent");
        taken(&mut body).await;
        assert_eq!(held(&arrivals), 105);
        drop(body);
        assert_eq!(held(&arrivals), 0);
    }

    #[tokio::test]
    async fn what_does_not_fit_waits_and_one_that_never_ends_frees_its_memory() {
        let arrivals = Arrivals::new(1000, Duration::from_millis(50));
        let ((first, mut one), (second, mut other)) =
            (body(&arrivals, ONE, true), body(&arrivals, OTHER, true));
        first.send(message(400)[..10].to_vec()).expect("sent");
        taken(&mut one).await;
        second.send(message(400)[..10].to_vec()).expect("sent");
        for _ in 0..3 {
            assert!(next(&mut other).now_or_never().is_none(), "no memory for both");
        }
        assert_eq!(arrivals.state.lock().waiting.len(), 1);
        second.send(message(400)[10..].to_vec()).expect("sent");
        let late = async {
            let error = next(&mut one).await.expect_err("it never ends");
            assert_eq!(error.code(), tonic::Code::DeadlineExceeded);
            drop(one);
        };
        late.await;
        // Its own time may be over by now, too.
        let arrivals = Arrivals { time: TIME, ..arrivals };
        other.end = Some(Box::pin(tokio::time::sleep(TIME)));
        assert_eq!(taken(&mut other).await, 10);
        assert_eq!((taken(&mut other).await, held(&arrivals)), (395, 0));
        assert!(arrivals.state.lock().waiting.is_empty());
    }

    /// Messages that follow each other without a pause each have their time.
    #[tokio::test]
    async fn each_message_of_a_stream_has_its_own_time() {
        let arrivals = Arrivals::new(1000, TIME);
        let (sender, mut body) = body(&arrivals, ONE, true);
        let two = message(100).repeat(2);
        let mut ends = Vec::new();
        for part in [&two[..50], &two[50..90], &two[90..160]] {
            sender.send(part.to_vec()).expect("sent");
            taken(&mut body).await;
            ends.push(body.end.as_ref().expect("a message is under way").deadline());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(ends[0] == ends[1] && ends[1] < ends[2], "{ends:?}");
        sender.send(two[160..].to_vec()).expect("sent");
        taken(&mut body).await;
        assert!(body.end.is_none() && held(&arrivals) == 0);
    }

    /// Whatever the cuts, the messages are followed to their ends.
    #[tokio::test]
    async fn any_cuts_end_without_a_charge() {
        for step in 1..40 {
            let arrivals = Arrivals::new(1 << 20, TIME);
            let (sender, mut body) = body(&arrivals, ONE, true);
            let bytes = [message(0), message(1), message(33), message(7)].concat();
            for part in bytes.chunks(step) {
                sender.send(part.to_vec()).expect("sent");
                taken(&mut body).await;
            }
            assert_eq!(held(&arrivals), 0, "{step}");
        }
    }
}
