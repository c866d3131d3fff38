//! The side that accepts and answers.
//!
//! What holds here: at most [`CALLS`] calls and [`STREAMS`] append streams of a connection are served at
//! once, and more are refused. While [`UNSENT_BYTES`] of answers are not taken, no more answers are made,
//! and nothing more is received; nor is it while a request waits for its stream. A large request has its
//! share of the room of all connections until it is answered, or its stream or connection ends. A call that is being
//! served ends with its connection, or when its caller says that nobody waits for it any more: else those
//! that time out would take the places of all others.

use super::frame::{Frame, Kind};
use super::framed::Framed;
pub(crate) use super::framed::Room;
use super::message::{Message, Method, Packed};
use super::{PREFACE, methods};
use crate::core::hooks;
use crate::core::proto::{self, MAX_MESSAGE_BYTES};
use bytes::Bytes;
use futures::StreamExt;
use futures::future::{AbortHandle, BoxFuture, abortable};
use futures::stream::{BoxStream, FuturesUnordered};
use futures::task::AtomicWaker;
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{self, error::TrySendError};
use tonic::Status;

/// Calls of a connection that are served at once.
const CALLS: usize = 64;
/// Frames of a connection that are taken in its turn.
const FRAMES: usize = 64;
/// Append streams of a connection that are served at once: one, and those that are about to end.
const STREAMS: usize = 8;
/// Requests of an append stream that wait to be served.
const WAITING: usize = 2;
const UNSENT_BYTES: usize = 4 << 20;
/// The longest reason of a refusal.
const REASON_BYTES: usize = 4 << 10;

pub(crate) type Served = BoxFuture<'static, Result<Packed, Status>>;
pub(crate) type Answers = BoxStream<'static, Result<proto::AppendResponse, Status>>;
pub(crate) type Requests = BoxStream<'static, Result<proto::AppendRequest, Status>>;

/// What answers.
pub(crate) trait Service: Send {
    /// Serves a call of this method.
    ///
    /// # Errors
    /// If there is no such method.
    fn call(&self, method: u8, request: Packed) -> Result<Served, Status>;

    /// Serves an append stream. Its answers end with it.
    fn append(&self, requests: Requests) -> Answers;
}

/// A call that `serve` answers.
pub(crate) fn served<Q: Message, A: Message, F>(
    _method: Method<Q, A>,
    request: Packed,
    serve: impl FnOnce(Q) -> F,
) -> Served
where
    F: Future<Output = Result<A, Status>> + Send + 'static,
{
    match request.read::<Q>() {
        Err(malformed) => Box::pin(std::future::ready(Err(malformed.into()))),
        Ok(request) => {
            let answer = serve(request);
            Box::pin(async move { Ok(Packed::of(answer.await?)) })
        }
    }
}

/// Serves a connection until it ends. All of a member's connections share `room`.
///
/// # Errors
/// Why it ended, if the other side did not close it.
pub(crate) async fn serve<S>(stream: S, service: impl Service, room: Room) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let mut framed = Framed::new(hooks::on_network(stream), MAX_MESSAGE_BYTES, Some(room));
    let preface = poll_fn(|context| framed.poll_first(PREFACE.len(), context)).await?;
    if preface != PREFACE[..] {
        return Err(io::Error::new(io::ErrorKind::InvalidData, stranger(&preface)));
    }
    let mut connection = Connection {
        framed,
        service,
        calls: FuturesUnordered::new(),
        abandon: BTreeMap::new(),
        streams: BTreeMap::new(),
        stalled: None,
    };
    poll_fn(|context| connection.poll(context)).await
}

/// What is known of one that does not speak this protocol.
fn stranger(preface: &[u8]) -> String {
    if preface.starts_with(b"PRI * HT") {
        return "it speaks gRPC: a client must use the address of `listen.client`, and a member of an earlier release \
                must be upgraded"
            .into();
    }
    match preface.split_last().zip(PREFACE.split_last()) {
        Some(((version, name), (own, known))) if name == known => format!(
            "it speaks version {version} of the members' protocol, and this member version {own}"
        ),
        _ => "it does not speak the members' protocol".into(),
    }
}

/// A call, and its answer unless its caller went away.
type Serving = BoxFuture<'static, (u32, Option<Result<Packed, Status>>)>;

struct Connection<S, T> {
    framed: Framed<S>,
    service: T,
    calls: FuturesUnordered<Serving>,
    /// Ends a call that its caller does not wait for any more.
    abandon: BTreeMap<u32, AbortHandle>,
    streams: BTreeMap<u32, Appends>,
    /// A request whose append stream has no room for it.
    stalled: Option<(u32, Packed, Charge)>,
}

/// The room of a large frame, for as long as it is being served.
type Charge = Option<OwnedSemaphorePermit>;

/// An append stream that is being served.
struct Appends {
    /// `None`: the caller has no more requests.
    requests: Option<mpsc::Sender<Packed>>,
    /// Wakes the connection when the stream takes a request.
    room: Arc<AtomicWaker>,
    answers: Answers,
    /// Of the requests that are not answered, in their order.
    charges: VecDeque<Charge>,
}

impl<S: AsyncRead + AsyncWrite + Unpin, T: Service> Connection<S, T> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        for _ in 0..FRAMES {
            self.framed.say_alive(context);
            let full = self.poll_answers(context);
            if self.framed.poll_send(context)?.is_ready() && full {
                // There is room for more of the answers.
                continue;
            }
            if let Some((call, request, charge)) = self.stalled.take() {
                self.append(call, request, charge, context);
            }
            if self.is_full() {
                self.framed.pause();
                return Poll::Pending;
            }
            match std::task::ready!(self.framed.poll_next(context))? {
                Some(frame) => self.received(frame, context)?,
                None => return Poll::Ready(Ok(())),
            }
        }
        // The other connections have their turn.
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether nothing more is received for now. What makes room wakes the connection.
    fn is_full(&self) -> bool {
        self.stalled.is_some() || self.framed.unsent_bytes() >= UNSENT_BYTES
    }

    /// Takes the answers that are there. Returns whether there may be more, for which there is no room.
    fn poll_answers(&mut self, context: &mut Context<'_>) -> bool {
        while self.framed.unsent_bytes() < UNSENT_BYTES
            && let Poll::Ready(Some((call, answer))) = self.calls.poll_next_unpin(context)
        {
            self.abandon.remove(&call);
            if let Some(answer) = answer {
                self.framed.send(frame_of(call, answer));
            }
        }
        let mut full = self.framed.unsent_bytes() >= UNSENT_BYTES;
        let framed = &mut self.framed;
        self.streams.retain(|call, stream| {
            while framed.unsent_bytes() < UNSENT_BYTES {
                match stream.answers.poll_next_unpin(context) {
                    Poll::Pending => return true,
                    Poll::Ready(None) => {
                        framed.send(Frame { kind: Kind::End, ..empty(*call) });
                        return false;
                    }
                    Poll::Ready(Some(answer)) => {
                        stream.charges.pop_front();
                        let refused = answer.is_err();
                        framed.send(frame_of(*call, answer.map(Packed::of)));
                        if refused {
                            return false;
                        }
                    }
                }
            }
            full = true;
            true
        });
        full
    }

    fn received(&mut self, frame: Frame, context: &mut Context<'_>) -> io::Result<()> {
        let Frame { kind, code, call, message, values } = frame;
        let request = Packed { message, values };
        let charge = self.framed.take_room();
        match kind {
            Kind::Call if code == methods::APPEND.number() => {
                self.begin(call, request, charge, context);
            }
            Kind::More => self.append(call, request, charge, context),
            // It goes on receiving: what ends calls comes on the same way.
            Kind::Call if self.calls.len() >= CALLS => {
                let refusal = Status::resource_exhausted("too many calls are under way");
                self.framed.send(frame_of(call, Err(refusal)));
            }
            Kind::Call => match self.service.call(code, request) {
                Ok(served) => {
                    let (served, handle) = abortable(served);
                    self.abandon.insert(call, handle);
                    self.calls.push(Box::pin(async move {
                        let answer = served.await.ok();
                        drop(charge);
                        (call, answer)
                    }));
                }
                Err(refusal) => self.framed.send(frame_of(call, Err(refusal))),
            },
            Kind::Alive => {}
            Kind::End => {
                if let Some(stream) = self.streams.get_mut(&call) {
                    stream.requests = None;
                } else if let Some(call) = self.abandon.get(&call) {
                    call.abort();
                }
            }
            Kind::Answer | Kind::Refusal => {
                let reason = "the other side answers on a connection that it made";
                return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
            }
        }
        Ok(())
    }

    fn begin(&mut self, call: u32, request: Packed, charge: Charge, context: &mut Context<'_>) {
        if self.streams.len() >= STREAMS || self.streams.contains_key(&call) {
            let refusal = Status::resource_exhausted("too many append streams are open");
            return self.framed.send(frame_of(call, Err(refusal)));
        }
        self.streams.insert(call, Appends::begin(&self.service));
        self.append(call, request, charge, context);
    }

    /// A request of an append stream. One that has ended takes no more; its last answer said why.
    fn append(&mut self, call: u32, request: Packed, charge: Charge, context: &mut Context<'_>) {
        let Some(stream) = self.streams.get_mut(&call) else { return };
        let Some(requests) = &stream.requests else { return };
        let sent = match requests.try_send(request) {
            Err(TrySendError::Full(request)) => {
                // Again, since it may have taken one before it was told whom to wake.
                stream.room.register(context.waker());
                requests.try_send(request)
            }
            sent => sent,
        };
        match sent {
            Ok(()) => stream.charges.push_back(charge),
            Err(TrySendError::Full(request)) => self.stalled = Some((call, request, charge)),
            Err(TrySendError::Closed(_)) => {}
        }
    }
}

impl Appends {
    fn begin(service: &impl Service) -> Appends {
        let (sender, mut receiver) = mpsc::channel::<Packed>(WAITING);
        let room = Arc::new(AtomicWaker::new());
        let taken = Arc::clone(&room);
        let requests = futures::stream::poll_fn(move |context| {
            let request = receiver.poll_recv(context);
            if request.is_ready() {
                taken.wake();
            }
            request
        });
        let requests = requests.map(|request| Ok(request.read()?));
        let answers = service.append(requests.boxed());
        Appends { requests: Some(sender), room, answers, charges: VecDeque::new() }
    }
}

fn empty(call: u32) -> Frame {
    let (message, values) = (Bytes::new(), Vec::new());
    Frame { kind: Kind::Answer, code: 0, call, message, values }
}

fn frame_of(call: u32, answer: Result<Packed, Status>) -> Frame {
    match answer {
        Ok(Packed { message, values }) => Frame { message, values, ..empty(call) },
        Err(refusal) => {
            let reason = refusal.message();
            let end = reason.floor_char_boundary(REASON_BYTES);
            let message = Bytes::copy_from_slice(reason.get(..end).unwrap_or_default().as_bytes());
            // There are seventeen codes.
            Frame { kind: Kind::Refusal, code: refusal.code() as i32 as u8, message, ..empty(call) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;
    use tokio::io::AsyncWriteExt;
    use tokio::sync::Semaphore;

    /// Refuses each call, and counts them.
    struct Counting(Arc<AtomicUsize>);

    impl Service for Counting {
        fn call(&self, _: u8, _: Packed) -> Result<Served, Status> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Err(Status::unimplemented("no method"))
        }

        fn append(&self, _: Requests) -> Answers {
            futures::stream::empty().boxed()
        }
    }

    /// The story: one task serves all connections, and a member that never ceased to send kept the
    /// others from their turn: votes and heartbeats among them.
    #[tokio::test]
    async fn a_connection_that_never_ceases_to_send_gives_way_to_others() {
        let (mut other, stream) = tokio::io::duplex(1 << 20);
        let mut pieces = VecDeque::new();
        for call in 0..4 * FRAMES as u32 {
            Frame { kind: Kind::Call, code: 1, ..empty(call) }.write(&mut pieces);
        }
        other.write_all(&PREFACE).await.unwrap();
        other.write_all(&pieces.into_iter().flatten().collect::<Vec<u8>>()).await.unwrap();
        let calls = Arc::<AtomicUsize>::default();
        let mut serving = pin!(serve(stream, Counting(Arc::clone(&calls)), Room::default()));
        for turn in 1..=4 {
            assert!(futures::poll!(&mut serving).is_pending());
            assert_eq!(calls.load(Ordering::Relaxed), turn * FRAMES, "turn {turn}");
        }
    }

    /// Reads the requests of append streams, and answers each when it has leave to.
    #[derive(Clone)]
    struct Held {
        called: Arc<AtomicUsize>,
        read: Arc<AtomicUsize>,
        leave: Arc<Semaphore>,
    }

    impl Service for Held {
        fn call(&self, _: u8, _: Packed) -> Result<Served, Status> {
            self.called.fetch_add(1, Ordering::SeqCst);
            Err(Status::unimplemented("no method"))
        }

        fn append(&self, requests: Requests) -> Answers {
            let Held { read, leave, .. } = self.clone();
            let answer = move |_| {
                read.fetch_add(1, Ordering::SeqCst);
                let leave = leave.clone();
                async move {
                    leave.acquire().await.unwrap().forget();
                    Ok(proto::AppendResponse::default())
                }
            };
            requests.map(answer).buffered(8).boxed()
        }
    }

    /// The story: a request gave its room back as soon as it was received, and those that waited for
    /// their stream were charged to nobody. Calls do not wait with them: a snapshot's pieces are calls.
    #[tokio::test]
    async fn a_large_request_of_an_append_stream_has_its_room_until_it_is_answered() {
        const LARGE: usize = 4 << 20;
        let leave = Arc::new(Semaphore::new(0));
        let service = Held { called: Arc::default(), read: Arc::default(), leave };
        let room = Room::of(LARGE * 3 / 2);
        let mut tasks = Vec::new();
        for code in [methods::APPEND.number(), methods::APPEND.number(), methods::HELLO.number()] {
            let (mut other, stream) = tokio::io::duplex(1 << 20);
            tasks.push(tokio::spawn({
                let (service, room) = (service.clone(), room.clone());
                async move { drop(serve(stream, service, room).await) }
            }));
            tasks.push(tokio::spawn(async move {
                let values = vec![Bytes::from(vec![7; LARGE])];
                let mut pieces = VecDeque::new();
                Frame { kind: Kind::Call, code, values, ..empty(1) }.write(&mut pieces);
                other.write_all(&PREFACE).await.unwrap();
                for piece in pieces {
                    other.write_all(&piece).await.unwrap();
                }
                std::future::pending::<()>().await;
            }));
        }
        let read = || service.read.load(Ordering::SeqCst);
        let called = || service.called.load(Ordering::SeqCst);
        // The limit only turns a hang into a failure.
        let until = async |wanted: usize| {
            let waiting = async {
                while read() < wanted || called() == 0 {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("they are read");
        };
        until(1).await;
        for _ in 0..10_000 {
            tokio::task::yield_now().await;
            assert_eq!(read(), 1, "the first one is not answered, and has the room");
        }
        service.leave.add_permits(1);
        until(2).await;
        tasks.iter().for_each(|task| task.abort());
    }
}
