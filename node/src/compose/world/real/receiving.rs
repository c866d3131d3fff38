//! Requests of clients on their way in. A stream takes memory from its headers on, and a message
//! from its first bytes, long before the service can admit or refuse it.
//!
//! What holds here:
//! - A stream is charged to its client, or refused, when its headers are there. Who shows no name with
//!   a role is a stranger ([`Owner::Stranger`]).
//! - A message is charged with its whole length when its header is there. While that does not fit,
//!   nothing more of it is taken. One that declares more than the limit is refused.
//! - The bytes of a message are passed on before the next one is charged, so that no message waits
//!   while its stream holds another one that could end.
//! - A message that takes too long fails, and what it was charged is free again. So does a call of one
//!   message whose stream does not end behind it.

use crate::access::credentials::Credentials;
use crate::access::{AccessTable, Need};
use crate::admission::memory::{Account, Charge, NotAdmitted};
use crate::admission::refusal;
use crate::admission::requests::{Accounts, Arrived, arriving_bytes, check_length};
use crate::admission::shares::Owner;
use bytes::Bytes;
use futures::future::{Either, Ready, ready};
use http_body::Frame;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

/// A flag and the length.
const HEADER_BYTES: usize = 5;
/// Memory of a header beside its name and value.
const FIELD_BYTES: usize = 96;

/// How requests are received, for all services of a port.
#[derive(Clone)]
pub(super) struct Receive {
    /// How long a message may take from its first bytes to its last, waiting included.
    pub(super) time: Duration,
    /// Who may have more than a stranger.
    pub(super) access: AccessTable,
}

impl Receive {
    /// A service whose requests are charged. A stream of it takes so many bytes beside its headers,
    /// and a message has at most so many.
    pub(super) fn service<S>(
        &self,
        service: S,
        (stream_bytes, most_bytes): (usize, usize),
    ) -> Receiving<S> {
        Receiving { service, stream_bytes, most_bytes, decodes: true, receive: self.clone() }
    }

    /// The same for a service that is not ours, and does not say when it has decoded a message: that
    /// is charged until it has arrived.
    pub(super) fn probe<S>(&self, service: S, bytes: (usize, usize)) -> Receiving<S> {
        Receiving { decodes: false, ..self.service(service, bytes) }
    }
}

/// A service whose requests are charged while they arrive.
#[derive(Clone)]
pub(super) struct Receiving<S> {
    service: S,
    stream_bytes: usize,
    most_bytes: usize,
    /// Whether it takes over the charge of each message that has arrived.
    decodes: bool,
    receive: Receive,
}

impl<S: NamedService> NamedService for Receiving<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Receiving<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Either<Ready<Result<http::Response<Body>, Infallible>>, S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let Some(accounts) = request.extensions().get::<Accounts>().cloned() else {
            return Either::Right(self.service.call(request));
        };
        let account = self.receive.who(&request, accounts.requests.clone());
        let accounts = accounts.with_requests(account.clone());
        let Some(stream) = accounts.open_stream(self.stream_bytes + header_bytes(&request)) else {
            let status = refusal::requests_overloaded("too many streams are open");
            return Either::Left(ready(Ok(status.into_http())));
        };
        let arrived = self.decodes.then(Arrived::default);
        request.extensions_mut().insert(Arc::new(stream));
        if let Some(arrived) = &arrived {
            request.extensions_mut().insert(arrived.clone());
        }
        let limits = (self.most_bytes, self.receive.time);
        let request = request.map(|body| Body::new(Arriving::new(body, account, arrived, limits)));
        Either::Right(self.service.call(request))
    }
}

impl Receive {
    /// The account of this connection, for whoever sends this request.
    fn who(&self, request: &http::Request<Body>, connection: Account) -> Account {
        let authorization = request.headers().get("authorization");
        let authorization = authorization.map(|value| value.as_bytes());
        let credentials = Credentials::presented(request.extensions(), authorization);
        let identity = self.access.identify(&credentials).ok();
        let known = identity.filter(|identity| identity.may(Need::AnyRole).is_ok());
        let Some(known) = known else { return connection.of_stranger() };
        let owner = Owner::of(&known, connection.owner());
        connection.owned_by(owner)
    }
}

fn header_bytes(request: &http::Request<Body>) -> usize {
    let fields = request.headers().iter();
    let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + FIELD_BYTES);
    request.uri().path().len() + fields.sum::<usize>()
}

/// The body of a request.
struct Arriving<B> {
    body: B,
    account: Account,
    /// Who takes the charge over of a message that has arrived; nobody of a probe's.
    arrived: Option<Arrived>,
    /// The most bytes of a message, and how long it may take.
    limits: (usize, Duration),
    /// The bytes of the present message's header so far, its length, and what is missing of it.
    header: Vec<u8>,
    length: usize,
    missing: usize,
    /// The charge of the present message, from its header to its end.
    charge: Option<Charge>,
    /// What was taken from the connection and is not looked at yet.
    taken: Bytes,
    /// Looked at, and to be passed on when its message is charged.
    piece: Option<Bytes>,
    waits: Option<Waits>,
    end: Option<Pin<Box<Sleep>>>,
}

type Waits = Pin<Box<dyn Future<Output = Result<Charge, NotAdmitted>> + Send>>;

impl<B> Arriving<B> {
    fn new(
        body: B,
        account: Account,
        arrived: Option<Arrived>,
        limits: (usize, Duration),
    ) -> Arriving<B> {
        Arriving {
            body,
            account,
            arrived,
            limits,
            header: Vec::with_capacity(HEADER_BYTES),
            length: 0,
            missing: 0,
            charge: None,
            taken: Bytes::new(),
            piece: None,
            waits: None,
            end: None,
        }
    }

    /// Looks at the bytes that were taken, up to the end of the present message. Charges the message
    /// that begins in them.
    fn look(&mut self) -> Result<(), Status> {
        let (_, time) = self.limits;
        let mut seen = 0;
        if self.missing == 0 {
            seen = (HEADER_BYTES - self.header.len()).min(self.taken.len());
            self.header.extend_from_slice(self.taken.get(..seen).unwrap_or_default());
            if let [_, length @ ..] = self.header.as_slice()
                && let Ok(length) = <[u8; 4]>::try_from(length)
            {
                self.header.clear();
                self.begin(u32::from_be_bytes(length) as usize)?;
            }
        }
        let now = self.missing.min(self.taken.len() - seen);
        self.missing -= now;
        self.piece = Some(self.taken.split_to(seen + now));
        if self.missing > 0 && self.end.is_none() {
            self.end = Some(Box::pin(tokio::time::sleep(time)));
        }
        Ok(())
    }

    /// A message of this length begins.
    fn begin(&mut self, length: usize) -> Result<(), Status> {
        let (most, time) = self.limits;
        check_length(length, most)?;
        (self.length, self.missing, self.end) = (length, length, None);
        let bytes = arriving_bytes(length);
        self.charge = self.account.try_admit(bytes);
        if self.charge.is_none() {
            let (account, end) = (self.account.clone(), Instant::now() + time);
            self.waits = Some(Box::pin(async move { account.admit(bytes, end).await }));
        }
        Ok(())
    }

    /// The next bytes that are charged, if some were taken.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        if self.piece.is_none() && !self.taken.is_empty() {
            self.look()?;
        }
        if let Some(waits) = &mut self.waits {
            let admitted = std::task::ready!(waits.as_mut().poll(context));
            self.waits = None;
            self.charge = Some(admitted.map_err(|why| match why {
                NotAdmitted::Late => self.late(),
                NotAdmitted::Crowded => {
                    refusal::requests_overloaded("too many requests wait for memory")
                }
            })?);
        }
        let piece = self.piece.take();
        if self.missing == 0 && piece.is_some() {
            self.end = None;
            let charge = self.charge.take();
            if let Some((charge, arrived)) = charge.zip(self.arrived.as_ref()) {
                arrived.put(charge, self.length)?;
            }
        }
        Poll::Ready(Ok(piece))
    }

    fn late(&self) -> Status {
        let limit = self.limits.1.as_secs();
        Status::deadline_exceeded(format!("the request did not arrive within {limit} s"))
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
        loop {
            if let Some(piece) = std::task::ready!(self.poll_piece(context))? {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.taken = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            }
        }
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
            Poll::Pending => {
                // Who asks for more before it decodes what is there takes one message, and waits for the
                // end of the stream. The story: a client never ended it, and the charge stayed.
                if this.end.is_none() && this.arrived.as_ref().is_some_and(Arrived::waits) {
                    this.end = Some(Box::pin(tokio::time::sleep(this.limits.1)));
                }
                let Some(end) = &mut this.end else { return Poll::Pending };
                end.as_mut().poll(context).map(|()| Some(Err(this.late())))
            }
            ready => ready,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.taken.is_empty() && self.piece.is_none() && self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::memory::Budget;
    use futures::FutureExt;
    use tokio::sync::mpsc;

    const TIME: Duration = Duration::from_secs(600);
    const MOST: usize = 1 << 20;

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

    struct Stream {
        sender: mpsc::UnboundedSender<Vec<u8>>,
        body: Arriving<Sent>,
        arrived: Arrived,
    }

    impl Stream {
        fn of(budget: &Budget, time: Duration) -> Stream {
            let (sender, frames) = mpsc::unbounded_channel();
            let arrived = Arrived::default();
            let account = budget.account(Arc::default());
            let body = Arriving::new(Sent(frames), account, Some(arrived.clone()), (MOST, time));
            Stream { sender, body, arrived }
        }

        fn send(&self, bytes: &[u8]) {
            self.sender.send(bytes.to_vec()).expect("sent");
        }

        async fn next(&mut self) -> Result<Frame<Bytes>, Status> {
            use http_body::Body as _;
            let next = std::future::poll_fn(|context| Pin::new(&mut self.body).poll_frame(context));
            next.await.expect("a frame")
        }

        async fn taken(&mut self) -> usize {
            self.next().await.expect("no error").into_data().expect("data").len()
        }

        /// The service has decoded the next message, and is done with it.
        fn served(&self) {
            assert!(self.arrived.decoded(0).expect("it fits").is_some(), "a message is charged");
        }
    }

    fn message(length: usize) -> Vec<u8> {
        let header = [&[0][..], &u32::try_from(length).expect("short").to_be_bytes()].concat();
        [header, vec![7; length]].concat()
    }

    fn held(budget: &Budget) -> usize {
        usize::try_from(budget.status().held_bytes).expect("a size")
    }

    #[tokio::test]
    async fn a_message_is_charged_from_its_header_until_it_is_served() {
        let budget = Budget::new(64 << 20);
        let mut stream = Stream::of(&budget, TIME);
        let bytes = [message(100), message(50)].concat();
        // Cut in the first header, in the content, and in the second header.
        let cuts = [0, 3, 60, 107, bytes.len()];
        let mut charged = Vec::new();
        for cut in cuts.windows(2) {
            stream.send(&bytes[cut[0]..cut[1]]);
        }
        let mut taken = 0;
        while taken < bytes.len() {
            taken += stream.taken().await;
            charged.push((taken, held(&budget)));
            if taken == 105 {
                stream.served();
                charged.push((taken, held(&budget)));
            }
        }
        let (first, second) = (arriving_bytes(100), arriving_bytes(50));
        assert_eq!(charged, [(3, 0), (60, first), (105, first), (105, 0), (107, 0), (160, second)]);
        stream.served();
        assert_eq!(held(&budget), 0);
    }

    #[tokio::test]
    async fn what_does_not_fit_waits_and_one_that_never_ends_frees_its_memory() {
        let budget = Budget::new(200_000);
        let (mut one, mut other) = (Stream::of(&budget, TIME), Stream::of(&budget, TIME));
        one.body.limits.1 = Duration::from_millis(50);
        one.send(&message(40_000)[..10]);
        one.taken().await;
        other.send(&message(40_000)[..10]);
        for _ in 0..3 {
            assert!(other.next().now_or_never().is_none(), "no memory for both");
        }
        assert_eq!(budget.status().waiting, 1);
        other.send(&message(40_000)[10..]);
        let error = one.next().await.expect_err("it never ends");
        assert_eq!(error.code(), tonic::Code::DeadlineExceeded);
        drop(one);
        assert_eq!((other.taken().await, other.taken().await), (10, 39_995));
        other.served();
        assert_eq!((held(&budget), budget.status().waiting), (0, 0));
    }

    /// The story: a message that began in the frame which ended the one before waited for memory
    /// while the older one was charged, and its bytes were not passed on. When all holders of the
    /// budget waited like that, each failed after 30 s.
    #[tokio::test]
    async fn a_message_whose_end_is_there_ends_before_the_next_one_waits() {
        let budget = Budget::new(260_000);
        let mut streams = [Stream::of(&budget, TIME), Stream::of(&budget, TIME)];
        let (half, two) = (10_000, [message(20_000), message(20_000)].concat());
        for stream in &mut streams {
            stream.send(&two[..half]);
            stream.taken().await;
            stream.send(&two[half..30_000]);
            stream.send(&two[30_000..]);
        }
        for stream in &mut streams {
            assert_eq!(stream.taken().await, 20_005 - half, "the first one ends");
        }
        for stream in &mut streams {
            assert!(stream.next().now_or_never().is_none(), "no memory for another one");
            stream.served();
        }
        for stream in &mut streams {
            assert_eq!(stream.taken().await + stream.taken().await, 20_005);
            stream.served();
        }
        assert_eq!(held(&budget), 0);
    }

    #[tokio::test]
    async fn a_message_that_declares_too_much_is_refused_at_its_header() {
        let budget = Budget::new(64 << 20);
        let mut stream = Stream::of(&budget, TIME);
        stream.send(&[0, 0xff, 0xff, 0xff, 0xff]);
        let error = stream.next().await.expect_err("4 GiB");
        assert_eq!(error.code(), tonic::Code::InvalidArgument);
        let detail = cairn_client::proto::ErrorDetail::of(&error).expect("a detail");
        assert_eq!((detail.limit, detail.actual), (MOST as u64, u64::from(u32::MAX)));
        assert_eq!(held(&budget), 0);
    }

    #[tokio::test]
    async fn a_call_of_one_message_whose_stream_never_ends_frees_its_memory() {
        let budget = Budget::new(64 << 20);
        let mut stream = Stream::of(&budget, Duration::from_millis(50));
        stream.send(&message(100));
        assert_eq!(stream.taken().await, 105);
        // The service waits for the end before it decodes.
        let error = stream.next().await.expect_err("it never ends");
        assert_eq!(error.code(), tonic::Code::DeadlineExceeded);
        drop(stream);
        assert_eq!(held(&budget), 0);
        // A stream of many messages may be idle.
        let mut stream = Stream::of(&budget, Duration::from_millis(50));
        stream.send(&message(100));
        assert_eq!(stream.taken().await, 105);
        stream.served();
        assert!(stream.next().now_or_never().is_none());
        assert!(stream.body.end.is_none());
    }

    /// The story: all messages of a call that takes one were read before the call was looked at. Empty
    /// ones cost nothing, and what was noted of each took the memory of the node.
    #[tokio::test]
    async fn a_call_that_takes_one_message_ends_with_the_second_one() {
        let budget = Budget::new(64 << 20);
        let mut stream = Stream::of(&budget, TIME);
        stream.send(&message(0).repeat(1000));
        assert_eq!(stream.taken().await, HEADER_BYTES);
        let error = stream.next().await.expect_err("a second message");
        assert_eq!(error.code(), tonic::Code::InvalidArgument);
        // Nobody says when a probe's message is decoded.
        let (sender, frames) = mpsc::unbounded_channel();
        let account = budget.account(Arc::default());
        let body = Arriving::new(Sent(frames), account, None, (MOST, TIME));
        let mut probe = Stream { sender, body, arrived: Arrived::default() };
        probe.send(&message(100).repeat(1000));
        for _ in 0..1000 {
            assert_eq!(probe.taken().await, 105);
            assert_eq!(held(&budget), 0);
        }
    }

    #[tokio::test]
    async fn a_stranger_waits_for_no_more_than_it_can_ever_have() {
        let budget = Budget::new(1 << 20);
        let mut stream = Stream::of(&budget, TIME);
        stream.body.account = stream.body.account.clone().owned_by(Owner::Stranger(0));
        stream.send(&message(100));
        assert_eq!(stream.taken().await, 105);
        stream.served();
        stream.send(&message(100_000));
        let error = stream.next().await.expect_err("more than a stranger has");
        assert_eq!(error.code(), tonic::Code::ResourceExhausted);
    }

    /// Messages that follow each other without a pause each have their time.
    #[tokio::test]
    async fn each_message_of_a_stream_has_its_own_time() {
        let budget = Budget::new(64 << 20);
        let mut stream = Stream::of(&budget, TIME);
        let two = message(100).repeat(2);
        let mut ends = Vec::new();
        for part in [&two[..50], &two[50..90], &two[90..160]] {
            stream.send(part);
        }
        let mut taken = 0;
        for _ in 0..4 {
            taken += stream.taken().await;
            if taken == 105 {
                stream.served();
            }
            ends.push(stream.body.end.as_ref().map(|end| end.deadline()));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(ends[0].is_some() && ends[0] == ends[1] && ends[2].is_none(), "{ends:?}");
        assert!(ends[3] > ends[0], "{ends:?}");
        stream.send(&two[160..]);
        stream.taken().await;
        assert!(stream.body.end.is_none());
    }

    /// Whatever the cuts, the messages are followed to their ends.
    #[tokio::test]
    async fn any_cuts_end_without_a_charge() {
        for step in 1..40 {
            let budget = Budget::new(64 << 20);
            let mut stream = Stream::of(&budget, TIME);
            let bytes = [message(0), message(1), message(33), message(7)].concat();
            bytes.chunks(step).for_each(|part| stream.send(part));
            let mut taken = 0;
            while taken < bytes.len() {
                taken += stream.taken().await;
                if [5, 11, 49, 61].contains(&taken) {
                    stream.served();
                }
            }
            assert_eq!(held(&budget), 0, "{step}");
        }
    }
}
